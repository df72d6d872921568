"""Measure what your own step costs: seconds, compilations, memory.

>>> import jax, numpy as np
>>> step = jax.jit(lambda x: (x @ x.T).sum())
>>> shapes = [Shape(8, 16), Shape(8, 64), Shape(16, 64)]
>>> measured = measure(
...     step, lambda shape: (np.ones((shape.batch_size, shape.length), np.float32),), shapes
... )
>>> [timing.shape.length for timing in measured.timings]
[16, 64, 64]
>>> measured.cost.compile_seconds > 0
True
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from bucketjax import compiles
from bucketjax.batching import EpochPlan
from bucketjax.boundaries import ArrayLike, at_least_one
from bucketjax.planning import choose_shapes
from bucketjax.pricing import ASSUMED, CostModel, FittedCost
from bucketjax.spec import BucketSpec, Shape

__all__ = [
    "ASSUMED",
    "CostModel",
    "EpochTiming",
    "FittedCost",
    "FittedMemory",
    "Measured",
    "MemoryFit",
    "Timing",
    "fit_to_memory",
    "measure",
    "peak_bytes",
    "probe_shapes",
    "time_epoch",
]

Arguments = Callable[[Shape], tuple[Any, ...]]
Carry = Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]


class Timing(NamedTuple):
    """What one shape took.

    Attributes:
      shape: the padded shape.
      seconds: median seconds of a step.
      spread: the middle half of the timings, in seconds (upper less lower quartile).
      compile_seconds: seconds of its compilation, tracing included; None where it was compiled
        before.
      fitted_seconds: what the cost model says.
    """

    shape: Shape
    seconds: float
    spread: float
    compile_seconds: float | None
    fitted_seconds: float

    @property
    def residual(self) -> float:
        """Measured over fitted seconds, minus 1."""
        return self.seconds / self.fitted_seconds - 1


@dataclasses.dataclass(frozen=True)
class Measured:
    """A cost model and the timings it was fitted to."""

    cost: CostModel
    timings: tuple[Timing, ...]

    def report(self) -> str:
        """The timings and how well the model fits them, as text."""
        lines = ["batch  length  seconds (middle half)  fitted     error  compile s"]
        for timing in self.timings:
            built = "-" if timing.compile_seconds is None else f"{timing.compile_seconds:.2f}"
            lines.append(
                f"{timing.shape.batch_size:5d}  {timing.shape.length:6d}  {timing.seconds:9.3g} "
                f"({timing.spread:8.2g})  {timing.fitted_seconds:9.3g}  {timing.residual:+7.1%}  "
                f"{built:>9}"
            )
        return "\n".join([*lines, self.cost.source])


def measure(
    step: Any,
    arguments: Arguments,
    shapes: Sequence[Shape],
    *,
    repeats: int = 7,
    carry: Carry | None = None,
    in_a_row: int = 4,
    compile_seconds: float | None = None,
    terms: Sequence[str] = ("step", "length", "time_step", "attention"),
) -> Measured:
    """The cost model of a step, from a few shapes: compile, warm, time interleaved, fit robustly.

    A training loop hands over the next step while the device is still at work on the last one.
    With `carry`, steps are timed as they run there, several in a row; without it each step is
    timed alone, the hand-over included, which makes short steps look dearer than they are.

    Args:
      step: a jitted or `compiles.watch`ed function; it may donate its arguments.
      arguments: makes the positional arguments for a shape, anew for each call (a donated one is
        used up), placed where they will lie in training. Making them is not timed.
      shapes: what to time: 4 to 8 shapes that differ in length and in rows (see `probe_shapes`).
        Every shape costs a compilation.
      repeats: how often each is timed, in a new random order every time.
      carry: makes the next call's arguments from the results and the arguments of the last one,
        as in `lambda results, given: (results[0], *given[1:])`, where a step returns its new
        state first.
      in_a_row: how many such calls one timing spans.
      compile_seconds: the price of a compilation, if every shape was compiled before.
      terms: what the seconds may be made of; see `CostModel.fit`.

    Raises:
      ValueError: fewer than 2 different shapes, fewer than 1 repeat, or no compilation to measure.
      RuntimeError: a shape that cannot be compiled; it is named.

    >>> import jax, numpy as np
    >>> step = jax.jit(lambda x: x.sum())
    >>> make = lambda shape: (np.ones((shape.batch_size, shape.length), np.float32),)
    >>> measured = measure(step, make, [Shape(4, 8), Shape(4, 32)])
    >>> len(measured.timings), "fitted to 2 timed shapes" in measured.cost.source
    (2, True)
    """
    at_least_one(repeats, "repeats")
    calls = 1 if carry is None else at_least_one(in_a_row, "in_a_row")
    shapes = [Shape(*shape) for shape in shapes]
    if len(set(shapes)) < 2:
        raise ValueError(f"measure needs at least 2 different shapes; got {shapes}")
    built = []
    for shape in shapes:
        built += compiles.warm_up(step, [arguments(shape)], names=[str(tuple(shape))])
    fresh = [compilation.seconds for compilation in built if not compilation.cached]
    if compile_seconds is None:
        if not fresh:
            raise ValueError(
                "every shape was compiled before, or came from the persistent cache, so there was "
                "no compilation to measure; measure a newly jitted step, or give compile_seconds"
            )
        compile_seconds = float(np.median(fresh))
    for shape in shapes:  # the first run of an executable is slower than the others
        _seconds(step, arguments(shape))
    seconds: list[list[float]] = [[] for _ in shapes]
    for repeat in range(repeats):
        for number in np.random.default_rng(repeat).permutation(len(shapes)):
            seconds[number].append(_seconds(step, arguments(shapes[number]), calls, carry))
    medians = np.median(seconds, axis=1)
    low, high = np.quantile(seconds, [0.25, 0.75], axis=1)
    fitted = CostModel.fit(
        np.array([shape.batch_size for shape in shapes]),
        np.array([shape.length for shape in shapes]),
        medians,
        compile_seconds=compile_seconds,
        terms=terms,
    )
    timings = [
        Timing(
            shape,
            float(median),
            float(spread),
            None if compilation.cached else compilation.seconds,
            float(median / (1 + residual)),
        )
        for shape, median, spread, compilation, residual in zip(
            shapes, medians, high - low, built, fitted.residuals, strict=True
        )
    ]
    return Measured(fitted.model, tuple(timings))


def probe_shapes(
    lengths: ArrayLike,
    *,
    token_budget: int | None = None,
    batch_size: int | None = None,
    batch_multiple_of: int = 1,
    multiple_of: int = 1,
    num_shapes: int = 5,
    label_lengths: ArrayLike | None = None,
) -> list[Shape]:
    """A few shapes to `measure`: from short to long as they will be used, one with fewer rows.

    >>> probe_shapes(range(1, 101), batch_size=8, num_shapes=4)
    [Shape(batch_size=8, length=34, label_length=None), \
Shape(batch_size=8, length=67, label_length=None), \
Shape(batch_size=8, length=100, label_length=None), \
Shape(batch_size=4, length=100, label_length=None)]
    """
    if at_least_one(num_shapes, "num_shapes") < 2:
        raise ValueError("num_shapes must be at least 2: one shape shows no slope")
    spec = BucketSpec.of(
        choose_shapes(
            lengths,
            num_buckets=num_shapes - 1,
            token_budget=token_budget,
            batch_size=batch_size,
            batch_multiple_of=batch_multiple_of,
            multiple_of=multiple_of,
            strategy="uniform",
            label_lengths=label_lengths,
        )
    )
    shapes = list(spec.shapes)
    last = shapes[-1]
    half = last.batch_size // 2 // batch_multiple_of * batch_multiple_of
    return [*shapes, last._replace(batch_size=half or 2 * last.batch_size)]


class EpochTiming(NamedTuple):
    """What an epoch took.

    Attributes:
      compile_count: executables that were built.
      compile_seconds: seconds that took.
      epoch_seconds: seconds of all steps.
      steps: how many steps there are, and how many of them were run.
      steps_run: the latter.
    """

    compile_count: int
    compile_seconds: float
    epoch_seconds: float
    steps: int
    steps_run: int


def time_epoch(
    step: Any,
    arguments: Arguments,
    spec: BucketSpec,
    plan: EpochPlan,
    *,
    most_steps_per_bucket: int | None = None,
) -> EpochTiming:
    """Runs an epoch's steps in the plan's order and times them; compilations apart.

    Args:
      step: a jitted or watched function.
      arguments: as in `measure`.
      spec: the shapes.
      plan: from `plan_epoch`.
      most_steps_per_bucket: run only so many of each bucket, and count their mean for the rest.

    >>> import jax, numpy as np
    >>> from bucketjax.batching import plan_epoch
    >>> spec = BucketSpec((4, 8), (2, 2))
    >>> make = lambda shape: (np.ones((shape.batch_size, shape.length), np.float32),)
    >>> plan = plan_epoch([3, 7, 8, 8], spec, seed=0, epoch=0)
    >>> timed = time_epoch(jax.jit(lambda x: x.sum()), make, spec, plan)
    >>> timed.compile_count, timed.steps
    (2, 3)
    """
    used = sorted(set(plan.buckets.tolist()))
    built = compiles.warm_up(step, [arguments(spec.shapes[bucket]) for bucket in used])
    for bucket in used:
        _seconds(step, arguments(spec.shapes[bucket]))
    seconds: dict[int, list[float]] = {bucket: [] for bucket in used}
    for bucket, _ in plan:
        if most_steps_per_bucket is None or len(seconds[bucket]) < most_steps_per_bucket:
            seconds[bucket].append(_seconds(step, arguments(spec.shapes[bucket])))
    steps = np.bincount(plan.buckets, minlength=spec.num_buckets)
    return EpochTiming(
        compile_count=sum(not compilation.cached for compilation in built),
        compile_seconds=sum(compilation.seconds for compilation in built),
        epoch_seconds=sum(
            float(np.mean(times)) * int(steps[bucket]) for bucket, times in seconds.items()
        ),
        steps=len(plan),
        steps_run=sum(map(len, seconds.values())),
    )


class MemoryFit(NamedTuple):
    """The batch of one bucket that fits.

    Attributes:
      shape: the padded shape, with the rows that fit.
      predicted_bytes: its peak per device, as told by the shapes tried before.
      measured_bytes: its peak per device, as the compiler says for this very shape.
      tried: rows of all shapes that were compiled to find it.
    """

    shape: Shape
    predicted_bytes: int
    measured_bytes: int
    tried: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class FittedMemory:
    """A spec whose batches fit.

    Attributes:
      spec: the spec with the largest batches that fit.
      buckets: how each was found.
      limit_bytes: the limit per device.
    """

    spec: BucketSpec
    buckets: tuple[MemoryFit, ...]
    limit_bytes: int

    def rows_for(self, length: int) -> int:
        """The most rows known to fit for a padded length: those of the bucket that holds it.

        A rule for `batch_size=` of `choose_shapes` and `BucketSpec.fit`.
        """
        for fit in self.buckets:
            if fit.shape.length >= length:
                return fit.shape.batch_size
        raise ValueError(
            f"memory was fitted up to length {self.buckets[-1].shape.length}, not for {length}"
        )


def fit_to_memory(
    spec: BucketSpec,
    step: Any,
    arguments: Arguments,
    *,
    limit_bytes: int | None = None,
    batch_multiple_of: int = 1,
    most_rows: int | None = None,
) -> FittedMemory:
    """The largest batch of every bucket whose peak memory stays within a limit, without running.

    Two small shapes per bucket are compiled and the compiler asked for their memory; a straight
    line gives the largest batch. That batch is then compiled too, and taken only if the compiler
    says it fits; where the line was wrong it is drawn anew through what is now known.

    Args:
      spec: the buckets; its batch sizes play no part.
      step: a jitted or watched function.
      arguments: makes the positional arguments for a shape; `jax.ShapeDtypeStruct`s will do.
      limit_bytes: bytes per device; by default what the device says it has.
      batch_multiple_of: each batch size is a multiple of this: the number of devices.
      most_rows: no batch is larger than this.

    Raises:
      ValueError: a device that does not tell its memory, or a bucket whose smallest batch is
        over the limit: it is named, with the bytes it needs.
      NotImplementedError: a backend that does not tell what an executable needs.

    >>> import jax, numpy as np
    >>> step = jax.jit(lambda x: jax.numpy.tanh(x @ x.T).sum())
    >>> make = lambda shape: (jax.ShapeDtypeStruct((shape.batch_size, shape.length), np.float32),)
    >>> spec = BucketSpec((16, 64), (1, 1))
    >>> fitted = fit_to_memory(spec, step, make, limit_bytes=50_000)
    >>> all(fit.measured_bytes <= 50_000 for fit in fitted.buckets)
    True
    """
    multiple = at_least_one(batch_multiple_of, "batch_multiple_of")
    if limit_bytes is None:
        limit_bytes = _device_bytes()
    limit = at_least_one(limit_bytes, "limit_bytes")
    largest = None if most_rows is None else at_least_one(most_rows, "most_rows")
    if largest is not None and largest < multiple:
        raise ValueError(f"most_rows={largest} is below batch_multiple_of={multiple}")
    most = (largest or 2**31) // multiple * multiple
    fits = tuple(_largest(shape, step, arguments, limit, multiple, most) for shape in spec.shapes)
    fitted = BucketSpec(
        spec.boundaries, tuple(fit.shape.batch_size for fit in fits), spec.label_lengths
    )
    return FittedMemory(fitted, fits, limit)


def peak_bytes(step: Any, arguments: tuple[Any, ...]) -> int:
    """What a call will need on each device, as the compiler says: arguments, results, temporaries.

    Raises:
      NotImplementedError: a backend that does not tell.

    >>> import jax, numpy as np
    >>> peak_bytes(jax.jit(lambda x: 2 * x), (np.ones(1000, np.float32),)) >= 8000
    True
    """
    stats = step.lower(*arguments).compile().memory_analysis()
    if stats is None:
        raise NotImplementedError(
            f"the backend {jax.default_backend()!r} does not tell how much memory an executable "
            "needs; give batch sizes or a token budget instead"
        )
    held = stats.argument_size_in_bytes + stats.output_size_in_bytes - stats.alias_size_in_bytes
    return int(held + stats.temp_size_in_bytes)


def _largest(
    shape: Shape, step: Any, arguments: Arguments, limit: int, multiple: int, most: int
) -> MemoryFit:
    known: dict[int, int] = {}

    def peak(rows: int) -> int:
        if rows not in known:
            known[rows] = peak_bytes(step, arguments(shape._replace(batch_size=rows)))
        return known[rows]

    def line(rows: int) -> float:
        """The peak of so many rows, by the two known ones that are nearest."""
        low, high = sorted(sorted(known, key=lambda other: abs(other - rows))[:2])
        slope = (known[high] - known[low]) / (high - low)
        return known[low] + slope * (rows - low)

    if peak(multiple) > limit:
        raise ValueError(
            f"the bucket of length {shape.length} needs {known[multiple]:,} bytes for its smallest "
            f"batch of {multiple} row(s), over the limit of {limit:,}; allow more, cap the "
            "longest, or use a smaller model"
        )
    if most == multiple:
        return MemoryFit(shape._replace(batch_size=multiple), peak(multiple), peak(multiple), (1,))
    peak(min(4 * multiple, most))
    predicted: dict[int, float] = {}
    while True:
        fitting = max(rows for rows, size in known.items() if size <= limit)
        over = min((rows for rows, size in known.items() if size > limit), default=most + multiple)
        # The largest untried batch that should fit, by bisection on the line; not too far beyond
        # what is known, for where the line is flat it goes on for ever.
        low, high = fitting, min(over, 16 * fitting)
        while high - low > multiple:
            middle = (low + high) // 2 // multiple * multiple
            if line(middle) <= limit:
                low = middle
            else:
                high = middle
        if low == fitting:
            break
        predicted[low] = line(low)
        peak(low)
    return MemoryFit(
        shape._replace(batch_size=fitting),
        int(predicted.get(fitting, known[fitting])),
        known[fitting],
        tuple(known),
    )


def _device_bytes() -> int:
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if not stats or "bytes_limit" not in stats:
        raise ValueError(
            f"{device} does not tell how much memory it has; give limit_bytes, in bytes per device"
        )
    return int(stats["bytes_limit"])


def _seconds(
    step: Any, arguments: tuple[Any, ...], calls: int = 1, carry: Carry | None = None
) -> float:
    """Seconds of a call: the mean of `calls` in a row, each carrying on from the one before."""
    jax.block_until_ready(arguments)
    start = time.perf_counter()
    results = step(*arguments)
    for _ in range(calls - 1):
        arguments = carry(results, arguments) if carry is not None else arguments
        results = step(*arguments)
    jax.block_until_ready(results)
    return (time.perf_counter() - start) / calls
