"""The step: one program per bucket, the same update on any number of devices, sums divided once."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from bucketjax import Batch, BucketSpec, Loader, compiles, parallel
from bucketjax.nn import Recognizer, ctc_loss
from bucketjax.training import steps

LEARN, LOOK = np.bool_(True), np.bool_(False)


def make_batch(seed=0, real=(1, 1, 1, 0, 1, 0, 0, 0)):
    rng = np.random.default_rng(seed)
    real = np.array(real, np.float32)
    lengths = np.where(real, rng.integers(4, 9, 8), 1).astype(np.int32)
    label_lengths = np.where(real, rng.integers(1, 3, 8), 0).astype(np.int32)
    return Batch(
        arrays={
            "features": rng.normal(size=(8, 8, 3)).astype(np.float32),
            "labels": rng.integers(1, 5, (8, 3)).astype(np.int32),
        },
        lengths=lengths,
        label_lengths=label_lengths,
        weights=real,
        indices=np.where(real, np.arange(8), -1).astype(np.int32),
        bucket=np.int32(0),
    )


def make(optimizer=None, dropout=0.0):
    model = Recognizer(3, 5, hidden=4, layers=2, dropout=dropout, rngs=nnx.Rngs(0))
    return model, optimizer or optax.sgd(0.5)


def run(batch, devices, learn=LEARN, optimizer=None, accumulate=1):
    model, optimizer = make(optimizer)
    mesh = parallel.data_mesh(devices)
    step = parallel.data_parallel(
        steps.make_step(model, optimizer, accumulate=accumulate),
        mesh,
        row_results=steps.ROW_RESULTS,
    )
    state = parallel.replicate(steps.init_state(model, optimizer), mesh)
    return jax.device_get(step(state, parallel.split_rows(batch, mesh), learn))


def expected_update(batch):
    """Plain gradient descent on the mean over the real rows, without mesh, flag or sums."""
    model, _ = make()
    graph, params = nnx.split(model)
    rows = np.flatnonzero(batch.weights)

    def mean(params):
        logits = nnx.merge(graph, params)(batch.arrays["features"], jnp.array(batch.lengths))
        losses, _ = ctc_loss(
            logits,
            jnp.array(batch.lengths),
            jnp.array(batch.arrays["labels"]),
            jnp.array(batch.label_lengths),
        )
        return losses[rows].mean()

    loss, gradient = jax.value_and_grad(mean)(params)
    return loss, jax.tree.map(lambda p, g: p - 0.5 * g, params, gradient)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_update_is_that_of_one_plain_gradient_step(devices, seed):
    batch = make_batch(seed)  # four real rows, unequally many per device, some devices with none
    batch = batch._replace(arrays={k: jnp.array(v) for k, v in batch.arrays.items()})
    loss, params = expected_update(batch)
    state, metrics = run(batch, devices)
    assert metrics.weight == 4
    np.testing.assert_allclose(metrics.loss / metrics.weight, loss, rtol=1e-5)
    for found, expected in zip(jax.tree.leaves(state.params), jax.tree.leaves(params), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert state.step == 1


@pytest.mark.parametrize(("devices", "accumulate"), [(1, 2), (1, 8), (2, 2), (4, 2)])
def test_in_parts_the_result_is_the_same(devices, accumulate):
    batch = make_batch(real=(1, 1, 1, 0, 1, 0, 0, 0))  # parts with unequally many real rows
    batch.lengths[1], batch.label_lengths[1] = 1, 3  # and an infeasible one
    for learn in (LEARN, LOOK):
        state, metrics = run(batch, devices, learn, accumulate=accumulate)
        expected_state, expected = run(batch, 1, learn)
        assert (metrics.weight, metrics.infeasible) == (3, 1)
        np.testing.assert_allclose(metrics.loss, expected.loss, rtol=1e-6)
        np.testing.assert_allclose(metrics.grad_norm, expected.grad_norm, rtol=1e-5)
        np.testing.assert_array_equal(metrics.classes, expected.classes)
        for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected_state), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_parts_that_do_not_divide_the_rows_are_refused():
    with pytest.raises(ValueError, match="4 rows on each device cannot be computed in 3 equal"):
        run(make_batch(), 2, accumulate=3)
    with pytest.raises(ValueError, match="accumulate must be at least 1; got 0"):
        steps.make_step(*make(), accumulate=0)


def memory_of(accumulate, chunk=None, rows=16, frames=256):
    model = Recognizer(3, 5, hidden=16, layers=1, chunk=chunk, rngs=nnx.Rngs(0))
    optimizer = optax.sgd(0.1)
    mesh = parallel.data_mesh(1)
    step = parallel.data_parallel(
        steps.make_step(model, optimizer, accumulate=accumulate),
        mesh,
        row_results=steps.ROW_RESULTS,
    )
    batch = Batch(
        arrays={
            "features": np.zeros((rows, frames, 3), np.float32),
            "labels": np.ones((rows, 4), np.int32),
        },
        lengths=np.full(rows, frames, np.int32),
        label_lengths=np.full(rows, 4, np.int32),
        weights=np.ones(rows, np.float32),
        indices=np.arange(rows, dtype=np.int32),
        bucket=np.int32(0),
    )
    state = parallel.abstract_like(steps.init_state(model, optimizer), mesh)
    shapes = state, parallel.abstract_like(batch, mesh, rows=True), LEARN
    return step.lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def test_parts_and_chunks_save_memory():
    whole = memory_of(1)
    assert memory_of(8) < 0.3 * whole
    assert memory_of(1, chunk=16) < 0.7 * whole


def test_the_state_is_donated():
    model, optimizer = make()
    mesh = parallel.data_mesh(2)
    step = parallel.data_parallel(
        steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
    )
    state = parallel.replicate(steps.init_state(model, optimizer), mesh)
    after, _ = step(state, parallel.split_rows(make_batch(), mesh), LEARN)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(after))


def test_evaluating_gives_the_metrics_and_leaves_the_state_bit_for_bit():
    model, optimizer = make()
    before = steps.init_state(model, optimizer)
    _, learning = run(make_batch(), 2)
    after, looking = run(make_batch(), 2, learn=LOOK)
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        np.testing.assert_array_equal(one, other)
    assert looking.loss == learning.loss
    assert looking.grad_norm == 0 < learning.grad_norm
    np.testing.assert_array_equal(looking.classes, learning.classes)


def test_training_and_evaluating_share_one_compilation():
    model, optimizer = make()
    mesh = parallel.data_mesh(2)
    step = compiles.watch(
        parallel.data_parallel(
            steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
        )
    )
    state = parallel.replicate(steps.init_state(model, optimizer), mesh)
    batch = parallel.split_rows(make_batch(), mesh)
    with compiles.count() as log:
        for learn in (LOOK, LEARN, LEARN, LOOK):
            state, _ = step(state, batch, learn)
    assert log.count == 1


def test_an_infeasible_row_is_counted_and_weighs_nothing():
    batch = make_batch(real=[1] * 8)
    crowded = batch._replace(label_lengths=batch.label_lengths.copy(), lengths=batch.lengths.copy())
    crowded.label_lengths[2], crowded.lengths[2] = 3, 2
    lighter = batch._replace(weights=batch.weights.copy())
    lighter.weights[2] = 0
    state, metrics = run(crowded, 4)
    expected, without = run(lighter, 4)
    assert (metrics.infeasible, metrics.weight) == (1, 7)
    np.testing.assert_allclose(metrics.loss, without.loss, rtol=1e-6)
    for one, other in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", ["filler", "infeasible"])
def test_a_batch_of_nothing_moves_nothing(kind):
    batch = make_batch(real=[0] * 8 if kind == "filler" else [1] * 8)
    if kind == "infeasible":
        batch = batch._replace(lengths=np.zeros(8, np.int32))
    optimizer = steps.make_optimizer(learning_rate=0.1, total_steps=10, weight_decay=0.1)
    before = steps.init_state(*make(optimizer))
    state, metrics = run(batch, 4, optimizer=optimizer)
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)
    assert metrics.weight == 0
    assert metrics.infeasible == (0 if kind == "filler" else 8)


def test_dropout_differs_from_step_to_step_and_is_absent_in_evaluation():
    model, optimizer = make(optax.sgd(0.0), dropout=0.5)
    mesh = parallel.data_mesh(1)
    step = parallel.data_parallel(
        steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
    )
    state = parallel.replicate(steps.init_state(model, optimizer), mesh)
    batch = parallel.split_rows(make_batch(), mesh)
    losses = {True: [], False: []}
    for learn in (True, True, False, True, False):
        state, metrics = step(state, batch, np.bool_(learn))
        losses[learn].append(float(metrics.loss))
    assert len(set(losses[True])) == 3
    assert len(set(losses[False])) == 1
    _, plain = run(make_batch(), 1, learn=LOOK)
    np.testing.assert_allclose(losses[False][0], plain.loss, rtol=1e-6)


def test_the_learning_rate_rises_and_falls():
    optimizer = steps.make_optimizer(learning_rate=0.1, total_steps=10, warmup=0.2, clip_norm=1e9)
    params, sizes = jnp.zeros(()), []
    state = optimizer.init(params)
    for _ in range(10):
        updates, state = optimizer.update(jnp.ones(()), state, params)
        sizes.append(-float(updates))
    assert sizes[0] == 0
    assert max(sizes) == pytest.approx(0.1, rel=1e-3) == sizes[2]
    assert sizes[3:] == sorted(sizes[3:], reverse=True)
    assert sizes[-1] < 0.01


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"total_steps": 0}, "total_steps must be at least 1; got 0"),
        ({"warmup": 1.0}, "warmup must be at least 0 and below 1; got 1.0"),
    ],
)
def test_settings_of_the_optimizer_that_are_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        steps.make_optimizer(**{"learning_rate": 1.0, "total_steps": 5, **arguments})


def test_k_buckets_cost_k_compilations_for_training_and_evaluation_together():
    rng = np.random.default_rng(0)
    source = [
        {
            "features": rng.normal(size=(n, 3)).astype(np.float32),
            "labels": rng.integers(1, 5, n // 4).astype(np.int32),
        }
        for n in rng.integers(4, 40, 60)
    ]
    lengths = [len(example["features"]) for example in source]
    spec = BucketSpec.fit(
        lengths,
        num_buckets=4,
        batch_size=8,
        batch_multiple_of=2,
        label_lengths=[n // 4 for n in lengths],
    )
    mesh = parallel.data_mesh(2)
    loader = Loader(source, spec, place=lambda batch: parallel.split_rows(batch, mesh))
    model, optimizer = make()
    step = compiles.watch(
        parallel.data_parallel(
            steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
        )
    )
    state = parallel.replicate(steps.init_state(model, optimizer), mesh)
    with compiles.count() as log:
        for learn in (LEARN, LOOK):
            for batch in loader:
                state, _ = step(state, batch, learn)
        with compiles.forbid():  # none in the second epoch
            for batch in loader:
                state, _ = step(state, batch, LEARN)
    assert log.count == spec.num_buckets == 4
    assert log.other == []
