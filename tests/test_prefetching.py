"""Prefetching: order, errors, and no thread that outlives its loop."""

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax.prefetching import prefetch


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name == "bucketjax-prefetch"]


@given(st.lists(st.integers(), max_size=20), st.integers(0, 5))
def test_the_items_come_in_order(items, depth):
    assert list(prefetch(items, depth)) == items
    assert not prefetch_threads()


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_an_error_arrives_after_the_items_before_it(depth):
    def items():
        yield 1
        yield 2
        raise OSError("the disk is gone")

    taken = []
    with pytest.raises(OSError, match="the disk is gone"):
        for item in prefetch(items(), depth):
            taken.append(item)
    assert taken == [1, 2]
    assert not prefetch_threads()


def test_leaving_the_loop_stops_the_thread_and_closes_the_items():
    closed = threading.Event()

    def endless():
        try:
            number = 0
            while True:
                yield number
                number += 1
        finally:
            closed.set()

    for item in prefetch(endless(), 2):
        if item == 3:
            assert prefetch_threads()
            break
    assert not prefetch_threads()
    assert closed.is_set()


def test_it_runs_ahead_but_no_further_than_its_depth():
    made = []

    def items():
        for number in range(10):
            made.append(number)
            yield number

    ahead = prefetch(items(), 2)
    assert next(ahead) == 0
    until = time.monotonic() + 5
    while len(made) < 4 and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(0.05)
    # Two wait in the queue, and one more waits for room in it.
    assert made == [0, 1, 2, 3]
    ahead.close()
