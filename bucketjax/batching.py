"""The batches of one epoch: a pure function of (lengths, spec, seed, epoch).

Nothing here has state. Every process computes the same plan from the same arguments, and any
position of any epoch can be reached without going through what lies before it.

>>> from bucketjax.spec import BucketSpec
>>> spec = BucketSpec(boundaries=(4, 8), batch_sizes=(2, 2))
>>> plan = plan_epoch([3, 4, 8, 2, 7], spec, seed=0, epoch=0, shuffle=False)
>>> [(bucket, indices.tolist()) for bucket, indices in plan]
[(0, [0, 1]), (0, [3, -1]), (1, [2, 4])]
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple, cast, get_args, overload

import numpy as np
from jaxtyping import Int, UInt64

from bucketjax.boundaries import ArrayLike, as_lengths
from bucketjax.spec import BucketSpec

__all__ = ["EpochPlan", "PlannedBatch", "Remainder", "TooLong", "plan_epoch", "plan_mixed_epoch"]

Remainder = Literal["pad", "merge", "drop"]
TooLong = Literal["error", "drop", "truncate"]

# What the random keys of (seed, epoch) are for.
_EXAMPLES, _BATCHES = 0, 1


class PlannedBatch(NamedTuple):
    """One batch: its bucket, and the example of each of its rows (-1: a filler row).

    >>> PlannedBatch(0, np.array([4, 2, -1])).bucket
    0
    """

    bucket: int
    indices: Int[np.ndarray, " row"]


@dataclasses.dataclass(frozen=True, eq=False)
class EpochPlan(Sequence[PlannedBatch]):
    """The batches of an epoch in order, and what was left out of them.

    Attributes:
      buckets: bucket of each batch.
      rows: the example of every row of every batch; -1 for filler rows.
      starts: where each batch begins in `rows`.
      batch_sizes: rows of each bucket's batch.
      dropped: examples left out because they did not fill a batch (`remainder="drop"`).
      too_long: examples left out because no bucket holds them (`too_long="drop"`).
      truncated: examples that lose their end to the last bucket (`too_long="truncate"`).
    """

    buckets: Int[np.ndarray, " batch"]
    rows: Int[np.ndarray, " rows"]
    starts: Int[np.ndarray, " batch"]
    batch_sizes: tuple[int, ...]
    dropped: Int[np.ndarray, " dropped"]
    too_long: Int[np.ndarray, " too_long"]
    truncated: Int[np.ndarray, " truncated"]

    def __len__(self) -> int:
        return len(self.buckets)

    @overload
    def __getitem__(self, index: int) -> PlannedBatch: ...
    @overload
    def __getitem__(self, index: slice) -> list[PlannedBatch]: ...
    def __getitem__(self, index: int | slice) -> PlannedBatch | list[PlannedBatch]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        bucket = int(self.buckets[index])
        start = int(self.starts[index])
        return PlannedBatch(bucket, self.rows[start : start + self.batch_sizes[bucket]])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, EpochPlan):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, field.name), getattr(other, field.name))
            for field in dataclasses.fields(self)
        )

    @property
    def num_filler(self) -> int:
        """How many rows are filler."""
        return int(np.count_nonzero(self.rows < 0))

    def report(self) -> dict[str, int]:
        """What the plan holds and what it left out, as counts.

        >>> spec = BucketSpec(boundaries=(4,), batch_sizes=(2,))
        >>> plan_epoch([3, 4, 9], spec, seed=0, epoch=0, too_long="drop").report()
        {'batches': 1, 'examples': 2, 'filler': 0, 'dropped': 0, 'too_long': 1, 'truncated': 0}
        """
        return {
            "batches": len(self),
            "examples": len(self.rows) - self.num_filler,
            "filler": self.num_filler,
            "dropped": len(self.dropped),
            "too_long": len(self.too_long),
            "truncated": len(self.truncated),
        }


def plan_epoch(
    lengths: ArrayLike,
    spec: BucketSpec,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    remainder: Remainder = "pad",
    too_long: TooLong = "error",
    label_lengths: ArrayLike | None = None,
) -> EpochPlan:
    """The batches of one epoch, each of one bucket, in an order that forgets the lengths.

    Args:
      lengths: real length of each example, in time steps.
      spec: the padded shapes.
      seed: seed of the whole run, at least 0.
      epoch: number of the epoch, at least 0; another epoch is another order.
      shuffle: False keeps the order of the examples within each bucket and takes the buckets
        from short to long; seed and epoch then change nothing.
      remainder: what happens to examples that do not fill a batch of their bucket. "pad" adds
        filler rows; "merge" moves them upward into the next bucket that holds all of theirs, so
        that only those without one have a partial batch; "drop" leaves them out and counts them.
      too_long: examples that no bucket holds: "error", "drop" (counted), or "truncate" to the
        last boundary (counted). A label is never truncated.
      label_lengths: label length of each example; used where the spec pads labels.

    Returns:
      A sequence of `(bucket, indices)`; `indices` has `spec.batch_sizes[bucket]` entries.

    Raises:
      TypeError: lengths that are not integers, or a seed or epoch that is not.
      ValueError: an unknown choice, negative seed or epoch, no lengths, or an example too long.

    >>> spec = BucketSpec.fit([3, 9, 4], num_buckets=2, batch_size=2)
    >>> plan = plan_epoch([3, 9, 4], spec, seed=0, epoch=0)
    >>> sorted(index for _, indices in plan for index in indices.tolist())
    [-1, 0, 1, 2]
    """
    bucket, left_out, truncated = _assign(lengths, spec, too_long, label_lengths)
    _check_choice(remainder, "remainder", Remainder)
    entropy = _entropy(seed, epoch)
    keys = _keys(len(bucket), *entropy, _EXAMPLES) if shuffle else None
    # Grouped by bucket, shuffled within; examples that no bucket holds (-1) come first.
    order = np.arange(len(bucket)) if keys is None else np.argsort(keys, kind="stable")
    grouped = order[np.argsort(_narrow(bucket, spec.num_buckets)[order], kind="stable")]
    ends = np.cumsum(np.bincount(bucket + 1, minlength=spec.num_buckets + 1))
    rows, buckets, dropped = [], [], [np.empty(0, np.int64)]
    moved: dict[int, list[np.ndarray]] = {}
    for number, size in enumerate(spec.batch_sizes):
        group = grouped[ends[number] : ends[number + 1]]
        if number in moved:
            group = np.concatenate([*moved.pop(number), group])
            group = group[np.argsort(group if keys is None else keys[group], kind="stable")]
        partial = len(group) % size
        if partial and remainder == "drop":
            dropped.append(group[len(group) - partial :])
            group = group[: len(group) - partial]
        elif partial and remainder == "merge" and (above := _above(number, spec)) is not None:
            moved.setdefault(above, []).append(group[len(group) - partial :])
            group = group[: len(group) - partial]
        elif partial:
            group = np.concatenate([group, np.full(size - partial, -1, np.int64)])
        rows.append(group)
        buckets.append(np.full(len(group) // size, number, np.int64))
    return _in_order(
        np.concatenate(buckets),
        np.concatenate(rows),
        spec.batch_sizes,
        _keys(sum(map(len, buckets)), *entropy, _BATCHES) if shuffle else None,
        dropped=np.sort(np.concatenate(dropped)),
        too_long=left_out,
        truncated=truncated,
    )


def plan_mixed_epoch(
    lengths: ArrayLike,
    spec: BucketSpec,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    remainder: Remainder = "pad",
    too_long: TooLong = "error",
    label_lengths: ArrayLike | None = None,
) -> EpochPlan:
    """The usual practice, to compare with: batches drawn without regard to length.

    Each batch takes the first bucket that holds all of its examples. With a spec that has a
    boundary at every multiple of some step this is "pad each batch to its own longest, rounded
    up".

    Arguments, result and errors are those of `plan_epoch`; besides, every bucket must have the
    same batch size, and `remainder` must be "pad" or "drop", since there is only one remainder.

    >>> spec = BucketSpec(boundaries=(4, 8), batch_sizes=(2, 2))
    >>> plan = plan_mixed_epoch([1, 2, 3, 8], spec, seed=0, epoch=0, shuffle=False)
    >>> [bucket for bucket, _ in plan]
    [0, 1]
    """
    sizes = set(spec.batch_sizes)
    if len(sizes) > 1:
        raise ValueError(
            f"mixed batches need one batch size for every bucket; got {sorted(sizes)}: fit the "
            "spec with batch_size and without token_budget"
        )
    _check_choice(remainder, "remainder", Remainder)
    entropy = _entropy(seed, epoch)
    if remainder == "merge":
        raise ValueError('mixed batches have one remainder; choose "pad" or "drop", not "merge"')
    bucket, left_out, truncated = _assign(lengths, spec, too_long, label_lengths)
    order = np.arange(len(bucket))
    if shuffle:
        order = np.argsort(_keys(len(bucket), *entropy, _EXAMPLES), kind="stable")
    order = order[bucket[order] >= 0]
    size, dropped = sizes.pop(), np.empty(0, np.int64)
    partial = len(order) % size
    if partial and remainder == "drop":
        dropped, order = np.sort(order[-partial:]), order[:-partial]
    elif partial:
        order = np.concatenate([order, np.full(size - partial, -1, np.int64)])
    longest = _holding(order.reshape(-1, size), lengths, label_lengths, bucket, spec)
    return _in_order(
        longest,
        order,
        spec.batch_sizes,
        None,
        dropped=dropped,
        too_long=left_out,
        truncated=truncated,
    )


def _holding(
    batches: Int[np.ndarray, "batch row"],
    lengths: ArrayLike,
    label_lengths: ArrayLike | None,
    bucket: Int[np.ndarray, " example"],
    spec: BucketSpec,
) -> Int[np.ndarray, " batch"]:
    """The first bucket that holds every example of each batch (-1 is a filler row)."""
    longest = np.zeros(len(batches), np.int64)
    longest_label = np.zeros(len(batches), np.int64)
    shapes = np.array([(length, label or 0) for _, length, label in spec.shapes])
    filler = batches < 0
    if not len(batches):
        return longest
    real = np.minimum(as_lengths(lengths).astype(np.int64), shapes[:, 0].max())
    longest = np.where(filler, 0, real[batches]).max(axis=1)
    if label_lengths is not None and spec.label_lengths is not None:
        labels = as_lengths(label_lengths, "label_lengths").astype(np.int64)
        longest_label = np.where(filler, 0, labels[batches]).max(axis=1)
    found = spec.assign(longest, longest_label)
    if np.any(found < 0):
        batch = int(np.argmax(found < 0))
        raise ValueError(
            f"no bucket holds a batch of length {longest[batch]} with labels of "
            f"{longest_label[batch]}, though each of its examples has one: mixed batches need a "
            "spec whose longest bucket has the longest labels; fit it without label_weight"
        )
    return found


def _above(number: int, spec: BucketSpec) -> int | None:
    """The next bucket that holds whatever this one holds."""
    _, length, label_length = spec.shapes[number]
    for above in range(number + 1, spec.num_buckets):
        _, longer, more_labels = spec.shapes[above]
        if longer >= length and (more_labels or 0) >= (label_length or 0):
            return above
    return None


def _assign(
    lengths: ArrayLike, spec: BucketSpec, too_long: TooLong, label_lengths: ArrayLike | None
) -> tuple[Int[np.ndarray, " example"], Int[np.ndarray, " out"], Int[np.ndarray, " cut"]]:
    """The bucket of each example (-1: left out), who is left out, and who is truncated."""
    _check_choice(too_long, "too_long", TooLong)
    lengths = as_lengths(lengths)
    nobody = np.empty(0, np.int64)
    bucket = spec.assign(lengths, label_lengths)
    over = np.flatnonzero(bucket < 0)
    if not len(over):
        return bucket, nobody, nobody
    if too_long == "drop":
        return bucket, over, nobody
    last = max(spec.boundaries)
    cut = np.minimum(lengths[over], last)
    if label_lengths is None:
        shortened = spec.assign(cut)
    else:
        shortened = spec.assign(cut, as_lengths(label_lengths, "label_lengths")[over])
    label_over = over[shortened < 0]  # cutting the end off does not make these fit
    if too_long == "error":
        longest = f"the longest has {lengths.max()} time steps, the last bucket {last}"
        if len(label_over):
            longest += f"; {len(label_over)} labels are longer than {_label_room(spec)}"
        raise ValueError(
            f"{len(over)} of {len(lengths)} examples fit no bucket, the first is example {over[0]} "
            f'({longest}); fit the spec to them, or choose too_long="drop" or "truncate"'
        )
    if len(label_over):
        raise ValueError(
            f"{len(label_over)} labels are longer than {_label_room(spec)}, "
            f"the first is example {label_over[0]}; a label is never truncated: fit the spec with "
            'these label_lengths, or choose too_long="drop"'
        )
    bucket[over] = shortened
    return bucket, nobody, over


def _label_room(spec: BucketSpec) -> str:
    return f"the buckets of their length hold (at most {max(spec.label_lengths or (0,))})"


def _in_order(
    buckets: Int[np.ndarray, " batch"],
    rows: Int[np.ndarray, " rows"],
    batch_sizes: tuple[int, ...],
    keys: UInt64[np.ndarray, " batch"] | None,
    *,
    dropped: Int[np.ndarray, " dropped"],
    too_long: Int[np.ndarray, " out"],
    truncated: Int[np.ndarray, " cut"],
) -> EpochPlan:
    sizes = np.asarray(batch_sizes)[buckets]
    starts = np.cumsum(sizes) - sizes
    if keys is not None:
        order = np.argsort(keys, kind="stable")
        buckets, starts = buckets[order], starts[order]
    for array in (buckets, starts, rows, dropped, too_long, truncated):
        array.flags.writeable = False  # a plan is shared, and batches are views of it
    return EpochPlan(buckets, rows, starts, batch_sizes, dropped, too_long, truncated)


def _entropy(seed: object, epoch: object) -> tuple[int, int]:
    for name, value in (("seed", seed), ("epoch", epoch)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise TypeError(f"{name} must be an integer; got {value!r} ({type(value).__name__})")
        if value < 0:
            raise ValueError(f"{name} must be at least 0; got {value}")
    return int(cast(int, seed)), int(cast(int, epoch))


def _keys(count: int, *entropy: int) -> UInt64[np.ndarray, " key"]:
    """Random sort keys. The bit generator's raw stream is fixed for ever (NumPy's NEP 19), unlike
    `Generator.permutation`, so a plan is the same under every NumPy version."""
    return np.random.Philox(np.random.SeedSequence(entropy)).random_raw(count)


def _narrow(bucket: Int[np.ndarray, " example"], num_buckets: int) -> np.ndarray:
    # Small integers are sorted by radix: ten times faster for a million examples.
    return bucket.astype(np.int16) if num_buckets < 2**15 else bucket


def _check_choice(value: str, name: str, choices: object) -> None:
    allowed = get_args(choices)
    if value not in allowed:
        raise ValueError(f"unknown {name} {value!r}; choose one of {', '.join(allowed)}")
