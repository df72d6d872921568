"""CTC: against the enumeration of every path, against others, and rows that have none."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketjax.nn.ctc import align, ctc_loss, feasible
from bucketjax.nn.decoding import collapse


def paths_of(logits, label, blank=0):
    """(path, log of its probability) of every path that spells the label."""
    log_probabilities = np.asarray(jax.nn.log_softmax(logits.astype(np.float64)))
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        if collapse(np.array(path, int), blank_id=blank).tolist() == list(label):
            yield path, log_probabilities[np.arange(len(logits)), path].sum()


@st.composite
def cases(draw):
    """A few rows side by side, the padding full of what must not matter."""
    blank = draw(st.integers(0, 2))
    characters = st.sampled_from([c for c in range(3) if c != blank])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows = []
    for _ in range(4):
        length, label = draw(st.integers(0, 5)), draw(st.lists(characters, max_size=3))
        rows.append((rng.normal(size=(length, 3)).astype(np.float32) * 2, label))
    filling = draw(st.sampled_from([0.0, 1e30, np.nan, np.inf, -np.inf]))
    logits = np.full((4, 5, 3), filling, np.float32)
    labels = np.full((4, 3), draw(st.integers(-5, 5)), np.int32)
    for row, (real, label) in enumerate(rows):
        logits[row, : len(real)] = real
        labels[row, : len(label)] = label
    lengths = np.array([len(real) for real, _ in rows])
    label_lengths = np.array([len(label) for _, label in rows])
    return rows, tuple(map(jnp.array, (logits, lengths, labels, label_lengths))), blank


@jax.jit(static_argnums=(1,))
def loss_and_gradient(batch, blank):
    def total(logits):
        losses, possible = ctc_loss(logits, *batch[1:], blank_id=blank)
        return losses.sum(), (losses, possible)

    gradient, (losses, possible) = jax.grad(total, has_aux=True)(batch[0])
    return losses, possible, gradient, align(*batch, blank_id=blank)


@given(cases())
@settings(max_examples=60)
def test_loss_gradient_and_alignment_are_those_of_all_paths(case):
    rows, batch, blank = case
    losses, possible, gradient, alignment = map_to_numpy(loss_and_gradient(batch, blank))
    for row, (real, label) in enumerate(rows):
        paths = list(paths_of(real, label, blank))
        assert bool(possible[row]) == bool(paths)
        assert not gradient[row, len(real) :].any()
        assert (alignment.positions[row, len(real) :] == -1).all()
        if not paths:
            assert losses[row] == 0
            assert not gradient[row].any()
            assert (alignment.positions[row] == -1).all()
            assert alignment.log_probability[row] == -np.inf
            continue
        scores = np.array([score for _, score in paths])
        expected = -np.logaddexp.reduce(scores)
        np.testing.assert_allclose(losses[row], expected, rtol=1e-5, atol=2e-6)
        # Each frame's softmax less the share of the paths that show a class there.
        by_hand = np.exp(np.asarray(jax.nn.log_softmax(real.astype(np.float64))))
        for path, score in paths:
            by_hand[np.arange(len(real)), path] -= np.exp(score + expected)
        np.testing.assert_allclose(gradient[row, : len(real)], by_hand, rtol=0, atol=5e-6)
        assert losses[row] >= 0
        np.testing.assert_allclose(alignment.log_probability[row], scores.max(), atol=1e-5)
        positions = alignment.positions[row, : len(real)]
        path = np.where(positions < 0, blank, np.array([*label, blank])[positions])
        assert collapse(path, blank_id=blank).tolist() == label
        found = [score for other, score in paths if list(other) == path.tolist()]
        np.testing.assert_allclose(found, scores.max(), atol=1e-5)
        assert sorted(set(positions.tolist()) - {-1}) == list(range(len(label)))


def map_to_numpy(tree):
    return jax.tree.map(np.asarray, tree)


def in_float64(logits, lengths, labels, label_lengths):
    """Losses and gradients by the textbook's two recursions over logarithms, in float64."""
    losses, gradients = [], np.zeros(logits.shape)
    for row, (length, size) in enumerate(zip(lengths, label_lengths, strict=True)):
        frames = logits[row, :length].astype(np.float64)
        logs = frames - np.logaddexp.reduce(frames, axis=1, keepdims=True)
        states = np.zeros(2 * size + 1, int)
        states[1::2] = labels[row, :size]
        skips = np.zeros(len(states), bool)
        skips[2:] = (states[2:] != 0) & (states[2:] != states[:-2])

        def run(logs, states, skips):
            table = np.full((len(logs), len(states)), -np.inf)
            table[0, :2] = logs[0, states[:2]]
            for time in range(1, len(logs)):
                before = table[time - 1]
                total = np.logaddexp(before, np.append(-np.inf, before[:-1]))
                jump = np.append([-np.inf, -np.inf], before[:-2])[: len(states)]
                total = np.logaddexp(total, np.where(skips, jump, -np.inf))
                table[time] = total + logs[time, states]
            return table

        forward = run(logs, states, skips)
        # Backwards a state is skipped into from the one that skips forwards.
        backward_skips = np.append(skips[2:], [False, False])[: len(states)][::-1]
        backward = run(logs[::-1], states[::-1], backward_skips)[::-1, ::-1]
        loss = -np.logaddexp.reduce(forward[-1, -2:])
        posteriors = np.exp(forward + backward - logs[:, states] + loss)
        gradient = np.exp(logs)
        for state, label in enumerate(states):
            gradient[:, label] -= posteriors[:, state]
        losses.append(loss)
        gradients[row, :length] = gradient
    return np.array(losses), gradients


