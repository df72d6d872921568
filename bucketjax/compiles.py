"""Count compilations, forbid them, and make them happen ahead of time.

Compilations are seen where JAX itself announces them, through `jax.monitoring`, so nothing is
missed: a new shape, a new dtype, and a new sharding of the same shape all count.

>>> import jax, numpy as np
>>> double = watch(jax.jit(lambda x: 2 * x), name="double")
>>> with count() as log:
...     for length in (3, 5, 3):
...         _ = double(np.ones(length, np.float32))
>>> log.count, [compilation.shapes for compilation in log.compilations]
(2, ['float32[3]', 'float32[5]'])
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bucketjax.describing import describe

__all__ = [
    "Compilation",
    "CompileLog",
    "UnexpectedCompilation",
    "count",
    "describe",
    "forbid",
    "persist",
    "warm_up",
    "watch",
]

# JAX announces it twice: as a scalar when the compiler starts, as a duration when it is done.
_COMPILE = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


class Compilation(NamedTuple):
    """One executable that was built.

    Attributes:
      function: name of the watched function; of any other function, JAX's name for it.
      shapes: the watched call's arguments as `describe` puts them; "" for any other function.
      seconds: how long the call was held up, tracing included; for a function that is not
        watched, the compiler's share alone.
      cached: whether the compiler was spared, by JAX's persistent cache or, in what `warm_up`
        returns, by an executable that was there already.

    >>> Compilation("step", "float32[8]", 0.5, False).function
    'step'
    """

    function: str
    shapes: str
    seconds: float
    cached: bool


class UnexpectedCompilation(RuntimeError):
    """Something was to be compiled where `forbid` allows nothing: `function`, for `shapes`."""

    def __init__(self, function: str, shapes: str, seen: bool = False):
        if not shapes:
            advice = (
                "it is not watched, so its shapes are unknown: if it is yours, wrap it with "
                "compiles.watch; if it is an operation outside of any jitted function, do it in "
                "NumPy or inside one"
            )
        elif seen:
            advice = (
                "these shapes were compiled before, so the placement is what is new: put the "
                "arguments where they were then (parallel.replicate the state before the first "
                "step, parallel.split_rows every batch)"
            )
        else:
            advice = (
                "pad to a shape of the spec, or compile this one before with compiles.warm_up; a "
                "new dtype is a new shape too"
            )
        what = f"{function!r} for {shapes}" if shapes else f"{function!r}"
        super().__init__(f"a compilation where none is allowed, of {what}: {advice}")
        self.function, self.shapes = function, shapes


class CompileLog:
    """What `count` saw: `compilations` of watched functions, and `other` ones.

    >>> CompileLog().count
    0
    """

    def __init__(self) -> None:
        self.compilations: list[Compilation] = []
        self.other: list[Compilation] = []

    @property
    def count(self) -> int:
        """How many executables were built for watched functions."""
        return len(self.compilations)

    @property
    def seconds(self) -> float:
        """How long watched calls were held up by it."""
        return sum(compilation.seconds for compilation in self.compilations)


class _Call:
    """A call, or a warm-up, of a watched function: what a compilation is attributed to."""

    def __init__(
        self, watched: _Watched, arguments: Any, before: float = 0.0, ordered: bool = False
    ):
        self.watched = watched
        self.ordered = ordered  # before the block that forbids it
        self.arguments = arguments
        self.start = time.perf_counter() - before
        self.compiled: list[Compilation] = []


class _Watched:
    """A jitted function whose compilations are known by name and shape."""

    def __init__(self, function: Any, name: str):
        functools.update_wrapper(self, function)
        self._function = function
        self.jit_name = getattr(function, "jit_name", getattr(function, "__name__", ""))
        self.name = name
        self.seen: set[str] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _current.set(_Call(self, (*args, kwargs) if kwargs else args))
        try:
            return self._function(*args, **kwargs)
        finally:
            _current.reset(token)

    def __getattr__(self, attribute: str) -> Any:
        if attribute == "_function":  # a half-made copy has none
            raise AttributeError(attribute)
        return getattr(self._function, attribute)


# The watched call in progress, of this thread.
_current: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("call", default=None)
_this_thread = threading.local()
_logs: list[CompileLog] = []
_forbidding: list[bool] = []  # one entry per `forbid` in force: does it look at watched ones only?
_lock = threading.RLock()


def watch(function: Any, *, name: str | None = None) -> Any:
    """The jitted `function`, with its compilations known by name and argument shapes.

    Args:
      function: what `jax.jit` returned.
      name: what to call it; by default its own name.

    Raises:
      TypeError: something that is not jitted.

    >>> @watch
    ... @jax.jit
    ... def step(x):
    ...     return x + 1
    >>> step.name
    'step'
    """
    if not hasattr(function, "lower"):
        raise TypeError(f"watch needs a jitted function; got {function!r}: wrap it in jax.jit")
    _listen()
    return _Watched(function, name or getattr(function, "__name__", "function"))


@contextlib.contextmanager
def count() -> Iterator[CompileLog]:
    """Counts the executables built inside the block, in every thread.

    `log.compilations` holds those of watched functions, with shapes and seconds; `log.other`
    holds the rest, such as operations outside any jitted function. Blocks may nest.

    >>> with count() as log:
    ...     pass
    >>> log.count
    0
    """
    log = CompileLog()
    _listen()
    with _lock:
        _logs.append(log)
    try:
        yield log
    finally:
        with _lock:
            _logs[:] = [other for other in _logs if other is not log]


@contextlib.contextmanager
def forbid(*, only_watched: bool = False) -> Iterator[None]:
    """Raises UnexpectedCompilation where anything is to be compiled inside the block.

    It holds in every thread, because what a loader does in the background costs as much; only
    what `warming.in_background` was given may still compile. The error comes out of the call that
    needs the compilation, before the compiler starts: nothing ran, and donated arguments are still
    there. Blocks may nest.

    Args:
      only_watched: let functions compile that are not watched, such as operations outside any
        jitted function.

    >>> import numpy as np
    >>> step = watch(jax.jit(lambda x: x + 1), name="step")
    >>> with forbid():
    ...     step(np.ones(3, np.float32))
    Traceback (most recent call last):
    bucketjax.compiles.UnexpectedCompilation: a compilation where none is allowed, of 'step' ...
    """
    _listen()
    with _lock:
        _forbidding.append(only_watched)
    try:
        yield
    finally:
        with _lock:
            _forbidding.remove(only_watched)


def persist(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keeps every executable on disk from here on, so that a second start compiles nothing.

    Without it JAX forgets them with the process, and with its own settings it keeps none that
    took less than a second. An executable is found again for the same program, versions and
    hardware only; `Compilation.cached` says where that was so.

    Args:
      folder: by default `bucketjax` in the user's folder for caches: $XDG_CACHE_HOME, or
        ~/Library/Caches, %LOCALAPPDATA% or ~/.cache, after the platform's custom. It may be
        deleted at any time.

    Returns:
      The folder, which is there now.

    Raises:
      OSError: a folder that cannot be made.

    >>> import tempfile
    >>> before = jax.config.jax_compilation_cache_dir
    >>> with tempfile.TemporaryDirectory() as home:
    ...     persist(home).is_dir()
    True
    >>> jax.config.update("jax_compilation_cache_dir", before)
    """
    path = _cache_folder() if folder is None else Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not Path(home).is_absolute():  # "" among them: the standard says to ignore those
        custom = {"darwin": "~/Library/Caches", "win32": os.environ.get("LOCALAPPDATA", "~")}
        home = custom.get(sys.platform, "~/.cache")
    return Path(home).expanduser() / "bucketjax"


