"""The work of an epoch in given shapes: rows of a batch, steps, padding, filler, feasibility.

>>> batch_sizes_for(np.array([10, 50]), 200, None, 2)
array([20,  4])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from bucketjax import boundaries as cuts
from bucketjax.boundaries import ArrayLike

__all__ = ["Work", "batch_sizes_for", "feasible", "work_of"]


class Work(NamedTuple):
    """What an epoch does in each shape, with whole batches (`remainder="pad"`).

    Attributes:
      examples: how many examples.
      steps: how many batches.
      real: their real time steps.
      padded: padded time steps of their rows, filler rows left out.
      filler: padded time steps of filler rows.
    """

    examples: Int[np.ndarray, " bucket"]
    steps: Int[np.ndarray, " bucket"]
    real: Int[np.ndarray, " bucket"]
    padded: Int[np.ndarray, " bucket"]
    filler: Int[np.ndarray, " bucket"]

    @property
    def padding_fraction(self) -> float:
        """The padding's share of the padded time steps of real rows."""
        return 1 - int(self.real.sum()) / max(int(self.padded.sum()), 1)

    @property
    def filler_share(self) -> float:
        """The filler rows' share of all padded time steps."""
        filler = int(self.filler.sum())
        return filler / max(filler + int(self.padded.sum()), 1)


def work_of(
    bucket: Int[np.ndarray, " entry"],
    lengths: Int[np.ndarray, " entry"],
    counts: Int[np.ndarray, " entry"],
    boundaries: tuple[int, ...],
    batch_sizes: tuple[int, ...],
) -> Work:
    """The work of an epoch in each shape; examples of bucket -1 are left out.

    >>> work = work_of(
    ...     np.array([0, 1, -1]), np.array([3, 7, 99]), np.array([5, 1, 2]), (4, 8), (2, 2)
    ... )
    >>> work.steps.tolist(), work.filler.tolist(), round(work.padding_fraction, 3)
    ([3, 1], [4, 8], 0.214)
    """
    padded, rows = np.array(boundaries, np.int64), np.array(batch_sizes, np.int64)
    inside = bucket >= 0
    examples = np.zeros(len(padded), np.int64)
    real = np.zeros(len(padded), np.int64)
    where = bucket[inside]
    np.add.at(examples, where, counts[inside])
    np.add.at(real, where, (np.minimum(lengths[inside], padded[where])) * counts[inside])
    steps = -(-examples // rows)
    return Work(examples, steps, real, examples * padded, (steps * rows - examples) * padded)


def batch_sizes_for(
    boundaries: Int[np.ndarray, " bucket"],
    token_budget: int | None,
    batch_size: int | Callable[[int], int] | None,
    batch_multiple_of: int,
) -> Int[np.ndarray, " bucket"]:
    """The most rows of a global batch that the limits allow, for each padded length.

    Raises:
      ValueError: no limit, a batch size that is no multiple, or a bucket with no room for one.

    >>> batch_sizes_for(np.array([10, 50]), 200, None, 2)
    array([20,  4])
    """
    multiple = cuts.at_least_one(batch_multiple_of, "batch_multiple_of")
    if token_budget is None and batch_size is None:
        raise ValueError("give token_budget, batch_size, or both: how large may a batch be?")
    most = np.full(len(boundaries), np.iinfo(np.int64).max)
    if callable(batch_size):
        given = [_rows(batch_size(int(length)), int(length)) for length in boundaries]
        allowed = np.array(given) // multiple * multiple
        if np.any(allowed < 1):
            which = int(np.argmax(allowed < 1))
            raise ValueError(
                f"batch_size gives {given[which]} row(s) for length {boundaries[which]}, and "
                f"batch_multiple_of={multiple} needs at least {multiple}; allow more memory, or "
                "cap the longest"
            )
        most = np.minimum(most, allowed)
    elif batch_size is not None:
        rows = cuts.at_least_one(batch_size, "batch_size")
        if rows % multiple:
            nearest = f"{rows // multiple * multiple} or " if rows > multiple else ""
            raise ValueError(
                f"batch_size={rows} is not a multiple of batch_multiple_of={multiple} (the number "
                f"of devices); {nearest}{-(-rows // multiple) * multiple} would do"
            )
        most = np.minimum(most, _rows(rows, int(boundaries.max())))
    if token_budget is None:
        return most
    budget = cuts.at_least_one(token_budget, "token_budget")
    # The longest bucket needs most: what suits it suits all.
    needed = int(boundaries.max()) * multiple
    if budget < needed:
        raise ValueError(
            f"the last bucket pads to {boundaries.max()} time steps, so its smallest batch of "
            f"{multiple} row(s) has {needed}, over token_budget={budget}; raise token_budget to "
            f"{needed} or more, drop the longest examples, or use fewer devices"
        )
    return np.minimum(budget // boundaries // multiple * multiple, most)


def _rows(given: object, length: int) -> int:
    """The rows of a batch, where they are a number of rows that a 64-bit program can count."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        raise TypeError(
            f"batch_size must give an integer; for length {length} it gave {given!r} "
            f"({type(given).__name__})"
        )
    if int(given) * length >= 2**63:
        raise ValueError(
            f"{given} rows of {length} time steps do not fit in 64-bit integers; give a smaller "
            "batch_size"
        )
    return int(given)


def feasible(
    lengths: ArrayLike,
    label_lengths: ArrayLike,
    *,
    repeats: ArrayLike | None = None,
    subsampling: int = 1,
) -> Bool[np.ndarray, " example"]:
    """Whether CTC has an alignment: frames after subsampling >= labels + adjacent repeats.

    Args:
      lengths: real length of each example, in time steps.
      label_lengths: label length of each example.
      repeats: how many of its labels equal the one before; none where left out.
      subsampling: time steps of the input per output frame; the last frame may be partial.

    Raises:
      TypeError, ValueError: arrays that are not integers or differ in size.

    >>> feasible([8, 8, 7], [3, 4, 4], repeats=[0, 1, 0], subsampling=2).tolist()
    [True, False, True]
    """
    lengths, labels = cuts.as_lengths(lengths), cuts.as_lengths(label_lengths, "label_lengths")
    extra = np.zeros(len(labels), np.int64)
    if repeats is not None:
        extra = cuts.as_lengths(repeats, "repeats").astype(np.int64)
    if not lengths.shape == labels.shape == extra.shape:
        raise ValueError(
            f"{len(labels)} label lengths and {len(extra)} repeats for {len(lengths)} lengths; "
            "give one each"
        )
    frames = -(-lengths.astype(np.int64) // cuts.at_least_one(subsampling, "subsampling"))
    return frames >= labels + extra
