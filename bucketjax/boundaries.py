"""Where to cut: boundaries that gather lengths into few padded lengths.

A boundary is an **inclusive upper** length: bucket ``k`` holds the lengths with
``boundaries[k - 1] < length <= boundaries[k]``, and ``boundaries[k]`` is what they are padded to.
Every strategy takes either one length per example or, with ``counts``, a histogram.

>>> optimal([3, 3, 4, 5, 5, 5, 6, 7, 8, 8], num_buckets=3)
array([3, 5, 8])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int, Integer

from bucketjax.cutting import cheapest_cuts

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
else:
    # What is no array of lengths gets a message of its own, not that of a run-time type checker.
    ArrayLike = object

__all__ = [
    "STRATEGIES",
    "ArrayLike",
    "assign",
    "equal_duration",
    "geometric",
    "histogram",
    "optimal",
    "padding_fraction",
    "quantile",
    "uniform",
]

# Lengths are counted this many at a time, so that the working memory stays far below the array's.
_CHUNK = 1 << 22


def optimal(
    lengths: ArrayLike,
    *,
    num_buckets: int,
    multiple_of: int = 1,
    counts: ArrayLike | None = None,
    keep: ArrayLike = (),
) -> Int[np.ndarray, " bucket"]:
    """Boundaries of the least total padded length over all choices of at most `num_buckets`.

    Exact, by dynamic programming over the distinct lengths (see `cutting.cheapest_cuts`); 200,000
    distinct lengths and 32 buckets take about two seconds.

    Args:
      lengths: real length of each example in time steps; or, with `counts`, distinct lengths.
      num_buckets: most buckets, at least 1.
      multiple_of: every boundary is a multiple of this many time steps.
      counts: how often each entry of `lengths` occurs.
      keep: boundaries that must be among the result, even where no length asks for them.

    Returns:
      Strictly increasing inclusive upper bounds, the last one >= max(lengths). There are fewer
      than `num_buckets` only where there are fewer distinct (rounded) lengths.

    Raises:
      TypeError: lengths or counts that are not integers.
      ValueError: no lengths, negative or all-zero lengths, an argument below 1, or boundaries to
        keep that are no multiples or too many.

    >>> optimal([10, 1000], counts=[900, 100], num_buckets=4)
    array([  10, 1000])
    """
    values, occurrences = _checked(lengths, counts, num_buckets, multiple_of)
    return optimal_up_to(values, occurrences, num_buckets, multiple_of=multiple_of, keep=keep)[-1]


def optimal_up_to(
    values: Int[np.ndarray, " distinct"],
    occurrences: Int[np.ndarray, " distinct"],
    num_buckets: int,
    *,
    multiple_of: int,
    keep: ArrayLike,
) -> list[Int[np.ndarray, " _bucket"]]:
    """`optimal` for every number of buckets up to `num_buckets`, in the time of the last.

    The numbers below those that `keep` needs are left out, and those above the number of distinct
    (rounded) lengths.

    >>> optimal_up_to(np.array([1, 2, 9]), np.array([5, 5, 1]), 5, multiple_of=1, keep=[2])
    [array([2, 9]), array([1, 2, 9])]
    """
    padded, num_examples, kept = candidates(values, occurrences, multiple_of, keep, num_buckets)
    _check_total(int(padded[-1]) * (int(kept.sum()) + 1), occurrences)
    every = cheapest_cuts(padded, num_examples, min(num_buckets, len(padded)), kept)
    return [padded[ends] for ends in every if len(ends)]


def quantile(
    lengths: ArrayLike, *, num_buckets: int, multiple_of: int = 1, counts: ArrayLike | None = None
) -> Int[np.ndarray, " bucket"]:
    """Boundaries at the quantiles: about equally many examples in each bucket.

    Arguments, result and errors are those of `optimal`.

    >>> quantile([1, 2, 3, 4, 50, 60], num_buckets=3)
    array([ 2,  4, 60])
    """
    values, occurrences = _checked(lengths, counts, num_buckets, multiple_of)
    return _tidy(_equal_shares(values, occurrences, num_buckets), values, multiple_of)


def equal_duration(
    lengths: ArrayLike, *, num_buckets: int, multiple_of: int = 1, counts: ArrayLike | None = None
) -> Int[np.ndarray, " bucket"]:
    """Boundaries that give every bucket about the same total length.

    Arguments, result and errors are those of `optimal`.

    >>> equal_duration([1, 1, 1, 1, 2, 2, 4], num_buckets=3)
    array([1, 2, 4])
    """
    values, occurrences = _checked(lengths, counts, num_buckets, multiple_of)
    return _tidy(_equal_shares(values, occurrences * values, num_buckets), values, multiple_of)


def uniform(
    lengths: ArrayLike, *, num_buckets: int, multiple_of: int = 1, counts: ArrayLike | None = None
) -> Int[np.ndarray, " bucket"]:
    """Boundaries of equal width between 0 and the longest; empty buckets are left out.

    Arguments, result and errors are those of `optimal`.

    >>> uniform([1, 5, 9, 40], num_buckets=4)
    array([10, 40])
    """
    values, _ = _checked(lengths, counts, num_buckets, multiple_of)
    longest = int(values[-1])
    cuts = [-(-longest * part // num_buckets) for part in range(1, num_buckets + 1)]
    return _tidy(np.array(cuts), values, multiple_of)


def geometric(
    lengths: ArrayLike, *, num_buckets: int, multiple_of: int = 1, counts: ArrayLike | None = None
) -> Int[np.ndarray, " bucket"]:
    """Boundaries in a constant ratio from the shortest to the longest; empty ones are left out.

    Arguments, result and errors are those of `optimal`.

    >>> geometric([1, 2, 3, 4, 5, 6, 7, 8], num_buckets=3)
    array([2, 4, 8])
    """
    values, _ = _checked(lengths, counts, num_buckets, multiple_of)
    shortest, longest = max(int(values[0]), 1), int(values[-1])
    # The small step back keeps 2.0000000000000004 from becoming 3.
    exact = np.geomspace(shortest, longest, num_buckets + 1)[1:]
    return _tidy(np.ceil(exact * (1 - 1e-12)).astype(np.int64), values, multiple_of)


STRATEGIES: dict[str, Callable[..., Int[np.ndarray, " bucket"]]] = {
    "optimal": optimal,
    "quantile": quantile,
    "uniform": uniform,
    "geometric": geometric,
    "equal_duration": equal_duration,
}


def assign(lengths: ArrayLike, boundaries: ArrayLike) -> Int[np.ndarray, " example"]:
    """The bucket of each length: the first whose boundary is not below it.

    Raises:
      ValueError: a length above the last boundary, or boundaries that do not strictly increase.

    >>> assign([3, 4, 5, 8], [3, 5, 8])
    array([0, 1, 1, 2])
    """
    lengths, boundaries = as_lengths(lengths), as_boundaries(boundaries)
    too_long = int(np.count_nonzero(lengths > boundaries[-1]))
    if too_long:
        raise ValueError(
            f"{too_long} of {len(lengths)} lengths exceed the last boundary {boundaries[-1]} "
            f"(the longest is {lengths.max()}); extend the boundaries, or drop or truncate them"
        )
    return np.searchsorted(boundaries, lengths, side="left")


def padding_fraction(
    lengths: ArrayLike, boundaries: ArrayLike, *, counts: ArrayLike | None = None
) -> float:
    """The share of all padded time steps that is padding, in [0, 1); filler rows do not count.

    Raises:
      ValueError: as `assign`, and where all lengths are 0.

    >>> padding_fraction([2, 3, 5, 8], [4, 8])
    0.25
    """
    values, occurrences = histogram(lengths, counts=counts)
    padded = as_boundaries(boundaries)[assign(values, boundaries)]
    _check_total(int(padded[-1]), occurrences)
    return 1.0 - int(occurrences @ values) / int(occurrences @ padded)


def histogram(
    lengths: ArrayLike, *, counts: ArrayLike | None = None
) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " distinct"]]:
    """The distinct lengths, increasing, and how often each occurs.

    Takes one pass in chunks: 100,000,000 lengths need little memory beside their own.

    Raises:
      TypeError: lengths or counts that are not integers.
      ValueError: no lengths, negative lengths, all lengths 0, or counts that do not fit.

    >>> histogram([5, 3, 5])
    (array([3, 5]), array([1, 2]))
    """
    lengths = as_lengths(lengths)
    if counts is not None:
        weights = _as_integers(counts, "counts").astype(np.int64)
        if weights.shape != lengths.shape:
            raise ValueError(
                f"counts has shape {weights.shape}, lengths {lengths.shape}; give one count per "
                "length"
            )
        if weights.min() < 0:
            raise ValueError(f"counts must not be negative; got {weights.min()}")
        values, where = np.unique(lengths[weights > 0].astype(np.int64), return_inverse=True)
        occurrences = np.zeros(len(values), np.int64)
        np.add.at(occurrences, where, weights[weights > 0])
    else:
        values, occurrences = _count(lengths)
    if not len(values):
        raise ValueError("counts are all 0: there is no length to plan for")
    if values[-1] == 0:
        raise ValueError("all lengths are 0: there is nothing to pad; check how they were measured")
    return values, occurrences


def as_lengths(lengths: ArrayLike, name: str = "lengths") -> Integer[np.ndarray, " example"]:
    """`lengths` as a 1-D array of non-negative integers of its own dtype, or a clear error.

    >>> as_lengths([3, 5])
    array([3, 5])
    """
    array = _as_integers(lengths, name)
    smallest = array.min()
    if smallest < 0:
        raise ValueError(
            f"{name} must be at least 0; {name}[{int(array.argmin())}] is {int(smallest)}"
        )
    if array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} must fit in 64-bit signed integers; got {array.max()}")
    return array


def as_boundaries(boundaries: ArrayLike) -> Int[np.ndarray, " bucket"]:
    """`boundaries` as a strictly increasing array of positive integers, or a clear error.

    >>> as_boundaries((3, 5))
    array([3, 5])
    """
    array = _as_integers(boundaries, "boundaries").astype(np.int64)
    if array[0] < 1:
        raise ValueError(f"boundaries must be at least 1; got {array.tolist()}")
    if np.any(np.diff(array) <= 0):
        raise ValueError(f"boundaries must strictly increase; got {array.tolist()}")
    return array


def candidates(
    values: Int[np.ndarray, " distinct"],
    occurrences: Int[np.ndarray, " distinct"],
    multiple_of: int,
    keep: ArrayLike,
    num_buckets: int,
) -> tuple[
    Int[np.ndarray, " candidate"], Int[np.ndarray, " candidate"], Bool[np.ndarray, " candidate"]
]:
    """Where a bucket may end: padded lengths, how many examples have each, which must be kept.

    Raises:
      ValueError: boundaries to keep that are no multiples of `multiple_of`, or too many.

    >>> candidates(np.array([3, 5, 6]), np.array([1, 2, 4]), 4, [16], num_buckets=2)
    (array([ 4,  8, 16]), array([1, 6, 0]), array([False, False,  True]))
    """
    wanted = np.empty(0, np.int64)
    if np.size(np.asarray(keep, object)):
        wanted = as_boundaries(np.unique(_as_integers(keep, "keep")))
    if len(wanted) and np.any(wanted % multiple_of):
        raise ValueError(
            f"keep={wanted.tolist()} must be multiples of multiple_of={multiple_of}; "
            f"{(-(-wanted // multiple_of) * multiple_of).tolist()} would do"
        )
    rounded = round_up(values, multiple_of)
    padded = np.unique(np.concatenate([rounded, wanted]))
    num_examples = np.zeros(len(padded), np.int64)
    np.add.at(num_examples, np.searchsorted(padded, rounded), occurrences)
    kept = np.isin(padded, wanted)
    needed = int(kept.sum()) + int(not kept[-1])
    if needed > num_buckets:
        raise ValueError(
            f"keep={wanted.tolist()} and the longest length need {needed} buckets; "
            f"num_buckets={num_buckets}: allow more or keep fewer"
        )
    return padded, num_examples, kept


def round_up(values: Int[np.ndarray, " n"], multiple_of: int) -> Int[np.ndarray, " n"]:
    """The padded lengths of these lengths; never 0, because a length of 0 still needs a frame.

    >>> round_up(np.array([0, 3, 4]), 4)
    array([4, 4, 4])
    """
    return np.maximum(-(-values // multiple_of), 1) * multiple_of


def at_least_one(value: object, name: str) -> int:
    """`value` as a positive Python int, or a clear error that calls it `name`.

    >>> at_least_one(8, "multiple_of")
    8
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer; got {value!r} ({type(value).__name__})")
    if value < 1:
        raise ValueError(f"{name} must be at least 1; got {value}")
    return int(value)


