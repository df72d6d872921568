"""Epoch plans: every example once, the same plan everywhere, an order that forgets lengths."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax.batching import EpochPlan, plan_epoch, plan_mixed_epoch
from bucketjax.spec import BucketSpec


@st.composite
def lengths_and_spec(draw, equal_batches=False):
    lengths = draw(st.lists(st.integers(0, 50), min_size=1, max_size=60).filter(any))
    devices = draw(st.sampled_from([1, 2, 4, 8]))
    rows = devices * draw(st.integers(1, 4))
    budget = None if equal_batches else draw(st.none() | st.integers(50 * devices, 3000))
    spec = BucketSpec.fit(
        lengths,
        num_buckets=draw(st.integers(1, 8)),
        batch_size=rows if budget is None else None,
        token_budget=budget,
        batch_multiple_of=devices,
    )
    return lengths, spec


def examples_of(plan):
    rows = np.concatenate([indices for _, indices in plan]) if len(plan) else np.empty(0, int)
    return np.sort(rows[rows >= 0]).tolist()


def check_shapes(plan, spec, lengths):
    for bucket, indices in plan:
        assert len(indices) == spec.batch_sizes[bucket]
        assert np.any(indices >= 0)
        for index in indices[indices >= 0]:
            assert lengths[index] <= spec.boundaries[bucket]


@given(lengths_and_spec(), st.integers(0, 2**70), st.integers(0, 10**6), st.booleans())
def test_pad_holds_every_example_exactly_once(case, seed, epoch, shuffle):
    lengths, spec = case
    plan = plan_epoch(lengths, spec, seed=seed, epoch=epoch, shuffle=shuffle)
    check_shapes(plan, spec, lengths)
    assert examples_of(plan) == list(range(len(lengths)))
    for bucket, indices in plan:  # each in the shortest bucket that holds it
        real = [lengths[index] for index in indices if index >= 0]
        assert bucket == 0 or min(real) > spec.boundaries[bucket - 1]
    assert plan.num_filler == sum(map(len, (rows for _, rows in plan))) - len(lengths)


@given(lengths_and_spec(), st.integers(0, 99))
def test_merge_holds_every_example_once_and_has_one_partial_batch_at_most(case, seed):
    lengths, spec = case
    plan = plan_epoch(lengths, spec, seed=seed, epoch=0, remainder="merge")
    check_shapes(plan, spec, lengths)
    assert examples_of(plan) == list(range(len(lengths)))
    partial = [bucket for bucket, indices in plan if np.any(indices < 0)]
    assert partial in ([], [spec.num_buckets - 1])


@given(lengths_and_spec(), st.integers(0, 99))
def test_drop_has_no_filler_and_counts_what_it_leaves_out(case, seed):
    lengths, spec = case
    plan = plan_epoch(lengths, spec, seed=seed, epoch=0, remainder="drop")
    check_shapes(plan, spec, lengths)
    assert plan.num_filler == 0
    assert sorted([*examples_of(plan), *plan.dropped]) == list(range(len(lengths)))
    in_bucket = np.bincount(spec.assign(lengths), minlength=spec.num_buckets)
    expected = sum(count % rows for count, rows in zip(in_bucket, spec.batch_sizes, strict=True))
    assert plan.report()["dropped"] == expected


@given(lengths_and_spec(equal_batches=True), st.integers(0, 99), st.sampled_from(["pad", "drop"]))
def test_mixed_batches_take_the_bucket_of_their_longest(case, seed, remainder):
    lengths, spec = case
    plan = plan_mixed_epoch(lengths, spec, seed=seed, epoch=3, remainder=remainder)
    check_shapes(plan, spec, lengths)
    assert sorted([*examples_of(plan), *plan.dropped]) == list(range(len(lengths)))
    for bucket, indices in plan:
        assert bucket == spec.assign([lengths[index] for index in indices if index >= 0]).max()
    assert plan.num_filler < spec.batch_sizes[0]


def test_mixed_batches_refuse_what_they_cannot_do():
    spec = BucketSpec((4, 8), (4, 2))
    with pytest.raises(ValueError, match=r"one batch size for every bucket; got \[2, 4\]"):
        plan_mixed_epoch([1, 2], spec, seed=0, epoch=0)
    with pytest.raises(ValueError, match='choose "pad" or "drop", not "merge"'):
        plan_mixed_epoch([1], BucketSpec((4,), (4,)), seed=0, epoch=0, remainder="merge")


@given(lengths_and_spec(), st.integers(0, 99), st.sampled_from(["pad", "merge", "drop"]))
def test_the_plan_is_a_function_of_its_arguments(case, seed, remainder):
    lengths, spec = case
    plan = plan_epoch(lengths, spec, seed=seed, epoch=1, remainder=remainder)
    again = plan_epoch(np.array(lengths, np.int16), spec, seed=seed, epoch=1, remainder=remainder)
    assert plan == again


def test_the_plan_is_the_same_in_another_process_and_for_ever():
    program = (
        "import zlib; from bucketjax import BucketSpec, plan_epoch;"
        "plan = plan_epoch(range(1, 200), BucketSpec((50, 199), (8, 4)), seed=3, epoch=5);"
        "print(zlib.crc32(b''.join(b'%d' % bucket + rows.astype('<i8').tobytes()"
        " for bucket, rows in plan)))"
    )
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert printed.stdout.decode().strip() == "2602224946"


@pytest.mark.parametrize("remainder", ["pad", "merge", "drop"])
def test_another_epoch_or_seed_is_another_order(remainder):
    lengths = np.arange(1, 400)
    spec = BucketSpec.fit(lengths, num_buckets=4, batch_size=8)
    orders = {
        plan_epoch(lengths, spec, seed=seed, epoch=epoch, remainder=remainder).rows.tobytes()
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(orders) == 9


def test_without_shuffling_the_order_is_the_examples_own():
    spec = BucketSpec((4, 8), (2, 2))
    plan = plan_epoch([8, 1, 7, 2, 3, 6], spec, seed=1, epoch=2, shuffle=False)
    assert [(bucket, rows.tolist()) for bucket, rows in plan] == [
        (0, [1, 3]),
        (0, [4, -1]),
        (1, [0, 2]),
        (1, [5, -1]),
    ]
    merged = plan_epoch([8, 1, 7, 2, 3, 6], spec, seed=1, epoch=2, shuffle=False, remainder="merge")
    assert [rows.tolist() for _, rows in merged] == [[1, 3], [0, 2], [4, 5]]


def test_lengths_of_adjacent_batches_are_uncorrelated():
    lengths = np.ceil(np.random.default_rng(0).lognormal(4, 1, 5000)).astype(int)
    spec = BucketSpec.fit(lengths, num_buckets=8, batch_size=32)
    correlations = []
    for epoch in range(20):
        plan = plan_epoch(lengths, spec, seed=0, epoch=epoch)
        padded = [spec.boundaries[bucket] for bucket, _ in plan]
        correlations.append(np.corrcoef(padded[:-1], padded[1:])[0, 1])
    assert abs(np.mean(correlations)) < 0.05


def test_examples_within_a_bucket_meet_others_in_every_epoch():
    spec = BucketSpec((10,), (2,))
    partners = {
        next(rows.tolist() for _, rows in plan_epoch([5] * 20, spec, seed=0, epoch=e) if 0 in rows)[
            0
        ]
        for e in range(20)
    }
    assert len(partners) > 5


def test_a_plan_is_a_sequence():
    plan = plan_epoch([1, 2, 3, 4, 5], BucketSpec((5,), (2,)), seed=0, epoch=0)
    assert len(plan) == len(list(plan)) == 3
    assert plan[-1].indices.tolist() == plan[2].indices.tolist()
    assert [batch.bucket for batch in plan[1:]] == [0, 0]
    with pytest.raises(IndexError):
        plan[3]
    with pytest.raises(ValueError, match="read-only"):
        plan[0].indices[0] = 1
    assert plan != [1]


def test_too_long_is_an_error_by_default_and_says_what_to_do():
    with pytest.raises(
        ValueError,
        match=r"1 of 3 examples fit no bucket, the first is example 1 \(the longest has 30 time "
        r'steps, the last bucket 8\); fit the spec to them, or choose too_long="drop"',
    ):
        plan_epoch([3, 30, 8], BucketSpec((8,), (2,)), seed=0, epoch=0)


@given(lengths_and_spec(), st.sampled_from(["pad", "merge", "drop"]))
def test_too_long_can_be_dropped_or_truncated_and_is_counted(case, remainder):
    lengths, spec = case
    more = [*lengths, spec.boundaries[-1] + 1, 1000]
    over = [len(lengths), len(lengths) + 1]
    arguments = {"seed": 0, "epoch": 0, "remainder": remainder}
    dropped = plan_epoch(more, spec, too_long="drop", **arguments)
    assert dropped.too_long.tolist() == over
    assert not set(over) & set(examples_of(dropped))
    truncated = plan_epoch(more, spec, too_long="truncate", **arguments)
    assert truncated.report()["truncated"] == 2
    assert truncated.truncated.tolist() == over
    assert set(over) <= {*examples_of(truncated), *truncated.dropped.tolist()}
    assert all(
        bucket == spec.num_buckets - 1
        for bucket, rows in truncated
        if set(over) & set(rows.tolist())
    )


def test_a_label_that_fits_no_bucket():
    spec = BucketSpec((8, 16), (2, 2), label_lengths=(2, 4))
    arguments = {"seed": 0, "epoch": 0, "label_lengths": [2, 5]}
    with pytest.raises(
        ValueError, match=r"1 labels are longer than the buckets of their length hold \(at most 4"
    ):
        plan_epoch([3, 3], spec, **arguments)
    with pytest.raises(ValueError, match="a label is never truncated"):
        plan_epoch([3, 3], spec, too_long="truncate", **arguments)
    plan = plan_epoch([3, 3], spec, too_long="drop", **arguments)
    assert plan.report() == {
        "batches": 1,
        "examples": 1,
        "filler": 1,
        "dropped": 0,
        "too_long": 1,
        "truncated": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"seed": -1}, ValueError, "seed must be at least 0; got -1"),
        ({"epoch": -1}, ValueError, "epoch must be at least 0; got -1"),
        ({"seed": 1.5}, TypeError, "seed must be an integer; got 1.5"),
        ({"lengths": []}, ValueError, "lengths is empty"),
        ({"lengths": [1, -1]}, ValueError, r"lengths\[1\] is -1"),
        ({"label_lengths": [1]}, ValueError, "1 label lengths for 2 lengths"),
        ({"remainder": "keep"}, ValueError, "unknown remainder 'keep'; choose one of pad, merge"),
        ({"too_long": "cut"}, ValueError, "unknown too_long 'cut'; choose one of error, drop, tr"),
    ],
)
def test_wrong_arguments(unchecked, arguments, error, message):
    arguments = {"lengths": [1, 2], "seed": 0, "epoch": 0, **arguments}
    spec = BucketSpec((4,), (2,), label_lengths=(2,))
    with pytest.raises(error, match=message):
        plan_epoch(arguments.pop("lengths"), spec, **arguments)


def test_a_plan_of_many_examples_is_complete():
    lengths = np.ceil(np.random.default_rng(1).lognormal(4, 1, 200_000)).astype(int)
    spec = BucketSpec.fit(lengths, num_buckets=16, token_budget=4 * int(lengths.max()))
    plan = plan_epoch(lengths, spec, seed=0, epoch=0)
    assert isinstance(plan, EpochPlan)
    assert examples_of(plan) == list(range(len(lengths)))
