"""BucketSpec: what construction refuses, what fit promises, and what survives JSON."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax.boundaries import STRATEGIES, assign
from bucketjax.spec import BucketSpec, Shape

some_lengths = st.lists(st.integers(1, 60), min_size=1, max_size=20)


@given(
    lengths=some_lengths,
    num_buckets=st.integers(1, 6),
    budget=st.integers(64, 4000),
    batch_size=st.none() | st.integers(1, 8).map(lambda n: 8 * n),
    multiple_of=st.sampled_from([1, 4]),
    devices=st.sampled_from([1, 2, 8]),
    strategy=st.sampled_from(sorted(STRATEGIES)),
)
def test_batches_stay_within_the_budget_or_are_refused(
    lengths, num_buckets, budget, batch_size, multiple_of, devices, strategy
):
    def fit():
        return BucketSpec.fit(
            lengths,
            num_buckets=num_buckets,
            token_budget=budget,
            batch_size=batch_size,
            multiple_of=multiple_of,
            batch_multiple_of=devices,
            strategy=strategy,
        )

    longest = -(-max(lengths) // multiple_of) * multiple_of
    if longest * devices > budget:
        with pytest.raises(ValueError, match=f"raise token_budget to {longest * devices} or more"):
            fit()
        return
    for rows, length, label_length in fit().shapes:
        assert rows >= 1
        assert rows % devices == 0
        assert rows * length <= budget
        assert label_length is None
        if batch_size is None:
            assert (rows + devices) * length > budget  # the most rows that fit
        else:
            assert rows == batch_size or (rows + devices) * length > budget


@given(some_lengths, st.data(), st.integers(1, 5), st.sampled_from([1, 4]))
def test_every_label_fits_the_bucket_of_its_example(lengths, data, num_buckets, multiple):
    labels = data.draw(st.lists(st.integers(0, 30), min_size=len(lengths), max_size=len(lengths)))
    spec = BucketSpec.fit(
        lengths,
        num_buckets=num_buckets,
        batch_size=4,
        label_lengths=labels,
        label_multiple_of=multiple,
    )
    buckets = spec.assign(lengths, labels)
    assert np.array_equal(buckets, assign(lengths, spec.boundaries))
    for bucket, label in zip(buckets, labels, strict=True):
        assert label <= spec.shapes[bucket].label_length
    assert spec.num_buckets == len(set(spec.shapes))
    assert all(length % multiple == 0 for length in spec.label_lengths)
    assert list(spec.label_lengths) == sorted(spec.label_lengths)


def test_a_long_label_moves_an_example_upward():
    spec = BucketSpec((10, 20, 30), (4, 4, 4), label_lengths=(3, 5, 9))
    assert spec.assign([5, 5, 5, 31, 5], [3, 4, 9, 1, 10]).tolist() == [0, 1, 2, -1, -1]
    assert spec.assign([10, 11, 30]).tolist() == [0, 1, 2]


def test_a_histogram_fits_the_same_spec_as_the_lengths():
    lengths, labels = [3, 3, 9, 9, 9, 20], [1, 1, 2, 2, 4, 7]
    pairs, counts = np.unique(np.stack([lengths, labels]), axis=1, return_counts=True)
    arguments = {"num_buckets": 2, "batch_size": 4}
    assert BucketSpec.fit(
        pairs[0], label_lengths=pairs[1], counts=counts, **arguments
    ) == BucketSpec.fit(lengths, label_lengths=labels, **arguments)


def test_entries_of_the_histogram_that_never_occur_leave_no_trace():
    spec = BucketSpec.fit([3, 3], label_lengths=[1, 9], counts=[5, 0], num_buckets=1, batch_size=1)
    assert spec.label_lengths == (1,)


@given(st.integers(1, 6), st.booleans(), st.data())
def test_json_round_trips(num_buckets, labelled, data):
    some = st.lists(st.integers(1, 1000), min_size=num_buckets, max_size=num_buckets)
    spec = BucketSpec(
        boundaries=tuple(np.cumsum(data.draw(some)).tolist()),
        batch_sizes=tuple(data.draw(some)),
        label_lengths=tuple(sorted(data.draw(some))) if labelled else None,
    )
    again = BucketSpec.from_json(spec.to_json())
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.fingerprint == spec.fingerprint
    assert all(type(entry) is int for entry in spec.boundaries)


def test_the_fingerprint_is_the_same_in_another_process_and_for_ever():
    program = (
        "from bucketjax.spec import BucketSpec;"
        "print(BucketSpec((10, 20), (4, 2), label_lengths=(3, 5)).fingerprint)"
    )
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        printed = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True
        )
        assert printed.stdout.decode().strip() == "3bc671fb80914a71"


def test_the_fingerprint_tells_specs_apart():
    specs = [
        BucketSpec((10, 20), (4, 2)),
        BucketSpec((10, 21), (4, 2)),
        BucketSpec((10, 20), (4, 4)),
        BucketSpec((10, 20), (4, 2), label_lengths=(3, 5)),
        BucketSpec((10, 20), (4, 2), label_lengths=(3, 6)),
    ]
    assert len({spec.fingerprint for spec in specs}) == len(specs)


def test_shapes():
    spec = BucketSpec((10, 20), (4, 2), label_lengths=(3, 5))
    assert spec.shapes == (Shape(4, 10, 3), Shape(2, 20, 5))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"boundaries": ()}, ValueError, "boundaries is empty"),
        ({"boundaries": (20, 10)}, ValueError, r"boundaries must strictly increase; got \[20, 10"),
        ({"boundaries": (1.5, 2.0)}, TypeError, "boundaries must be integers; got float64"),
        (
            {"batch_sizes": (4, 0)},
            ValueError,
            r"bucket 1 \(length 20\) has batch size 0; every bucket needs at least 1 row",
        ),
        ({"batch_sizes": (4,)}, ValueError, r"batch_sizes must have one entry per boundary \(2\)"),
        ({"batch_sizes": (4, 2.0)}, TypeError, "batch_sizes must be integers"),
        (
            {"boundaries": (20, 10), "label_lengths": (5, 3)},
            ValueError,
            r"nothing reaches bucket 1 \(length 10, label length 3\): bucket 0 \(20, 5\) comes",
        ),
        ({"label_lengths": (0, 3)}, ValueError, "label_lengths must be at least 1"),
    ],
)
def test_construction_refuses(unchecked, arguments, error, message):
    with pytest.raises(error, match=message):
        BucketSpec(**{"boundaries": (10, 20), "batch_sizes": (4, 2), **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give token_budget, batch_size, or both"),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0"),
        (
            {"batch_size": 3, "batch_multiple_of": 8},
            r"batch_size=3 is not a multiple of batch_multiple_of=8 \(the number of devices\); "
            "8 would do",
        ),
        ({"batch_size": 30, "batch_multiple_of": 8}, "24 or 32 would do"),
        (
            {"token_budget": 15},
            r"the last bucket pads to 20 time steps, so its smallest batch of 1 row\(s\) has 20, "
            "over token_budget=15; raise token_budget to 20 or more",
        ),
        ({"batch_size": 1, "strategy": "best"}, "unknown strategy 'best'; choose one of equal_dur"),
        ({"batch_size": 1, "label_lengths": [1]}, "1 label lengths for 3 lengths; give one each"),
    ],
)
def test_fit_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        BucketSpec.fit([10, 10, 20], num_buckets=2, **arguments)


def test_a_strategy_may_be_a_function():
    def halves(lengths, **_):
        return [max(lengths) // 2, max(lengths)]

    spec = BucketSpec.fit([10, 3, 20], num_buckets=2, batch_size=1, strategy=halves)
    assert spec.boundaries == (10, 20)


def test_a_strategy_of_the_users_that_leaves_the_longest_out_is_refused():
    with pytest.raises(ValueError, match="1 of 1 lengths exceed the last boundary 5"):
        BucketSpec.fit([3, 40], num_buckets=1, batch_size=1, strategy=lambda *_, **__: [5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            BucketSpec((1, 2), (1, 1), label_lengths=(3, 3)).to_json().replace("3", "null", 1),
            "label_length is given for some shapes and null for others",
        ),
        ("{", "the text is not JSON"),
        ("[]", r'expected \{"format": "bucketjax.BucketSpec"'),
        ('{"format": "bucketjax.BucketSpec", "version": 2}', "version 2 is not known here"),
        ('{"format": "bucketjax.BucketSpec", "version": 1}', "'shapes' must be a list of shapes"),
        (
            json.dumps({"format": "bucketjax.BucketSpec", "version": 1, "shapes": [{"length": 1}]}),
            "each shape has batch_size, length, label_length; got",
        ),
    ],
)
def test_from_json_says_what_it_found(text, message):
    with pytest.raises(ValueError, match=message):
        BucketSpec.from_json(text)
