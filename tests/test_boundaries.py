"""Boundaries: laws for every strategy, brute force for the optimum, errors that name the input."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax import boundaries

STRATEGIES = sorted(boundaries.STRATEGIES)
some_lengths = st.lists(st.integers(0, 40), min_size=1, max_size=14).filter(any)


def padded_total(lengths, cuts):
    return int(np.asarray(cuts)[np.searchsorted(cuts, lengths)].sum())


def round_up(lengths, multiple_of):
    return np.maximum(-(-np.asarray(lengths) // multiple_of), 1) * multiple_of


def cheapest_by_enumeration(lengths, num_buckets, multiple_of):
    distinct = np.unique(round_up(lengths, multiple_of))
    return min(
        padded_total(lengths, np.array([*inner, distinct[-1]]))
        for count in range(min(num_buckets, len(distinct)))
        for inner in itertools.combinations(distinct[:-1], count)
    )


@given(some_lengths, st.integers(1, 6), st.integers(1, 5))
def test_optimal_costs_what_the_best_of_all_choices_costs(lengths, num_buckets, multiple_of):
    cuts = boundaries.optimal(lengths, num_buckets=num_buckets, multiple_of=multiple_of)
    assert padded_total(lengths, cuts) == cheapest_by_enumeration(lengths, num_buckets, multiple_of)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(lengths=some_lengths, num_buckets=st.integers(1, 50), multiple_of=st.integers(1, 9))
def test_every_strategy_gives_sound_boundaries(strategy, lengths, num_buckets, multiple_of):
    cuts = boundaries.STRATEGIES[strategy](
        lengths, num_buckets=num_buckets, multiple_of=multiple_of
    )
    assert np.issubdtype(cuts.dtype, np.integer)
    assert np.all(np.diff(cuts) > 0)
    assert np.all(cuts % multiple_of == 0)
    assert cuts[0] >= 1
    assert max(lengths) <= cuts[-1] < max(max(lengths), 1) + multiple_of
    distinct = len(np.unique(round_up(lengths, multiple_of)))
    assert len(cuts) <= min(num_buckets, distinct)
    assert set(boundaries.assign(lengths, cuts)) == set(range(len(cuts)))  # none is empty


@given(some_lengths, st.integers(1, 50), st.integers(1, 5))
def test_optimal_uses_every_bucket_it_may(lengths, num_buckets, multiple_of):
    cuts = boundaries.optimal(lengths, num_buckets=num_buckets, multiple_of=multiple_of)
    assert len(cuts) == min(num_buckets, len(np.unique(round_up(lengths, multiple_of))))


@given(some_lengths, st.integers(1, 8))
def test_more_buckets_never_pad_more(lengths, num_buckets):
    fewer = boundaries.optimal(lengths, num_buckets=num_buckets)
    more = boundaries.optimal(lengths, num_buckets=num_buckets + 1)
    assert padded_total(lengths, more) <= padded_total(lengths, fewer)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(lengths=some_lengths, num_buckets=st.integers(1, 8), shuffled=st.randoms())
def test_order_and_form_of_the_lengths_do_not_matter(strategy, lengths, num_buckets, shuffled):
    cut = boundaries.STRATEGIES[strategy]
    expected = cut(lengths, num_buckets=num_buckets).tolist()
    permuted = list(lengths)
    shuffled.shuffle(permuted)
    distinct, counts = np.unique(lengths, return_counts=True)
    assert cut(permuted, num_buckets=num_buckets).tolist() == expected
    assert cut(np.array(lengths, np.uint16), num_buckets=num_buckets).tolist() == expected
    assert cut(distinct, counts=counts, num_buckets=num_buckets).tolist() == expected
    assert cut(lengths * 3, num_buckets=num_buckets).tolist() == expected


@given(some_lengths, st.integers(1, 8), st.integers(2, 7))
def test_scaling_the_lengths_scales_the_optimum(lengths, num_buckets, scale):
    cuts = boundaries.optimal(lengths, num_buckets=num_buckets)
    scaled = boundaries.optimal(
        np.array(lengths) * scale, num_buckets=num_buckets, multiple_of=scale
    )
    assert scaled.tolist() == (cuts * scale).tolist()


@pytest.mark.parametrize(
    ("lengths", "arguments", "expected"),
    [
        ([3, 3, 4, 5, 5, 5, 6, 7, 8, 8], {"num_buckets": 3}, [3, 5, 8]),
        ([10] * 900 + [1000] * 100, {"num_buckets": 4}, [10, 1000]),
        ([10] * 50 + [5000], {"num_buckets": 4}, [10, 5000]),
        ([7], {"num_buckets": 5}, [7]),
        ([7, 7, 7], {"num_buckets": 2, "multiple_of": 4}, [8]),
        ([0, 0, 5], {"num_buckets": 2}, [1, 5]),
        ([317], {"num_buckets": 1, "multiple_of": 64}, [320]),
    ],
)
def test_known_optima(lengths, arguments, expected):
    assert boundaries.optimal(lengths, **arguments).tolist() == expected


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("optimal", 0.063), ("equal_duration", 0.137), ("quantile", 0.127), ("uniform", 0.108)],
)
def test_padding_on_real_speech(data_dir, strategy, expected):
    lengths = np.load(data_dir / "lengths/lengths.npz")["librispeech_train-clean-100_samples16k"]
    frames = -(-lengths // 160)
    cuts = boundaries.STRATEGIES[strategy](frames, num_buckets=8)
    assert boundaries.padding_fraction(frames, cuts) == pytest.approx(expected, abs=0.0006)


def test_a_table_too_wide_to_count_in_is_merged_in_chunks(monkeypatch):
    lengths = np.random.default_rng(0).integers(0, 10**12, 1000)
    monkeypatch.setattr(boundaries, "_CHUNK", 64)
    lengths = np.concatenate([lengths, lengths[:500]])
    values, counts = boundaries.histogram(lengths)
    expected_values, expected_counts = np.unique(lengths, return_counts=True)
    assert np.array_equal(values, expected_values)
    assert np.array_equal(counts, expected_counts)


def test_counting_needs_little_memory_beside_the_lengths():
    # The same law holds at 100,000,000 lengths; this size keeps the test short.
    lengths = np.random.default_rng(0).integers(1, 20_001, 30_000_000, dtype=np.int32)
    tracemalloc.start()
    cuts = boundaries.optimal(lengths, num_buckets=32)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(cuts) == 32
    assert peak < 0.75 * lengths.nbytes


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_padded_totals_beyond_64_bits_are_refused(strategy):
    with pytest.raises(ValueError, match="does not fit in 64-bit integers; give lengths in a"):
        boundaries.STRATEGIES[strategy]([1, 2**62], num_buckets=2)
    with pytest.raises(ValueError, match="does not fit in 64-bit integers"):
        boundaries.padding_fraction([2**62] * 3, [2**62])


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([], ValueError, "lengths is empty; at least one is needed"),
        ([1.0, 2.0], TypeError, r"lengths must be integers; got float64: convert with \.astype"),
        ([1.0, float("nan")], TypeError, "lengths must be integers; got float64 with NaN"),
        ([True, False], TypeError, "lengths must be integers; got bool"),
        (["a"], TypeError, "lengths must be integers; got <U1"),
        ([[1, 2]], ValueError, r"lengths must be 1-D; got 2-D, shape \(1, 2\)"),
        ([[1], [1, 2]], ValueError, "lengths must be 1-D; got nested sequences"),
        (iter([1, 2]), TypeError, "1-D array or list of 64-bit integers; got an entry of type lis"),
        ([2**70], TypeError, "1-D array or list of 64-bit integers; got an entry of type int"),
        (None, TypeError, "got an entry of type NoneType"),
        (5, ValueError, r"lengths must be 1-D; got 0-D"),
        ([3, -2], ValueError, r"lengths must be at least 0; lengths\[1\] is -2"),
        ([0, 0], ValueError, "all lengths are 0: there is nothing to pad"),
        (np.array([2**63], np.uint64), ValueError, "must fit in 64-bit signed integers"),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lengths_that_cannot_be_planned_for(strategy, lengths, error, message):
    with pytest.raises(error, match=message):
        boundaries.STRATEGIES[strategy](lengths, num_buckets=2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_buckets": 0}, ValueError, "num_buckets must be at least 1; got 0"),
        ({"num_buckets": 1, "multiple_of": 0}, ValueError, "multiple_of must be at least 1; got 0"),
        ({"num_buckets": 1, "counts": [1]}, ValueError, r"counts has shape \(1,\), lengths \(2,\)"),
        ({"num_buckets": 1, "counts": [1, -1]}, ValueError, "counts must not be negative; got -1"),
        ({"num_buckets": 1, "counts": [0, 0]}, ValueError, "counts are all 0"),
        ({"num_buckets": 1, "counts": [0.5, 1]}, TypeError, "counts must be integers; got float64"),
    ],
)
def test_arguments_that_are_wrong(arguments, error, message):
    with pytest.raises(error, match=message):
        boundaries.optimal([1, 2], **arguments)


@pytest.mark.parametrize("value", [2.0, True, "2", None])
def test_a_number_that_is_no_integer_is_refused(value):
    with pytest.raises(TypeError, match=f"num_buckets must be an integer; got {value!r} "):
        boundaries.at_least_one(value, "num_buckets")


@given(some_lengths, st.integers(1, 6))
def test_assign_takes_the_first_bucket_that_holds_a_length(lengths, num_buckets):
    cuts = boundaries.uniform(lengths, num_buckets=num_buckets)
    for length, bucket in zip(lengths, boundaries.assign(lengths, cuts), strict=True):
        assert length <= cuts[bucket]
        assert bucket == 0 or length > cuts[bucket - 1]


@pytest.mark.parametrize(
    ("cuts", "message"),
    [
        ([5, 5], r"boundaries must strictly increase; got \[5, 5\]"),
        ([0, 5], r"boundaries must be at least 1; got \[0, 5\]"),
        ([3, 5], r"1 of 2 lengths exceed the last boundary 5 \(the longest is 9\); extend"),
    ],
)
def test_assign_refuses(cuts, message):
    with pytest.raises(ValueError, match=message):
        boundaries.assign([2, 9], cuts)


@given(some_lengths, st.integers(1, 6))
def test_padding_fraction_is_a_share(lengths, num_buckets):
    cuts = boundaries.optimal(lengths, num_buckets=num_buckets)
    fraction = boundaries.padding_fraction(lengths, cuts)
    assert 0 <= fraction < 1
    assert fraction == pytest.approx(1 - sum(lengths) / padded_total(lengths, cuts))
