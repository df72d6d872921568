"""Lengths that come as a stream: count them in bounded memory, merge counts, then plan.

>>> first, second = LengthHistogram(), LengthHistogram()
>>> first.update([3, 5, 5])
>>> second.update([5, 9])
>>> first.merge(second)
>>> first.lengths.tolist(), first.counts.tolist()
([3, 5, 9], [1, 3, 1])
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Int

from bucketjax import boundaries as cuts
from bucketjax.boundaries import ArrayLike

__all__ = ["LengthHistogram", "QuantileSketch"]


class LengthHistogram:
    """The exact histogram of a stream of lengths; its memory is that of the distinct lengths.

    Every process counts its own part; `merge` gives the histogram of all. `lengths` and `counts`
    go wherever lengths are planned for, as `f(h.lengths, counts=h.counts)`.

    Args:
      max_distinct: refuse to hold more distinct lengths than this.

    >>> histogram = LengthHistogram()
    >>> for chunk in ([4, 4], [7], []):
    ...     histogram.update(chunk)
    >>> cuts.optimal(histogram.lengths, counts=histogram.counts, num_buckets=2)
    array([4, 7])
    """

    def __init__(self, *, max_distinct: int = 1 << 22):
        self._max_distinct = cuts.at_least_one(max_distinct, "max_distinct")
        self.lengths: Int[np.ndarray, " distinct"] = np.empty(0, np.int64)
        self.counts: Int[np.ndarray, " distinct"] = np.empty(0, np.int64)

    @property
    def num_examples(self) -> int:
        """How many lengths were counted."""
        return int(self.counts.sum())

    def update(self, lengths: ArrayLike) -> None:
        """Counts more lengths; an empty chunk counts nothing.

        Raises:
          TypeError: lengths that are not integers.
          ValueError: negative lengths, or more distinct ones than `max_distinct`.
        """
        if np.size(np.asarray(lengths, object)):
            array = cuts.as_lengths(lengths).astype(np.int64)
            self._add(*np.unique(array, return_counts=True))

    def merge(self, other: LengthHistogram) -> None:
        """Adds another histogram's counts to these.

        Raises:
          ValueError: more distinct lengths than `max_distinct`.
        """
        self._add(other.lengths, other.counts)

    def _add(self, lengths: np.ndarray, counts: np.ndarray) -> None:
        every, where = np.unique(np.concatenate([self.lengths, lengths]), return_inverse=True)
        if len(every) > self._max_distinct:
            raise ValueError(
                f"{len(every)} distinct lengths are over max_distinct={self._max_distinct}; allow "
                "more, count in a coarser unit, or use a QuantileSketch"
            )
        summed = np.zeros(len(every), np.int64)
        np.add.at(summed, where, np.concatenate([self.counts, counts]))
        self.lengths, self.counts = every, summed


class QuantileSketch:
    """An approximate histogram of a stream of lengths, however many distinct ones there are.

    Neighbouring lengths share a cell. The number of cells grows as examples come, with the square
    root of their number up to a bound: few examples cannot tell many quantiles apart, and many
    can. This implements the idea of dynamic quantile approximation (Joppen, Strübig and Fürnkranz
    2019, "Ordinal Bucketing for Game Trees using Dynamic Quantile Approximation", abstract), for
    cells that hold neither too many examples nor too large a share of all time steps, so that the
    long tail, where padding is dear, is told apart as well as the bulk.

    A cell is known by its longest length: `lengths` are the cells' upper ends and `counts` their
    examples. A plan made from them holds every example that was seen, and `total` is exact. The
    result hardly depends on how the stream was cut into chunks or spread over processes.

    Args:
      max_quantiles: the most quantiles that cells are cut at; at most twice as many cells are
        kept, and as many again wait to be sorted in.
      growth: quantiles per square root of the number of examples.

    >>> sketch = QuantileSketch(max_quantiles=64)
    >>> sketch.update(np.arange(1, 100_001))
    >>> len(sketch.lengths) <= 128, int(sketch.counts.sum()), int(sketch.lengths[-1])
    (True, 100000, 100000)
    """

    def __init__(self, *, max_quantiles: int = 1024, growth: float = 16.0):
        self._max_quantiles = cuts.at_least_one(max_quantiles, "max_quantiles")
        if not (math.isfinite(growth) and growth > 0):
            raise ValueError(f"growth must be above 0; got {growth}")
        self._growth = growth
        self.total = 0
        self._lengths: Int[np.ndarray, " cell"] = np.empty(0, np.int64)
        self._counts: Int[np.ndarray, " cell"] = np.empty(0, np.int64)

    @property
    def num_examples(self) -> int:
        """How many lengths were counted."""
        return int(self._counts.sum())

    @property
    def num_quantiles(self) -> int:
        """How many quantiles are told apart by now."""
        wanted = math.ceil(self._growth * math.sqrt(self.num_examples))
        return min(self._max_quantiles, max(wanted, 1))

    @property
    def lengths(self) -> Int[np.ndarray, " cell"]:
        """The longest length of each cell, increasing."""
        return self._lengths

    @property
    def counts(self) -> Int[np.ndarray, " cell"]:
        """How many examples each cell holds."""
        return self._counts

    def update(self, lengths: ArrayLike) -> None:
        """Counts more lengths; an empty chunk counts nothing.

        Raises:
          TypeError: lengths that are not integers.
          ValueError: negative lengths.
        """
        if not np.size(np.asarray(lengths, object)):
            return
        array = cuts.as_lengths(lengths)
        chunk = 1 << 18  # bounded memory even where all lengths come in one array
        for start in range(0, len(array), chunk):
            part = array[start : start + chunk].astype(np.int64)
            self.total += int(part.sum())
            self._add(*np.unique(part, return_counts=True))

    def merge(self, other: QuantileSketch) -> None:
        """Adds another sketch's cells to these."""
        self.total += other.total
        self._add(other._lengths, other._counts)

    def _add(self, lengths: np.ndarray, counts: np.ndarray) -> None:
        every, where = np.unique(np.concatenate([self._lengths, lengths]), return_inverse=True)
        summed = np.zeros(len(every), np.int64)
        np.add.at(summed, where, np.concatenate([self._counts, counts]))
        self._lengths, self._counts = every, summed
        if len(every) <= self.num_quantiles:
            return
        # A cell ends where either sum, of examples or of time steps, passes a quantile.
        ends = np.zeros(len(every), bool)
        for mass in (summed, summed * every):
            reached = np.cumsum(mass, dtype=np.float64)
            quantile = np.ceil(reached / reached[-1] * self.num_quantiles - 1e-9)
            ends[:-1] |= quantile[1:] != quantile[:-1]
        ends[-1] = True
        last = np.flatnonzero(ends)
        below = np.concatenate([[0], np.cumsum(summed)[last]])
        self._lengths, self._counts = every[last], np.diff(below)
