"""Explanations against counting by hand, drift, and the trade-off."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax import BucketSpec, CostModel, drift, explain, explore, plan_epoch, plotting

some_lengths = st.lists(st.integers(1, 40), min_size=1, max_size=30)
COST = CostModel.linear(per_step=0.5, per_time_step=0.01, compile_seconds=3.0)


@given(some_lengths, st.integers(1, 4), st.integers(1, 5), st.integers(1, 4))
def test_the_table_is_what_the_epoch_does(lengths, num_buckets, batch_size, epochs):
    spec = BucketSpec.fit(lengths, num_buckets=num_buckets, batch_size=batch_size)
    longer = [*lengths, 41]
    explained = explain(spec, longer, cost=COST, epochs=epochs)
    plan = plan_epoch(longer, spec, seed=0, epoch=0, too_long="drop")
    steps = np.bincount(plan.buckets, minlength=spec.num_buckets)
    assert [row.steps for row in explained.rows] == steps.tolist()
    assert explained.num_too_long == 1
    assert explained.num_examples == len(longer)
    padded = filler = real = 0
    seconds = 0.0
    for bucket, indices in plan:
        rows, length, _ = spec.shapes[bucket]
        real += sum(longer[index] for index in indices if index >= 0)
        padded += length * int((indices >= 0).sum())
        filler += length * int((indices < 0).sum())
        seconds += 0.5 + 0.01 * rows * length
    total = explained.total
    assert total.examples == len(lengths)
    assert total.padding_fraction == pytest.approx(1 - real / padded)
    assert total.filler_share == pytest.approx(filler / (filler + padded))
    assert total.seconds == pytest.approx(seconds * epochs)
    assert total.compile_seconds == 3.0 * spec.num_buckets
    values, counts = np.unique(longer, return_counts=True)
    assert explain(spec, values, counts=counts, cost=COST, epochs=epochs).rows == explained.rows


def test_length_bias_tells_a_sorted_order_from_a_shuffled_one(monkeypatch):
    lengths = np.repeat(np.arange(1, 101), 20)
    spec = BucketSpec.fit(lengths, num_buckets=20, batch_size=10)
    shuffled = explain(spec, lengths)
    assert abs(shuffled.adjacent_correlation) < 0.25
    from bucketjax import explaining

    def in_order(*arguments, **options):
        return plan_epoch(*arguments, **options, shuffle=False)

    monkeypatch.setattr(explaining, "plan_epoch", in_order)
    in_buckets = explain(spec, lengths)
    assert in_buckets.adjacent_correlation > 0.95
    assert in_buckets.first_tenth < 12
    assert in_buckets.last_tenth > 88


def test_labels_and_infeasible_examples_are_in_the_table():
    spec = BucketSpec((4, 8), (2, 2), label_lengths=(2, 6))
    explained = explain(
        spec, [4, 4, 8, 8], label_lengths=[1, 3, 5, 7], repeats=[0, 0, 0, 0], subsampling=2
    )
    assert [row.examples for row in explained.rows] == [1, 2]
    assert explained.num_too_long == 1
    assert explained.num_infeasible == 3
    text = str(explained)
    assert "labels" in text.splitlines()[0]
    assert "1 of 4 examples fits no bucket" in text
    assert "3 examples are infeasible" in text
    assert json.loads(json.dumps(explained.to_dict()))["rows"][1]["label_length"] == 6
    shown = explained._repr_html_()
    assert shown.count("<tr>") == 4
    assert "<td" in shown


def test_text_from_outside_does_not_become_html():
    cost = CostModel.linear(per_step=1.0, compile_seconds=1.0, source="<script>")
    shown = explain(BucketSpec((4,), (2,)), [3], cost=cost)._repr_html_()
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown


@given(some_lengths, some_lengths, st.integers(1, 4))
def test_drift_compares_the_old_plan_with_a_new_one(old, new, num_buckets):
    spec = BucketSpec.fit(old, num_buckets=num_buckets, batch_size=2)
    if min(new) > spec.boundaries[-1]:
        with pytest.raises(ValueError, match="are too long for the spec"):
            drift(spec, new, cost=COST)
        return
    found = drift(spec, new, cost=COST)
    held = [length for length in new if length <= spec.boundaries[-1]]
    assert found.num_too_long == len(new) - len(held)
    assert found.padding_fraction == pytest.approx(
        explain(spec, held, cost=COST).total.padding_fraction
    )
    assert found.new_spec.boundaries[-1] == max(new)
    again = explain(found.new_spec, held, cost=COST)
    assert found.new_epoch_seconds == pytest.approx(again.total.seconds)
    if found.pays_after_epochs is None:
        assert found.new_epoch_seconds >= found.epoch_seconds
    else:
        saved = found.epoch_seconds - found.new_epoch_seconds
        assert found.pays_after_epochs * saved == pytest.approx(found.new_compile_seconds)


def test_no_drift_on_the_lengths_that_were_planned_for(data_dir):
    lengths = np.load(data_dir / "lengths/lengths.npz")["unipen_words_points"]
    spec = BucketSpec.fit(lengths, num_buckets=8, batch_size=32)
    same = drift(spec, lengths)
    assert same.new_spec == spec
    assert same.pays_after_epochs is None
    assert "a new plan never pays" in str(same)
    # The longest is as long as before, so one of the eight shapes is there already.
    twice = drift(spec, np.minimum(lengths * 2, lengths.max()))
    assert twice.pays_after_epochs > 0
    assert "a new plan pays for 11.9 s of compilations after" in str(twice)


def test_the_trade_off_agrees_with_the_table_and_finds_the_least(data_dir):
    lengths = np.load(data_dir / "lengths/lengths.npz")["pendigits_strings_example_points"]
    found = explore(
        lengths, num_buckets=range(1, 13), cost=COST, epochs=2, batch_size=16, multiple_of=8
    )
    assert len(found.points) == 5 * 12
    for point in found.points:
        total = explain(point.spec, lengths, cost=COST).total
        assert point.epoch_seconds == pytest.approx(total.seconds)
        assert point.padding_fraction == pytest.approx(total.padding_fraction)
        assert point.total_seconds == pytest.approx(total.compile_seconds + 2 * point.epoch_seconds)
    best = found.best()
    assert best.total_seconds == min(point.total_seconds for point in found.points)
    assert best.strategy == "cheapest"
    auto = BucketSpec.fit(
        lengths,
        num_buckets="auto",
        max_buckets=12,
        cost=COST,
        epochs=2,
        batch_size=16,
        multiple_of=8,
    )
    assert auto == best.spec
    for number in range(1, 13):
        at = [point for point in found.points if point.num_buckets == number]
        of = {point.strategy: point for point in at}
        assert of["optimal"].padding_fraction <= min(point.padding_fraction for point in at) + 1e-9
    assert str(found).count("<- least") == 1
    assert len(json.loads(json.dumps(found.to_dict()))["points"]) == 60


def test_measurements_are_laid_over_the_prediction(tmp_path):
    found = explore(
        [1, 2, 4, 8],
        num_buckets=[1, 2],
        batch_size=2,
        epochs=3,
        measure=lambda spec: (spec.num_buckets * 1.0, 10.0),
    )
    measured = [point.measured for point in found.points if point.strategy == "optimal"]
    assert measured == [(1.0, 10.0), (2.0, 10.0)]
    panels = plotting.trade_off(found).axes
    crosses = [line for line in panels[3].lines if "measured" in str(line.get_label())]
    assert crosses[0].get_ydata().tolist() == [31.0, 32.0]
    assert not [line for line in panels[0].lines if "measured" in str(line.get_label())]
    plotting.save(plotting.trade_off(found), tmp_path / "out.png")
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_explored_is_refused():
    with pytest.raises(ValueError, match="unknown strategies best; choose some of cheapest"):
        explore([1, 2], strategies=["best"], batch_size=1)
    with pytest.raises(ValueError, match="at least one number of buckets"):
        explore([1, 2], num_buckets=[], batch_size=1)
    with pytest.raises(ValueError, match="num_buckets must be at least 1; got 0"):
        explore([1, 2], num_buckets=[0], batch_size=1)
    with pytest.raises(ValueError, match="was not explored; choose one of optimal"):
        explore([1, 2], num_buckets=[1], strategies=["optimal"], batch_size=1).best("uniform")


def test_a_new_plan_is_chosen_by_the_cost_that_judges_it():
    lengths = [3] * 40 + [50] * 40 + [100] * 40
    cost = CostModel.linear(per_time_step=1.0, compile_seconds=0.001)
    moved = drift(
        BucketSpec((10, 100), (4, 4)), lengths, num_buckets="auto", batch_size=4, cost=cost
    )
    assert moved.new_spec.boundaries == (3, 50, 100)
    assert moved.new_epoch_seconds < moved.epoch_seconds


def test_drift_compares_what_both_plans_hold():
    old, lengths = BucketSpec((10, 100), (4, 4)), [3] * 40 + [50] * 40 + [100] * 40
    capped = drift(old, lengths, longest=50, batch_size=4)
    assert capped.epoch_seconds == drift(old, lengths[:80]).epoch_seconds
    assert capped.num_too_long == 0
    with pytest.raises(ValueError, match="too long"):
        drift(old, [3, 500], counts=[0, 5])


def test_lengths_alone_do_not_explain_shapes_of_two_dimensions():
    pairs = BucketSpec((10, 10), (4, 4), label_lengths=(2, 8))
    assert explain(pairs, [9, 9], label_lengths=[1, 5]).total.examples == 2
    for look in (explain, drift):
        with pytest.raises(ValueError, match="give label_lengths too"):
            look(pairs, [9, 9])
