"""Choose the shapes: where to cut and how many rows, by what a whole run will cost.

Pure NumPy. `choose_shapes` says what it chose, what it assumed, and what any other number of
shapes would cost; `BucketSpec.fit` is the same choice as a spec.

>>> cost = CostModel.linear(per_time_step=1e-3, compile_seconds=5.0)
>>> lengths = [10] * 900 + [1000] * 100
>>> for epochs in (1, 10):
...     choice = choose_shapes(
...         lengths, num_buckets="auto", batch_size=10, cost=cost, epochs=epochs
...     )
...     print(choice.boundaries, choice.totals[:2].round().tolist())
(10, 1000) [1005.0, 119.0]
(10, 1000) [10005.0, 1100.0]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from bucketjax import boundaries as cuts
from bucketjax.boundaries import ArrayLike
from bucketjax.pairing import cheapest_pairs
from bucketjax.pricing import ASSUMED, CostModel
from bucketjax.searching import Search, Strategy
from bucketjax.working import batch_sizes_for, feasible

__all__ = ["Choice", "Objective", "choose_shapes"]

Objective = Literal["padding", "time_steps", "seconds"]

_UNITS = {
    "padding": "padded time steps an epoch",
    "time_steps": "padded time steps an epoch, filler rows included",
    "seconds": "seconds",
}


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """The chosen shapes, and what the choice rests on.

    Attributes:
      boundaries: padded length of each shape, in time steps.
      batch_sizes: rows of the global batch of each shape.
      label_lengths: padded label length of each shape; None without labels.
      objective: what was minimised.
      totals: what the cheapest choice of exactly 1, 2, ... shapes costs, in the objective's unit;
        infinite where there is none. Empty for shapes of two dimensions.
      assumed: what the totals rest on, a sentence each.
      num_examples: how many examples were planned for, those that are too long included.
      num_too_long: how many are longer than the cap `longest`.
      num_infeasible: how many have no CTC alignment; None where that was not asked.
    """

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    label_lengths: tuple[int, ...] | None
    objective: str
    totals: Float[np.ndarray, " count"]
    assumed: tuple[str, ...]
    num_examples: int
    num_too_long: int
    num_infeasible: int | None

    @property
    def num_buckets(self) -> int:
        """How many shapes were chosen."""
        return len(self.boundaries)

    def saved_against(self, num_buckets: int) -> float | None:
        """How much more the best choice of exactly so many shapes costs; None if not known.

        >>> choice = choose_shapes([1, 2, 4], num_buckets=2, batch_size=1)
        >>> choice.saved_against(1), choice.saved_against(3), choice.saved_against(9)
        (4.0, -1.0, None)
        """
        if not 1 <= num_buckets <= len(self.totals):
            return None
        more = float(self.totals[num_buckets - 1] - self.totals[self.num_buckets - 1])
        return more if np.isfinite(more) else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values.

        >>> choose_shapes([1, 2, 4], num_buckets=2, batch_size=1).to_dict()["boundaries"]
        [2, 4]
        """
        content = dataclasses.asdict(self)
        content["totals"] = [float(x) if np.isfinite(x) else None for x in self.totals]
        for name in ("boundaries", "batch_sizes", "assumed"):
            content[name] = list(content[name])
        if self.label_lengths is not None:
            content["label_lengths"] = list(self.label_lengths)
        return content

    def report(self) -> str:
        """What was chosen, assumed and saved, in a few lines.

        >>> print(choose_shapes([1, 2, 4], num_buckets=2, batch_size=1).report())
        2 shapes for 3 examples, of least padded time steps an epoch
          lengths      2 4
          batch sizes  1 1
        total 8 padded time steps an epoch; with 1 shape 4 more, with 3 shapes 1 less
        """
        unit = _UNITS[self.objective]
        shapes = _shapes(self.num_buckets)
        lines = [f"{shapes} for {self.num_examples} examples, of least {unit}"]
        lines.append(f"  lengths      {' '.join(map(str, self.boundaries))}")
        if self.label_lengths is not None:
            lines.append(f"  labels       {' '.join(map(str, self.label_lengths))}")
        lines.append(f"  batch sizes  {' '.join(map(str, self.batch_sizes))}")
        if len(self.totals):
            total = f"total {_number(self.totals[self.num_buckets - 1])} {unit}"
            others = []
            for count in (self.num_buckets - 1, self.num_buckets + 1):
                more = self.saved_against(count)
                if more is not None:
                    word = "more" if more >= 0 else "less"
                    others.append(f"with {_shapes(count)} {_number(abs(more))} {word}")
            lines.append("; ".join([total, ", ".join(others)] if others else [total]))
        lines += [f"rests on: {text}" for text in self.assumed]
        if self.num_too_long:
            lines.append(f"{self.num_too_long} examples are longer than the cap")
        if self.num_infeasible is not None:
            lines.append(f"{self.num_infeasible} examples are infeasible: no CTC alignment exists")
        return "\n".join(lines)


