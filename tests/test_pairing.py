"""Shapes of two dimensions: against all sets of shapes, and against one dimension at a time."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketjax import BucketSpec, Loader, pairing, plan_epoch
from bucketjax.batching import plan_mixed_epoch
from bucketjax.pairing import cheapest_pairs, product_pairs

some_pairs = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=7)
some_pairs = some_pairs.filter(lambda pairs: any(length for length, _ in pairs))


def total(shapes, pairs, label_weight):
    """Each example in the cheapest shape that holds both; infinite where none does."""
    return sum(
        min(
            (
                padded + label_weight * padded_label
                for padded, padded_label in shapes
                if padded >= length and padded_label >= label
            ),
            default=np.inf,
        )
        for length, label in pairs
    )


@given(some_pairs, st.integers(1, 4), st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.booleans())
@settings(max_examples=60)
def test_small_cases_are_exact(pairs, num_shapes, label_weight, grid_of_2):
    multiple = 2 if grid_of_2 else 1
    lengths, labels = zip(*pairs, strict=True)
    found = cheapest_pairs(
        lengths,
        labels,
        num_shapes=num_shapes,
        label_weight=label_weight,
        multiple_of=multiple,
        label_multiple_of=multiple,
    )
    assert len(found) <= num_shapes
    assert np.all(found % multiple == 0)
    up = [{max(-(-n // multiple), 1) * multiple for n in side} for side in (lengths, labels)]
    grid = list(itertools.product(*map(sorted, up)))
    least = min(
        total(shapes, pairs, label_weight)
        for shapes in itertools.combinations(grid, min(num_shapes, len(grid)))
    )
    assert total(found, pairs, label_weight) == pytest.approx(least)


@given(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 60)), min_size=1, max_size=60),
    st.integers(1, 8),
    st.sampled_from([0.5, 1.0, 10.0]),
)
@settings(max_examples=40)
def test_never_worse_than_a_product_of_one_dimension_each(pairs, num_shapes, label_weight):
    lengths, labels = zip(*pairs, strict=True)
    found = cheapest_pairs(lengths, labels, num_shapes=num_shapes, label_weight=label_weight)
    assert len(found) <= num_shapes
    cost = total(found, pairs, label_weight)
    for split in range(1, num_shapes + 1):
        product = product_pairs(
            lengths, labels, num_lengths=split, num_label_lengths=num_shapes // split
        )
        assert cost <= total(product, pairs, label_weight) + 1e-6


@pytest.mark.parametrize("workload", ["unipen_lines", "unipen_words"])
@pytest.mark.parametrize(("num_shapes", "label_weight"), [(4, 1.0), (16, 20.0)])
def test_real_ink_is_cheaper_than_by_products(data_dir, workload, num_shapes, label_weight):
    stored = np.load(data_dir / "lengths/lengths.npz")
    lengths, labels = stored[f"{workload}_points"], stored[f"{workload}_label_chars"]
    spec = BucketSpec.fit(
        lengths,
        num_buckets=num_shapes,
        batch_size=8,
        label_lengths=labels,
        label_weight=label_weight,
    )
    bucket = spec.assign(lengths, labels)
    assert bucket.min() >= 0
    price = np.array([length + label_weight * label for _, length, label in spec.shapes])
    pairs = np.stack([lengths, labels], axis=1).astype(np.int64)
    products = []
    for split in range(1, num_shapes + 1):
        shapes = product_pairs(
            lengths, labels, num_lengths=split, num_label_lengths=num_shapes // split
        )
        inside = pairing.holds(shapes, pairs)
        cost = np.where(inside, (shapes @ [1.0, label_weight])[:, None], np.inf)
        products.append(cost.min(axis=0).sum())
    assert price[bucket].sum() < 0.98 * min(products)


@given(some_pairs, st.integers(1, 4), st.integers(1, 3), st.sampled_from(["pad", "merge", "drop"]))
@settings(max_examples=60)
def test_an_epoch_keeps_every_example_in_a_shape_that_holds_it(
    pairs, num_shapes, batch_size, remainder
):
    lengths, labels = map(np.array, zip(*pairs, strict=True))
    spec = BucketSpec.fit(
        lengths,
        num_buckets=num_shapes,
        batch_size=batch_size,
        label_lengths=labels,
        label_weight=1.0,
    )
    assert BucketSpec.from_json(spec.to_json()) == spec
    plan = plan_epoch(lengths, spec, seed=1, epoch=2, remainder=remainder, label_lengths=labels)
    seen = list(plan.dropped)
    for bucket, indices in plan:
        _, length, label = spec.shapes[bucket]
        real = indices[indices >= 0]
        assert np.all(lengths[real] <= length)
        assert np.all(labels[real] <= label)
        seen += real.tolist()
    assert sorted(seen) == list(range(len(lengths)))


def crossed():
    """Two shapes of which neither holds the other: long with few labels, short with many."""
    return BucketSpec((4, 20), (2, 2), label_lengths=(9, 2))


def test_an_example_takes_the_first_shape_that_holds_both():
    spec = crossed()
    assert spec.assign([3, 4, 5, 20, 5], [1, 9, 2, 2, 3]).tolist() == [0, 0, 1, 1, -1]
    assert spec.assign([3, 5, 21]).tolist() == [0, 1, -1]


def test_merge_moves_examples_only_where_they_fit():
    spec = crossed()
    lengths, labels = [3, 3, 3, 20], [9, 9, 9, 1]
    plan = plan_epoch(
        lengths, spec, seed=0, epoch=0, shuffle=False, remainder="merge", label_lengths=labels
    )
    # The third short one is not moved to the long shape, which has no room for its labels.
    assert [(bucket, rows.tolist()) for bucket, rows in plan] == [
        (0, [0, 1]),
        (0, [2, -1]),
        (1, [3, -1]),
    ]


def test_a_truncated_example_goes_where_its_label_fits():
    arguments = {"seed": 0, "epoch": 0, "shuffle": False, "too_long": "truncate"}
    plan = plan_epoch([50, 3], crossed(), label_lengths=[2, 9], **arguments)
    assert [(bucket, rows.tolist()) for bucket, rows in plan] == [(0, [1, -1]), (1, [0, -1])]
    with pytest.raises(ValueError, match="1 labels are longer than the buckets of their length"):
        plan_epoch([50, 3], crossed(), label_lengths=[3, 9], **arguments)


def test_mixed_batches_need_a_shape_that_holds_all():
    arguments = {"seed": 0, "epoch": 0, "shuffle": False}
    plan = plan_mixed_epoch([20, 3], crossed(), label_lengths=[1, 2], **arguments)
    assert [bucket for bucket, _ in plan] == [1]
    with pytest.raises(ValueError, match="no bucket holds a batch of length 20 with labels of 9"):
        plan_mixed_epoch([20, 3], crossed(), label_lengths=[1, 9], **arguments)


def test_the_loader_pads_both():
    source = [
        {"features": np.ones((length, 2)), "labels": np.ones(label, int)}
        for length, label in [(4, 9), (20, 2), (3, 1)]
    ]
    shapes = {
        (batch.arrays["features"].shape[1], batch.arrays["labels"].shape[1])
        for batch in Loader(source, crossed())
    }
    assert shapes == {(4, 9), (20, 2)}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_shapes": 0}, "num_shapes must be at least 1; got 0"),
        ({"label_weight": -1.0}, "label_weight must be a number, at least 0; got -1.0"),
        ({"label_lengths": [1]}, "1 label lengths for 2 lengths; give one each"),
        ({"multiple_of": 0}, "multiple_of must be at least 1"),
    ],
)
def test_what_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        cheapest_pairs(**{"lengths": [5, 9], "label_lengths": [1, 2], "num_shapes": 2, **arguments})