def warm_up(
    function: Any,
    argument_sets: Sequence[tuple[Any, ...]],
    *,
    names: Sequence[str] | None = None,
    workers: int = 1,
    progress: Callable[[int, int, str, float], None] | None = None,
) -> list[Compilation]:
    """Compiles `function` for every set of arguments ahead of time.

    The first real call with such arguments then compiles nothing.

    Args:
      function: a jitted or watched function.
      argument_sets: positional arguments, arrays or `jax.ShapeDtypeStruct`s (with the sharding
        that the real ones will have).
      names: what to call each set in an error, such as "bucket 3"; by default its shapes alone.
      workers: how many are compiled at a time. Tracing stays in the calling thread.
      progress: called in the calling thread after each as (how many are done, of how many, shapes,
        seconds).

    Returns:
      What was built, in the order of `argument_sets`.

    Raises:
      ValueError: names that are not one per set, or less than one worker.
      RuntimeError: a set that cannot be compiled, with its name and shapes; the cause is chained.
        Sets that have not been begun are left out.

    >>> import numpy as np
    >>> step = watch(jax.jit(lambda x: x * 2), name="step")
    >>> built = warm_up(step, [(np.ones(n, np.float32),) for n in (2, 4)])
    >>> with forbid():
    ...     _ = step(np.ones(4, np.float32))
    """
    total = len(argument_sets)
    names = [""] * total if names is None else names
    if len(names) != total:
        raise ValueError(f"{len(names)} names for {total} sets of arguments; give one each")
    if workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers}")
    watched = function if isinstance(function, _Watched) else watch(function)
    built: dict[int, Compilation] = {}
    running: dict[Future[Compilation], int] = {}

    def take_finished() -> None:
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            number = running.pop(future)
            built[number] = future.result()
            if progress is not None:
                progress(len(built), total, built[number].shapes, built[number].seconds)

    # Lowered here and compiled there: a context such as jax.default_matmul_precision belongs to
    # one thread, and what is lowered without it is another program.
    with ThreadPoolExecutor(max_workers=workers) as pool:
        try:
            for number, (arguments, name) in enumerate(zip(argument_sets, names, strict=True)):
                start = time.perf_counter()
                with _naming(watched, arguments, name):
                    lowered = watched.lower(*arguments)
                lowering = time.perf_counter() - start
                future = pool.submit(_compile, watched, arguments, name, lowered, lowering)
                running[future] = number
                if len(running) > workers:
                    take_finished()
            while running:
                take_finished()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [built[number] for number in range(total)]


