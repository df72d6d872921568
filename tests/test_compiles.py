"""Compilations: counted exactly, forbidden before anything ran, made ahead of time."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketjax import compiles


def make_step(name="step"):
    return compiles.watch(jax.jit(lambda x: (x * 2).sum()), name=name)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=12))
@settings(max_examples=10)
def test_one_compilation_per_distinct_shape(lengths):
    step = make_step()
    with compiles.count() as log:
        for length in lengths:
            step(np.ones(length, np.float32))
    assert log.count == len(set(lengths))
    assert {c.shapes for c in log.compilations} == {f"float32[{n}]" for n in lengths}
    assert {c.function for c in log.compilations} == {"step"}
    assert 0 < log.seconds == sum(c.seconds for c in log.compilations)


def test_a_dtype_and_a_weak_type_are_new_shapes():
    step = make_step()
    with compiles.count() as log:
        step(np.float32(1))
        step(np.int32(1))
        step(1.0)
        step(np.float32(2))
    assert log.count == 3


def test_other_compilations_are_kept_apart():
    step = make_step()
    with compiles.count() as log:
        jax.block_until_ready(jnp.arange(173) + 1)
        jax.jit(lambda x: x - 41)(np.ones(7, np.float32))
        step(np.ones(3, np.float32))
    assert log.count == 1
    assert len(log.other) >= 2
    assert all(other.shapes == "" for other in log.other)


def test_counting_ends_with_its_block_and_blocks_nest():
    step = make_step()
    with compiles.count() as outer:
        step(np.ones(3, np.float32))
        with compiles.count() as inner:
            step(np.ones(4, np.float32))
        step(np.ones(5, np.float32))
    step(np.ones(6, np.float32))
    assert (outer.count, inner.count) == (3, 1)


def test_another_threads_compilations_count_too_under_the_right_name():
    first, second = make_step("first"), make_step("second")
    with compiles.count() as log:
        threads = [
            threading.Thread(target=function, args=(np.ones(length, np.float32),))
            for function, length in ((first, 11), (second, 12))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {(c.function, c.shapes) for c in log.compilations} == {
        ("first", "float32[11]"),
        ("second", "float32[12]"),
    }


def test_what_tracing_compiles_for_itself_is_not_the_functions():
    def with_a_table(x):
        with jax.ensure_compile_time_eval():
            return x + jnp.arange(179).sum()

    step = compiles.watch(jax.jit(with_a_table))
    with compiles.count() as log:
        step(np.ones(3, np.float32))
    assert [c.function for c in log.compilations] == ["with_a_table"]
    assert any("iota" in other.function for other in log.other)


def test_forbid_names_the_function_and_the_new_shape():
    step = make_step("train")
    step(np.ones((3, 2), np.float32))
    with compiles.forbid():
        step(np.ones((3, 2), np.float32))
        with pytest.raises(
            compiles.UnexpectedCompilation,
            match=r"none is allowed, of 'train' for float32\[4,2\]: pad to a shape of the spec, or "
            r"compile this one before with compiles\.warm_up",
        ) as error:
            step(np.ones((4, 2), np.float32))
    assert (error.value.function, error.value.shapes) == ("train", "float32[4,2]")
    step(np.ones((4, 2), np.float32))  # outside the block it may


def test_forbid_says_where_only_the_placement_is_new():
    step = make_step()
    x = np.ones(8, np.float32)
    step(x)
    with (
        compiles.forbid(),
        pytest.raises(
            compiles.UnexpectedCompilation, match=r"placement is what is new: .*replicat"
        ),
    ):
        step(jax.device_put(x, jax.devices()[1]))


def test_forbid_raises_before_anything_is_built_or_donated():
    step = compiles.watch(jax.jit(lambda state, x: state + x.sum(), donate_argnums=0), name="s")
    state = jnp.float32(3)
    with compiles.count() as log, compiles.forbid(), pytest.raises(compiles.UnexpectedCompilation):
        step(state, np.ones(3, np.float32))
    assert (log.compilations, log.other) == ([], [])
    assert float(state) == 3
    assert float(step(state, np.ones(3, np.float32))) == 6


def test_forbid_speaks_of_functions_that_are_not_watched_unless_told_otherwise():
    def surprise(x):
        return x * 3

    with compiles.forbid(only_watched=True):
        jax.jit(surprise)(np.ones(3, np.float32))
    with (
        compiles.forbid(),
        pytest.raises(
            compiles.UnexpectedCompilation, match=r"surprise.*wrap it with compiles\.watch"
        ),
    ):
        jax.jit(surprise)(np.ones(5, np.float32))


def test_of_nested_forbids_the_strictest_holds_and_all_end():
    x = np.ones(181, np.float32)
    with (
        compiles.forbid(),
        compiles.forbid(only_watched=True),
        pytest.raises(compiles.UnexpectedCompilation),
    ):
        jax.jit(lambda x: x * 5)(x)
    jax.jit(lambda x: x * 5)(x)


def test_forbid_holds_in_other_threads_and_the_error_comes_out_there():
    step = make_step()
    with compiles.forbid(), ThreadPoolExecutor(1) as pool:
        future = pool.submit(step, np.ones(9, np.float32))
        with pytest.raises(compiles.UnexpectedCompilation, match=r"'step' for float32\[9\]"):
            future.result()


@pytest.mark.parametrize("workers", [1, 2])
def test_after_a_warm_up_nothing_compiles(workers):
    step, told = make_step(), []
    arguments = [(jax.ShapeDtypeStruct((n,), np.float32),) for n in (3, 5, 8)]
    with compiles.count() as log:
        built = compiles.warm_up(
            step, arguments, workers=workers, progress=lambda *report: told.append(report)
        )
    assert log.count == 3
    assert log.other == []
    assert [c.shapes for c in built] == ["float32[3]", "float32[5]", "float32[8]"]
    assert all(c.function == "step" and c.seconds > 0 and not c.cached for c in built)
    assert [(done, of) for done, of, _, _ in told] == [(1, 3), (2, 3), (3, 3)]
    assert {(shapes, s) for _, _, shapes, s in told} == {(c.shapes, c.seconds) for c in built}
    with compiles.forbid():
        for length in (3, 5, 8):
            step(np.ones(length, np.float32))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_warm_up_is_of_the_program_that_the_callers_context_asks_for(workers):
    step = compiles.watch(jax.jit(lambda x: x @ x))
    with jax.default_matmul_precision("float32"):
        compiles.warm_up(step, [(jax.ShapeDtypeStruct((4, 4), np.float32),)], workers=workers)
        with compiles.forbid():
            step(np.ones((4, 4), np.float32))


def test_warming_up_again_builds_nothing_and_says_so():
    step, arguments = make_step(), [(jax.ShapeDtypeStruct((6,), np.float32),)]
    (first,) = compiles.warm_up(step, arguments)
    with compiles.forbid():
        (again,) = compiles.warm_up(step, arguments)
    assert (first.cached, again.cached) == (False, True)
    assert again.shapes == first.shapes == "float32[6]"


@pytest.mark.parametrize("workers", [1, 3])
def test_an_error_in_the_warm_up_reaches_the_caller_with_the_shape(workers):
    def picky(x):
        assert x.shape[0] != 5, "five is wrong"
        return x

    names = [f"bucket {n}" for n in range(3)]
    arguments = [(jax.ShapeDtypeStruct((n,), np.float32),) for n in (3, 5, 8)]
    with pytest.raises(
        RuntimeError,
        match=r"warm-up of 'picky' failed for bucket 1, float32\[5\]: AssertionError\('five is wr",
    ) as error:
        compiles.warm_up(compiles.watch(jax.jit(picky)), arguments, names=names, workers=workers)
    assert isinstance(error.value.__cause__, AssertionError)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_error_of_the_compiler_in_a_worker_reaches_the_caller(workers):
    def failing(x):
        # Traced without complaint, refused by the compiler: no platform has this kernel.
        return jax.ffi.ffi_call("no_such_kernel", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    arguments = [(jax.ShapeDtypeStruct((n,), np.float32),) for n in (3, 5, 8)]
    with pytest.raises(RuntimeError, match=r"warm-up of 'failing' failed for float32\[\d\]: "):
        compiles.warm_up(jax.jit(failing), arguments, workers=workers)


def test_forbid_holds_for_a_warm_up_too():
    arguments = [(jax.ShapeDtypeStruct((7,), np.float32),)]
    with compiles.forbid(), pytest.raises(compiles.UnexpectedCompilation, match=r"float32\[7\]"):
        compiles.warm_up(make_step(), arguments)


def test_a_warm_up_that_is_asked_for_wrongly():
    arguments = [(jax.ShapeDtypeStruct((3,), np.float32),)]
    with pytest.raises(ValueError, match="2 names for 1 sets of arguments; give one each"):
        compiles.warm_up(make_step(), arguments, names=["a", "b"])
    with pytest.raises(ValueError, match="workers must be at least 1; got 0"):
        compiles.warm_up(make_step(), arguments, workers=0)


def test_only_a_jitted_function_can_be_watched():
    with pytest.raises(
        TypeError, match=r"watch needs a jitted function; got .*: wrap it in jax.jit"
    ):
        compiles.watch(lambda x: x)


def test_a_compilation_from_the_persistent_cache_counts_and_says_so(tmp_path):
    settings = {
        "jax_compilation_cache_dir": str(tmp_path),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}

    def compile_it():
        with compiles.count() as log:
            compiles.watch(jax.jit(lambda x: jnp.sin(x) * 17.25), name="s")(np.ones(19, np.float32))
        return [compilation.cached for compilation in log.compilations]

    from jax.experimental.compilation_cache import compilation_cache

    try:
        for name, value in settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()
        assert compile_it() == [False]
        assert compile_it() == [True]
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def test_a_description_names_what_is_in_a_batch():
    batch = {"features": np.ones((2, 3), np.float32), "lengths": jax.ShapeDtypeStruct((2,), int)}
    state = {f"w{number:02}": np.ones(number) for number in range(20)}
    for text in (compiles.describe(batch), compiles.describe((batch,))):
        assert text == "features float32[2,3], lengths int64[2]"
    assert compiles.describe((state, batch, True)) == (
        "20 arrays (w00 float64[0], ...), features float32[2,3], lengths int64[2], bool"
    )
    assert compiles.describe((jnp.asarray(1.0), 1.0)) == "float32[] (weak), float"
    assert compiles.describe(()) == "no arrays"


def test_arguments_given_by_name_are_described_too():
    step = compiles.watch(jax.jit(lambda x, *, scale: x * scale))
    with compiles.count() as log:
        step(np.ones(3, np.float32), scale=np.float32(2))
    assert log.compilations[0].shapes == "float32[3], scale float32[]"


def test_what_other_libraries_announce_is_none_of_our_business():
    with compiles.count() as log, compiles.forbid():
        jax.monitoring.record_scalar("/some/other/library", 0)
        jax.monitoring.record_event_duration_secs("/some/other/library", 1.0)
        jax.monitoring.record_event("/some/other/library")
    assert log.count == 0
    assert log.other == []


SECOND_START = """
import sys, time
import jax, numpy as np
from flax import nnx
from bucketjax import Batch, compiles, parallel
from bucketjax.nn import Recognizer
from bucketjax.training import steps
compiles.persist(sys.argv[1])
model = Recognizer(5, 30, hidden=32, layers=2, rngs=nnx.Rngs(0))
optimizer = steps.make_optimizer(learning_rate=0.01, total_steps=10)
mesh = parallel.data_mesh(1)
step = compiles.watch(
    parallel.data_parallel(
        steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
    )
)
state = parallel.replicate(steps.init_state(model, optimizer), mesh)
batch = Batch(
    {"features": np.ones((4, 40, 5), np.float32), "labels": np.ones((4, 3), np.int32)},
    *(np.full(4, n, np.int32) for n in (40, 3)),
    np.ones(4, np.float32), np.arange(4, dtype=np.int32), np.int32(0),
)
batch = parallel.split_rows(batch, mesh)
start = time.perf_counter()
with compiles.count() as log:
    state, metrics = step(state, batch, np.bool_(True))
    print(float(metrics.loss))
print(time.perf_counter() - start, log.compilations[0].cached, log.count)
"""


def test_a_second_start_compiles_nothing_and_is_much_sooner_at_its_first_step(tmp_path):
    def start():
        done = subprocess.run(
            [sys.executable, "-c", SECOND_START, str(tmp_path / "new" / "folder")],
            capture_output=True,
            text=True,
            check=True,
        )
        loss, line = done.stdout.splitlines()[-2:]
        seconds, cached, count = line.split()
        return float(loss), float(seconds), cached, count

    first, second = start(), start()
    assert (first[2], second[2]) == ("False", "True")
    assert first[0] == second[0]
    assert first[3] == second[3] == "1"
    assert second[1] < 0.5 * first[1]  # 0.2 on an idle machine


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"XDG_CACHE_HOME": "/somewhere"}, "/somewhere/bucketjax"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/me"}, "/home/me/.cache/bucketjax"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/me"}, "/home/me/.cache/bucketjax"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the folders of Linux")
def test_the_users_folder_for_caches(monkeypatch, variables, expected):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert str(compiles._cache_folder()) == expected


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        compiles.persist(tmp_path / "file" / "cache")