def _as_integers(array: ArrayLike, name: str) -> Integer[np.ndarray, " entry"]:
    try:
        array = np.asarray(array)
    except ValueError as error:  # rows of different lengths
        raise ValueError(f"{name} must be 1-D; got nested sequences ({error})") from error
    if array.dtype == object:
        kind = type(array.flat[0]).__name__ if array.size else "nothing"
        raise TypeError(
            f"{name} must be a 1-D array or list of 64-bit integers; got an entry of type {kind}"
        )
    if array.ndim != 1:
        raise ValueError(f"{name} must be 1-D; got {array.ndim}-D, shape {array.shape}")
    if not array.size:
        raise ValueError(f"{name} is empty; at least one is needed")
    if not np.issubdtype(array.dtype, np.integer):
        if np.issubdtype(array.dtype, np.floating) and np.isnan(array).any():
            raise TypeError(f"{name} must be integers; got {array.dtype} with NaN")
        raise TypeError(
            f"{name} must be integers; got {array.dtype}: convert with .astype(np.int64) if they "
            "are whole"
        )
    return array


def _checked(
    lengths: ArrayLike, counts: ArrayLike | None, num_buckets: int, multiple_of: int
) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " distinct"]]:
    at_least_one(num_buckets, "num_buckets")
    values, occurrences = histogram(lengths, counts=counts)
    _check_total(int(values[-1]) + at_least_one(multiple_of, "multiple_of"), occurrences)
    return values, occurrences


