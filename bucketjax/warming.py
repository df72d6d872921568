"""Compile the shapes that are still to come while the first ones already train.

>>> import jax, numpy as np
>>> step = compiles.watch(jax.jit(lambda x: x * 2), name="step")
>>> shapes = [(np.ones(length, np.float32),) for length in (2, 4, 8)]
>>> with in_background(step, shapes) as warming, compiles.forbid(only_watched=True):
...     for length in (2, 4, 4, 8):
...         _ = warming(np.ones(length, np.float32))
>>> [compilation.shapes for compilation in warming.built]
['float32[2]', 'float32[4]', 'float32[8]']
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from bucketjax import compiles
from bucketjax.compiles import Compilation
from bucketjax.describing import describe

__all__ = ["Warming", "in_background"]


class Warming:
    """The function, while its shapes compile behind it; from `in_background`.

    >>> import jax
    >>> with in_background(jax.jit(lambda x: x), []) as step:
    ...     isinstance(step, Warming)
    True
    """

    def __init__(
        self, function: Any, argument_sets: Sequence[Any], names: Sequence[str], pool: Any
    ):
        self._watched = function if hasattr(function, "seen") else compiles.watch(function)
        self._pool = pool
        # In the order of need; a shape given twice is compiled once.
        self._waiting: dict[str, tuple[Any, str]] = {}
        for arguments, name in zip(argument_sets, names, strict=True):
            self._waiting.setdefault(describe(arguments), (arguments, name))
        self._running: dict[str, Future[Compilation]] = {}

    @property
    def built(self) -> list[Compilation]:
        """What has been built so far, in the order in which it was begun."""
        return [future.result() for future in self._running.values() if future.done()]

    def __call__(self, *arguments: Any) -> Any:
        """Calls the function, after waiting for its shapes if they are still being compiled.

        Raises:
          RuntimeError: these shapes could not be compiled; the cause is chained.
        """
        if not self._waiting and all(future.done() for future in self._running.values()):
            return self._watched(*arguments)
        shapes = describe(arguments)
        if shapes in self._waiting:
            self._begin(shapes)  # needed earlier than was thought
        if shapes in self._running:
            self._running[shapes].result()
        result = self._watched(*arguments)
        # While the device works on it: tracing belongs in this thread, because a context such as
        # jax.default_matmul_precision does.
        if self._waiting:
            self._begin(next(iter(self._waiting)))
        return result

    def _begin(self, shapes: str) -> None:
        arguments, name = self._waiting.pop(shapes)
        start = time.perf_counter()
        with compiles._naming(self._watched, arguments, name):
            lowered = self._watched.lower(*arguments)
        lowering = time.perf_counter() - start
        self._running[shapes] = self._pool.submit(
            compiles._compile, self._watched, arguments, name, lowered, lowering, True
        )

    def _failure(self) -> BaseException | None:
        failures = (future.exception() for future in self._running.values() if future.done())
        return next((failure for failure in failures if failure is not None), None)


@contextlib.contextmanager
def in_background(
    function: Any,
    argument_sets: Sequence[tuple[Any, ...]],
    *,
    names: Sequence[str] | None = None,
    workers: int = 1,
) -> Iterator[Warming]:
    """Gives the function to call inside the block, whose shapes compile behind the calls.

    Every call traces one more set of arguments and hands it to a thread that compiles it. A call
    whose shapes are not there yet has them compiled next and waits, so nothing compiles twice and
    the first call waits for its own shapes only. It pays where a core is idle; where all cores
    train, `compiles.warm_up` takes as long and is easier to time.

    Args:
      function: a jitted or watched function.
      argument_sets: as in `compiles.warm_up`, in the order in which they will be needed. Sets of
        equal shapes are taken for one.
      names: what to call each set in an error.
      workers: how many are compiled at a time.

    Raises:
      ValueError: names that are not one per set, or less than one worker.
      RuntimeError: at the end of the block, if a set could not be compiled that no call needed.

    >>> import jax, numpy as np
    >>> with in_background(jax.jit(lambda x: x + 1), [(np.ones(3, np.float32),)]) as step:
    ...     _ = step(np.ones(3, np.float32))
    """
    names = [""] * len(argument_sets) if names is None else names
    if len(names) != len(argument_sets):
        raise ValueError(
            f"{len(names)} names for {len(argument_sets)} sets of arguments; give one each"
        )
    if workers < 1:
        raise ValueError(f"workers must be at least 1; got {workers}")
    with ThreadPoolExecutor(max_workers=workers) as pool:
        warming = Warming(function, argument_sets, names, pool)
        try:
            yield warming
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    failure = warming._failure()
    if failure is not None:
        raise failure
