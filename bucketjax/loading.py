"""From examples to padded batches: collate, iterate, stop and resume anywhere.

>>> import numpy as np
>>> from bucketjax.spec import BucketSpec
>>> source = [{"features": np.ones((length, 2), np.float32)} for length in (3, 5, 4, 9)]
>>> spec = BucketSpec(boundaries=(5, 9), batch_sizes=(2, 2))
>>> loader = Loader(source, spec, seed=0)
>>> sorted(batch.arrays["features"].shape for batch in loader)
[(2, 5, 2), (2, 5, 2), (2, 9, 2)]
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import (
    Any,
    Generic,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    cast,
    get_args,
    runtime_checkable,
)

import jax
import numpy as np
from jaxtyping import Float32, Int, Int32, Shaped

from bucketjax.batching import EpochPlan, PlannedBatch, Remainder, TooLong, plan_epoch
from bucketjax.boundaries import ArrayLike, as_lengths
from bucketjax.prefetching import prefetch as run_ahead
from bucketjax.spec import BucketSpec

__all__ = ["Batch", "ExampleError", "Loader", "Source", "measure_lengths"]

Pad = Literal["length", "label_length", "none"]
Placed = TypeVar("Placed")


@runtime_checkable
class Source(Protocol):
    """Anything with a length and random access to examples, each a dict of arrays."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Mapping[str, Any]: ...


class Batch(NamedTuple):
    """A padded batch; a pytree of arrays, ready for a jitted step.

    Attributes:
      arrays: each array of the source, padded with zeros: `[batch length ...]`,
        `[batch label_length ...]`, or `[batch ...]` for what has a fixed shape.
      lengths: real time steps of each row; 1 for filler rows.
      label_lengths: real label length of each row, 0 for filler rows; None without labels.
      weights: 1 for real rows, 0 for filler rows.
      indices: which example each row is; -1 for filler rows.
      bucket: the bucket, a NumPy integer.
    """

    arrays: dict[str, Shaped[np.ndarray, "batch ..."]]
    lengths: Int32[np.ndarray, " batch"]
    label_lengths: Int32[np.ndarray, " batch"] | None
    weights: Float32[np.ndarray, " batch"]
    indices: Int32[np.ndarray, " batch"]
    bucket: np.int32


class ExampleError(RuntimeError):
    """An example could not be read or does not fit; `index` says which."""

    def __init__(self, index: int, problem: str):
        super().__init__(f"example {index} of the source: {problem}")
        self.index = index


class _Layout(NamedTuple):
    """What one array of an example looks like, and which axis of the spec pads it."""

    dtype: np.dtype
    trailing: tuple[int, ...]
    pad: Pad


