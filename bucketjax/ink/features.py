"""Features: what the recogniser sees of an ink, frame by frame."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float32, Float64

from bucketjax.ink.ink import Ink

__all__ = ["FEATURE_NAMES", "extract", "ink_size"]

FEATURE_NAMES = ("dx", "dy", "y", "jump_x", "jump_y", "stroke_start", "stroke_end")

# A line of text is at most some 40 times as wide as it is high; a dash is wider.
_FLAT = 0.01


def extract(ink: Ink, *, resample: float = 0.05) -> Float32[np.ndarray, "time channels"]:
    """The ink as frames at equal distances along the pen's path, free of position and size.

    Each stroke is resampled along its own path at steps of about `resample * ink_size(ink)`, both
    of its ends included; a dot is one frame. The pen's way through the air is no frame of its
    own, but the jump of the stroke's first frame. Channels, in this order:

    - `dx`, `dy`: movement from the frame before in the same stroke, in resampling steps: a vector
      of length 1, or a little less where the path bends. 0 at the first frame of a stroke.
    - `y`: height above the middle of the ink, in ink sizes: between -0.5 and 0.5.
    - `jump_x`, `jump_y`: movement of the lifted pen from the end of the stroke before, in ink
      sizes. 0 but at the first frame of each stroke after the first.
    - `stroke_start`, `stroke_end`: 1 at the first and last frame of a stroke, else 0.

    Args:
      ink: what was written.
      resample: distance between frames, in ink sizes, above 0.

    Raises:
      ValueError: a distance that is not above 0.

    >>> line = Ink((np.array([[0.0, 0.0], [0.0, 10.0]]),), label="l", writer="me")
    >>> extract(line, resample=0.25)[:, 1].tolist()
    [0.0, 1.0, 1.0, 1.0, 1.0]
    """
    if not resample > 0:
        raise ValueError(f"resample must be above 0; got {resample}")
    size = ink_size(ink)
    points = [_resample(stroke / size, resample) for stroke in _centred(ink)]
    joined = np.concatenate(points)
    ends = np.cumsum([len(stroke) for stroke in points]) - 1
    starts = np.concatenate([[0], ends[:-1] + 1])
    moved = np.diff(joined, axis=0, prepend=joined[:1])
    frames = np.zeros((len(joined), len(FEATURE_NAMES)), np.float32)
    frames[:, 0:2] = moved / resample
    frames[starts, 0:2] = 0
    frames[:, 2] = joined[:, 1]
    frames[starts, 3:5] = moved[starts]
    frames[starts, 5] = 1
    frames[ends, 6] = 1
    return frames


def ink_size(ink: Ink) -> float:
    """The height of the ink, in its own unit; what sizes are measured in.

    An ink that is hardly longer than its own diagonal, or has hardly any height, is a single mark
    such as a dash: its size is its larger side, since its height says nothing. A mere dot has
    size 1.
    """
    every = np.concatenate(ink.strokes)
    width, height = np.ptp(every, axis=0)
    path = sum(_path_lengths(stroke)[-1] for stroke in ink.strokes)
    if path < 1.5 * np.hypot(width, height) or height < _FLAT * width:
        height = max(width, height)
    return float(height) if height > 0 else 1.0


def _centred(ink: Ink) -> list[Float64[np.ndarray, "point 2"]]:
    every = np.concatenate(ink.strokes)
    low, high = every.min(axis=0), every.max(axis=0)
    origin = np.array([low[0], low[1] + (high[1] - low[1]) / 2])
    return [stroke - origin for stroke in ink.strokes]


def _resample(stroke: Float64[np.ndarray, "point 2"], step: float) -> np.ndarray:
    along = _path_lengths(stroke)
    # The small step back keeps a path of exactly n steps from being rounded to n + 1.
    pieces = int(np.ceil(along[-1] / step - 1e-6))
    if pieces < 1:
        return stroke[:1]
    wanted = np.linspace(0.0, along[-1], pieces + 1)
    return np.stack([np.interp(wanted, along, stroke[:, axis]) for axis in (0, 1)], axis=1)


def _path_lengths(stroke: Float64[np.ndarray, "point 2"]) -> Float64[np.ndarray, " point"]:
    steps = np.hypot(*np.diff(stroke, axis=0).T)
    return np.concatenate([[0.0], np.cumsum(steps)])