def choose_shapes(
    lengths: ArrayLike,
    *,
    num_buckets: int | str,
    token_budget: int | None = None,
    batch_size: int | Callable[[int], int] | None = None,
    multiple_of: int = 1,
    batch_multiple_of: int = 1,
    strategy: str | Strategy = "optimal",
    objective: str | None = None,
    cost: CostModel | None = None,
    epochs: int = 1,
    max_buckets: int = 64,
    keep: ArrayLike = (),
    longest: int | None = None,
    too_long: str = "truncate",
    label_lengths: ArrayLike | None = None,
    label_multiple_of: int = 1,
    label_weight: float | None = None,
    repeats: ArrayLike | None = None,
    subsampling: int | None = None,
    counts: ArrayLike | None = None,
) -> Choice:
    """The cheapest shapes for these lengths, and what they rest on.

    Three objectives can be minimised, each exactly:

    - "padding": padded time steps of the examples (the default without a cost model);
    - "time_steps": padded time steps of whole batches, the filler rows of the last one included;
    - "seconds": steps x seconds of a step over `epochs`, whole batches again, plus the seconds
      of compiling each shape (the default with a cost model or `num_buckets="auto"`).

    The last two count the batches of `remainder="pad"`. Above 8,192 distinct lengths, they cut
    only at multiples of some step, and say so.

    Args:
      lengths: real length of each example, in time steps.
      num_buckets: most buckets; fewer where there are fewer distinct lengths, or where more would
        cost more. "auto" takes the number that costs the fewest seconds.
      token_budget: most padded time steps in a global batch. Each bucket takes the most rows
        that fit.
      batch_size: rows of a global batch, or a function that gives the most rows for a padded
        length. With a token budget too, the smaller of the two.
      multiple_of: each boundary is a multiple of this many time steps.
      batch_multiple_of: each batch size is a multiple of this: the number of devices.
      strategy: a name in `boundaries.STRATEGIES`, or a function with the same arguments. Any but
        "optimal" decides the boundaries itself; the objective then decides how many.
      objective: "padding", "time_steps" or "seconds".
      cost: seconds of a step and of a compilation. `pricing.ASSUMED` where "seconds" has none.
      epochs: how often the examples will be gone through, for "seconds".
      max_buckets: most buckets that "auto" may choose.
      keep: boundaries that must be there, for the strategy "optimal".
      longest: a cap on the length, rounded up to `multiple_of`.
      too_long: what will happen to examples above the cap: "truncate" (they count at the cap) or
        "drop" (they don't count).
      label_lengths: label length of each example; gives each shape a padded label length.
      label_multiple_of: each padded label length is a multiple of this.
      label_weight: None pads labels to the longest of their bucket. A number makes shapes of two
        dimensions, at most `num_buckets` in all, that minimise length + label_weight x label
        length, each example in the cheapest shape that holds both (see `pairing`).
      repeats: adjacent repeated labels of each example, to count those without a CTC alignment.
      subsampling: time steps of the model's input per output frame, for the same count.
      counts: how often each entry of `lengths` (and those like it) occurs.

    Raises:
      TypeError: an argument of the wrong type.
      ValueError: lengths that cannot be planned for (see `boundaries.optimal`), no budget and no
        batch size, an unknown choice, two choices that exclude each other, a batch that cannot
        be within the budget and a multiple of `batch_multiple_of`, or no feasible example. The
        message says what was seen and what would do.

    >>> choose_shapes([5, 9, 9, 20], num_buckets=2, batch_size=8).boundaries
    (9, 20)
    """
    auto = num_buckets == "auto"
    if isinstance(num_buckets, str) and not auto:
        raise ValueError(f'num_buckets must be an integer or "auto"; got {num_buckets!r}')
    cap = cuts.at_least_one(max_buckets, "max_buckets")
    most = cap if auto else cuts.at_least_one(num_buckets, "num_buckets")
    if cost is not None and not isinstance(cost, CostModel):
        raise TypeError(
            f"cost must be a CostModel; got {type(cost).__name__} (costs.measure has it as `.cost`)"
        )
    objective = _objective(objective, cost, auto)
    cut = _strategy(strategy)
    epochs = cuts.at_least_one(epochs, "epochs")
    multiple_of = cuts.at_least_one(multiple_of, "multiple_of")
    lengths, num_too_long, present = _capped(lengths, counts, longest, too_long, multiple_of)
    counts = None if counts is None else np.asarray(counts)[present]
    values, occurrences = cuts.histogram(lengths, counts=counts)
    labels = None
    if label_lengths is not None:
        labels = cuts.as_lengths(label_lengths, "label_lengths")
        if labels.shape != present.shape:
            raise ValueError(
                f"{len(labels)} label lengths for {len(present)} lengths; give one each"
            )
        labels = labels[present]
    num_infeasible = _count_infeasible(lengths, labels, repeats, subsampling, present, counts)

    def rows_for(padded: Int[np.ndarray, " bucket"]) -> Int[np.ndarray, " bucket"]:
        return batch_sizes_for(padded, token_budget, batch_size, batch_multiple_of)

    if label_weight is not None:
        if labels is None or objective != "padding" or cut is not cuts.optimal or np.size(keep):
            raise ValueError(
                "label_weight makes shapes of two dimensions: it needs label_lengths, the "
                f'strategy "optimal" and the objective "padding" (got {objective!r}), and no keep'
            )
        pairs = cheapest_pairs(
            lengths,
            labels,
            num_shapes=most,
            label_weight=label_weight,
            multiple_of=multiple_of,
            label_multiple_of=label_multiple_of,
            counts=counts,
        )
        chosen, padded_labels = pairs[:, 0], tuple(pairs[:, 1].tolist())
        totals, assumed = np.empty(0), [f"a padded label costs {label_weight:g} padded time steps"]
    else:
        search = Search(
            values, occurrences, multiple_of, keep, objective, cost or ASSUMED, epochs, rows_for
        )
        chosen, totals, assumed = search.run(cut, most)
        if auto and len(chosen) == most < len(totals) and totals[most] < totals[most - 1]:
            assumed = [*assumed, f"no more than max_buckets={most}, though more would cost less"]
        padded_labels = None
        if labels is not None:
            padded_labels = _fit_label_lengths(lengths, labels, counts, chosen, label_multiple_of)
    return Choice(
        boundaries=tuple(chosen.tolist()),
        batch_sizes=tuple(rows_for(chosen).tolist()),
        label_lengths=padded_labels,
        objective=objective,
        totals=totals,
        assumed=tuple(assumed),
        num_examples=int(occurrences.sum()) + (num_too_long if too_long == "drop" else 0),
        num_too_long=num_too_long,
        num_infeasible=num_infeasible,
    )


