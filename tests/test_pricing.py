"""Cost models: fits that find what made the timings, tables, JSON, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax.pricing import ASSUMED, CostModel

ROWS = np.array([8, 8, 8, 8, 16, 4, 4])
LENGTHS = np.array([10, 50, 100, 300, 100, 200, 20])


@given(st.floats(1e-4, 1e-2), st.floats(1e-6, 1e-3), st.floats(1e-7, 1e-4), st.floats(1e-10, 1e-7))
def test_a_fit_finds_what_made_the_timings(step, length, time_step, attention):
    truth = CostModel.linear(
        per_step=step,
        per_length=length,
        per_time_step=time_step,
        per_attention=attention,
        compile_seconds=1.0,
    )
    timed = truth.step_seconds(ROWS, LENGTHS)
    fitted = CostModel.fit(ROWS, LENGTHS, timed, compile_seconds=1.0)
    assert np.abs(fitted.residuals).max() < 1e-4
    assert all(value >= 0 for value in fitted.coefficients.values())
    assert fitted.model.step_seconds([12], [150]) == pytest.approx(
        truth.step_seconds([12], [150]), rel=1e-2
    )


def test_one_disturbed_timing_does_not_pull_the_fit_along():
    truth = CostModel.linear(per_step=0.002, per_time_step=1e-5, compile_seconds=1.0)
    timed = truth.step_seconds(ROWS, LENGTHS)
    timed[2] *= 3  # another program ran meanwhile
    fitted = CostModel.fit(ROWS, LENGTHS, timed, compile_seconds=1.0)
    others = np.delete(fitted.residuals, 2)
    assert np.abs(others).max() < 0.05
    assert fitted.residuals[2] > 1.5
    assert "largest 2" in fitted.model.source or "largest 1" in fitted.model.source


def test_a_table_is_honoured_exactly_and_interpolated_between():
    table = {(8, 10): 0.1, (8, 30): 0.5, (16, 10): 0.2, (16, 30): 0.9}
    cost = CostModel.table(table, compile_seconds=2.0)
    for (rows, length), seconds in table.items():
        assert cost.step_seconds(rows, length) == pytest.approx(seconds)
    assert cost.step_seconds(12, 20) == pytest.approx((0.1 + 0.5 + 0.2 + 0.9) / 4)
    assert cost.step_seconds(8, 50) == pytest.approx(0.9)  # the line goes on
    assert cost.step_seconds(8, 1) == 0.0  # but never below 0


@pytest.mark.parametrize(
    "cost",
    [
        ASSUMED,
        CostModel.linear(per_step=0.1, per_attention=1e-9, compile_seconds=0.0),
        CostModel.table({(8, 10): 0.1, (8, 30): 0.3}, compile_seconds=1.5, source="ours"),
    ],
)
def test_json_round_trips(cost):
    again = CostModel.from_json(cost.to_json())
    assert again.source == cost.source
    assert again.compile_seconds == cost.compile_seconds
    assert again.step_seconds(8, [10, 20]).tolist() == cost.step_seconds(8, [10, 20]).tolist()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CostModel.linear(compile_seconds=1.0), ValueError, "every coefficient is 0"),
        (
            lambda: CostModel.linear(per_step=-1.0, compile_seconds=1.0),
            ValueError,
            "per_step must be a number of seconds, at least 0; got -1.0",
        ),
        (
            lambda: CostModel.linear(per_step=1.0, compile_seconds=float("nan")),
            ValueError,
            "compile_seconds must be a number of seconds, at least 0; got nan",
        ),
        (lambda: CostModel.table({}, compile_seconds=1.0), ValueError, "the table is empty"),
        (
            lambda: CostModel.table({(8, 10): 0.1, (16, 30): 0.1}, compile_seconds=1.0),
            ValueError,
            r"it lacks \[\(8, 30\), \(16, 10\)\]",
        ),
        (
            lambda: CostModel.table({(8, 10): 0.0}, compile_seconds=1.0),
            ValueError,
            r"gives 0.0 seconds for \(8, 10\); must be above 0",
        ),
        (
            lambda: CostModel.table({(8, 10): 1.0}, compile_seconds=1.0).step_seconds(8, 20),
            ValueError,
            "the table has one length, 10, and says nothing of 20",
        ),
        (
            lambda: CostModel.fit([8, 8], [10, 10], [1.0, 1.0], compile_seconds=1.0),
            ValueError,
            "at least 2 different shapes",
        ),
        (
            lambda: CostModel.fit([8, 8], [10, 20], [1.0, 0.0], compile_seconds=1.0),
            ValueError,
            "seconds must be above 0; got 0.0",
        ),
        (
            lambda: CostModel.fit(ROWS, LENGTHS, ROWS / 1e3, compile_seconds=1.0, terms=["cells"]),
            ValueError,
            r"unknown terms \['cells'\]; choose some of step, row",
        ),
        (lambda: CostModel.from_json("{"), ValueError, "not a CostModel: the text is not JSON"),
        (lambda: CostModel.from_json("[]"), ValueError, "not a CostModel: expected"),
        (
            lambda: CostModel.from_json(ASSUMED.to_json().replace('"version": 1', '"version": 7')),
            ValueError,
            "version 7",
        ),
        (
            lambda: CostModel.function(lambda r, n: 1.0, compile_seconds=1.0).to_json(),
            TypeError,
            "cannot be written as JSON; make a table of it",
        ),
    ],
)
def test_what_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
