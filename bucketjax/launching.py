"""What a program does once, before its first array: how freed memory is kept."""

from __future__ import annotations

import ctypes
import os
import sys

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8  # mallopt's names for them, from malloc.h


def keep_freed_memory() -> str:
    """Has glibc keep the memory that a step frees for the next step; says what was done.

    On CPU every step allocates its working memory anew. By default glibc takes such large blocks
    from the kernel and gives them back, and the kernel clears each page again: a quarter of the
    time of an LSTM's step. Afterwards the process holds on to the most memory that it ever used.
    Nothing is done where glibc's own variables (`MALLOC_...`) are set, or without glibc.

    Source: mallopt(3), M_MMAP_MAX, M_TRIM_THRESHOLD and M_ARENA_MAX.

    >>> print(keep_freed_memory())
    allocator: ...
    """
    chosen = sorted(name for name in os.environ if name.startswith("MALLOC_"))
    if chosen:
        return f"allocator: left as {', '.join(chosen)} say"
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(libc, "gnu_get_libc_version"):
        return "allocator: left alone, it is not glibc's"
    assert libc is not None
    # One arena: those of threads are small, and what does not fit goes back to the kernel.
    settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _ARENA_MAX: 1}
    done = all(libc.mallopt(name, value) for name, value in settings.items())
    if not done:
        return "allocator: left alone, glibc refused"
    return (
        "allocator: glibc keeps freed memory for the next step (set a MALLOC_ variable to choose)"
    )