class Loader(Generic[Placed]):
    """Iterates over epochs of padded batches; its whole state is a few plain integers.

    `for batch in loader` runs to the end of the current epoch; the next loop runs the next epoch.
    Position moves when a batch is handed out: `get_state()` inside the loop body says "this batch
    is done", and a loop left early is continued by the next one (`seek` goes elsewhere).

    Args:
      source: has `len` and `[i]`, which gives a dict of arrays. The time axis comes first.
      spec: the padded shapes.
      lengths: real time steps of each example. Without them the source is read once to measure
        them: the leading axis of "features", or the one that all arrays but "labels" share.
      label_lengths: label length of each example, the leading axis of "labels"; measured likewise
        where the spec pads labels.
      seed: seed of every epoch's order, at least 0.
      shuffle, remainder, too_long: as in `batching.plan_epoch`.
      pad: for each array that is not padded the usual way: "length", "label_length" or "none".
        By default "labels" is padded to the label length where the spec has one, a scalar is
        "none", and anything else must have `length` as its leading axis.
      prefetch: how many batches a background thread prepares ahead; 0 for none.
      place: applied to each batch in that thread, such as a transfer to devices.
      plan: how an epoch is drawn; `batching.plan_mixed_epoch` is the alternative.

    Raises:
      TypeError, ValueError: an argument that is wrong, saying what is allowed.
      ExampleError: while iterating: an example that cannot be read or does not fit.
    """

    def __init__(
        self,
        source: Source,
        spec: BucketSpec,
        *,
        lengths: ArrayLike | None = None,
        label_lengths: ArrayLike | None = None,
        seed: int = 0,
        shuffle: bool = True,
        remainder: Remainder = "pad",
        too_long: TooLong = "error",
        pad: Mapping[str, Pad] | None = None,
        prefetch: int = 2,
        place: Callable[[Batch], Placed] | None = None,
        plan: Callable[..., EpochPlan] = plan_epoch,
    ):
        if len(source) == 0:
            raise ValueError("the source is empty: there is nothing to load")
        if isinstance(prefetch, bool) or not isinstance(prefetch, int) or prefetch < 0:
            raise ValueError(f"prefetch is a number of batches, at least 0; got {prefetch!r}")
        self.source = source
        self.spec = spec
        self._pad: dict[str, Pad] = dict(pad or {})
        for name, kind in self._pad.items():
            if kind not in get_args(Pad):
                allowed = ", ".join(get_args(Pad))
                raise ValueError(f"unknown pad {kind!r} for {name!r}; choose one of {allowed}")
            if kind == "label_length" and spec.label_lengths is None:
                raise ValueError(
                    f"{name!r} is to be padded to the label length, but the spec has none; fit it "
                    "with label_lengths"
                )
        wants_labels = spec.label_lengths is not None and label_lengths is None
        if lengths is None or wants_labels:
            measured, measured_labels = measure_lengths(source)
            lengths = measured if lengths is None else lengths
            if wants_labels:
                if measured_labels is None:
                    raise ValueError(
                        'the spec pads labels, but the examples have no "labels"; give '
                        "label_lengths, or fit the spec without them"
                    )
                label_lengths = measured_labels
        self.lengths = as_lengths(lengths)
        self.label_lengths = (
            None if label_lengths is None else as_lengths(label_lengths, "label_lengths")
        )
        for name, array in (("lengths", self.lengths), ("label_lengths", self.label_lengths)):
            if array is not None and len(array) != len(source):
                raise ValueError(f"{len(array)} {name} for {len(source)} examples; give one each")
        self._prefetch = prefetch
        self._place = place
        self._options = {"shuffle": shuffle, "remainder": remainder, "too_long": too_long}
        self._draw = plan
        self._seed, self._epoch, self._step = seed, 0, 0
        self._plans: dict[tuple[int, int], EpochPlan] = {}
        if not len(self.plan):
            raise ValueError(
                f"no batch is left of {len(source)} examples ({self.plan.report()}); "
                'choose remainder="pad", smaller batches, or a longer last bucket'
            )

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self._epoch

    @property
    def step(self) -> int:
        """How many batches of this epoch have been handed out."""
        return self._step

    @property
    def plan(self) -> EpochPlan:
        """The plan of the current epoch, what it left out included."""
        key = (self._seed, self._epoch)
        if key not in self._plans:
            self._plans = {
                key: self._draw(
                    self.lengths,
                    self.spec,
                    seed=self._seed,
                    epoch=self._epoch,
                    label_lengths=self.label_lengths,
                    **self._options,
                )
            }
        return self._plans[key]

    def __len__(self) -> int:
        """How many batches the next loop yields: what is left of the current epoch."""
        return len(self.plan) - self._step

    def __iter__(self) -> Iterator[Placed]:
        planned = self.plan[self._step :]
        make = self.collate if self._place is None else self._collate_and_place
        batches = run_ahead(map(make, planned), min(self._prefetch, len(planned)))
        try:
            for batch in batches:
                self._step += 1
                if self._step == len(self.plan):
                    self._epoch, self._step = self._epoch + 1, 0
                yield cast(Placed, batch)
        finally:
            cast(Any, batches).close()

    def seek(self, *, epoch: int, step: int = 0) -> None:
        """Goes to a batch of an epoch, in constant time.

        Raises:
          ValueError: a position that does not exist.
        """
        before = self._epoch, self._step
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0; got {epoch}")
        self._epoch, self._step = int(epoch), 0
        if not 0 <= step < len(self.plan):
            length = len(self.plan)
            self._epoch, self._step = before
            raise ValueError(f"step {step} is not in an epoch of {length} batches (0 is the first)")
        self._step = int(step)

    def get_state(self) -> dict[str, int | str]:
        """Where the loader stands: plain integers, and what they are only valid for.

        >>> loader = Loader([{"features": np.ones((4, 1))}] * 6, BucketSpec((4,), (2,)), seed=7)
        >>> state = (next(iter(loader)), loader.get_state())[1]
        >>> state["seed"], state["epoch"], state["step"], state["num_examples"]
        (7, 0, 1, 6)
        """
        return {
            "seed": int(self._seed),
            "epoch": self._epoch,
            "step": self._step,
            "num_examples": len(self.lengths),
            "lengths_checksum": self._checksum,
            "options": self._option_text,
            "fingerprint": self.spec.fingerprint,
        }

    def set_state(self, state: Mapping[str, int | str]) -> None:
        """Goes to where `get_state` said, in constant time; the seed is the state's.

        Raises:
          ValueError: a state of another spec, data set or option, with what differs.
        """
        current = self.get_state()
        missing = sorted(set(current) - set(state))
        if missing:
            raise ValueError(f"not a loader state: it lacks {', '.join(missing)}")
        reasons = {
            "fingerprint": "the spec is another one",
            "num_examples": "the number of examples is another",
            "lengths_checksum": "the examples have other lengths or another order",
            "options": "batches are drawn in another way",
        }
        for key, reason in reasons.items():
            if state[key] != current[key]:
                raise ValueError(
                    f"cannot restore: {reason} ({key} is {current[key]!r} here and {state[key]!r} "
                    "in the state); restore with what the state was saved with, or start anew"
                )
        before = self._seed
        self._seed = int(state["seed"])
        try:
            self.seek(epoch=int(state["epoch"]), step=int(state["step"]))
        except (TypeError, ValueError):
            self._seed = before
            raise

    def collate(self, planned: PlannedBatch) -> Batch:
        """The padded batch of one planned batch; reads its examples from the source."""
        bucket, indices = planned
        shape = self.spec.shapes[bucket]
        rows = shape.batch_size
        arrays = {
            name: np.zeros((rows, *_padded_axis(layout.pad, shape), *layout.trailing), layout.dtype)
            for name, layout in self._layouts.items()
        }
        lengths = np.ones(rows, np.int32)
        label_lengths = None if self.label_lengths is None else np.zeros(rows, np.int32)
        for row, index in enumerate(indices.tolist()):
            if index < 0:
                continue
            example = self._read(index)
            lengths[row] = min(int(self.lengths[index]), shape.length)
            if label_lengths is not None and self.label_lengths is not None:
                label_lengths[row] = self.label_lengths[index]
            for name, layout in self._layouts.items():
                value = np.asarray(example[name])
                self._check(index, name, value, layout)
                if layout.pad == "none":
                    arrays[name][row] = value
                else:
                    kept = value[: shape.length] if layout.pad == "length" else value
                    arrays[name][row, : len(kept)] = kept
        return Batch(
            arrays=arrays,
            lengths=lengths,
            label_lengths=label_lengths,
            weights=(indices >= 0).astype(np.float32),
            indices=indices.astype(np.int32),
            bucket=np.int32(bucket),
        )

    def abstract_batch(self, bucket: int) -> Batch:
        """The batch of a bucket as shapes and dtypes, to compile for it ahead of time.

        >>> loader = Loader([{"features": np.ones((4, 1))}], BucketSpec((5,), (2,)))
        >>> loader.abstract_batch(0).arrays["features"].shape
        (2, 5, 1)
        """
        shape = self.spec.shapes[bucket]

        def abstract(dtype: Any, *axes: int) -> Any:
            return jax.ShapeDtypeStruct(axes, jax.dtypes.canonicalize_dtype(dtype))

        rows = shape.batch_size
        arrays = {
            name: abstract(layout.dtype, rows, *_padded_axis(layout.pad, shape), *layout.trailing)
            for name, layout in self._layouts.items()
        }
        fields = (
            arrays,
            abstract(np.int32, rows),
            None if self.label_lengths is None else abstract(np.int32, rows),
            abstract(np.float32, rows),
            abstract(np.int32, rows),
            abstract(np.int32),
        )
        # The annotations speak of arrays; the leaves here only describe them.
        return tuple.__new__(Batch, fields)

    def _collate_and_place(self, planned: PlannedBatch) -> Any:
        assert self._place is not None
        return self._place(self.collate(planned))

    def _read(self, index: int) -> Mapping[str, Any]:
        return _read(self.source, index)

    @functools.cached_property
    def _layouts(self) -> dict[str, _Layout]:
        # The first example that the plan uses stands for all: each is checked against it.
        first = next(index for index in self.plan.rows.tolist() if index >= 0)
        example = self._read(first)
        unknown = sorted(set(self._pad) - set(example))
        if unknown:
            raise ValueError(
                f"pad names {', '.join(unknown)}, but an example has {', '.join(sorted(example))}"
            )
        layouts = {}
        for name, value in example.items():
            array = np.asarray(value)
            if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
                raise ExampleError(
                    first,
                    f"array {name!r} has dtype {array.dtype}; only numbers can be batched: leave "
                    "it out of the examples",
                )
            pad: Pad = self._pad.get(name) or self._usual_pad(name, array)
            layouts[name] = _Layout(array.dtype, array.shape[0 if pad == "none" else 1 :], pad)
        return layouts

    def _usual_pad(self, name: str, array: np.ndarray) -> Pad:
        if name == "labels" and self.spec.label_lengths is not None:
            return "label_length"
        return "length" if array.ndim else "none"

    def _check(self, index: int, name: str, value: np.ndarray, layout: _Layout) -> None:
        if value.ndim == 0 and layout.pad != "none":
            raise ExampleError(index, f"array {name!r} is a scalar; it needs a leading axis")
        trailing = value.shape[0 if layout.pad == "none" else 1 :]
        if trailing != layout.trailing or not np.can_cast(value.dtype, layout.dtype, "same_kind"):
            raise ExampleError(
                index,
                f"array {name!r} has shape {value.shape} and dtype {value.dtype}; other examples "
                f"have {layout.trailing} after the padded axis, and {layout.dtype}",
            )
        if layout.pad == "none":
            return
        labels = layout.pad == "label_length"
        expected = self.label_lengths if labels else self.lengths
        assert expected is not None
        if len(value) != expected[index]:
            kind = "label length" if labels else "length"
            raise ExampleError(
                index,
                f"array {name!r} has {len(value)} entries, but the example's {kind} is "
                f"{expected[index]}; give the right lengths, or say how it is padded: "
                f'pad={{"{name}": "length", "label_length" or "none"}}',
            )

    @functools.cached_property
    def _checksum(self) -> int:
        checksum = zlib.crc32(self.lengths.astype("<i8").tobytes())
        if self.label_lengths is not None:
            checksum = zlib.crc32(self.label_lengths.astype("<i8").tobytes(), checksum)
        return checksum

    @property
    def _option_text(self) -> str:
        options = {"plan": getattr(self._draw, "__name__", "plan"), **self._options}
        return " ".join(f"{name}={value}" for name, value in options.items())


