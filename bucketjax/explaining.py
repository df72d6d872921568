"""Say what a spec does to lengths: a table by bucket, length bias, and drift.

>>> from bucketjax.spec import BucketSpec
>>> print(explain(BucketSpec((4, 8), (2, 2)), [3, 4, 4, 8, 9]))
bucket  length  batch size  examples  steps  padding  filler  compile s  seconds
     0       4           2         3      2     8.3%   25.0%        1.7  0.00048
     1       8           2         1      1     0.0%   50.0%        1.7  0.00048
 total                             4      3     5.0%   37.5%        3.4  0.00096
seconds of 1 epoch(s), steps alone; assumed, not measured: 30 microseconds per padded time step ...
1 of 5 examples fits no bucket
mean length 4.0 in the first tenth of the epoch, 3.5 in the last; adjacent batches correlate -1.00
"""

from __future__ import annotations

import dataclasses
import html
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from bucketjax import boundaries as cuts
from bucketjax.batching import plan_epoch
from bucketjax.boundaries import ArrayLike
from bucketjax.planning import choose_shapes
from bucketjax.pricing import ASSUMED, CostModel
from bucketjax.spec import BucketSpec
from bucketjax.working import Work, feasible, work_of

__all__ = ["Drift", "Explanation", "Row", "drift", "explain"]

# Above this many examples the order of an epoch is not drawn to look at its bias.
_MOST_DRAWN = 20_000_000


