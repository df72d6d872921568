"""Measuring a real step: compilations, seconds, memory that the compiler confirms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bucketjax import BucketSpec, Shape, compiles, costs, parallel, plan_epoch

HIDDEN = 32


def loss(weights, features):
    def cell(carry, frame):
        carry = jnp.tanh(carry @ weights["recurrent"] + frame @ weights["input"])
        return carry, carry

    start = jnp.zeros((features.shape[0], HIDDEN))
    _, outputs = jax.lax.scan(cell, start, features.swapaxes(0, 1))
    return (outputs**2).mean()


def make_step():
    def step(weights, features):
        gradient = jax.grad(loss)(weights, features)
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradient)

    return jax.jit(step, donate_argnums=0)


def make_arguments(shape):
    weights = {"recurrent": jnp.zeros((HIDDEN, HIDDEN)), "input": jnp.zeros((8, HIDDEN))}
    return weights, np.ones((shape.batch_size, shape.length, 8), np.float32)


def make_abstract(shape):
    return jax.eval_shape(lambda: make_arguments(shape))


def test_a_donating_step_is_measured_and_every_shape_compiled_once():
    step = compiles.watch(make_step(), name="step")
    shapes = [Shape(4, 10), Shape(4, 50), Shape(4, 200), Shape(2, 200)]
    with compiles.count() as log:
        measured = costs.measure(step, make_arguments, shapes, repeats=3)
    assert log.count == len(shapes)
    assert [timing.shape for timing in measured.timings] == shapes
    assert all(timing.seconds > 0 and timing.spread >= 0 for timing in measured.timings)
    built = [compilation.seconds for compilation in log.compilations]
    assert measured.cost.compile_seconds == pytest.approx(np.median(built))
    # A scan 20 times as long takes longer, and the model knows it.
    assert measured.cost.step_seconds(4, 200) > measured.cost.step_seconds(4, 10)
    assert len(measured.report().splitlines()) == 6
    with pytest.raises(ValueError, match="every shape was compiled before"):
        costs.measure(step, make_arguments, shapes, repeats=1)
    given = costs.measure(step, make_arguments, shapes, repeats=1, compile_seconds=7.0)
    assert given.cost.compile_seconds == 7.0
    assert all(timing.compile_seconds is None for timing in given.timings)


def test_the_seconds_are_those_of_the_step(monkeypatch):
    # A clock that knows what every shape takes: the fit must give it back.
    truth = costs.CostModel.linear(per_step=0.25, per_time_step=1e-3, compile_seconds=1.0)
    now = [0.0]

    class Step:
        def __init__(self):
            self.jitted = jax.jit(lambda x: x.sum())
            self.lower = self.jitted.lower

        def __call__(self, array):
            now[0] += float(truth.step_seconds(*array.shape))
            return array

    monkeypatch.setattr(costs.time, "perf_counter", lambda: now[0])
    shapes = [Shape(4, 10), Shape(4, 50), Shape(4, 200), Shape(2, 200)]
    measured = costs.measure(
        Step(),
        lambda shape: (np.ones((shape.batch_size, shape.length), np.float32),),
        shapes,
        compile_seconds=1.0,
    )
    assert measured.cost.step_seconds(3, 77) == pytest.approx(truth.step_seconds(3, 77))
    assert max(abs(timing.residual) for timing in measured.timings) < 1e-6


def test_steps_are_timed_in_a_row_where_they_carry_on(monkeypatch):
    # A device that takes a second to hand over and two to compute, and works while the next is
    # handed over: n steps in a row take 1 + 2n seconds.
    handed, busy_until, made = [0.0], [0.0], []

    class Step:
        def __init__(self):
            self.jitted = jax.jit(lambda count, array: (count + 1, array.sum()))
            self.lower = self.jitted.lower

        def __call__(self, count, array):
            handed[0] += 1.0
            busy_until[0] = max(busy_until[0], handed[0]) + 2.0
            return count + 1, array.sum()

    def wait(tree):
        if made and tree is made[-1]:  # arguments that were just made are there already
            return
        handed[0] = max(handed[0], busy_until[0])

    def arguments(shape):
        made.append((np.int32(0), np.ones((shape.batch_size, shape.length), np.float32)))
        return made[-1]

    seen = []

    def carry(results, given):
        seen.append(int(results[0]))
        assert given[0] == results[0] - 1
        return results[0], *given[1:]

    monkeypatch.setattr(costs.jax, "block_until_ready", wait)
    monkeypatch.setattr(costs.time, "perf_counter", lambda: handed[0])
    shapes = [Shape(4, 10), Shape(4, 50)]

    def seconds(**options):
        timed = costs.measure(Step(), arguments, shapes, repeats=3, compile_seconds=1.0, **options)
        return [timing.seconds for timing in timed.timings]

    assert seconds() == [3.0, 3.0]
    assert seen == []
    made.clear()
    assert seconds(carry=carry, in_a_row=4) == [pytest.approx(9 / 4)] * 2
    assert seen == 3 * 2 * [1, 2, 3]
    assert len(made) == 2 + 2 + 3 * 2  # compiled, warmed, timed: once per timing, not per call
    with pytest.raises(ValueError, match="in_a_row must be at least 1; got 0"):
        seconds(carry=carry, in_a_row=0)


def test_a_donating_step_carries_its_state_on():
    def advance(results, given):
        return results, *given[1:]

    measured = costs.measure(
        make_step(), make_arguments, [Shape(4, 10), Shape(4, 50)], repeats=2, carry=advance
    )
    assert all(timing.seconds > 0 for timing in measured.timings)


def test_an_epoch_is_timed_with_its_compilations_apart():
    lengths = np.random.default_rng(0).integers(1, 41, 50)
    spec = BucketSpec.fit(lengths, num_buckets=3, batch_size=4)
    plan = plan_epoch(lengths, spec, seed=0, epoch=0)
    timed = costs.time_epoch(make_step(), make_arguments, spec, plan)
    assert (timed.compile_count, timed.steps, timed.steps_run) == (3, len(plan), len(plan))
    assert timed.compile_seconds > 0
    assert timed.epoch_seconds > 0
    some = costs.time_epoch(make_step(), make_arguments, spec, plan, most_steps_per_bucket=2)
    assert some.steps == len(plan)
    assert some.steps_run == 6


def test_probe_shapes_span_the_lengths():
    shapes = costs.probe_shapes([10, 500, 1000], token_budget=8000, batch_multiple_of=2)
    assert shapes[-2].length == shapes[-1].length == 1000
    assert shapes[-1].batch_size == shapes[-2].batch_size // 2
    assert all(shape.batch_size % 2 == 0 for shape in shapes)
    assert len(set(shapes)) == len(shapes)
    with pytest.raises(ValueError, match="one shape shows no slope"):
        costs.probe_shapes([10], batch_size=2, num_shapes=1)


@pytest.mark.parametrize("limit", [400_000, 3_000_000])
def test_the_largest_batches_that_fit_are_as_large_as_predicted(limit):
    spec = BucketSpec((10, 60, 200), (1, 1, 1))
    fitted = costs.fit_to_memory(
        spec, make_step(), make_abstract, limit_bytes=limit, batch_multiple_of=2
    )
    assert fitted.spec.boundaries == spec.boundaries
    for fit in fitted.buckets:
        rows = fit.shape.batch_size
        assert rows % 2 == 0
        told = costs.peak_bytes(make_step(), make_abstract(fit.shape))
        assert fit.measured_bytes == told <= limit
        assert abs(fit.predicted_bytes / told - 1) < 0.1
        one_more = fit.shape._replace(batch_size=rows + 2)
        assert costs.peak_bytes(make_step(), make_abstract(one_more)) > limit
        assert len(fit.tried) <= 6
    assert fitted.rows_for(5) == fitted.spec.batch_sizes[0]
    assert fitted.rows_for(61) == fitted.spec.batch_sizes[2]
    again = BucketSpec.fit([5, 60, 200], num_buckets=2, batch_size=fitted.rows_for)
    assert again.batch_sizes[-1] == fitted.spec.batch_sizes[-1]
    with pytest.raises(ValueError, match="memory was fitted up to length 200, not for 201"):
        fitted.rows_for(201)


def test_memory_on_several_devices_counts_per_device():
    def per_device(state, batch):
        return state + jax.lax.psum(jnp.tanh(batch @ batch.T).sum(), parallel.AXIS), {}

    peaks = []
    for devices in (1, 4):
        mesh = parallel.data_mesh(devices)
        step = parallel.data_parallel(per_device, mesh)
        state = parallel.abstract_like(np.float32(0), mesh)

        def make(shape, mesh=mesh, state=state):
            batch = np.zeros((shape.batch_size, shape.length), np.float32)
            return state, parallel.abstract_like(batch, mesh, rows=True)

        spec = BucketSpec((64,), (1,))
        fitted = costs.fit_to_memory(
            spec, step, make, limit_bytes=100_000, batch_multiple_of=devices
        )
        assert fitted.buckets[0].measured_bytes <= 100_000
        peaks.append(fitted.spec.batch_sizes[0])
    assert peaks[1] == 4 * peaks[0]


def test_what_cannot_fit_or_be_known_is_refused():
    spec = BucketSpec((10, 500), (1, 1))
    with pytest.raises(ValueError, match=r"length 10 needs .* smallest batch of 1 row\(s\), over"):
        costs.fit_to_memory(spec, make_step(), make_abstract, limit_bytes=1000)
    with pytest.raises(ValueError, match="does not tell how much memory it has; give limit_bytes"):
        costs.fit_to_memory(spec, make_step(), make_abstract)
    with pytest.raises(ValueError, match="most_rows=2 is below batch_multiple_of=4"):
        costs.fit_to_memory(
            spec, make_step(), make_abstract, limit_bytes=10**9, most_rows=2, batch_multiple_of=4
        )
    capped = costs.fit_to_memory(
        BucketSpec((10,), (1,)), make_step(), make_abstract, limit_bytes=10**9, most_rows=24
    )
    assert capped.spec.batch_sizes == (24,)
    with pytest.raises(ValueError, match="at least 2 different shapes"):
        costs.measure(make_step(), make_arguments, [Shape(2, 4), Shape(2, 4)])
    with pytest.raises(RuntimeError, match=r"\(3, 7, None\), .*float32\[3,7,8\]"):
        costs.measure(
            jax.jit(lambda weights, x: x @ jnp.ones(3)), make_arguments, [Shape(3, 7), Shape(2, 4)]
        )
