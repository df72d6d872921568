"""The allocator: told once, in a process of its own, and never against the user's choice."""

import ctypes
import os
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, sys
from bucketjax.launching import keep_freed_memory
if "tune" in sys.argv:
    print(keep_freed_memory())
size = 64 << 20
def use():
    block = (ctypes.c_char * size)()
    ctypes.memset(block, 1, size)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run(*arguments, **variables):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


is_glibc = sys.platform == "linux" and hasattr(ctypes.CDLL(None), "gnu_get_libc_version")


@pytest.mark.skipif(not is_glibc, reason="the allocator is not glibc's")
def test_freed_memory_is_kept_for_the_next_use():
    (faults,) = run()
    said, kept = run("tune")
    assert said.startswith("allocator: glibc keeps freed memory")
    assert int(faults) > 10 * 16000  # a page of 4 KiB each, every time anew
    assert int(kept) < 1000


def test_what_the_user_set_is_left_alone():
    said, _ = run("tune", MALLOC_ARENA_MAX="3")
    assert said == "allocator: left as MALLOC_ARENA_MAX say"
