"""Count compilations, forbid them, and make them happen ahead of time.

Compilations are counted where JAX itself announces them, through `jax.monitoring`, so nothing is
missed: a new shape, a new dtype, and a new sharding of the same shape all count. A compilation
taken from JAX's persistent cache counts too and is marked `cached`.

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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, NamedTuple

import jax
import numpy as np

__all__ = [
    "Compilation",
    "CompileLog",
    "UnexpectedCompilation",
    "count",
    "describe",
    "forbid",
    "warm_up",
    "watch",
]

_COMPILED = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"


class Compilation(NamedTuple):
    """One executable that was built.

    Attributes:
      function: name of the watched function; of any other function, JAX's name for it.
      shapes: shapes and dtypes of the watched call's arguments; "" for any other function.
      seconds: how long the compiler took; tracing comes before it and is not included.
      cached: whether it came from JAX's persistent cache.

    >>> Compilation("step", "float32[8]", 0.5, False).function
    'step'
    """

    function: str
    shapes: str
    seconds: float
    cached: bool


class UnexpectedCompilation(RuntimeError):
    """Something was compiled where `forbid` allows nothing; `compilation` says what."""

    def __init__(self, compilation: Compilation):
        shapes = compilation.shapes or (
            "shapes unknown: wrap the function with compiles.watch to see them"
        )
        super().__init__(
            f"{compilation.function!r} was compiled for a shape that is new: {shapes}. Pad its "
            "arguments to a shape of the spec, or compile this one before with compiles.warm_up; a "
            "new dtype, weak type or sharding of a known shape is new as well"
        )
        self.compilation = compilation


class CompileLog:
    """What `count` saw: `compilations` of watched functions, and `other` ones."""

    def __init__(self) -> None:
        self.compilations: list[Compilation] = []
        self.other: list[Compilation] = []

    @property
    def count(self) -> int:
        """How many executables were built for watched functions."""
        return len(self.compilations)

    @property
    def seconds(self) -> float:
        """How long the compiler worked on watched functions."""
        return sum(compilation.seconds for compilation in self.compilations)


class _Call(NamedTuple):
    function: str
    arguments: Any


# The watched call in progress, per thread (and per asyncio task).
_current: contextvars.ContextVar[_Call | None] = contextvars.ContextVar("call", default=None)
_cache_hit = threading.local()
_logs: list[CompileLog] = []
_forbidding: list[bool] = []  # one entry per `forbid` in force: does it look at watched ones only?
_lock = threading.RLock()


class _Watched:
    """A jitted function whose compilations are known by name and shape."""

    def __init__(self, function: Any, name: str):
        functools.update_wrapper(self, function)
        self._function = function
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        token = _current.set(_Call(self.name, (args, kwargs)))
        try:
            return self._function(*args, **kwargs)
        finally:
            _current.reset(token)

    def __getattr__(self, attribute: str) -> Any:
        return getattr(self.__dict__["_function"], attribute)


def watch(function: Any, *, name: str | None = None) -> Any:
    """The jitted `function`, with its compilations known by name and argument shapes.

    Args:
      function: what `jax.jit` returned.
      name: what to call it; by default its own name.

    Raises:
      TypeError: something that is not jitted.

    >>> watch(jax.jit(np.sin)).name
    'sin'
    """
    if not hasattr(function, "lower"):
        raise TypeError(f"watch needs a jitted function; got {function!r}: wrap it in jax.jit")
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
    """Raises UnexpectedCompilation where anything is compiled inside the block, in any thread.

    The error comes out of the call that needed the compilation, before it ran, so donated
    arguments are still there.

    Args:
      only_watched: let functions compile that are not watched, such as eager operations.

    >>> step = watch(jax.jit(lambda x: x + 1), name="step")
    >>> with forbid():
    ...     step(np.ones(3, np.float32))
    Traceback (most recent call last):
    bucketjax.compiles.UnexpectedCompilation: 'step' was compiled for a shape that is new: ...
    """
    _listen()
    with _lock:
        _forbidding.append(only_watched)
    try:
        yield
    finally:
        with _lock:
            _forbidding.remove(only_watched)


def warm_up(
    function: Any,
    argument_sets: Sequence[tuple[Any, ...]],
    *,
    workers: int = 1,
    progress: Callable[[int, int, str, float], None] | None = None,
) -> list[float]:
    """Compiles `function` for every set of arguments ahead of time.

    The first real call with such arguments then compiles nothing.

    Args:
      function: a jitted or watched function.
      argument_sets: positional arguments, arrays or `jax.ShapeDtypeStruct`s (with the sharding
        that the real ones will have).
      workers: how many are compiled at a time.
      progress: called after each as (how many are done, of how many, shapes, seconds).

    Returns:
      Seconds that each took, tracing included, in the order of `argument_sets`.

    Raises:
      RuntimeError: a set that cannot be compiled, naming its shapes; the cause is chained.

    >>> step = watch(jax.jit(lambda x: x * 2), name="step")
    >>> seconds = warm_up(step, [(np.ones(n, np.float32),) for n in (2, 4)])
    >>> with forbid():
    ...     _ = step(np.ones(4, np.float32))
    """

    def compile_one(number: int) -> tuple[int, float]:
        arguments = argument_sets[number]
        name = getattr(function, "name", None)
        token = _current.set(_Call(name, (arguments, {}))) if name else None
        start = time.perf_counter()
        try:
            function.lower(*arguments).compile()
        except UnexpectedCompilation:
            raise
        except Exception as error:
            raise RuntimeError(
                f"warm-up failed for {describe(arguments)}: {type(error).__name__}: {error}"
            ) from error
        finally:
            if token is not None:
                _current.reset(token)
        return number, time.perf_counter() - start

    seconds = [0.0] * len(argument_sets)
    with ThreadPoolExecutor(max_workers=max(workers, 1)) as pool:
        futures = [pool.submit(compile_one, number) for number in range(len(argument_sets))]
        try:
            for done, future in enumerate(as_completed(futures), 1):
                number, seconds[number] = future.result()
                if progress is not None:
                    progress(done, len(futures), describe(argument_sets[number]), seconds[number])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return seconds


def describe(arguments: Any) -> str:
    """Shapes and dtypes of the arrays in `arguments`, short: the largest few by number of axes.

    >>> describe({"features": np.ones((8, 30, 5), np.float32), "labels": np.ones((8, 4), int)})
    'features float32[8,30,5], labels int64[8,4]'
    """
    described = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(arguments)[0]:
        shape = np.shape(leaf)
        dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
        described.append((path, f"{dtype}[{','.join(map(str, shape))}]"))
    texts = []
    for path, text in described:
        names = [str(getattr(key, "key", getattr(key, "name", ""))) for key in path]
        name = next((part for part in reversed(names) if part and not part.isdigit()), "")
        texts.append(f"{name} {text}".strip())
    if len(texts) > _MOST_DESCRIBED:
        # A train state has many arrays that never change shape: what differs is in the batch.
        texts = texts[-_MOST_DESCRIBED:]
        return "..., " + ", ".join(texts)
    return ", ".join(texts)


_MOST_DESCRIBED = 8


def _on_event(event: str, **_: Any) -> None:
    if event == _CACHE_HIT:
        _cache_hit.seen = True


def _on_duration(event: str, seconds: float, **details: Any) -> None:
    if event != _COMPILED:
        return
    cached, _cache_hit.seen = getattr(_cache_hit, "seen", False), False
    with _lock:
        if not _logs and not _forbidding:
            return
        logs, forbidding = list(_logs), list(_forbidding)
    call = _current.get()
    if call is None:
        compilation = Compilation(str(details.get("fun_name", "unknown")), "", seconds, cached)
    else:
        compilation = Compilation(call.function, describe(call.arguments), seconds, cached)
    for log in logs:
        (log.other if call is None else log.compilations).append(compilation)
    if any(call is not None or not only_watched for only_watched in forbidding):
        raise UnexpectedCompilation(compilation)


@functools.cache
def _listen() -> None:
    # JAX offers no public way to take a listener back: there is one, for the whole process.
    jax.monitoring.register_event_listener(_on_event)
    jax.monitoring.register_event_duration_secs_listener(_on_duration)