def measure_lengths(
    source: Source,
) -> tuple[Int[np.ndarray, " example"], Int[np.ndarray, " example"] | None]:
    """Reads every example once: its length, and its label length where it has "labels".

    The length is the leading axis of "features", or the one that all arrays but "labels" share.

    Raises:
      ExampleError: an example whose length cannot be told.

    >>> measure_lengths([{"features": np.ones((4, 2)), "labels": np.ones(3, int)}])
    (array([4]), array([3]))
    """
    lengths, label_lengths = [], []
    for index in range(len(source)):
        example = _read(source, index)
        shapes = {name: np.shape(value) for name, value in example.items()}
        labels = shapes.pop("labels", None)
        if "features" in shapes:
            shapes = {"features": shapes["features"]}
        leading = {shape[0] for shape in shapes.values() if shape}
        if len(leading) != 1:
            raise ExampleError(
                index,
                f"cannot tell its length from {', '.join(sorted(example)) or 'no arrays'}: name "
                'the array with the time axis "features", or give lengths',
            )
        lengths.append(leading.pop())
        label_lengths.append(labels[0] if labels else None)
    if None in label_lengths:
        return np.array(lengths, np.int64), None
    return np.array(lengths, np.int64), np.array(label_lengths, np.int64)


def _read(source: Source, index: int) -> Mapping[str, Any]:
    try:
        example = source[index]
    except Exception as error:
        raise ExampleError(index, f"{type(error).__name__}: {error}") from error
    if not isinstance(example, Mapping):
        raise ExampleError(index, f"expected a dict of arrays, got {type(example).__name__}")
    return example


def _padded_axis(pad: Pad, shape: Any) -> tuple[int, ...]:
    if pad == "none":
        return ()
    return (shape.length,) if pad == "length" else (shape.label_length,)
