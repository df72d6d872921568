"""Ink: what a pen wrote, and what it says."""

from __future__ import annotations

import dataclasses

import numpy as np
from jaxtyping import Float

__all__ = ["Ink"]

Stroke = Float[np.ndarray, "_ 2"]


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Ink:
    """One piece of handwriting.

    The pen is down along every stroke and up between them.

    Attributes:
      strokes: x and y of every point, in the order of writing; x grows rightwards, y **upwards**,
        in whatever unit the tablet had.
      label: the text that was written.
      writer: who wrote it, unique in the data set; whole writers are held out for validation.
      times: seconds of every point, stroke by stroke, where they are known.

    Raises:
      ValueError: no strokes, an empty stroke, another shape, or NaN or infinity in it.

    >>> ink = Ink(strokes=(np.array([[0.0, 0.0], [1.0, 2.0]]),), label="l", writer="me")
    >>> ink.num_points
    2
    """

    strokes: tuple[Stroke, ...]
    label: str
    writer: str
    times: tuple[Float[np.ndarray, " _"], ...] | None = None

    def __post_init__(self) -> None:
        if not self.strokes:
            raise ValueError(f"the ink of {self.label!r} has no strokes; leave it out")
        for number, stroke in enumerate(self.strokes):
            if stroke.ndim != 2 or stroke.shape[1] != 2 or not len(stroke):
                raise ValueError(
                    f"stroke {number} of {self.label!r} has shape {stroke.shape}; it needs one or "
                    "more points of x and y: shape (points, 2)"
                )
            if not np.isfinite(stroke).all():
                point = int(np.flatnonzero(~np.isfinite(stroke).all(axis=1))[0])
                raise ValueError(
                    f"stroke {number} of {self.label!r} has {stroke[point].tolist()} at point "
                    f"{point}; coordinates must be finite: repair or leave out this ink"
                )
        if self.times is not None and [len(part) for part in self.times] != [
            len(stroke) for stroke in self.strokes
        ]:
            raise ValueError(
                f"the ink of {self.label!r} has times for {sum(map(len, self.times))} points and "
                f"{self.num_points} points; give one time per point, stroke by stroke"
            )

    @property
    def num_points(self) -> int:
        """How many points were recorded with the pen down."""
        return sum(map(len, self.strokes))
