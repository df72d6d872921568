"""BucketSpec: the closed set of padded shapes that a program may ever see.

>>> spec = BucketSpec.fit([3, 3, 4, 5, 5, 5, 6, 7, 8, 8], num_buckets=3, token_budget=40)
>>> spec.shapes
(Shape(batch_size=13, length=3, label_length=None), Shape(batch_size=8, length=5, label_length=None), Shape(batch_size=5, length=8, label_length=None))
"""  # noqa: E501

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from bucketjax import boundaries as cuts
from bucketjax.boundaries import ArrayLike

__all__ = ["BucketSpec", "Shape"]

_FORMAT = "bucketjax.BucketSpec"
_VERSION = 1


class Shape(NamedTuple):
    """One padded shape: global rows, time steps, and label length (None where there are none).

    >>> Shape(batch_size=32, length=200, label_length=12).length
    200
    """

    batch_size: int
    length: int
    label_length: int | None = None


@dataclasses.dataclass(frozen=True)
class BucketSpec:
    """The padded shape of each bucket; K buckets are K shapes and K compilations.

    Attributes:
      boundaries: inclusive upper length of each bucket, in time steps, strictly increasing.
      batch_sizes: rows of the **global** batch of each bucket.
      label_lengths: padded label length of each bucket, never decreasing, so that a longer
        bucket holds whatever a shorter one does; None where there are no labels to pad.

    Raises:
      TypeError: entries that are not integers.
      ValueError: boundaries that do not strictly increase, a batch of no rows, a number of
        entries that differs, or label lengths that decrease.

    >>> BucketSpec(boundaries=(10, 50), batch_sizes=(64, 8)).num_buckets
    2
    """

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    label_lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        boundaries = tuple(cuts.as_boundaries(self.boundaries).tolist())
        batch_sizes = _integers(self.batch_sizes, "batch_sizes", len(boundaries))
        for bucket, rows in enumerate(batch_sizes):
            if rows < 1:
                raise ValueError(
                    f"bucket {bucket} (length {boundaries[bucket]}) has batch size {rows}; every "
                    "bucket needs at least 1 row"
                )
        object.__setattr__(self, "boundaries", boundaries)
        object.__setattr__(self, "batch_sizes", batch_sizes)
        if self.label_lengths is not None:
            label_lengths = _integers(self.label_lengths, "label_lengths", len(boundaries))
            if label_lengths[0] < 1 or any(np.diff(label_lengths) < 0):
                raise ValueError(
                    "label_lengths must be at least 1 and must not decrease, so that a longer "
                    f"bucket holds what a shorter one holds; got {list(label_lengths)}"
                )
            object.__setattr__(self, "label_lengths", label_lengths)

    @classmethod
    def fit(
        cls,
        lengths: ArrayLike,
        *,
        num_buckets: int,
        token_budget: int | None = None,
        batch_size: int | None = None,
        multiple_of: int = 1,
        batch_multiple_of: int = 1,
        strategy: str | Callable[..., ArrayLike] = "optimal",
        label_lengths: ArrayLike | None = None,
        label_multiple_of: int = 1,
        counts: ArrayLike | None = None,
    ) -> BucketSpec:
        """The spec for these lengths: where to cut, and how many rows a batch of each bucket has.

        Args:
          lengths: real length of each example, in time steps.
          num_buckets: most buckets; fewer where there are fewer distinct lengths.
          token_budget: most padded time steps in a global batch. Each bucket takes the most
            rows that fit.
          batch_size: rows of a global batch. With a token budget too, the smaller of the two.
          multiple_of: each boundary is a multiple of this many time steps.
          batch_multiple_of: each batch size is a multiple of this: the number of devices.
          strategy: a name in `boundaries.STRATEGIES`, or a function with the same arguments.
          label_lengths: label length of each example; fits a padded label length per bucket.
          label_multiple_of: each padded label length is a multiple of this.
          counts: how often each entry of `lengths` (and `label_lengths`) occurs.

        Raises:
          TypeError: an argument of the wrong type.
          ValueError: lengths that cannot be planned for (see `boundaries.optimal`), neither a
            budget nor a batch size, or a bucket whose batch cannot be both within the budget
            and a multiple of `batch_multiple_of`: the message names it and says what would do.

        >>> BucketSpec.fit([5, 9, 9, 20], num_buckets=2, batch_size=8, label_lengths=[1, 2, 3, 4])
        BucketSpec(boundaries=(9, 20), batch_sizes=(8, 8), label_lengths=(3, 4))
        """
        if isinstance(strategy, str):
            if strategy not in cuts.STRATEGIES:
                allowed = ", ".join(sorted(cuts.STRATEGIES))
                raise ValueError(f"unknown strategy {strategy!r}; choose one of {allowed}")
            strategy = cuts.STRATEGIES[strategy]
        longest = int(cuts.as_lengths(lengths).max())
        chosen = cuts.as_boundaries(
            strategy(lengths, num_buckets=num_buckets, multiple_of=multiple_of, counts=counts)
        )
        cuts.assign([longest], chosen)  # a function of the user's might leave the longest out
        padded_labels = None
        if label_lengths is not None:
            padded_labels = _fit_label_lengths(
                lengths, label_lengths, counts, chosen, label_multiple_of
            )
        return cls(
            boundaries=tuple(chosen.tolist()),
            batch_sizes=_fit_batch_sizes(chosen, token_budget, batch_size, batch_multiple_of),
            label_lengths=padded_labels,
        )

    @property
    def num_buckets(self) -> int:
        """How many buckets, and so how many shapes, there are."""
        return len(self.boundaries)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The padded shape of each bucket, shortest first."""
        labels = self.label_lengths or (None,) * self.num_buckets
        return tuple(map(Shape, self.batch_sizes, self.boundaries, labels))

    @property
    def fingerprint(self) -> str:
        """16 hex digits of the spec's content, the same in every process and Python version."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def assign(
        self, lengths: ArrayLike, label_lengths: ArrayLike | None = None
    ) -> Int[np.ndarray, " example"]:
        """The first bucket that holds each example, its label included; -1 where none does.

        >>> spec = BucketSpec((10, 20), (4, 4), label_lengths=(3, 5))
        >>> spec.assign([10, 10, 15, 21], [3, 4, 1, 1])
        array([ 0,  1,  1, -1])
        """
        lengths = cuts.as_lengths(lengths)
        bucket = np.searchsorted(self.boundaries, lengths, side="left")
        if label_lengths is not None and self.label_lengths is not None:
            label_lengths = cuts.as_lengths(label_lengths, "label_lengths")
            if label_lengths.shape != lengths.shape:
                raise ValueError(
                    f"{len(label_lengths)} label lengths for {len(lengths)} lengths; give one each"
                )
            by_label = np.searchsorted(self.label_lengths, label_lengths, side="left")
            bucket = np.maximum(bucket, by_label)
        return np.where(bucket < self.num_buckets, bucket, -1)

    def to_json(self) -> str:
        """The spec as one line of JSON: a list of shapes, shortest first.

        >>> BucketSpec((10,), (4,)).to_json()
        '{"format": "bucketjax.BucketSpec", "version": 1, "shapes": [{"batch_size": 4, "length": 10, "label_length": null}]}'
        """  # noqa: E501
        shapes = [shape._asdict() for shape in self.shapes]
        return json.dumps({"format": _FORMAT, "version": _VERSION, "shapes": shapes})

    @classmethod
    def from_json(cls, text: str) -> BucketSpec:
        """The spec that `to_json` wrote.

        Raises:
          ValueError: text that is not such JSON, saying what was found.

        >>> spec = BucketSpec((10, 20), (4, 2), label_lengths=(3, 5))
        >>> BucketSpec.from_json(spec.to_json()) == spec
        True
        """
        try:
            content = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"not a BucketSpec: the text is not JSON ({error})") from error
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(f'not a BucketSpec: expected {{"format": "{_FORMAT}", ...}}')
        if content.get("version") != _VERSION:
            raise ValueError(
                f"BucketSpec version {content.get('version')!r} is not known here (this is version "
                f"{_VERSION}); read it with the bucketjax that wrote it, or fit a new spec"
            )
        shapes = content.get("shapes")
        fields = set(Shape._fields)
        if not isinstance(shapes, list) or not shapes:
            raise ValueError(f"not a BucketSpec: 'shapes' must be a list of shapes, got {shapes!r}")
        for shape in shapes:
            if not isinstance(shape, dict) or set(shape) != fields:
                raise ValueError(
                    f"not a BucketSpec: each shape has {', '.join(Shape._fields)}; got {shape!r}"
                )
        labels = [shape["label_length"] for shape in shapes]
        if None in labels and any(label is not None for label in labels):
            raise ValueError(
                "not a BucketSpec: label_length is given for some shapes and null for others; "
                f"give it for all or for none: {labels}"
            )
        return cls(
            boundaries=tuple(shape["length"] for shape in shapes),
            batch_sizes=tuple(shape["batch_size"] for shape in shapes),
            label_lengths=None if None in labels else tuple(labels),
        )


