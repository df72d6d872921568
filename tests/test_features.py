"""Features: free of position, size and sampling; nothing of the pen's path is lost."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bucketjax.ink import FEATURE_NAMES, Ink, extract
from bucketjax.ink.features import ink_size

coordinates = st.floats(-1e4, 1e4, width=32)
strokes = st.lists(
    st.integers(1, 12).flatmap(lambda n: arrays.arrays(np.float64, (n, 2), elements=coordinates)),
    min_size=1,
    max_size=4,
)
DX, DY, Y, JUMP_X, JUMP_Y, START, END = range(7)


def make(strokes):
    return Ink(tuple(strokes), "a", "w")


def sound(strokes):
    """Inks whose size is not lost in rounding beside their position."""
    every = np.concatenate(strokes)
    return np.ptp(every, axis=0).max() > 1e-2 and ink_size(make(strokes)) > 1e-2


@given(strokes)
def test_features_are_finite_and_mark_every_stroke(strokes):
    assume(sound(strokes))
    frames = extract(make(strokes), resample=0.5)
    assert frames.dtype == np.float32
    assert frames.shape[1] == len(FEATURE_NAMES)
    assert np.isfinite(frames).all()
    assert frames[:, START].sum() == frames[:, END].sum() == len(strokes)
    assert frames[0, START] == 1
    assert frames[-1, END] == 1
    assert np.abs(frames[:, Y]).max() <= 0.5 + 1e-5
    assert np.hypot(frames[:, DX], frames[:, DY]).max() <= 1 + 1e-4
    assert not frames[frames[:, START] == 0][:, [JUMP_X, JUMP_Y]].any()


@given(strokes, st.floats(0.01, 100), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
def test_moving_and_scaling_the_ink_changes_nothing(strokes, scale, x, y):
    assume(sound(strokes))
    expected = extract(make(strokes), resample=0.5)
    found = extract(make([scale * (stroke + np.array([x, y])) for stroke in strokes]), resample=0.5)
    if len(found) == len(expected):  # rounding may add a frame where a path just fills its steps
        np.testing.assert_allclose(found, expected, atol=2e-2)
    else:
        assert abs(len(found) - len(expected)) <= len(strokes)


@given(strokes)
def test_the_movements_add_up_to_the_way_from_the_first_point_to_the_last(strokes):
    assume(sound(strokes))
    frames = extract(make(strokes), resample=0.5).astype(np.float64)
    way = frames[:, [DX, DY]].sum(axis=0) * 0.5 + frames[:, [JUMP_X, JUMP_Y]].sum(axis=0)
    expected = (strokes[-1][-1] - strokes[0][0]) / ink_size(make(strokes))
    np.testing.assert_allclose(way, expected, atol=1e-3 * len(frames))


@given(strokes, st.integers(2, 5))
def test_sampling_the_same_path_more_densely_changes_nothing(strokes, times):
    assume(sound(strokes))
    dense = []
    for stroke in strokes:
        at = np.linspace(0, len(stroke) - 1, (len(stroke) - 1) * times + 1)
        place = np.arange(len(stroke))
        dense.append(np.stack([np.interp(at, place, stroke[:, axis]) for axis in (0, 1)], 1))
    expected, found = (extract(make(each), resample=0.5) for each in (strokes, dense))
    if len(found) == len(expected):
        np.testing.assert_allclose(found, expected, atol=2e-2)
    else:
        assert abs(len(found) - len(expected)) <= len(strokes)


def test_a_finer_step_makes_more_frames_in_proportion():
    line = make([np.array([[0.0, 0.0], [0.0, 10.0]])])
    assert [len(extract(line, resample=step)) for step in (0.5, 0.25, 0.125)] == [3, 5, 9]


def test_jumps_are_the_way_of_the_lifted_pen():
    ink = make([np.array([[0.0, 0.0], [0.0, 2.0]]), np.array([[1.0, 2.0], [1.0, 0.0]])])
    frames = extract(ink, resample=0.5)
    assert frames[:, JUMP_X].tolist() == [0, 0, 0, 0.5, 0, 0]
    assert frames[:, DY].tolist() == [0, 1, 1, 0, -1, -1]


@pytest.mark.parametrize("points", [[[5.0, 5.0]], [[5.0, 5.0]] * 3])
def test_a_dot_is_one_frame(points):
    frames = extract(make([np.array(points)]))
    assert frames.shape == (1, 7)
    assert frames[0].tolist() == [0, 0, 0, 0, 0, 1, 1]


def test_a_dash_has_the_size_of_its_width():
    dash = make([np.array([[0.0, 0.0], [40.0, 1.0]])])
    assert ink_size(dash) == 40
    assert len(extract(dash, resample=0.05)) == 22


@pytest.mark.parametrize("resample", [0.0, -1.0, float("nan")])
def test_a_step_that_is_not_above_0(resample):
    with pytest.raises(ValueError, match="resample must be above 0"):
        extract(make([np.ones((1, 2))]), resample=resample)
