"""From the examples of a planned batch to padded arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import jax
import numpy as np
from jaxtyping import Float32, Int, Int32, Shaped

from bucketjax.batching import PlannedBatch
from bucketjax.spec import BucketSpec, Shape

__all__ = [
    "Batch",
    "ExampleError",
    "Layout",
    "Pad",
    "Source",
    "abstract_batch",
    "check_pad",
    "collate",
    "layouts_of",
    "measure_lengths",
]

Pad = Literal["length", "label_length", "none"]
Lengths = Sequence[int] | Int[np.ndarray, " example"]


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


class Layout(NamedTuple):
    """What one array of an example looks like, and which axis of the spec pads it."""

    dtype: np.dtype
    trailing: tuple[int, ...]
    pad: Pad


def collate(
    source: Source,
    planned: PlannedBatch,
    spec: BucketSpec,
    *,
    lengths: Lengths,
    label_lengths: Lengths | None,
    layouts: Mapping[str, Layout],
) -> Batch:
    """Reads the examples of a planned batch and pads them with zeros, in NumPy.

    Args:
      source: the examples.
      planned: the bucket, and the example of each row.
      spec: gives the shape.
      lengths: real time steps of every example; beyond the bucket's they are cut off.
      label_lengths: label length of every example, or None.
      layouts: from `layouts_of`.

    Raises:
      ExampleError: an example that cannot be read, or is not as the layouts and lengths say.

    >>> source, spec = [{"features": np.ones(3)}], BucketSpec((4,), (1,))
    >>> layouts = {"features": Layout(np.dtype(float), (), "length")}
    >>> planned = PlannedBatch(0, np.array([0]))
    >>> collate(
    ...     source, planned, spec, lengths=[3], label_lengths=None, layouts=layouts
    ... ).arrays["features"].tolist()
    [[1.0, 1.0, 1.0, 0.0]]
    """
    bucket, indices = planned
    shape = spec.shapes[bucket]
    arrays = {
        name: np.zeros(_padded_shape(layout, shape), layout.dtype)
        for name, layout in layouts.items()
    }
    kept_lengths = np.ones(shape.batch_size, np.int32)
    kept_labels = None if label_lengths is None else np.zeros(shape.batch_size, np.int32)
    for row, index in enumerate(indices.tolist()):
        if index < 0:
            continue
        example = _read(source, index)
        if set(example) != set(layouts):
            raise ExampleError(
                index, f"it has {_names(example)}, other examples have {_names(layouts)}"
            )
        length, label_length = int(lengths[index]), None
        kept_lengths[row] = min(length, shape.length)
        if kept_labels is not None and label_lengths is not None:
            label_length = kept_labels[row] = int(label_lengths[index])
        for name, layout in layouts.items():
            value = np.asarray(example[name])
            _check(index, name, value, layout, length, label_length)
            if layout.pad == "none":
                arrays[name][row] = value
            else:
                kept = value[: shape.length] if layout.pad == "length" else value
                arrays[name][row, : len(kept)] = kept
    return Batch(
        arrays=arrays,
        lengths=kept_lengths,
        label_lengths=kept_labels,
        weights=(indices >= 0).astype(np.float32),
        indices=indices.astype(np.int32),
        bucket=np.int32(bucket),
    )


def abstract_batch(
    bucket: int, spec: BucketSpec, layouts: Mapping[str, Layout], *, labelled: bool
) -> Batch:
    """What `collate` makes for a bucket, as shapes and dtypes: to compile for it ahead of time.

    >>> layouts = {"features": Layout(np.dtype(np.float32), (1,), "length")}
    >>> spec = BucketSpec(boundaries=(5,), batch_sizes=(2,))
    >>> abstract_batch(0, spec, layouts, labelled=False).arrays["features"].shape
    (2, 5, 1)
    """
    shape = spec.shapes[bucket]

    def abstract(dtype: Any, *axes: int) -> Any:
        return jax.ShapeDtypeStruct(axes, jax.dtypes.canonicalize_dtype(dtype))

    rows = shape.batch_size
    fields = (
        {
            name: abstract(layout.dtype, *_padded_shape(layout, shape))
            for name, layout in layouts.items()
        },
        abstract(np.int32, rows),
        abstract(np.int32, rows) if labelled else None,
        abstract(np.float32, rows),
        abstract(np.int32, rows),
        abstract(np.int32),
    )
    # The annotations speak of arrays; the leaves here only describe them.
    return tuple.__new__(Batch, fields)


def layouts_of(
    source: Source, index: int, spec: BucketSpec, pad: Mapping[str, Pad] | None = None
) -> dict[str, Layout]:
    """How each array of an example is padded; one example stands for all.

    By default "labels" is padded to the label length where the spec has one, a scalar is not
    padded, and anything else is padded to the length.

    Args:
      source: the examples.
      index: the one that is looked at.
      spec: says whether labels are padded.
      pad: exceptions, by name.

    Raises:
      ExampleError: an array that does not hold numbers.
      ValueError: an exception for an array that is not there.

    >>> spec = BucketSpec(boundaries=(5,), batch_sizes=(2,))
    >>> layouts_of([{"features": np.ones((4, 3)), "speaker": 7}], 0, spec)["speaker"].pad
    'none'
    """
    example, pad = _read(source, index), pad or {}
    unknown = sorted(set(pad) - set(example))
    if unknown:
        raise ValueError(f"pad names {', '.join(unknown)}, but an example has {_names(example)}")
    layouts = {}
    for name, value in example.items():
        array = np.asarray(value)
        if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
            raise ExampleError(
                index,
                f"array {name!r} has dtype {array.dtype}; only numbers can be batched: leave it "
                "out of the examples",
            )
        usual: Pad = "length" if array.ndim else "none"
        if name == "labels" and spec.label_lengths is not None:
            usual = "label_length"
        kind = pad.get(name, usual)
        layouts[name] = Layout(array.dtype, array.shape[0 if kind == "none" else 1 :], kind)
    return layouts


def check_pad(pad: Mapping[str, Pad], spec: BucketSpec) -> None:
    """Raises ValueError for a kind of padding that does not exist, or that the spec lacks.

    >>> check_pad({"labels": "label_length"}, BucketSpec((5,), (2,), label_lengths=(3,)))
    """
    for name, kind in pad.items():
        if kind not in get_args(Pad):
            allowed = ", ".join(get_args(Pad))
            raise ValueError(f"unknown pad {kind!r} for {name!r}; choose one of {allowed}")
        if kind == "label_length" and spec.label_lengths is None:
            raise ValueError(
                f"{name!r} is to be padded to the label length, but the spec has none; fit it with "
                "label_lengths"
            )


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
                f"cannot tell its length from {_names(example)}: name "
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


def _check(
    index: int,
    name: str,
    value: np.ndarray,
    layout: Layout,
    length: int,
    label_length: int | None,
) -> None:
    if value.ndim == 0 and layout.pad != "none":
        raise ExampleError(index, f"array {name!r} is a scalar; it needs a leading axis")
    trailing = value.shape[0 if layout.pad == "none" else 1 :]
    if trailing != layout.trailing or not np.can_cast(value.dtype, layout.dtype, "same_kind"):
        raise ExampleError(
            index,
            f"array {name!r} has shape {value.shape} and dtype {value.dtype}; other examples have "
            f"{layout.trailing} after the padded axis, and {layout.dtype}",
        )
    kind, expected = "length", length
    if layout.pad == "label_length":
        kind, expected = "label length", label_length
    if layout.pad != "none" and len(value) != expected:
        raise ExampleError(
            index,
            f"array {name!r} has {len(value)} entries, but the example's {kind} is {expected}; "
            "give the right lengths, or say how it is padded: "
            f'pad={{"{name}": "length", "label_length" or "none"}}',
        )


def _padded_shape(layout: Layout, shape: Shape) -> tuple[int, ...]:
    if layout.pad == "none":
        return (shape.batch_size, *layout.trailing)
    padded = shape.length if layout.pad == "length" else shape.label_length
    assert padded is not None
    return (shape.batch_size, padded, *layout.trailing)


def _names(arrays: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, arrays))) or "no arrays"