def _integers(values: Sequence[Any], name: str, expected: int) -> tuple[int, ...]:
    array = np.asarray(values)
    if array.shape != (expected,):
        raise ValueError(f"{name} must have one entry per boundary ({expected}); got {values!r}")
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} must be integers; got {values!r}")
    return tuple(array.tolist())


def _fit_batch_sizes(
    boundaries: Int[np.ndarray, " bucket"],
    token_budget: int | None,
    batch_size: int | None,
    batch_multiple_of: int,
) -> tuple[int, ...]:
    multiple = cuts.at_least_one(batch_multiple_of, "batch_multiple_of")
    if token_budget is None and batch_size is None:
        raise ValueError("give token_budget, batch_size, or both: how large may a batch be?")
    rows = None if batch_size is None else cuts.at_least_one(batch_size, "batch_size")
    if rows is not None and rows % multiple:
        nearest = f"{rows // multiple * multiple} or " if rows > multiple else ""
        raise ValueError(
            f"batch_size={rows} is not a multiple of batch_multiple_of={multiple} (the number "
            f"of devices); {nearest}{-(-rows // multiple) * multiple} would do"
        )
    if token_budget is None:
        assert rows is not None
        return (rows,) * len(boundaries)
    budget = cuts.at_least_one(token_budget, "token_budget")
    # The longest bucket needs most: what suits it suits all.
    needed = int(boundaries[-1]) * multiple
    if budget < needed:
        raise ValueError(
            f"bucket {len(boundaries) - 1} pads to {boundaries[-1]} time steps, so its smallest "
            f"batch of {multiple} row(s) has {needed}, over token_budget={budget}; raise "
            f"token_budget to {needed} or more, drop the longest examples, or use fewer devices"
        )
    within = budget // boundaries // multiple * multiple
    return tuple((within if rows is None else np.minimum(within, rows)).tolist())


def _fit_label_lengths(
    lengths: ArrayLike,
    label_lengths: ArrayLike,
    counts: ArrayLike | None,
    boundaries: Int[np.ndarray, " bucket"],
    label_multiple_of: int,
) -> tuple[int, ...]:
    multiple = cuts.at_least_one(label_multiple_of, "label_multiple_of")
    bucket = cuts.assign(lengths, boundaries)
    label_lengths = cuts.as_lengths(label_lengths, "label_lengths")
    if label_lengths.shape != bucket.shape:
        raise ValueError(
            f"{len(label_lengths)} label lengths for {len(bucket)} lengths; give one each"
        )
    if counts is not None:
        present = np.asarray(counts) > 0
        bucket, label_lengths = bucket[present], label_lengths[present]
    longest = np.ones(len(boundaries), np.int64)
    np.maximum.at(longest, bucket, label_lengths)
    padded = -(-np.maximum.accumulate(longest) // multiple) * multiple
    return tuple(padded.tolist())
