"""Compiling behind the first steps: each shape once, waited for where needed, no error lost."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bucketjax import compiles, warming


def arrays(*lengths):
    return [(np.ones(length, np.float32),) for length in lengths]


def make(seconds=0.0, function=lambda x: x * 2):
    step = compiles.watch(jax.jit(function), name="step")
    lowered = step.lower

    class Slow:
        def __init__(self, arguments):
            self.inner = lowered(*arguments)

        def compile(self):
            time.sleep(seconds)
            return self.inner.compile()

    step.lower = lambda *arguments: Slow(arguments)
    return step


def test_each_shape_is_compiled_once_though_compiling_is_forbidden():
    step = make(0.05)
    with (
        compiles.count() as log,
        compiles.forbid(only_watched=True),
        warming.in_background(step, arrays(2, 3, 4, 3)) as run,
    ):
        for length in (2, 2, 4, 3, 2, 3, 4):
            np.testing.assert_array_equal(run(np.ones(length, np.float32)), np.full(length, 2))
    assert log.count == 3
    assert [one.shapes for one in run.built] == ["float32[2]", "float32[3]", "float32[4]"]


def test_the_first_call_waits_for_its_own_shape_only():
    step = make(0.5)
    with warming.in_background(step, arrays(2, 3, 4, 5)) as run:
        start = time.perf_counter()
        run(np.ones(2, np.float32))
        first = time.perf_counter() - start
        for _ in range(3):  # each call hands one more shape over
            run(np.ones(2, np.float32))
    assert first < 1.0
    assert len(run.built) == 4
    assert time.perf_counter() - start > 2.0


def test_tracing_stays_in_the_calling_thread():
    threads = set()

    def function(x):
        threads.add(threading.current_thread())
        return x + 1

    with warming.in_background(make(function=function), arrays(2, 3)) as run:
        run(np.ones(2, np.float32))
        run(np.ones(3, np.float32))
    assert threads == {threading.current_thread()}


def test_another_shape_is_still_forbidden():
    with warming.in_background(make(), arrays(2)) as run, compiles.forbid(only_watched=True):
        run(np.ones(2, np.float32))
        with pytest.raises(compiles.UnexpectedCompilation):
            run(np.ones(7, np.float32))


def failing(x):
    if x.shape == (3,):
        raise ValueError("three is too many")
    return x


def test_a_shape_that_cannot_be_traced_is_named():
    with (
        pytest.raises(RuntimeError, match="bucket 1, float32.3.: .*three is too many"),
        warming.in_background(
            make(function=failing), arrays(2, 3), names=["bucket 0", "bucket 1"]
        ) as run,
    ):
        run(np.ones(2, np.float32))


def break_compiler(step, seconds=0.0):
    lowered = step.lower

    class Broken:
        def compile(self):
            time.sleep(seconds)
            raise MemoryError("no room")

    step.lower = lambda x: Broken() if x.shape == (3,) else lowered(x)
    return step


def test_a_shape_that_cannot_be_compiled_is_not_lost():
    step = break_compiler(make())
    with (
        pytest.raises(RuntimeError, match="failed for float32.3.: .*no room"),
        warming.in_background(step, arrays(2, 3)) as run,
    ):
        run(np.ones(2, np.float32))  # begins the other one, which no call needs
    with (
        pytest.raises(RuntimeError, match="failed for float32.3.: .*no room"),
        warming.in_background(step, arrays(2, 3)) as run,
    ):
        run(np.ones(3, np.float32))


def test_an_error_of_the_block_is_not_replaced():
    step = break_compiler(make())
    with pytest.raises(KeyError, match="mine"), warming.in_background(step, arrays(2, 3)) as run:
        run(np.ones(2, np.float32))
        raise KeyError("mine")


def test_what_is_given_wrongly():
    with (
        pytest.raises(ValueError, match="1 names for 2 sets"),
        warming.in_background(make(), arrays(2, 3), names=["one"]),
    ):
        pass
    with (
        pytest.raises(ValueError, match="workers must be at least 1; got 0"),
        warming.in_background(make(), arrays(2, 3), workers=0),
    ):
        pass


def test_a_real_step_on_a_mesh_with_donated_state():
    from bucketjax import parallel

    mesh = parallel.data_mesh(2)

    def step(total, batch):
        return total + jax.lax.psum(jnp.tanh(batch).sum(), parallel.AXIS), {}

    watched = compiles.watch(parallel.data_parallel(step, mesh))
    state = parallel.replicate(np.float32(0), mesh)
    shapes = [
        (
            parallel.abstract_like(state, mesh),
            parallel.abstract_like(np.ones((2, n), np.float32), mesh, rows=True),
        )
        for n in (3, 5)
    ]
    with compiles.count() as log, warming.in_background(watched, shapes) as run:
        for n in (3, 5, 3, 5):
            state, _ = run(state, parallel.split_rows(np.ones((2, n), np.float32), mesh))
    assert log.count == 2
    np.testing.assert_allclose(float(state), np.tanh(1) * 32, rtol=1e-6)
