"""Decoding and label errors, against the textbook's recursions."""

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax.nn.decoding import collapse, edit_distance, label_errors

labels = st.lists(st.integers(1, 4), max_size=8)


@functools.cache
def by_recursion(a, b):
    if not a or not b:
        return len(a) + len(b)
    return min(
        by_recursion(a[1:], b) + 1,
        by_recursion(a, b[1:]) + 1,
        by_recursion(a[1:], b[1:]) + (a[0] != b[0]),
    )


@given(labels, labels)
def test_edit_distance_is_the_fewest_edits(a, b):
    assert edit_distance(a, b) == by_recursion(tuple(a), tuple(b)) == edit_distance(b, a)


@given(labels, labels, labels)
def test_edit_distance_is_a_metric(a, b, c):
    assert (edit_distance(a, b) == 0) == (a == b)
    assert edit_distance(a, c) <= edit_distance(a, b) + edit_distance(b, c)


@given(st.lists(st.integers(0, 3), max_size=12))
def test_collapse_merges_repeats_and_then_drops_blanks(path):
    expected = [entry for entry, _ in itertools.groupby(path) if entry != 0]
    assert collapse(np.array(path, int)).tolist() == expected


def test_the_blank_may_be_another_class():
    assert collapse(np.array([2, 0, 0, 2, 1]), blank_id=2).tolist() == [0, 1]


def test_label_errors_are_sums_and_demand_pairs():
    assert label_errors([[1, 2, 3], []], [[1, 3], [4, 4]]) == (3, 4)
    with pytest.raises(ValueError, match="argument 2 is longer"):
        label_errors([[1]], [[1], [2]])