@pytest.fixture(scope="module", params=[(64, 12, 1.0), (700, 60, 3.0), (64, 30, 20.0)], ids=str)
def large(request):
    """A large batch, its losses and gradients in float64; the last one is far from its labels."""
    frames, size, spread = request.param
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(4, frames, 40)) * spread).astype(np.float32)
    labels = rng.integers(1, 40, size=(4, size)).astype(np.int32)
    labels[:, 1] = labels[:, 0]
    lengths = np.array([frames, frames - 3, frames - 20, 2 * size + 1], np.int32)
    label_lengths = np.array([size, size // 2, 1, size], np.int32)
    batch = logits, lengths, labels, label_lengths
    return batch, *in_float64(*batch)


def test_large_batches_are_as_in_float64_and_nearer_than_optax(large):
    batch, expected, by_logits = large
    losses, possible, gradient, _ = loss_and_gradient(tuple(map(jnp.array, batch)), 0)
    assert possible.all()
    np.testing.assert_allclose(losses, expected, rtol=2e-6)
    error = np.abs(gradient - by_logits).max()
    assert error < 2e-4

    def by_optax(logits):
        padding = [
            1.0 - (np.arange(array.shape[1]) < lengths[:, None])
            for array, lengths in ((batch[0], batch[1]), (batch[2], batch[3]))
        ]
        return optax.ctc_loss(logits, padding[0], batch[2], padding[1]).sum()

    theirs = jax.grad(by_optax)(jnp.array(batch[0]))
    np.testing.assert_allclose(gradient, theirs, rtol=0, atol=0.02)
    assert error <= 2 * np.abs(theirs - by_logits).max()


def test_large_batches_are_as_in_torch(large):
    torch = pytest.importorskip("torch", reason="needs the extra `bench`")
    (logits, lengths, labels, label_lengths), expected, by_logits = large
    given = torch.from_numpy(logits).requires_grad_()
    theirs = torch.nn.functional.ctc_loss(
        given.log_softmax(-1).transpose(0, 1),
        *(torch.from_numpy(array).long() for array in (labels, lengths, label_lengths)),
        reduction="none",
    )
    theirs.sum().backward()
    np.testing.assert_allclose(theirs.detach().numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(given.grad.numpy(), by_logits, rtol=0, atol=0.02)
    losses, _, gradient, _ = loss_and_gradient(
        tuple(map(jnp.array, (logits, lengths, labels, label_lengths))), 0
    )
    np.testing.assert_allclose(losses, theirs.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(gradient, given.grad.numpy(), rtol=0, atol=0.02)


def test_a_label_that_is_certain_costs_nothing_and_never_less():
    labels = np.tile(np.array([1, 2, 3, 1, 0, 0]), (3, 1))
    path = np.repeat([1, 0, 2, 3, 0, 1], 300)
    for sharpness in (20.0, 60.0, 1e4):
        logits = np.where(np.arange(5) == path[:, None], sharpness, 0.0).astype(np.float32)
        batch = np.tile(logits, (3, 1, 1)), np.array([1800] * 3), labels, np.array([4] * 3)
        losses, _, gradient, alignment = loss_and_gradient(tuple(map(jnp.array, batch)), 0)
        assert (np.asarray(losses) >= 0).all()
        assert (np.asarray(losses) < 0.01).all()
        assert np.abs(gradient).max() < 1e-3
        shown = np.array([0, 1, 2, 3, -1])
        assert (alignment.positions[0] == np.repeat(shown[[0, 4, 1, 2, 4, 3]], 300)).all()


def test_the_loss_is_never_negative_where_many_paths_share_a_certain_label():
    rng = np.random.default_rng(0)
    logits = np.zeros((512, 12, 2), np.float32)
    logits[..., 1] = rng.uniform(6, 16, size=(512, 12))
    lengths = rng.integers(1, 13, size=512)
    batch = logits, lengths, np.ones((512, 1), int), np.ones(512, int)
    losses, _, _, _ = loss_and_gradient(tuple(map(jnp.array, batch)), 0)
    assert (np.asarray(losses) >= 0).all()
    assert (np.asarray(losses) == 0).any()


def test_a_label_that_is_impossible_to_see_has_a_finite_loss_and_a_gradient_that_helps():
    logits = np.zeros((1, 2000, 4), np.float32)
    logits[..., 2] = -np.inf  # a class that a mask forbids
    batch = tuple(map(jnp.array, (logits, [2000], [[1, 2]], [2])))
    losses, _, gradient, _ = loss_and_gradient(batch, 0)
    assert 9e4 < losses[0] < 1e5
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient.sum(axis=1)[0, 2], -1, atol=1e-3)  # shown once at least


def test_what_is_not_a_number_at_a_real_frame_is_not_hidden():
    logits = jnp.zeros((3, 4, 3)).at[0, 1, 1].set(jnp.nan).at[1, 3, 0].set(jnp.inf)
    batch = logits, jnp.array([3, 4, 4]), jnp.ones((3, 2), int), jnp.array([1, 1, 1])
    losses, _, gradient, alignment = loss_and_gradient(batch, 0)
    assert np.isnan(losses).tolist() == [True, True, False]
    assert np.isnan(gradient[0, :3]).all()
    assert np.isfinite(gradient[2]).all()
    assert np.isnan(alignment.log_probability).tolist() == [True, True, False]


def test_a_blank_that_is_no_class_is_refused():
    for run in (ctc_loss, align):
        with pytest.raises(ValueError, match="blank_id must be 0 to 2, a class; got 3"):
            run(
                jnp.zeros((1, 2, 3)),
                jnp.array([2]),
                jnp.ones((1, 1), int),
                jnp.array([1]),
                blank_id=3,
            )


def test_second_derivatives_are_refused():
    def gradient_size(logits):
        def total(x):
            batch = jnp.array([2]), jnp.ones((1, 1), int), jnp.array([1])
            return ctc_loss(x, *batch)[0].sum()

        return (jax.grad(total)(logits) ** 2).sum()

    with pytest.raises(NotImplementedError, match="first derivatives only"):
        jax.grad(gradient_size)(jnp.zeros((1, 2, 3)))
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(gradient_size, (jnp.zeros((1, 2, 3)),), (jnp.ones((1, 2, 3)),))


def test_half_precision_logits_have_a_loss_in_float32_and_a_gradient_of_their_own_type():
    logits = jax.random.normal(jax.random.key(0), (1, 5, 3), jnp.bfloat16)
    batch = jnp.array([5]), jnp.ones((1, 1), int), jnp.array([1])
    losses, _, gradient, _ = loss_and_gradient((logits, *batch), 0)
    expected, _, by_logits, _ = loss_and_gradient((logits.astype(jnp.float32), *batch), 0)
    assert losses.dtype == jnp.float32
    assert gradient.dtype == jnp.bfloat16
    assert losses == expected
    np.testing.assert_allclose(gradient.astype(jnp.float32), by_logits, atol=0.005)


def test_an_infeasible_row_has_no_gradient_at_all():
    lengths, labels = jnp.array([2, 2]), jnp.array([[1, 1], [1, 2]])

    def total(logits):
        return ctc_loss(logits, lengths, labels, jnp.array([2, 2]))[0].sum()

    gradient = jax.grad(total)(jnp.ones((2, 3, 4)))
    assert not gradient[0].any()
    assert gradient[1, :2].any()
    assert not gradient[1, 2].any()


@given(st.integers(0, 6), st.lists(st.integers(1, 2), max_size=5))
@settings(max_examples=40)
def test_feasible_means_that_some_path_spells_the_label(length, label):
    padded = np.full((1, 5), label[-1] if label else 1, np.int32)
    padded[0, : len(label)] = label
    found = feasible(jnp.array([length]), jnp.array(padded), jnp.array([len(label)]))
    paths = itertools.product(range(3), repeat=length)
    assert bool(found[0]) == any(collapse(np.array(p, int)).tolist() == label for p in paths)


def test_an_empty_label_costs_the_blanks():
    logits = jnp.array([[[0.0, 1.0], [2.0, -1.0]]])
    losses, possible = ctc_loss(logits, jnp.array([2]), jnp.zeros((1, 1), int), jnp.array([0]))
    expected = -jax.nn.log_softmax(logits[0])[:, 0].sum()
    np.testing.assert_allclose(losses[0], expected, rtol=1e-6)
    assert possible.tolist() == [True]
