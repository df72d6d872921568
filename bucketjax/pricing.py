"""What shapes cost: seconds of a step and of a compilation, as a function of the padded shape.

>>> cost = CostModel.linear(per_step=0.002, per_time_step=1e-5, compile_seconds=1.5)
>>> float(cost.step_seconds(32, 100))
0.034
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from bucketjax.boundaries import ArrayLike

__all__ = ["ASSUMED", "CostModel", "FittedCost"]

# What the seconds of a step may be made of; `fit` decides which of them there are.
TERMS: dict[str, Callable[[Any, Any], Any]] = {
    "step": lambda rows, length: np.ones_like(rows * length),
    "row": lambda rows, length: rows + 0.0 * length,
    "length": lambda rows, length: length + 0.0 * rows,
    "time_step": lambda rows, length: rows * length,
    "attention": lambda rows, length: rows * length * length,
}
_FORMAT = "bucketjax.CostModel"


@dataclasses.dataclass(frozen=True)
class CostModel:
    """Seconds of a step and of a compilation.

    Made by `costs.measure` from your own step, or by `CostModel.fit`, `linear`, `table` or
    `function` from timings of your own.

    Attributes:
      steps: seconds of one step, a function of arrays (rows of the global batch, padded length).
      compile_seconds: seconds of one compilation; it hardly depends on the length of a scan.
      source: where the numbers are from, for reports.
      content: the same as plain JSON values; None for a function, which has no JSON.
    """

    steps: Callable[[Any, Any], Any]
    compile_seconds: float
    source: str
    content: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        _at_least_zero(self.compile_seconds, "compile_seconds")

    def step_seconds(self, rows: ArrayLike, lengths: ArrayLike) -> Float[np.ndarray, "*shapes"]:
        """Seconds of one step of each shape.

        Raises:
          ValueError: where the model's own function gives a negative number or none at all.
        """
        rows, lengths = np.broadcast_arrays(rows, lengths)
        shape = rows.shape
        rows, lengths = np.ravel(rows), np.ravel(lengths)
        seconds = np.asarray(self.steps(rows.astype(float), lengths.astype(float)), float)
        if seconds.shape != rows.shape:
            raise ValueError(
                f"the cost model ({self.source}) must give one number of seconds for each shape; "
                f"for {rows.shape} shapes it gave {seconds.shape}"
            )
        wrong = np.flatnonzero(~(np.isfinite(seconds) & (seconds >= 0)))
        if len(wrong):
            raise ValueError(
                f"the cost model ({self.source}) must give a number of seconds, at least 0; for "
                f"batch size {rows.flat[wrong[0]]} and length {lengths.flat[wrong[0]]} it gave "
                f"{float(seconds.flat[wrong[0]])}"
            )
        return seconds.reshape(shape)

    @classmethod
    def linear(
        cls,
        *,
        per_step: float = 0.0,
        per_row: float = 0.0,
        per_length: float = 0.0,
        per_time_step: float = 0.0,
        per_attention: float = 0.0,
        compile_seconds: float,
        source: str = "given coefficients",
    ) -> CostModel:
        """A sum of what a step, a row, a padded time step, ... costs.

        Args:
          per_step: seconds of any step.
          per_row: seconds of each row of the batch.
          per_length: seconds of each padded length, whatever the rows: a scan's own overhead.
          per_time_step: seconds of each padded time step of each row.
          per_attention: seconds of each pair of padded time steps of each row.
          compile_seconds: seconds of one compilation.
          source: where the numbers are from, for reports.

        Raises:
          ValueError: a negative number, or none above 0 for the steps.
        """
        given = dict(
            zip(TERMS, (per_step, per_row, per_length, per_time_step, per_attention), strict=True)
        )
        for name, value in given.items():
            _at_least_zero(value, f"per_{name}")
        used = {name: float(value) for name, value in given.items() if value}
        if not used:
            raise ValueError("every coefficient is 0: give what a step costs, such as per_step")
        content = {"kind": "linear", "seconds": used}
        return cls(_Sum(used), float(compile_seconds), source, content)

    @classmethod
    def function(
        cls, steps: Callable[[Any, Any], Any], *, compile_seconds: float, source: str = "a function"
    ) -> CostModel:
        """Your own function of one batch size and one length.

        >>> cost = CostModel.function(lambda rows, length: 0.001 * length, compile_seconds=1.0)
        >>> cost.step_seconds(8, [10, 20]).tolist()
        [0.01, 0.02]
        """
        return cls(np.vectorize(steps, otypes=[float]), compile_seconds, source)

    @classmethod
    def table(
        cls,
        seconds: Mapping[tuple[int, int], float],
        *,
        compile_seconds: float,
        source: str = "a table",
    ) -> CostModel:
        """Timings of some (batch size, length) shapes, and straight lines between them.

        The shapes form a grid: every batch size with every length. Beyond the grid the outermost
        lines go on, though never below 0.

        Raises:
          ValueError: a table that is empty or no grid (the missing shapes are named), or seconds
            that are not above 0.

        >>> cost = CostModel.table({(8, 10): 0.1, (8, 30): 0.3}, compile_seconds=1.0)
        >>> cost.step_seconds(8, [10, 20, 40]).round(6).tolist()
        [0.1, 0.2, 0.4]
        """
        if not seconds:
            raise ValueError("the table is empty: give seconds for some (batch size, length)")
        rows = sorted({shape[0] for shape in seconds})
        lengths = sorted({shape[1] for shape in seconds})
        missing = [shape for shape in itertools.product(rows, lengths) if shape not in seconds]
        if missing:
            raise ValueError(
                f"the table must have every batch size with every length; it lacks {missing[:5]}: "
                "add them, or fit a model to what there is with CostModel.fit"
            )
        for shape, value in seconds.items():
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"the table gives {value!r} seconds for {shape}; must be above 0")
        grid = np.array([[float(seconds[row, length]) for length in lengths] for row in rows])
        entries = [[*map(int, shape), float(value)] for shape, value in sorted(seconds.items())]
        return cls(
            _Grid(np.array(rows, float), np.array(lengths, float), grid),
            compile_seconds,
            source,
            {"kind": "table", "seconds": entries},
        )

    @classmethod
    def fit(
        cls,
        rows: ArrayLike,
        lengths: ArrayLike,
        seconds: ArrayLike,
        *,
        compile_seconds: float,
        terms: Sequence[str] = ("step", "length", "time_step", "attention"),
    ) -> FittedCost:
        """The linear model that is closest to these timings, robustly and with no negative term.

        Least squares of the relative error, so that short shapes count as much as long ones,
        repeated with Huber's weights (Huber 1964, "Robust estimation of a location parameter")
        so that a few disturbed timings do not pull it along. Non-negative coefficients are found
        exactly, by trying every subset of the few terms.

        Args:
          rows: batch size of each timing.
          lengths: padded length of each timing.
          seconds: its seconds, above 0.
          compile_seconds: seconds of one compilation.
          terms: what the seconds may be made of: "step", "row", "length", "time_step" (rows x
            length), "attention" (rows x length^2).

        Raises:
          ValueError: unknown terms, arrays of different sizes, timings that are not above 0, or
            fewer than 2 different shapes.

        >>> rows, lengths = np.array([8, 8, 8, 4]), np.array([10, 50, 100, 100])
        >>> fitted = CostModel.fit(rows, lengths, 0.01 + 1e-4 * rows * lengths, compile_seconds=1.0)
        >>> {name: round(value, 6) for name, value in fitted.coefficients.items()}
        {'step': 0.01, 'time_step': 0.0001}
        """
        rows, lengths, timed = (np.asarray(x, float) for x in (rows, lengths, seconds))
        unknown = sorted(set(terms) - set(TERMS))
        if unknown or not terms:
            raise ValueError(f"unknown terms {unknown}; choose some of {', '.join(TERMS)}")
        if not rows.shape == lengths.shape == timed.shape or rows.ndim != 1:
            raise ValueError(
                f"give one batch size, length and time each; got shapes {rows.shape}, "
                f"{lengths.shape}, {timed.shape}"
            )
        if len(set(zip(rows.tolist(), lengths.tolist(), strict=True))) < 2:
            raise ValueError("a fit needs timings of at least 2 different shapes")
        if not np.all(np.isfinite(timed)) or np.any(timed <= 0):
            raise ValueError(f"seconds must be above 0; got {timed.min()}")
        columns = np.stack([TERMS[term](rows, lengths) for term in terms], axis=1)
        found = _robust(columns / timed[:, None])
        coefficients = {
            term: float(value) for term, value in zip(terms, found, strict=True) if value
        }
        fitted = columns @ found
        residuals = timed / fitted - 1
        worst = float(np.abs(residuals).max())
        spelled = " + ".join(f"{value:.3g} s per {name}" for name, value in coefficients.items())
        model = cls(
            _Sum(coefficients),
            float(compile_seconds),
            f"fitted to {len(timed)} timed shapes: {spelled}; median error "
            f"{np.median(np.abs(residuals)):.1%}, largest {worst:.1%}",
            {"kind": "linear", "seconds": coefficients},
        )
        return FittedCost(model, coefficients, residuals)

    def to_json(self) -> str:
        """The model as one line of JSON.

        Raises:
          TypeError: a model that is a Python function.
        """
        if self.content is None:
            raise TypeError(f"{self.source} cannot be written as JSON; make a table of it")
        body = {"compile_seconds": self.compile_seconds, "source": self.source, **self.content}
        return json.dumps({"format": _FORMAT, "version": 1, **body})

    @classmethod
    def from_json(cls, text: str) -> CostModel:
        """The model that `to_json` wrote.

        Raises:
          ValueError: text that is not such JSON, saying what was found.

        >>> cost = CostModel.table({(8, 10): 0.1, (8, 30): 0.3}, compile_seconds=1.0)
        >>> CostModel.from_json(cost.to_json()).to_json() == cost.to_json()
        True
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a CostModel: the text is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f'not a CostModel: expected {{"format": "{_FORMAT}", ...}}')
        if content.get("version") != 1 or content.get("kind") not in ("linear", "table"):
            raise ValueError(
                f"a CostModel of version {content.get('version')!r} and kind "
                f"{content.get('kind')!r} is not known here; measure it again"
            )
        try:
            shared = {"compile_seconds": content["compile_seconds"], "source": content["source"]}
            if content["kind"] == "table":
                entries = {(rows, length): value for rows, length, value in content["seconds"]}
                return cls.table(entries, **shared)
            return cls.linear(
                **{f"per_{name}": value for name, value in content["seconds"].items()}, **shared
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a CostModel: {error!r} in {text[:200]}") from error


@dataclasses.dataclass(frozen=True, eq=False)
class FittedCost:
    """A fitted model and how well it fits.

    Attributes:
      model: the cost model.
      coefficients: seconds per term; terms that the timings do not show are left out.
      residuals: measured over fitted seconds, minus 1, of each timing.
    """

    model: CostModel
    coefficients: dict[str, float]
    residuals: Float[np.ndarray, " timing"]


@dataclasses.dataclass(frozen=True)
class _Sum:
    coefficients: Mapping[str, float]

    def __call__(self, rows: Any, lengths: Any) -> Any:
        return sum(value * TERMS[name](rows, lengths) for name, value in self.coefficients.items())


@dataclasses.dataclass(frozen=True, eq=False)
class _Grid:
    rows: Float[np.ndarray, " row"]
    lengths: Float[np.ndarray, " length"]
    seconds: Float[np.ndarray, "row length"]

    def __call__(self, rows: Any, lengths: Any) -> Any:
        row, by_row = _between(self.rows, np.asarray(rows), "batch size")
        column, by_length = _between(self.lengths, np.asarray(lengths), "length")
        next_row = np.minimum(row + 1, len(self.rows) - 1)
        next_column = np.minimum(column + 1, len(self.lengths) - 1)
        low = (
            self.seconds[row, column] * (1 - by_length) + self.seconds[row, next_column] * by_length
        )
        high = (
            self.seconds[next_row, column] * (1 - by_length)
            + self.seconds[next_row, next_column] * by_length
        )
        return np.maximum(low * (1 - by_row) + high * by_row, 0.0)


def _between(
    known: Float[np.ndarray, " known"], wanted: np.ndarray, name: str
) -> tuple[Int[np.ndarray, "*shapes"], Float[np.ndarray, "*shapes"]]:
    """The known value at or below each wanted one, and how far on it is to the next one."""
    if len(known) == 1 and np.any(wanted != known[0]):
        other = wanted[wanted != known[0]].flat[0]
        raise ValueError(
            f"the table has one {name}, {known[0]:g}, and says nothing of {other:g}; add timings "
            f"of another {name}, or fit a model with CostModel.fit"
        )
    below = np.clip(np.searchsorted(known, wanted, side="right") - 1, 0, max(len(known) - 2, 0))
    if len(known) == 1:
        return below, np.zeros(wanted.shape)
    return below, (wanted - known[below]) / (known[below + 1] - known[below])


def _robust(columns: Float[np.ndarray, "timing term"]) -> Float[np.ndarray, " term"]:
    """Non-negative coefficients with columns @ coefficients close to 1, by Huber's weights."""
    weights = np.ones(len(columns))
    found = np.zeros(columns.shape[1])
    for _ in range(20):
        found = _non_negative(columns * weights[:, None] ** 0.5, weights**0.5)
        error = np.abs(columns @ found - 1)
        # 1.345 robust standard deviations: 95 % as efficient as least squares on normal errors.
        bound = max(1.345 * 1.4826 * float(np.median(error)), 1e-6)
        weights = np.minimum(1.0, bound / np.maximum(error, 1e-300))
    return found


def _non_negative(
    columns: Float[np.ndarray, "timing term"], target: Float[np.ndarray, " timing"]
) -> Float[np.ndarray, " term"]:
    # The non-negative optimum is the plain least squares of the terms that are not 0.
    num_terms = columns.shape[1]
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-300)
    least, best = np.inf, np.zeros(num_terms)
    for size in range(1, num_terms + 1):
        for chosen in itertools.combinations(range(num_terms), size):
            picked = list(chosen)
            solution, *_ = np.linalg.lstsq(columns[:, picked] / scale[picked], target, rcond=None)
            if np.any(solution < 0):
                continue
            miss = (columns[:, picked] / scale[picked]) @ solution - target
            error = float(miss @ miss)
            if error < least * (1 - 1e-9) - 1e-18:  # more terms only where they help
                least = error
                best = np.zeros(num_terms)
                best[picked] = solution / scale[picked]
    return best


def _at_least_zero(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise TypeError(f"{name} must be a number of seconds; got {value!r}")
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be a number of seconds, at least 0; got {value}")


# The recogniser of the experiments (2 layers of 128 LSTM units each way, batches of 8) on two CPU
# cores: 0.2 s for a step of 8 x 797 frames, and 1.7 s for a compilation.
ASSUMED = CostModel.linear(
    per_time_step=3e-5,
    compile_seconds=1.7,
    source="assumed, not measured: 30 microseconds per padded time step and 1.7 s per compilation, "
    "as of a small LSTM on two CPU cores; measure your own step with costs.measure",
)