class Row(NamedTuple):
    """One bucket, or all of them, over an epoch.

    Attributes:
      bucket: index; "total" for all.
      length: padded length; None for all, like the next two.
      label_length: padded label length; None without labels.
      batch_size: rows of the global batch.
      examples: how many examples.
      steps: how many batches.
      padding_fraction: padding's share of the padded time steps of real rows.
      filler_share: filler rows' share of all padded time steps.
      compile_seconds: seconds of its compilation.
      seconds: seconds of its steps, over all epochs.
    """

    bucket: int | str
    length: int | None
    label_length: int | None
    batch_size: int | None
    examples: int
    steps: int
    padding_fraction: float
    filler_share: float
    compile_seconds: float
    seconds: float


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a spec does to lengths. As text: `str`; as plain values: `to_dict`; HTML in a notebook.

    Attributes:
      rows: one per bucket.
      total: all buckets.
      num_examples: how many examples there are, those that fit nowhere included.
      num_too_long: how many fit no bucket.
      num_infeasible: how many have no CTC alignment; None where that was not asked.
      epochs: how many epochs `seconds` is for.
      source: where the seconds are from.
      first_tenth: mean length of the examples in the first tenth of an epoch's batches; None
        where no order was drawn, like the next two.
      last_tenth: the same of the last tenth.
      adjacent_correlation: correlation of the mean lengths of adjacent batches: 0 where the order
        forgets the lengths, near 1 where it sorts by them.
    """

    rows: tuple[Row, ...]
    total: Row
    num_examples: int
    num_too_long: int
    num_infeasible: int | None
    epochs: int
    source: str
    first_tenth: float | None
    last_tenth: float | None
    adjacent_correlation: float | None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        content = dataclasses.asdict(self)
        content["rows"] = [row._asdict() for row in self.rows]
        content["total"] = self.total._asdict()
        return content

    def __str__(self) -> str:
        header, *body = self._cells()
        widths = [max(map(len, column)) for column in zip(header, *body, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
            for cells in (header, *body)
        ]
        return "\n".join([*lines, *self._notes()])

    def _repr_html_(self) -> str:
        header, *body = self._cells()
        rows = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in header) + "</tr>"]
        for cells in body:
            inner = "".join(
                f'<td style="text-align:right">{html.escape(cell)}</td>' for cell in cells
            )
            rows.append(f"<tr>{inner}</tr>")
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self._notes())
        return f"<table>{''.join(rows)}</table>{notes}"

    def _cells(self) -> list[list[str]]:
        labelled = any(row.label_length is not None for row in self.rows)
        header = "bucket,length,labels,batch size,examples,steps,padding,filler,compile s,seconds"
        table: list[list[str]] = [[*header.split(",")]]
        for row in (*self.rows, self.total):
            whole = [row.bucket, row.length, row.label_length, row.batch_size]
            table.append(
                [
                    *("" if entry is None else str(entry) for entry in whole),
                    f"{row.examples}",
                    f"{row.steps}",
                    f"{row.padding_fraction:.1%}",
                    f"{row.filler_share:.1%}",
                    f"{row.compile_seconds:.3g}",
                    f"{row.seconds:.3g}",
                ]
            )
        return table if labelled else [cells[:2] + cells[3:] for cells in table]

    def _notes(self) -> list[str]:
        notes = [f"seconds of {self.epochs} epoch(s), steps alone; {self.source}"]
        if self.num_too_long:
            fits = "fits" if self.num_too_long == 1 else "fit"
            notes.append(f"{self.num_too_long} of {self.num_examples} examples {fits} no bucket")
        if self.num_infeasible is not None:
            notes.append(f"{self.num_infeasible} examples are infeasible: no CTC alignment exists")
        if self.first_tenth is not None:
            correlation = self.adjacent_correlation
            notes.append(
                f"mean length {self.first_tenth:.1f} in the first tenth of the epoch, "
                f"{self.last_tenth:.1f} in the last; "
                + (
                    "too few batches to correlate"
                    if correlation is None
                    else f"adjacent batches correlate {correlation:+.2f}"
                )
            )
        return notes


def explain(
    spec: BucketSpec,
    lengths: ArrayLike,
    *,
    label_lengths: ArrayLike | None = None,
    repeats: ArrayLike | None = None,
    subsampling: int | None = None,
    counts: ArrayLike | None = None,
    cost: CostModel | None = None,
    epochs: int = 1,
    seed: int = 0,
) -> Explanation:
    """What the spec does to these lengths: work, padding, seconds, and what fits nowhere.

    Args:
      spec: the padded shapes.
      lengths: real length of each example, in time steps.
      label_lengths: label length of each example; decides the bucket where the spec has labels.
      repeats: adjacent repeated labels of each example, to count those without a CTC alignment.
      subsampling: time steps of the model's input per output frame, for the same count.
      counts: how often each entry of `lengths` occurs.
      cost: seconds of steps and compilations; `pricing.ASSUMED` without.
      epochs: how many epochs the seconds are for.
      seed: of the epoch whose order is looked at for length bias.

    Raises:
      TypeError, ValueError: lengths that are not lengths, arrays of different sizes.

    >>> from bucketjax.spec import BucketSpec
    >>> explain(BucketSpec((4, 8), (2, 2)), [3, 4, 4, 8, 9]).total.filler_share
    0.375
    """
    at = cuts.at_least_one(epochs, "epochs")
    cost = cost or ASSUMED
    lengths, labels, times = _entries(lengths, label_lengths, counts)
    bucket = _assign(spec, lengths, labels)
    work = work_of(bucket, lengths, times, spec.boundaries, spec.batch_sizes)
    per_step = cost.step_seconds(np.array(spec.batch_sizes), np.array(spec.boundaries))
    infeasible = None
    if repeats is not None or subsampling is not None:
        if labels is None:
            raise ValueError("repeats and subsampling need label_lengths, to tell what is feasible")
        good = feasible(
            lengths, labels, repeats=repeats, subsampling=1 if subsampling is None else subsampling
        )
        infeasible = int(times[~good].sum())
    rows = tuple(
        Row(number, length, label, size, *_figures(work, [number]), cost.compile_seconds, seconds)
        for number, ((size, length, label), seconds) in enumerate(
            zip(spec.shapes, (work.steps * per_step * at).tolist(), strict=True)
        )
    )
    total = Row(
        "total",
        None,
        None,
        None,
        *_figures(work, list(range(spec.num_buckets))),
        cost.compile_seconds * spec.num_buckets,
        sum(row.seconds for row in rows),
    )
    first, last, correlation = _bias(spec, lengths, labels, times, seed, int(work.examples.sum()))
    return Explanation(
        rows=rows,
        total=total,
        num_examples=int(times.sum()),
        num_too_long=int(times[bucket < 0].sum()),
        num_infeasible=infeasible,
        epochs=at,
        source=cost.source,
        first_tenth=first,
        last_tenth=last,
        adjacent_correlation=correlation,
    )


@dataclasses.dataclass(frozen=True)
class Drift:
    """How an old plan does on new lengths, beside a new plan.

    Attributes:
      num_examples: how many examples there are.
      num_too_long: how many of them the old spec does not hold. The plans are compared on the
        examples that both hold.
      padding_fraction: of the old spec on these lengths.
      new_padding_fraction: of the new one.
      epoch_seconds: seconds of an epoch's steps with the old spec.
      new_epoch_seconds: the same with the new one.
      new_spec: a spec of as many buckets, fitted to all of these lengths.
      new_compile_seconds: what compiling its new shapes takes.
      pays_after_epochs: after how many epochs that is earned back; None where it never is.
      source: where the seconds are from.
    """

    num_examples: int
    num_too_long: int
    padding_fraction: float
    new_padding_fraction: float
    epoch_seconds: float
    new_epoch_seconds: float
    new_spec: BucketSpec
    new_compile_seconds: float
    pays_after_epochs: float | None
    source: str

    def __str__(self) -> str:
        verdict = "a new plan never pays"
        if self.pays_after_epochs is not None:
            verdict = (
                f"a new plan pays for {self.new_compile_seconds:.3g} s of compilations after "
                f"{self.pays_after_epochs:.3g} epochs"
            )
        lost = ""
        if self.num_too_long:
            lost = f"; {self.num_too_long} of {self.num_examples} examples are too long for the old"
        return (
            f"padding {self.padding_fraction:.1%}, {self.new_padding_fraction:.1%} with a new "
            f"plan; {self.epoch_seconds:.3g} s an epoch, {self.new_epoch_seconds:.3g} s with a new "
            f"plan: {verdict}{lost} ({self.source})"
        )


def drift(
    spec: BucketSpec,
    lengths: ArrayLike,
    *,
    label_lengths: ArrayLike | None = None,
    counts: ArrayLike | None = None,
    cost: CostModel | None = None,
    **options: Any,
) -> Drift:
    """What today's plan costs on other lengths, and when a new plan would pay for its compiling.

    Args:
      spec: the plan in use.
      lengths: the other lengths, in time steps.
      label_lengths: their label lengths, where the spec has labels.
      counts: how often each entry of `lengths` occurs.
      cost: seconds of steps and compilations; `pricing.ASSUMED` without.
      options: how the new plan is chosen, as for `planning.choose_shapes`. By default it has as
        many buckets, of least padding, and for each length the batch size that the old plan has
        for it. `num_buckets="auto"` or `objective="seconds"` choose by `cost`.

    Raises:
      TypeError, ValueError: lengths that cannot be planned for, or all too long for the old spec.

    >>> from bucketjax.spec import BucketSpec
    >>> old = BucketSpec((10, 100), (4, 4))
    >>> moved = drift(old, [50] * 4000 + [100] * 4000)
    >>> moved.new_spec.boundaries, round(moved.pays_after_epochs, 2)
    ((50, 100), 0.28)
    """
    cost = cost or ASSUMED
    lengths, labels, times = _entries(lengths, label_lengths, counts)
    bucket = _assign(spec, lengths, labels)
    held = bucket >= 0
    if not times[held].any():
        raise ValueError(
            f"all {int(times.sum())} examples are too long for the spec (last boundary "
            f"{max(spec.boundaries)}); fit a new one"
        )

    def rows_of_old(length: int) -> int:
        where = int(np.searchsorted(np.maximum.accumulate(spec.boundaries), length))
        return spec.batch_sizes[min(where, spec.num_buckets - 1)]

    if not {"token_budget", "batch_size"} & set(options):
        options["batch_size"] = rows_of_old
    options = {"num_buckets": spec.num_buckets, "label_lengths": labels, **options}
    if options["num_buckets"] == "auto" or options.get("objective") == "seconds":
        options = {"cost": cost, **options}
    new = BucketSpec.of(choose_shapes(lengths, counts=times, **options))
    # With a cap on its longest, the new plan may not hold all that the old one does.
    held &= new.assign(lengths, labels) >= 0
    if not times[held].any():
        raise ValueError(
            "no example fits both plans, so they cannot be compared; give a larger longest"
        )

    def of(which: BucketSpec, assigned: Int[np.ndarray, " entry"]) -> tuple[Work, float]:
        work = work_of(assigned, lengths[held], times[held], which.boundaries, which.batch_sizes)
        seconds = cost.step_seconds(np.array(which.batch_sizes), np.array(which.boundaries))
        return work, float(work.steps @ seconds)

    new_bucket = new.assign(lengths[held], None if labels is None else labels[held])
    now, now_seconds = of(spec, bucket[held])
    then, then_seconds = of(new, new_bucket)
    built = len(set(new.shapes) - set(spec.shapes)) * cost.compile_seconds
    saved = now_seconds - then_seconds
    return Drift(
        num_examples=int(times.sum()),
        num_too_long=int(times[bucket < 0].sum()),
        padding_fraction=now.padding_fraction,
        new_padding_fraction=then.padding_fraction,
        epoch_seconds=now_seconds,
        new_epoch_seconds=then_seconds,
        new_spec=new,
        new_compile_seconds=built,
        pays_after_epochs=built / saved if saved > 0 else None,
        source=cost.source,
    )


def _assign(
    spec: BucketSpec,
    lengths: Int[np.ndarray, " entry"],
    labels: Int[np.ndarray, " entry"] | None,
) -> Int[np.ndarray, " entry"]:
    """The bucket of each entry; refuses lengths alone where labels decide, too."""
    if labels is None and np.any(np.diff(spec.boundaries) <= 0):
        raise ValueError(
            "the spec has shapes of two dimensions, and lengths alone do not tell which one holds "
            "an example: give label_lengths too (on the command line, --label-field)"
        )
    return spec.assign(lengths, labels)


def _entries(
    lengths: ArrayLike, label_lengths: ArrayLike | None, counts: ArrayLike | None
) -> tuple[Int[np.ndarray, " entry"], Int[np.ndarray, " entry"] | None, Int[np.ndarray, " entry"]]:
    """Entries that occur: length, label length, how often."""
    cuts.histogram(lengths, counts=counts)  # for its errors
    array = cuts.as_lengths(lengths).astype(np.int64)
    times = np.ones(len(array), np.int64) if counts is None else np.asarray(counts, np.int64)
    labels = None
    if label_lengths is not None:
        labels = cuts.as_lengths(label_lengths, "label_lengths").astype(np.int64)
        if labels.shape != array.shape:
            raise ValueError(f"{len(labels)} label lengths for {len(array)} lengths; give one each")
    return array, labels, times


def _figures(work: Work, which: list[int]) -> tuple[int, int, float, float]:
    part = Work(*(field[which] for field in work))
    examples, steps = int(part.examples.sum()), int(part.steps.sum())
    fraction = part.padding_fraction if examples else 0.0
    return examples, steps, fraction, part.filler_share


def _bias(
    spec: BucketSpec,
    lengths: Int[np.ndarray, " entry"],
    labels: Int[np.ndarray, " entry"] | None,
    times: Int[np.ndarray, " entry"],
    seed: int,
    num_held: int,
) -> tuple[float | None, float | None, float | None]:
    """Mean length in the first and last tenth of an epoch, correlation of adjacent batches."""
    if not 0 < num_held <= _MOST_DRAWN:
        return None, None, None
    lengths = np.repeat(lengths, times)
    labels = None if labels is None else np.repeat(labels, times)
    plan = plan_epoch(lengths, spec, seed=seed, epoch=0, too_long="drop", label_lengths=labels)
    means, sizes = np.zeros(len(plan)), np.zeros(len(plan))
    for number, (_, indices) in enumerate(plan):
        real = lengths[indices[indices >= 0]]
        means[number], sizes[number] = real.mean(), len(real)
    tenth = -(-len(plan) // 10)
    first = float(np.average(means[:tenth], weights=sizes[:tenth]))
    last = float(np.average(means[-tenth:], weights=sizes[-tenth:]))
    if len(means) < 3 or np.ptp(means[1:]) == 0 or np.ptp(means[:-1]) == 0:
        return first, last, None
    return first, last, float(np.corrcoef(means[:-1], means[1:])[0, 1])