def _check_total(longest: int, occurrences: Int[np.ndarray, " distinct"]) -> None:
    if longest * int(occurrences.sum()) >= 2**63:
        raise ValueError(
            f"the padded total of {occurrences.sum()} lengths up to {longest} does not fit in "
            "64-bit integers; give lengths in a coarser unit"
        )


def _count(
    lengths: Integer[np.ndarray, " example"],
) -> tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " distinct"]]:
    low, high = int(lengths.min()), int(lengths.max())
    chunks = (lengths[start : start + _CHUNK] for start in range(0, len(lengths), _CHUNK))
    if high - low < max(_CHUNK, len(lengths) // 8):  # a table of counts is small beside the lengths
        table = np.zeros(high - low + 1, np.int64)
        for chunk in chunks:
            table += np.bincount(chunk.astype(np.int64) - low, minlength=len(table))
        values = np.flatnonzero(table)
        return values + low, table[values]
    values, occurrences = np.empty(0, np.int64), np.empty(0, np.int64)
    for chunk in chunks:
        more, times = np.unique(chunk.astype(np.int64), return_counts=True)
        values, where = np.unique(np.concatenate([values, more]), return_inverse=True)
        merged = np.zeros(len(values), np.int64)
        np.add.at(merged, where, np.concatenate([occurrences, times]))
        occurrences = merged
    return values, occurrences


def _equal_shares(
    values: Int[np.ndarray, " distinct"], mass: Int[np.ndarray, " distinct"], num_buckets: int
) -> Int[np.ndarray, " bucket"]:
    cumulated = np.cumsum(mass)
    total = int(cumulated[-1])
    targets = [-(-total * share // num_buckets) for share in range(1, num_buckets + 1)]
    return values[np.searchsorted(cumulated, targets)]


def _tidy(
    cuts: Int[np.ndarray, " cut"], values: Int[np.ndarray, " distinct"], multiple_of: int
) -> Int[np.ndarray, " bucket"]:
    """Rounds up, covers the longest, and leaves out the buckets that would be empty."""
    rounded = np.unique(round_up(np.append(cuts, values[-1]), multiple_of))
    rounded = rounded[: np.searchsorted(rounded, values[-1]) + 1]
    return rounded[np.unique(np.searchsorted(rounded, values))]