def _objective(objective: str | None, cost: CostModel | None, auto: bool) -> str:
    if objective is None:
        objective = "seconds" if auto or cost is not None else "padding"
    allowed = get_args(Objective)
    if objective not in allowed:
        raise ValueError(f"unknown objective {objective!r}; choose one of {', '.join(allowed)}")
    if auto and objective != "seconds":
        raise ValueError(
            f'num_buckets="auto" needs the objective "seconds", which counts compilations; with '
            f"{objective!r} more buckets are hardly ever dearer: give a number"
        )
    return objective


def _strategy(strategy: str | Strategy) -> Strategy:
    if not isinstance(strategy, str):
        return strategy
    if strategy not in cuts.STRATEGIES:
        allowed = ", ".join(sorted(cuts.STRATEGIES))
        raise ValueError(f"unknown strategy {strategy!r}; choose one of {allowed}")
    return cuts.STRATEGIES[strategy]


def _capped(
    lengths: ArrayLike, counts: ArrayLike | None, longest: int | None, too_long: str, multiple: int
) -> tuple[Int[np.ndarray, " kept"], int, Bool[np.ndarray, " example"]]:
    """The lengths under the cap, how many examples are above it, and which entries remain."""
    if too_long not in ("truncate", "drop"):
        raise ValueError(f"unknown too_long {too_long!r}; choose truncate or drop")
    array = cuts.as_lengths(lengths)
    present = np.ones(len(array), bool)
    if counts is not None:
        cuts.histogram(array, counts=counts)  # for its errors
        present = np.asarray(counts) > 0
    if longest is None:
        return array[present], 0, present
    cap = -(-cuts.at_least_one(longest, "longest") // multiple) * multiple
    array = array.astype(np.int64)  # the cap may be beyond a narrow type
    over = present & (array > cap)
    num_too_long = int(over.sum() if counts is None else np.asarray(counts)[over].sum())
    if too_long == "drop":
        present = present & ~over
        if not present.any():
            raise ValueError(
                f"all lengths are above longest={longest}: nothing is left to plan for; raise it, "
                'or choose too_long="truncate"'
            )
    return np.minimum(array[present], cap), num_too_long, present


def _count_infeasible(
    lengths: Int[np.ndarray, " kept"],
    labels: np.ndarray | None,
    repeats: ArrayLike | None,
    subsampling: int | None,
    present: Bool[np.ndarray, " example"],
    counts: ArrayLike | None,
) -> int | None:
    if repeats is None and subsampling is None:
        return None
    if labels is None:
        raise ValueError("repeats and subsampling need label_lengths, to tell what is feasible")
    if repeats is not None:
        repeats = cuts.as_lengths(repeats, "repeats")
        if repeats.shape != present.shape:
            raise ValueError(f"{len(repeats)} repeats for {len(present)} lengths; give one each")
        repeats = repeats[present]
    subsampling = 1 if subsampling is None else subsampling
    without = ~feasible(lengths, labels, repeats=repeats, subsampling=subsampling)
    if without.all():
        raise ValueError(
            "no example has a CTC alignment: every one has fewer frames than labels and adjacent "
            f"repeats (subsampling={subsampling}); subsample less, or check the lengths"
        )
    return int(without.sum() if counts is None else np.asarray(counts)[without].sum())


def _fit_label_lengths(
    lengths: Int[np.ndarray, " kept"],
    label_lengths: np.ndarray,
    counts: ArrayLike | None,
    boundaries: Int[np.ndarray, " bucket"],
    label_multiple_of: int,
) -> tuple[int, ...]:
    multiple = cuts.at_least_one(label_multiple_of, "label_multiple_of")
    bucket = cuts.assign(lengths, boundaries)
    longest = np.ones(len(boundaries), np.int64)
    np.maximum.at(longest, bucket, label_lengths)
    padded = -(-np.maximum.accumulate(longest) // multiple) * multiple
    return tuple(padded.tolist())


def _shapes(count: int) -> str:
    return f"{count} shape{'s' if count != 1 else ''}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
