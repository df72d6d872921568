"""Data parallelism: the same result on any number of devices, and exactly K compilations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketjax import BucketSpec, Loader, compiles, parallel


def weighted_mean(state, batch):
    """One SGD step on a weighted mean of squares: sums, psummed, divided once."""

    def summed(weights_of_model):
        error = batch["x"] @ weights_of_model - batch["y"]
        return (batch["weight"] * error**2).sum()

    loss, gradient = jax.value_and_grad(summed)(state)
    loss, gradient, weight = jax.lax.psum((loss, gradient, batch["weight"].sum()), parallel.AXIS)
    weight = jnp.maximum(weight, 1)
    return state - 0.1 * gradient / weight, {"loss": loss / weight, "row": batch["y"]}


@given(st.integers(0, 2**32 - 1), st.lists(st.booleans(), min_size=8, max_size=8))
@settings(max_examples=10)
def test_any_number_of_devices_gives_the_same_step(seed, real):
    rng = np.random.default_rng(seed)
    batch = {
        "x": rng.normal(size=(8, 3)).astype(np.float32),
        "y": rng.normal(size=8).astype(np.float32),
        "weight": np.array(real, np.float32),  # some devices may hold fillers only
    }
    start = rng.normal(size=3).astype(np.float32)
    weights = batch["weight"].astype(np.float64)
    error = batch["x"].astype(np.float64) @ start - batch["y"]
    expected = start - 0.1 * 2 * (weights * error) @ batch["x"] / max(weights.sum(), 1)
    for count in (1, 2, 4, 8):
        mesh = parallel.data_mesh(count)
        step = parallel.data_parallel(weighted_mean, mesh, row_results={"loss": False, "row": True})
        state, results = step(parallel.replicate(start, mesh), parallel.split_rows(batch, mesh))
        np.testing.assert_allclose(state, expected, rtol=2e-5, atol=1e-6)
        np.testing.assert_array_equal(results["row"], batch["y"])


def test_k_shapes_cost_k_compilations_from_the_very_first_step():
    mesh = parallel.data_mesh(4)

    def total(state, batch):
        return state + jax.lax.psum(batch.arrays["features"].sum(), parallel.AXIS), {}

    step = compiles.watch(parallel.data_parallel(total, mesh), name="total")
    source = [{"features": np.ones((n, 2), np.float32)} for n in range(1, 30)]
    spec = BucketSpec.fit(range(1, 30), num_buckets=5, batch_size=8, batch_multiple_of=4)
    loader = Loader(source, spec, place=lambda batch: parallel.split_rows(batch, mesh))
    state = parallel.replicate(np.float32(0), mesh)
    with compiles.count() as log:
        for _ in range(2):
            for batch in loader:
                state, _ = step(state, batch)
    assert log.count == 5
    assert log.other == []
    assert float(state) == 2 * 2 * sum(range(1, 30))


@pytest.mark.parametrize("count", [1, 8])
def test_the_warm_up_with_abstract_arguments_is_the_first_steps_own(count):
    def add(state, batch, learn):
        keys = jax.random.split(state["key"])
        total = jax.lax.psum(batch["x"].sum(0), parallel.AXIS)
        return {"w": state["w"] + learn * total, "key": keys[0]}, batch["x"]

    mesh = parallel.data_mesh(count)
    step = compiles.watch(parallel.data_parallel(add, mesh, row_results=True))
    # float64, as NumPy makes it: JAX turns it into float32 when it is placed.
    state = {"w": np.zeros(3), "key": jax.random.key(7)}
    batch, learn = {"x": np.ones((16, 3)), "n": np.int32(1)}, np.bool_(True)
    compiles.warm_up(
        step,
        [
            (
                parallel.abstract_like(state, mesh),
                parallel.abstract_like(batch, mesh, rows=True),
                learn,
            )
        ],
    )
    placed = parallel.replicate(state, mesh)
    with compiles.forbid():
        for _ in range(2):  # the state that a step gives is placed as the first one was
            placed, results = step(placed, parallel.split_rows(batch, mesh), learn)
    assert placed["w"].tolist() == [32, 32, 32]
    assert results.shape == (16, 3)
    assert not state["key"].is_deleted()


@pytest.mark.parametrize("count", [1, 2])
def test_replicating_shares_no_buffer_with_what_is_donated_later(count):
    mesh = parallel.data_mesh(count)
    original = jnp.ones(3)
    step = parallel.data_parallel(lambda s, b: (s + b.sum(), {}), mesh)
    step(parallel.replicate(original, mesh), np.ones(2, np.float32))
    assert original.tolist() == [1, 1, 1]


@pytest.mark.parametrize("donate", [True, False])
def test_the_state_is_donated_unless_told_otherwise(donate):
    mesh = parallel.data_mesh(2)
    step = parallel.data_parallel(lambda s, b: (s + b.shape[0], {}), mesh, donate_state=donate)
    state = parallel.replicate(np.ones(3, np.float32), mesh)
    step(state, np.ones(2, np.float32))
    assert state.is_deleted() == donate


def test_a_batch_is_split_by_rows_and_its_scalars_are_everywhere():
    mesh = parallel.data_mesh(4)
    placed = parallel.split_rows({"x": np.arange(8).reshape(8, 1), "bucket": np.int32(2)}, mesh)
    rows = [shard.data.ravel().tolist() for shard in placed["x"].addressable_shards]
    assert rows == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(placed["bucket"].addressable_shards) == 4
    assert placed["bucket"].is_fully_replicated


def test_more_devices_than_there_are():
    with pytest.raises(
        ValueError,
        match=r"9 devices asked for, but JAX sees 8 \(cpu\); choose 1 to 8, or on CPU make more",
    ):
        parallel.data_mesh(9)
    with pytest.raises(ValueError, match="0 devices asked for"):
        parallel.data_mesh(0)


def test_a_batch_that_the_devices_do_not_divide():
    mesh, batch = parallel.data_mesh(2), {"x": np.ones((3, 2), np.float32)}
    message = (
        r"a batch of 3 rows, float32\[3,2\], cannot be split over 2 devices; fit the spec with "
        r"batch_multiple_of=2"
    )
    with pytest.raises(ValueError, match=message):
        parallel.split_rows(batch, mesh)
    with pytest.raises(ValueError, match=message):
        parallel.abstract_like(batch, mesh, rows=True)
    # Not placed at all: refused by the step, before shard_map speaks of meshes and specs.
    with pytest.raises(ValueError, match=message):
        parallel.data_parallel(lambda s, b: (s, {}), mesh)(np.float32(0), batch)


def test_a_batch_smaller_than_the_number_of_devices_is_refused_when_fitting():
    with pytest.raises(ValueError, match="batch_size=4 is not a multiple of batch_multiple_of=8"):
        BucketSpec.fit([3], num_buckets=1, batch_size=4, batch_multiple_of=8)
