"""CTC: against the enumeration of every path, and rows that have none."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketjax.nn.ctc import ctc_loss, feasible
from bucketjax.nn.decoding import collapse


def by_enumeration(logits, label):
    """-log of the summed probability of every path that spells the label."""
    log_probabilities = np.asarray(jax.nn.log_softmax(logits.astype(np.float64)))
    total = -np.inf
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        if collapse(np.array(path, int)).tolist() == list(label):
            total = np.logaddexp(total, log_probabilities[np.arange(len(logits)), path].sum())
    return -total


@st.composite
def cases(draw):
    length = draw(st.integers(1, 5))
    label = draw(st.lists(st.integers(1, 2), max_size=3))
    seed = draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).normal(size=(length, 3)).astype(np.float32) * 2, label


@given(st.lists(cases(), min_size=4, max_size=4))
@settings(max_examples=25)
def test_the_loss_is_that_of_all_paths_and_infeasible_rows_have_none(rows):
    logits = np.full((4, 5, 3), 1e30, np.float32)  # the padding's value must not matter
    labels = np.full((4, 3), 2, np.int32)
    for row, (real, label) in enumerate(rows):
        logits[row, : len(real)] = real
        labels[row, : len(label)] = label
    lengths = np.array([len(real) for real, _ in rows])
    label_lengths = np.array([len(label) for _, label in rows])
    losses, possible = ctc_loss(*map(jnp.array, (logits, lengths, labels, label_lengths)))
    for row, (real, label) in enumerate(rows):
        expected = by_enumeration(real, label)
        assert bool(possible[row]) == np.isfinite(expected)
        if possible[row]:
            np.testing.assert_allclose(losses[row], expected, rtol=1e-4, atol=1e-5)
        else:
            assert losses[row] == 0


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
