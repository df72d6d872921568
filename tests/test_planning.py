"""Choosing shapes: the optimum of every objective by enumeration, laws, and what is refused."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax import BucketSpec, CostModel, searching
from bucketjax.planning import choose_shapes
from bucketjax.pricing import ASSUMED
from bucketjax.working import feasible

some_lengths = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any)
COST = CostModel.linear(per_step=0.5, per_time_step=0.01, compile_seconds=3.0)


def run_cost(lengths, boundaries, rows, objective, epochs=1, cost=COST):
    """What a run costs, counted bucket by bucket in plain Python."""
    total = 0.0
    for bucket, boundary in enumerate(boundaries):
        below = boundaries[bucket - 1] if bucket else -1
        examples = sum(below < length <= boundary for length in lengths)
        steps = -(-examples // rows(boundary))
        if objective == "padding":
            total += examples * boundary
        elif objective == "time_steps":
            total += steps * rows(boundary) * boundary
        else:
            seconds = 0.5 + 0.01 * rows(boundary) * boundary if cost is COST else None
            total += epochs * steps * seconds + 3.0
    return total


def every_choice(lengths, most, multiple_of, keep=()):
    padded = {max(-(-length // multiple_of), 1) * multiple_of for length in lengths} | set(keep)
    distinct = sorted(padded)
    for count in range(1, min(most, len(distinct)) + 1):
        for inner in itertools.combinations(distinct[:-1], count - 1):
            if set(keep) <= {*inner, distinct[-1]}:
                yield [*inner, distinct[-1]]


@pytest.mark.parametrize("objective", ["padding", "time_steps", "seconds"])
@given(
    lengths=some_lengths,
    most=st.integers(1, 5),
    multiple_of=st.integers(1, 4),
    batch_size=st.integers(1, 6),
    budget=st.none() | st.integers(40, 90),
    epochs=st.integers(1, 20),
    keep=st.none() | st.integers(1, 8),
)
def test_nothing_is_cheaper(
    objective, lengths, most, multiple_of, batch_size, budget, epochs, keep
):
    keep = () if keep is None or most < 2 else (keep * multiple_of,)
    arguments = {
        "num_buckets": most,
        "multiple_of": multiple_of,
        "batch_size": batch_size,
        "token_budget": budget,
        "objective": objective,
        "epochs": epochs,
        "cost": COST,
        "keep": keep,
    }
    choice = choose_shapes(lengths, **arguments)

    def rows(boundary):
        return batch_size if budget is None else min(batch_size, budget // boundary)

    def cost(boundaries):
        return run_cost(lengths, boundaries, rows, objective, epochs)

    assert set(keep) <= set(choice.boundaries)
    assert len(choice.boundaries) <= most
    assert choice.batch_sizes == tuple(map(rows, choice.boundaries))
    least = min(map(cost, every_choice(lengths, most, multiple_of, keep)))
    assert cost(list(choice.boundaries)) == pytest.approx(least, rel=1e-12)
    assert choice.totals[choice.num_buckets - 1] == pytest.approx(least, rel=1e-12)


@given(some_lengths, st.integers(1, 6), st.integers(1, 50))
def test_auto_is_the_cheapest_number_and_tells_its_neighbours(lengths, batch_size, epochs):
    arguments = {"batch_size": batch_size, "cost": COST, "epochs": epochs}
    choice = choose_shapes(lengths, num_buckets="auto", **arguments)
    every = [run_cost(lengths, b, lambda _: batch_size, "seconds", epochs)
             for b in every_choice(lengths, 99, 1)]  # fmt: skip
    assert choice.totals[choice.num_buckets - 1] == pytest.approx(min(every))
    for count in (choice.num_buckets - 1, choice.num_buckets + 1):
        more = choice.saved_against(count)
        if more is not None:
            assert more >= 0
            text = f"with {count} shape{'s' if count > 1 else ''} "
            assert text in choice.report()


def test_a_long_run_affords_more_shapes_than_a_short_one(data_dir):
    lengths = np.load(data_dir / "lengths/lengths.npz")["unipen_words_points"]
    found = [
        choose_shapes(lengths, num_buckets="auto", batch_size=32, epochs=epochs).num_buckets
        for epochs in (1, 3, 30)
    ]
    assert found == sorted(found)
    assert found[0] < found[-1] - 5


@given(some_lengths, st.integers(1, 4))
def test_auto_stays_within_its_cap_and_says_when_that_costs(lengths, cap):
    arguments = {"num_buckets": "auto", "batch_size": 2, "cost": COST, "epochs": 20}
    free = choose_shapes(lengths, **arguments)
    capped = choose_shapes(lengths, max_buckets=cap, **arguments)
    assert capped.num_buckets <= cap
    if free.num_buckets <= cap:
        assert capped.boundaries == free.boundaries
    costs = [
        run_cost(lengths, boundaries, lambda _: 2, "seconds", 20)
        for boundaries in every_choice(lengths, 99, 1)
        if len(boundaries) == cap + 1
    ]
    one_more_helps = min(costs, default=np.inf) < capped.totals[capped.num_buckets - 1]
    told = f"no more than max_buckets={cap}, though more would cost less" in capped.report()
    assert told == (one_more_helps and capped.num_buckets == cap)


@given(some_lengths, st.integers(1, 5), st.integers(2, 6), st.integers(1, 5))
def test_order_duplication_and_scale(lengths, most, scale, batch_size):
    arguments = {"num_buckets": most, "objective": "time_steps"}
    choice = choose_shapes(lengths, batch_size=batch_size, **arguments)
    backwards = choose_shapes(lengths[::-1], batch_size=batch_size, **arguments)
    assert backwards.boundaries == choice.boundaries
    # As many more examples in as many times larger batches: the same batches.
    tripled = choose_shapes(lengths * 3, batch_size=3 * batch_size, **arguments)
    assert tripled.totals[tripled.num_buckets - 1] == 3 * choice.totals[choice.num_buckets - 1]
    scaled = choose_shapes(
        np.array(lengths) * scale, batch_size=batch_size, multiple_of=scale, **arguments
    )
    assert scaled.boundaries == tuple(scale * np.array(choice.boundaries))
    distinct, counts = np.unique(lengths, return_counts=True)
    counted = choose_shapes(distinct, counts=counts, batch_size=batch_size, **arguments)
    assert counted.boundaries == choice.boundaries


@given(some_lengths, st.integers(1, 6), st.sampled_from(["padding", "time_steps", "seconds"]))
def test_more_buckets_never_cost_more(lengths, most, objective):
    totals = []
    for count in (most, most + 1):
        choice = choose_shapes(
            lengths, num_buckets=count, batch_size=3, objective=objective, cost=COST
        )
        totals.append(choice.totals[choice.num_buckets - 1])
    assert totals[1] <= totals[0]


def test_a_cap_is_rounded_up_and_every_buffer_is_sized_from_it():
    lengths = [30, 100, 200, 317, 318, 500, 900]
    spec = BucketSpec.fit(
        lengths, num_buckets=3, batch_size=2, multiple_of=64, longest=317, batch_multiple_of=2
    )
    assert spec.boundaries[-1] == 320
    from bucketjax import Loader

    source = [{"features": np.ones((n, 2), np.float32)} for n in lengths]
    loader = Loader(source, spec, too_long="truncate")
    longest = max(batch.arrays["features"].shape[1] for batch in loader)
    assert longest == 320
    assert loader.plan.report()["truncated"] == 2  # 318 fits into 320


def test_what_is_above_the_cap_counts_at_the_cap_or_not_at_all():
    lengths = [10] * 50 + [40] + [5000] * 3
    cut = choose_shapes(lengths, num_buckets=2, batch_size=1, longest=100)
    assert cut.boundaries == (10, 100)
    assert (cut.num_too_long, cut.num_examples) == (3, 54)
    dropped = choose_shapes(lengths, num_buckets=2, batch_size=1, longest=100, too_long="drop")
    assert dropped.boundaries == (10, 40)
    assert (dropped.num_too_long, dropped.num_examples) == (3, 54)
    assert "3 examples are longer than the cap" in dropped.report()
    with pytest.raises(ValueError, match="all lengths are above longest=5"):
        choose_shapes([10, 20], num_buckets=1, batch_size=1, longest=5, too_long="drop")


def test_other_strategies_decide_where_and_the_objective_how_many():
    lengths = np.arange(1, 400)
    free = CostModel.linear(per_time_step=1.0, compile_seconds=0.0)
    dear = CostModel.linear(per_time_step=1.0, compile_seconds=1e9)
    for cost, expected in ((free, 12), (dear, 1)):
        choice = choose_shapes(
            lengths,
            num_buckets=12,
            strategy="uniform",
            objective="seconds",
            batch_size=1,
            cost=cost,
        )
        assert choice.num_buckets == expected


def test_batch_sizes_may_be_a_function_of_the_length():
    choice = choose_shapes(
        [10, 10, 90], num_buckets=2, batch_size=lambda length: 1000 // length, batch_multiple_of=8
    )
    assert choice.batch_sizes == (96, 8)
    with pytest.raises(ValueError, match=r"batch_size gives 5 row\(s\) for length 90"):
        choose_shapes([90], num_buckets=1, batch_size=lambda _: 5, batch_multiple_of=8)


def test_very_many_distinct_lengths_are_cut_on_a_grid(monkeypatch):
    lengths = np.random.default_rng(0).integers(1, 3000, 5000)
    exact = choose_shapes(lengths, num_buckets=6, batch_size=8, objective="time_steps")
    monkeypatch.setattr(searching, "MOST_CANDIDATES", 300)
    near = choose_shapes(lengths, num_buckets=6, batch_size=8, objective="time_steps")
    assert near.totals[5] >= exact.totals[5]
    assert near.totals[5] <= 1.01 * exact.totals[5]
    assert near.boundaries[-1] == lengths.max()
    assert "because there are over 300 distinct lengths" in near.report()


def test_feasibility_is_counted_when_planning():
    lengths, labels, repeats = [8, 8, 7, 2], [3, 4, 4, 2], [0, 1, 0, 0]
    choice = choose_shapes(
        lengths,
        num_buckets=2,
        batch_size=1,
        label_lengths=labels,
        repeats=repeats,
        subsampling=2,
    )
    assert choice.num_infeasible == 2
    assert "2 examples are infeasible" in choice.report()
    with pytest.raises(ValueError, match="no example has a CTC alignment"):
        choose_shapes([3], num_buckets=1, batch_size=1, label_lengths=[4], subsampling=1)
    with pytest.raises(ValueError, match="need label_lengths"):
        choose_shapes([3], num_buckets=1, batch_size=1, subsampling=2)


@given(st.integers(0, 40), st.lists(st.integers(1, 3), max_size=8), st.integers(1, 4))
def test_feasible_means_that_an_alignment_exists(length, labels, subsampling):
    # The shortest alignment: every label a frame, and a blank between equal neighbours.
    shortest = []
    for label in labels:
        shortest += [0, label] if shortest and shortest[-1] == label else [label]
    repeats = len(shortest) - len(labels)
    frames = len(range(0, length, subsampling))
    assert feasible([length], [len(labels)], repeats=[repeats], subsampling=subsampling) == [
        frames >= len(shortest)
    ]


def test_the_report_says_what_was_assumed_and_saved():
    choice = choose_shapes([10] * 900 + [1000] * 100, num_buckets="auto", batch_size=10)
    assert ASSUMED.source in choice.report()
    assert "rests on: 1 epoch; assumed, not measured" in choice.report()
    assert "with 1 shape 25 more" in choice.report()
    assert choice.to_dict()["totals"][1] == pytest.approx(
        2 * 1.7 + 3e-5 * 10 * (90 * 10 + 10 * 1000)
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_buckets": "many"}, ValueError, 'num_buckets must be an integer or "auto"; got'),
        ({"num_buckets": "auto", "objective": "padding"}, ValueError, 'needs the objective "sec'),
        ({"objective": "speed"}, ValueError, "unknown objective 'speed'; choose one of padding"),
        ({"too_long": "error"}, ValueError, "unknown too_long 'error'; choose truncate or drop"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1; got 0"),
        ({"max_buckets": 0}, ValueError, "max_buckets must be at least 1; got 0"),
        ({"longest": 0}, ValueError, "longest must be at least 1; got 0"),
        ({"strategy": "uniform", "keep": [8]}, ValueError, 'keep needs the strategy "optimal"'),
        ({"label_weight": 1.0}, ValueError, "it needs label_lengths"),
        ({"label_lengths": [1]}, ValueError, "1 label lengths for 2 lengths; give one each"),
        (
            {"label_lengths": [1, 2], "repeats": [0]},
            ValueError,
            "1 repeats for 2 lengths; give one each",
        ),
        ({"batch_size": lambda length: 12 / length}, TypeError, "for length 9 it gave 1.33"),
        ({"batch_size": 2**60}, ValueError, "rows of 9 time steps do not fit in 64-bit"),
        ({"batch_size": None}, ValueError, "give token_budget, batch_size, or both"),
        (
            {"cost": CostModel.function(lambda rows, length: -1.0, compile_seconds=1.0)},
            ValueError,
            r"must give a number of seconds, at least 0.*size 4 and length 5 it gave -1.0",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        choose_shapes([5, 9], **{"num_buckets": 2, "batch_size": 4, **arguments})


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_cap_beyond_the_lengths_own_type(dtype):
    lengths = np.array([5, 9], dtype)
    assert choose_shapes(lengths, num_buckets=2, batch_size=4, longest=300).boundaries == (5, 9)


def test_no_subsampling_is_none_not_zero():
    with pytest.raises(ValueError, match="subsampling must be at least 1"):
        choose_shapes([5, 9], num_buckets=2, batch_size=4, label_lengths=[1, 1], subsampling=0)


def test_a_cost_that_is_no_cost_model(unchecked):
    with pytest.raises(TypeError, match="cost must be a CostModel; got float"):
        choose_shapes([5, 9], num_buckets=2, batch_size=4, cost=3.0)
