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
from bucketjax.planning import Choice, choose_shapes
from bucketjax.pricing import CostModel

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

    An example goes to the first bucket that holds it. Without label lengths that is the shortest
    one; with them the shapes may be of two dimensions, and stand in the order of their price.

    Attributes:
      boundaries: inclusive upper length of each bucket, in time steps; strictly increasing
        where there are no label lengths.
      batch_sizes: rows of the **global** batch of each bucket.
      label_lengths: padded label length of each bucket; None where there are no labels to pad.

    Raises:
      TypeError: entries that are not integers.
      ValueError: boundaries that do not strictly increase, a batch of no rows, a number of
        entries that differs, or a bucket that nothing reaches, because an earlier one holds
        whatever it holds.

    >>> BucketSpec(boundaries=(10, 50), batch_sizes=(64, 8)).num_buckets
    2
    """

    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    label_lengths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.label_lengths is None:
            boundaries = tuple(cuts.as_boundaries(self.boundaries).tolist())
        else:
            given = cuts.as_lengths(self.boundaries, "boundaries")
            boundaries = tuple(given.tolist())
            if min(boundaries) < 1:
                raise ValueError(f"boundaries must be at least 1; got {list(boundaries)}")
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
            if min(label_lengths) < 1:
                raise ValueError(f"label_lengths must be at least 1; got {list(label_lengths)}")
            pairs = list(zip(boundaries, label_lengths, strict=True))
            for bucket, (length, label) in enumerate(pairs):
                for earlier, (wider, longer) in enumerate(pairs[:bucket]):
                    if wider >= length and longer >= label:
                        raise ValueError(
                            f"nothing reaches bucket {bucket} (length {length}, label length "
                            f"{label}): bucket {earlier} ({wider}, {longer}) comes before it and "
                            "holds as much; put the cheaper first, or leave it out"
                        )
            object.__setattr__(self, "label_lengths", label_lengths)

    @classmethod
    def fit(
        cls,
        lengths: ArrayLike,
        *,
        num_buckets: int | str,
        token_budget: int | None = None,
        batch_size: int | Callable[[int], int] | None = None,
        multiple_of: int = 1,
        batch_multiple_of: int = 1,
        strategy: str | Callable[..., ArrayLike] = "optimal",
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
        counts: ArrayLike | None = None,
    ) -> BucketSpec:
        """The cheapest spec for these lengths: where to cut, and how many rows a batch has.

        Arguments and errors are those of `planning.choose_shapes`, which besides tells what was
        assumed and what other numbers of buckets would cost. The most used:

        Args:
          lengths: real length of each example, in time steps.
          num_buckets: most buckets; fewer where there are fewer distinct lengths. "auto" takes
            the number that costs the fewest seconds, compilations included.
          token_budget: most padded time steps in a global batch. Each bucket takes the most
            rows that fit.
          batch_size: rows of a global batch. With a token budget too, the smaller of the two.
          multiple_of: each boundary is a multiple of this many time steps.
          batch_multiple_of: each batch size is a multiple of this: the number of devices.
          cost, epochs: seconds of steps and compilations, and how long the run will be; with
            them seconds are minimised, and padding otherwise.
          label_lengths: label length of each example; fits a padded label length per bucket.
          label_weight: makes shapes of two dimensions, (length, label length).

        >>> BucketSpec.fit([5, 9, 9, 20], num_buckets=2, batch_size=8, label_lengths=[1, 2, 3, 4])
        BucketSpec(boundaries=(9, 20), batch_sizes=(8, 8), label_lengths=(3, 4))
        """
        choice = choose_shapes(
            lengths,
            num_buckets=num_buckets,
            token_budget=token_budget,
            batch_size=batch_size,
            multiple_of=multiple_of,
            batch_multiple_of=batch_multiple_of,
            strategy=strategy,
            objective=objective,
            cost=cost,
            epochs=epochs,
            max_buckets=max_buckets,
            keep=keep,
            longest=longest,
            too_long=too_long,
            label_lengths=label_lengths,
            label_multiple_of=label_multiple_of,
            label_weight=label_weight,
            counts=counts,
        )
        return cls.of(choice)

    @classmethod
    def of(cls, choice: Choice) -> BucketSpec:
        """The shapes that `planning.choose_shapes` chose, as a spec.

        >>> BucketSpec.of(choose_shapes([5, 9, 9, 20], num_buckets=2, batch_size=8)).boundaries
        (9, 20)
        """
        return cls(choice.boundaries, choice.batch_sizes, choice.label_lengths)

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
        if self.label_lengths is None:
            bucket = np.searchsorted(self.boundaries, lengths, side="left")
            return np.where(bucket < self.num_buckets, bucket, -1)
        fits_label = np.zeros(len(lengths), np.int64)  # without labels, all of them fit
        if label_lengths is not None:
            fits_label = cuts.as_lengths(label_lengths, "label_lengths")
            if fits_label.shape != lengths.shape:
                raise ValueError(
                    f"{len(fits_label)} label lengths for {len(lengths)} lengths; give one each"
                )
        bucket = np.full(len(lengths), -1, np.int64)
        for number in reversed(range(self.num_buckets)):
            holds = lengths <= self.boundaries[number]
            bucket[holds & (fits_label <= self.label_lengths[number])] = number
        return bucket

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
