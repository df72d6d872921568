"""Explore the trade-off: padding, compilations and seconds, over the number of buckets.

>>> cost = CostModel.linear(per_time_step=1e-4, compile_seconds=2.0)
>>> lengths = np.ceil(np.random.default_rng(0).lognormal(4, 1, 2000)).astype(int)
>>> found = explore(lengths, num_buckets=range(1, 9), cost=cost, batch_size=32)
>>> found.best().strategy, found.best().num_buckets < 8
('cheapest', True)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from bucketjax import boundaries as cuts
from bucketjax.boundaries import ArrayLike
from bucketjax.pricing import ASSUMED, CostModel
from bucketjax.searching import Search, Strategy
from bucketjax.spec import BucketSpec
from bucketjax.working import batch_sizes_for, work_of

__all__ = ["Exploration", "Point", "explore"]


class Point(NamedTuple):
    """One strategy with one number of buckets.

    Attributes:
      strategy: its name.
      num_buckets: how many buckets were asked for.
      spec: the shapes, `spec.num_buckets` of them: fewer where there are fewer distinct lengths.
      padding_fraction: padding's share of the padded time steps of real rows.
      filler_share: filler rows' share of all padded time steps.
      compile_seconds: predicted seconds of all compilations.
      epoch_seconds: predicted seconds of an epoch's steps.
      total_seconds: both, over all epochs.
      measured: (compile seconds, epoch seconds) as measured; None where nothing was.
    """

    strategy: str
    num_buckets: int
    spec: BucketSpec
    padding_fraction: float
    filler_share: float
    compile_seconds: float
    epoch_seconds: float
    total_seconds: float
    measured: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Exploration:
    """The trade-off as data; `plotting.trade_off` draws it.

    Attributes:
      points: every strategy with every number of buckets.
      epochs: how many epochs the totals are for.
      source: where the seconds are from.
    """

    points: tuple[Point, ...]
    epochs: int
    source: str

    def best(self, strategy: str | None = None) -> Point:
        """The point of the fewest total seconds, of one strategy or of all.

        Raises:
          ValueError: a strategy that was not explored.
        """
        points = [point for point in self.points if strategy in (None, point.strategy)]
        if not points:
            known = ", ".join(dict.fromkeys(point.strategy for point in self.points))
            raise ValueError(f"strategy {strategy!r} was not explored; choose one of {known}")
        return min(points, key=lambda point: (point.total_seconds, point.spec.num_buckets))

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        points = []
        for point in self.points:
            content = point._asdict()
            content["spec"] = [shape._asdict() for shape in point.spec.shapes]
            content["measured"] = None if point.measured is None else list(point.measured)
            points.append(content)
        return {"epochs": self.epochs, "source": self.source, "points": points}

    def __str__(self) -> str:
        best = self.best()
        lines = ["strategy        buckets  padding  filler  compile s   epoch s   total s"]
        for point in self.points:
            mark = "  <- least" if point is best else ""
            lines.append(
                f"{point.strategy:14}  {point.spec.num_buckets:7d}  {point.padding_fraction:7.1%}  "
                f"{point.filler_share:6.1%}  {point.compile_seconds:9.3g}  "
                f"{point.epoch_seconds:8.3g}  {point.total_seconds:8.3g}{mark}"
            )
        return "\n".join([*lines, f"totals of {self.epochs} epoch(s); {self.source}"])


def explore(
    lengths: ArrayLike,
    *,
    num_buckets: Iterable[int] = range(1, 33),
    strategies: Sequence[str] = ("cheapest", "optimal", "quantile", "uniform", "geometric"),
    cost: CostModel | None = None,
    epochs: int = 1,
    token_budget: int | None = None,
    batch_size: int | Callable[[int], int] | None = None,
    multiple_of: int = 1,
    batch_multiple_of: int = 1,
    counts: ArrayLike | None = None,
    measure: Callable[[BucketSpec], tuple[float, float]] | None = None,
    measured_strategies: Sequence[str] = ("optimal",),
) -> Exploration:
    """Padding, compile seconds, epoch seconds and total seconds for every number of buckets.

    Args:
      lengths: real length of each example, in time steps.
      num_buckets: the numbers of buckets to try, each at least 1.
      strategies: names in `boundaries.STRATEGIES`, and "cheapest": the boundaries of the fewest
        predicted seconds, whole batches and compilations counted.
      cost: seconds of steps and compilations; `pricing.ASSUMED` without.
      epochs: how many epochs the total is for.
      token_budget, batch_size, multiple_of, batch_multiple_of: as in `planning.choose_shapes`.
      counts: how often each entry of `lengths` occurs.
      measure: runs a spec for real and gives (compile seconds, epoch seconds), to lay over the
        prediction; `costs.time_epoch` does it on your own step.
      measured_strategies: which strategies are measured.

    Raises:
      TypeError, ValueError: as `planning.choose_shapes`; or no number of buckets, or an unknown
        strategy.

    >>> found = explore([1, 2, 4, 8], num_buckets=[1, 2], strategies=["optimal"], batch_size=1)
    >>> [point.spec.boundaries for point in found.points]
    [(8,), (2, 8)]
    """
    cost = cost or ASSUMED
    epochs = cuts.at_least_one(epochs, "epochs")
    numbers = [cuts.at_least_one(number, "num_buckets") for number in num_buckets]
    if not numbers or not strategies:
        raise ValueError("explore needs at least one number of buckets and one strategy")
    unknown = sorted(set(strategies) - set(cuts.STRATEGIES) - {"cheapest"})
    if unknown:
        allowed = ", ".join(["cheapest", *sorted(cuts.STRATEGIES)])
        raise ValueError(f"unknown strategies {', '.join(unknown)}; choose some of {allowed}")
    multiple_of = cuts.at_least_one(multiple_of, "multiple_of")
    values, occurrences = cuts.histogram(lengths, counts=counts)

    def rows_for(padded: Int[np.ndarray, " bucket"]) -> Int[np.ndarray, " bucket"]:
        return batch_sizes_for(padded, token_budget, batch_size, batch_multiple_of)

    search = Search(values, occurrences, multiple_of, (), "seconds", cost, epochs, rows_for)
    points = []
    for name in strategies:
        if name == "cheapest":
            every, _ = search.cheapest(max(numbers))
        elif name == "optimal":
            every = search.least_padded(max(numbers))
        else:
            strategy: Strategy = cuts.STRATEGIES[name]
            every = {number: search.cut(strategy, number) for number in numbers}
        for number in numbers:
            boundaries = every.get(number, every[max(every)])
            spec = BucketSpec(tuple(boundaries.tolist()), tuple(rows_for(boundaries).tolist()))
            bucket = np.searchsorted(boundaries, values)
            work = work_of(bucket, values, occurrences, spec.boundaries, spec.batch_sizes)
            per_step = cost.step_seconds(np.array(spec.batch_sizes), boundaries)
            compile_seconds = cost.compile_seconds * spec.num_buckets
            epoch_seconds = float(work.steps @ per_step)
            wanted = measure is not None and name in measured_strategies
            points.append(
                Point(
                    name,
                    number,
                    spec,
                    work.padding_fraction,
                    work.filler_share,
                    compile_seconds,
                    epoch_seconds,
                    compile_seconds + epochs * epoch_seconds,
                    measure(spec) if wanted and measure is not None else None,
                )
            )
    return Exploration(tuple(points), epochs, cost.source)