def _compile(
    watched: _Watched,
    arguments: Any,
    name: str,
    lowered: Any,
    lowering: float,
    ordered: bool = False,
) -> Compilation:
    call = _Call(watched, arguments, lowering, ordered)
    token = _current.set(call)
    try:
        with _naming(watched, arguments, name):
            lowered.compile()
    finally:
        _current.reset(token)
    if call.compiled:
        return call.compiled[0]
    return Compilation(watched.name, describe(arguments), lowering, cached=True)


@contextlib.contextmanager
def _naming(watched: _Watched, arguments: Any, name: str) -> Iterator[None]:
    try:
        yield
    except UnexpectedCompilation:
        raise
    except Exception as error:
        which = f"{name}, {describe(arguments)}" if name else describe(arguments)
        raise RuntimeError(f"warm-up of {watched.name!r} failed for {which}: {error!r}") from error


def _call_for(name: str) -> _Call | None:
    # Tracing may compile for its own ends, such as a constant: that has another name.
    call = _current.get()
    return call if call is not None and name == f"jit({call.watched.jit_name})" else None


def _on_event(event: str, **_: Any) -> None:
    if event == _CACHE_HIT:
        _this_thread.cache_hit = True


def _on_start(event: str, value: float | int, **kwargs: Any) -> None:
    if event != _COMPILE:
        return
    _this_thread.cache_hit = False
    with _lock:
        forbidding = list(_forbidding)
    if not forbidding:
        return
    name = str(kwargs.get("fun_name", "unknown"))
    call = _call_for(name)
    if call is not None and call.ordered:
        return
    if call is not None:
        shapes = describe(call.arguments)
        raise UnexpectedCompilation(call.watched.name, shapes, shapes in call.watched.seen)
    if not all(forbidding):
        raise UnexpectedCompilation(name, "")


def _on_end(event: str, duration_secs: float | int, **kwargs: Any) -> None:
    if event != _COMPILE:
        return
    name = str(kwargs.get("fun_name", "unknown"))
    cached = getattr(_this_thread, "cache_hit", False)
    call = _call_for(name)
    if call is None:
        compilation = Compilation(name, "", duration_secs, cached)
    else:
        held_up = time.perf_counter() - call.start
        shapes = describe(call.arguments)
        compilation = Compilation(call.watched.name, shapes, held_up, cached)
        call.compiled.append(compilation)
        call.watched.seen.add(shapes)
    with _lock:
        for log in _logs:
            (log.other if call is None else log.compilations).append(compilation)


@functools.cache
def _listen() -> None:
    # Once for the process, and for good. JAX calls listeners where it compiles, not at every step.
    jax.monitoring.register_event_listener(_on_event)
    jax.monitoring.register_scalar_listener(_on_start)
    jax.monitoring.register_event_duration_secs_listener(_on_end)
