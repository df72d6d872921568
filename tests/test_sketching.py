"""Lengths as a stream: exact counts however they come, and sketches that plan nearly as well."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax import LengthHistogram, QuantileSketch, boundaries

chunks = st.lists(st.lists(st.integers(0, 50), max_size=8), min_size=1, max_size=8)


@given(chunks, st.integers(0, 7))
def test_a_histogram_is_the_same_however_the_lengths_come(parts, split):
    whole = [length for part in parts for length in part]
    first, second = LengthHistogram(), LengthHistogram()
    for number, part in enumerate(parts):
        (first if number < split else second).update(part)
    first.merge(second)
    values, counts = np.unique(np.array(whole, int), return_counts=True)
    assert first.lengths.tolist() == values.tolist()
    assert first.counts.tolist() == counts.tolist()
    assert first.num_examples == len(whole)


def test_a_histogram_is_bounded_and_says_so():
    histogram = LengthHistogram(max_distinct=3)
    histogram.update([1, 2, 3, 3])
    with pytest.raises(ValueError, match="4 distinct lengths are over max_distinct=3"):
        histogram.update([4])
    assert histogram.counts.tolist() == [1, 1, 2]  # as it was


@given(chunks, st.integers(0, 7))
def test_a_sketch_loses_no_example_and_no_time_step(parts, split):
    whole = [length for part in parts for length in part]
    first, second = QuantileSketch(max_quantiles=4), QuantileSketch(max_quantiles=4)
    for number, part in enumerate(parts):
        (first if number < split else second).update(part)
    first.merge(second)
    assert first.num_examples == len(whole)
    assert first.total == sum(whole)
    if whole:
        assert first.lengths[-1] == max(whole)
        assert len(first.lengths) <= 8
        # A cell's own length is never below that of its examples.
        below = np.searchsorted(np.sort(whole), first.lengths, side="right")
        assert np.all(np.cumsum(first.counts) <= below)


def test_the_number_of_quantiles_grows_as_examples_come():
    sketch, seen = QuantileSketch(max_quantiles=1000, growth=4.0), []
    rng = np.random.default_rng(0)
    for _ in range(20):
        sketch.update(rng.integers(1, 10**9, 5000))
        seen.append(len(sketch.lengths))
        assert len(sketch.lengths) <= 2 * sketch.num_quantiles
    assert seen[0] < seen[4] < seen[-1] <= 2000
    assert sketch.num_quantiles == 1000


WORKLOADS = [
    *(f"librispeech_{name}_samples16k" for name in ("train-clean-100", "dev-clean", "dev-other")),
    *(f"librispeech_{name}_samples16k" for name in ("test-clean", "test-other")),
    *("multi30k_en_tok", "multi30k_de_tok", "ljspeech_chars"),
    *("unipen_lines_points", "unipen_lines_label_chars"),
    *("unipen_words_points", "unipen_words_label_chars"),
    *("pendigits_points", "pendigits_label_chars"),
    *("pendigits_strings_example_points", "pendigits_strings_example_label_chars"),
]


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("processes", [1, 4])
def test_a_plan_from_a_sketch_is_within_2_percent_of_the_exact_one(data_dir, workload, processes):
    lengths = np.load(data_dir / "lengths/lengths.npz")[workload]
    sketch = QuantileSketch()
    for process in range(processes):
        part = QuantileSketch()
        mine = lengths[process::processes]
        for start in range(0, len(mine), 500):
            part.update(mine[start : start + 500])
        sketch.merge(part)
    for num_buckets in (4, 8, 16, 32):
        padded = []
        for planned in ((lengths, None), (sketch.lengths, sketch.counts)):
            cuts = boundaries.optimal(planned[0], counts=planned[1], num_buckets=num_buckets)
            padded.append(int(cuts[boundaries.assign(lengths, cuts)].sum()))
        assert padded[0] <= padded[1] <= 1.02 * padded[0]


def test_all_workloads_are_looked_at(data_dir):
    assert set(np.load(data_dir / "lengths/lengths.npz").files) == set(WORKLOADS)


def test_memory_does_not_grow_with_the_stream():
    sketch, rng = QuantileSketch(), np.random.default_rng(0)
    chunk = rng.integers(1, 10**12, 100_000)
    sketch.update(chunk)
    tracemalloc.start()
    for _ in range(20):
        chunk[:] = rng.permutation(chunk) + 1
        sketch.update(chunk)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sketch.num_examples == 2_100_000
    assert held < 1_000_000


@pytest.mark.parametrize("kind", [LengthHistogram, QuantileSketch])
def test_what_is_no_length_is_refused(kind, unchecked):
    counted = kind()
    for wrong, error, message in [
        ([-1], ValueError, r"lengths must be at least 0; lengths\[0\] is -1"),
        ([1.5], TypeError, "lengths must be integers; got float64"),
        ([True], TypeError, "lengths must be integers; got bool"),
        ([[1, 2]], ValueError, "lengths must be 1-D; got 2-D"),
    ]:
        with pytest.raises(error, match=message):
            counted.update(wrong)
    counted.update([])
    assert counted.num_examples == 0
    with pytest.raises(ValueError, match="growth must be above 0; got 0"):
        QuantileSketch(growth=0.0)
