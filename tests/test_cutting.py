"""The two searches, against every possible way to cut."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax import boundaries
from bucketjax.cutting import cheapest_batches, cheapest_cuts


@st.composite
def rows_of_lengths(draw):
    lengths = draw(st.lists(st.integers(1, 60), min_size=1, max_size=9, unique=True))
    size = len(lengths)
    counts = draw(st.lists(st.integers(0, 12), min_size=size, max_size=size))
    kept = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    if draw(st.booleans()):
        kept = [False] * size
    return np.sort(lengths), np.array(counts), np.array(kept)


def all_cuts(size, count, kept):
    for inner in itertools.combinations(range(size - 1), count - 1):
        ends = [*inner, size - 1]
        if all(number in ends for number in np.flatnonzero(kept)):
            yield np.array(ends)


@given(rows_of_lengths(), st.integers(1, 9))
def test_padding_is_the_least_of_all_cuts(case, most_cuts):
    lengths, counts, kept = case
    most_cuts = min(most_cuts, len(lengths))

    def total(ends):
        return sum(lengths[ends][np.searchsorted(lengths[ends], lengths)] * counts)

    cuts = cheapest_cuts(lengths, counts, most_cuts, kept)
    assert len(cuts) == most_cuts
    for count, found in enumerate(cuts, start=1):
        every = [total(ends) for ends in all_cuts(len(lengths), count, kept)]
        assert len(found) == (count if every else 0)
        if every:
            assert set(np.flatnonzero(kept)) <= set(found.tolist())
            assert total(found) == min(every)


@given(rows_of_lengths(), st.integers(1, 9), st.data())
def test_whole_batches_cost_the_least_of_all_cuts(case, most_cuts, data):
    lengths, counts, kept = case
    size = len(lengths)
    rows = np.array(data.draw(st.lists(st.integers(1, 7), min_size=size, max_size=size)))
    prices = st.lists(st.integers(0, 50).map(float), min_size=size, max_size=size)
    step_price, shape_price = np.array(data.draw(prices)), np.array(data.draw(prices))

    def total(ends):
        examples = np.diff(np.concatenate([[0], np.cumsum(counts)[ends]]))
        return float((-(-examples // rows[ends])) @ step_price[ends] + shape_price[ends].sum())

    totals, cuts = cheapest_batches(counts, rows, step_price, shape_price, most_cuts, kept)
    for count, (least, found) in enumerate(zip(totals, cuts, strict=True), start=1):
        every = [total(ends) for ends in all_cuts(size, count, kept)]
        assert least == (min(every) if every else np.inf)
        assert len(found) == (count if every else 0)
        if every:
            assert total(found) == least


def test_the_fast_search_is_wrong_for_whole_batches():
    # Why there are two. Filler breaks the quadrangle inequality.
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(200):
        lengths = np.sort(rng.choice(np.arange(1, 40), 7, replace=False))
        counts = rng.integers(1, 6, 7)
        rows, kept = np.full(7, 4), np.zeros(7, bool)
        prices = (rows * lengths).astype(float), np.zeros(7)
        totals, _ = cheapest_batches(counts, rows, *prices, 3, kept)
        ends = cheapest_cuts(lengths, counts, 3, kept)[-1]
        examples = np.diff(np.concatenate([[0], np.cumsum(counts)[ends]]))
        assert (-(-examples // 4)) @ prices[0][ends] >= totals[2]
        wrong += (-(-examples // 4)) @ prices[0][ends] > totals[2]
    assert wrong > 20


def test_200_000_distinct_lengths_are_planned_exactly():
    # Lengths 1, 2, ..., n once each: the best cuts are as even as can be.
    num = 200_000
    cuts = boundaries.optimal(np.arange(1, num + 1), num_buckets=32)
    widths = np.diff(np.concatenate([[0], cuts]))
    assert len(cuts) == 32
    assert widths.max() - widths.min() <= 1


@pytest.mark.parametrize("keep", [[16], [4, 8], [7], [40], [1, 40]])
def test_kept_boundaries_are_kept(keep):
    lengths = [3, 5, 6, 9, 9, 12, 30]
    cuts = boundaries.optimal(lengths, num_buckets=4, keep=keep)
    assert set(keep) <= set(cuts.tolist())
    assert len(cuts) == 4
    assert cuts[-1] == max(30, *keep)


def test_what_cannot_be_kept_is_refused():
    with pytest.raises(ValueError, match=r"keep=\[10\] must be multiples of multiple_of=8; \[16\]"):
        boundaries.optimal([3, 5], num_buckets=2, multiple_of=8, keep=[10])
    with pytest.raises(ValueError, match="need 3 buckets; num_buckets=2: allow more or keep fewer"):
        boundaries.optimal([3, 50], num_buckets=2, keep=[10, 20])
    with pytest.raises(TypeError, match="keep must be integers; got float64"):
        boundaries.optimal([3, 50], num_buckets=2, keep=[10.5])
