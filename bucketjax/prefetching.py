"""Run an iterator ahead of its consumer, in a thread that never outlives the loop."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

__all__ = ["prefetch"]

Item = TypeVar("Item")
_DONE = object()


def prefetch(items: Iterable[Item], depth: int) -> Iterator[Item]:
    """Yields `items` in order, computed up to `depth` ahead by one background thread.

    An error in `items` is raised here, after the items before it. Leaving the loop early, by
    `break` or by an error, stops the thread and waits for it.

    Args:
      items: what to compute ahead; consumed in the background thread.
      depth: most items computed but not yet taken; 0 computes each when it is asked for.

    >>> list(prefetch(range(3), depth=2))
    [0, 1, 2]
    """
    if depth == 0:
        yield from items
        return
    ready: queue.Queue = queue.Queue(maxsize=depth)
    stop = threading.Event()
    thread = threading.Thread(
        target=_produce, args=(items, ready, stop), name="bucketjax-prefetch", daemon=True
    )
    thread.start()
    try:
        while (taken := ready.get()) is not _DONE:
            item, error = taken
            if error is not None:
                raise error
            yield item
    finally:
        stop.set()
        _drain(ready)  # a producer that waits for room sees the stop at once
        thread.join()


def _produce(items: Iterable[Item], ready: queue.Queue, stop: threading.Event) -> None:
    iterator = iter(items)
    try:
        for item in iterator:
            _put(ready, (item, None), stop)
            if stop.is_set():
                break
    except BaseException as error:
        _put(ready, (None, error), stop)
    finally:
        close: Callable[[], None] | None = getattr(iterator, "close", None)
        if close is not None:
            close()
        _put(ready, _DONE, stop)


def _put(ready: queue.Queue, item: object, stop: threading.Event) -> None:
    while not stop.is_set():
        with contextlib.suppress(queue.Full):
            ready.put(item, timeout=0.1)
            break


def _drain(ready: queue.Queue) -> None:
    while True:
        try:
            ready.get_nowait()
        except queue.Empty:
            return
