"""The ink type: what it holds and what it refuses."""

import numpy as np
import pytest

from bucketjax.ink import Ink

STROKE = np.array([[0.0, 0.0], [1.0, 2.0]])


def test_points_are_counted_over_the_strokes():
    ink = Ink((STROKE, STROKE[:1]), "ab", "w", (np.array([0.0, 0.1]), np.array([0.5])))
    assert ink.num_points == 3


@pytest.mark.parametrize(
    ("strokes", "message"),
    [
        ((), "the ink of 'ü' has no strokes; leave it out"),
        ((STROKE, np.empty((0, 2))), r"stroke 1 of 'ü' has shape \(0, 2\); it needs one or more"),
        ((np.ones((3, 3)),), r"stroke 0 of 'ü' has shape \(3, 3\)"),
        ((np.ones(4),), r"stroke 0 of 'ü' has shape \(4,\)"),
        (
            (np.array([[0, 0], [1, np.nan]]),),
            r"has \[1.0, nan\] at point 1; coordinates must be fi",
        ),
        ((np.array([[np.inf, 0]]),), r"has \[inf, 0.0\] at point 0"),
    ],
)
def test_ink_that_cannot_be(unchecked, strokes, message):
    with pytest.raises(ValueError, match=message):
        Ink(strokes, "ü", "w")


def test_times_must_match_the_points():
    with pytest.raises(ValueError, match="has times for 1 points and 2 points; give one time per"):
        Ink((STROKE,), "a", "w", (np.array([0.0]),))
