"""Search for the cheapest boundaries under an objective, for every number of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int

from bucketjax import boundaries as cuts
from bucketjax.boundaries import ArrayLike
from bucketjax.cutting import cheapest_batches
from bucketjax.pricing import CostModel

__all__ = ["MOST_CANDIDATES", "Search", "Strategy"]

Strategy = Callable[..., ArrayLike]

# The exact search over whole batches takes time with the square of this.
MOST_CANDIDATES = 8192


@dataclasses.dataclass(frozen=True, eq=False)
class Search:
    """The lengths, and what is minimised over the choices of where to cut them."""

    values: Int[np.ndarray, " distinct"]
    occurrences: Int[np.ndarray, " distinct"]
    multiple_of: int
    keep: ArrayLike
    objective: str
    cost: CostModel
    epochs: int
    rows_for: Callable[[Int[np.ndarray, " bucket"]], Int[np.ndarray, " bucket"]]

    def run(
        self, strategy: Strategy, most: int
    ) -> tuple[Int[np.ndarray, " bucket"], Float[np.ndarray, " count"], list[str]]:
        """The boundaries, what each number of them costs, and what was assumed."""
        self.rows_for(cuts.round_up(self.values[-1:], self.multiple_of))  # fail early
        assumed = [] if self.objective == "padding" else ['an epoch has the batches of "pad"']
        if self.objective == "seconds":
            run = "1 epoch" if self.epochs == 1 else f"{self.epochs} epochs"
            assumed = [f"{run}; {self.cost.source}", *assumed]
        found: dict[int, Int[np.ndarray, " bucket"]] = {}  # by the number that was asked for
        if strategy is not cuts.optimal:
            if np.size(np.asarray(self.keep, object)):
                raise ValueError('keep needs the strategy "optimal": others decide by themselves')
            named = strategy in cuts.STRATEGIES.values()
            counts = range(1, most + 2) if named or self.objective != "padding" else [most]
            found = {count: self.cut(strategy, count) for count in counts}
        elif self.objective == "padding":
            self._candidates(most)  # fail where `most` is too few, not one more
            found = self.least_padded(most + 1)
        else:
            found, coarseness = self.cheapest(most)
            assumed += coarseness
        totals = np.full(max(map(len, found.values())), np.inf)
        for boundaries in found.values():
            total = self.total(boundaries)
            totals[len(boundaries) - 1] = min(totals[len(boundaries) - 1], total)
        if self.objective == "padding":  # all the buckets there may be
            return found[min(most, max(found))], totals, assumed
        # Where filler counts, fewer may be better.
        allowed = [boundaries for count, boundaries in sorted(found.items()) if count <= most]
        return min(allowed, key=self.total), totals, assumed

    def least_padded(self, most: int) -> dict[int, Int[np.ndarray, " _bucket"]]:
        """The boundaries of least padding of each number up to `most`."""
        every = cuts.optimal_up_to(
            self.values, self.occurrences, most, multiple_of=self.multiple_of, keep=self.keep
        )
        return {len(boundaries): boundaries for boundaries in every}

    def cheapest(self, most: int) -> tuple[dict[int, Int[np.ndarray, " _bucket"]], list[str]]:
        """The cheapest boundaries of each number up to `most` + 1, whole batches counted."""
        padded, num_examples, kept = self._candidates(most)
        assumed = []
        if len(padded) > MOST_CANDIDATES:
            padded, num_examples, kept, step = self._coarse(padded, num_examples, kept)
            assumed.append(
                f"boundaries are those next to multiples of {step}, because there are over "
                f"{MOST_CANDIDATES} distinct lengths"
            )
        rows = self.rows_for(padded)
        per_step, per_shape = self._prices(padded, rows)
        most_cuts = min(most + 1, len(padded))
        _, every = cheapest_batches(num_examples, rows, per_step, per_shape, most_cuts, kept)
        return {len(ends): padded[ends] for ends in every if len(ends)}, assumed

    def total(self, boundaries: Int[np.ndarray, " bucket"]) -> float:
        """What these boundaries cost, in the objective's unit."""
        below = np.concatenate([[0], np.cumsum(self.occurrences)])
        ends = np.searchsorted(self.values, boundaries, side="right")
        num_examples = np.diff(below[ends], prepend=0)
        if self.objective == "padding":
            return float(boundaries @ num_examples)
        rows = self.rows_for(boundaries)
        per_step, per_shape = self._prices(boundaries, rows)
        return float((-(-num_examples // rows)) @ per_step + per_shape.sum())

    def _prices(
        self, padded: Int[np.ndarray, " bucket"], rows: Int[np.ndarray, " bucket"]
    ) -> tuple[Float[np.ndarray, " bucket"], Float[np.ndarray, " bucket"]]:
        if self.objective == "time_steps":
            return (rows * padded).astype(float), np.zeros(len(padded))
        per_step = self.cost.step_seconds(rows, padded) * self.epochs
        return per_step, np.full(len(padded), float(self.cost.compile_seconds))

    def cut(self, cut: Strategy, count: int) -> Int[np.ndarray, " bucket"]:
        """The boundaries of a strategy, checked: a user's own might leave the longest out."""
        chosen = cuts.as_boundaries(
            cut(
                self.values,
                num_buckets=count,
                multiple_of=self.multiple_of,
                counts=self.occurrences,
            )
        )
        cuts.assign(self.values[-1:], chosen)
        return chosen

    def _candidates(
        self, most: int
    ) -> tuple[
        Int[np.ndarray, " candidate"], Int[np.ndarray, " candidate"], Bool[np.ndarray, " candidate"]
    ]:
        return cuts.candidates(self.values, self.occurrences, self.multiple_of, self.keep, most)

    def _coarse(
        self,
        padded: Int[np.ndarray, " candidate"],
        num_examples: Int[np.ndarray, " candidate"],
        kept: Bool[np.ndarray, " candidate"],
    ) -> tuple[
        Int[np.ndarray, " coarse"], Int[np.ndarray, " coarse"], Bool[np.ndarray, " coarse"], int
    ]:
        """Candidates that are the last ones before each multiple of the smallest step that does."""
        step = self.multiple_of
        while True:
            cells = -(-padded // step)
            last = np.append(cells[1:] != cells[:-1], True) | kept
            if last.sum() <= MOST_CANDIDATES:
                break
            step *= 2
        ends = np.flatnonzero(last)
        below = np.concatenate([[0], np.cumsum(num_examples)])
        merged = np.diff(np.concatenate([[0], below[ends + 1]]))
        return padded[ends], merged, kept[ends], step
