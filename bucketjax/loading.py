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
from typing import Any, Generic, TypeVar, cast

import numpy as np

from bucketjax.batching import EpochPlan, PlannedBatch, Remainder, TooLong, plan_epoch
from bucketjax.boundaries import ArrayLike, as_lengths
from bucketjax.collating import (
    Batch,
    ExampleError,
    Layout,
    Pad,
    Source,
    abstract_batch,
    check_pad,
    collate,
    layouts_of,
    measure_lengths,
)
from bucketjax.prefetching import prefetch as run_ahead
from bucketjax.spec import BucketSpec

__all__ = ["Batch", "ExampleError", "Loader", "Source", "measure_lengths"]

Placed = TypeVar("Placed")


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
        check_pad(pad or {}, spec)
        self._pad: dict[str, Pad] = dict(pad or {})
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
        self._loop: object = None  # the loop that moves the position
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
        loop = self._loop = object()
        try:
            for batch in batches:
                if self._loop is not loop:
                    raise RuntimeError(
                        "another loop over this loader, or seek or set_state, has begun since: a "
                        "loader has one position; make a second Loader to have two"
                    )
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
        for name, value in (("epoch", epoch), ("step", step)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer; got {value!r}")
        if epoch < 0:
            raise ValueError(f"epoch must be at least 0; got {epoch}")
        self._epoch, self._step = int(epoch), 0
        try:
            length = len(self.plan)
        except (TypeError, ValueError):
            self._epoch, self._step = before
            raise
        if not 0 <= step < length:
            self._epoch, self._step = before
            raise ValueError(f"step {step} is not in an epoch of {length} batches (0 is the first)")
        self._step = int(step)
        self._loop = None

    def get_state(self) -> dict[str, int | str]:
        """Where the loader stands: plain integers, and what they are only valid for.

        >>> import numpy as np
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
        self._seed = cast(int, state["seed"])
        try:
            self.seek(epoch=cast(int, state["epoch"]), step=cast(int, state["step"]))
        except (TypeError, ValueError):
            self._seed = before
            raise

    def collate(self, planned: PlannedBatch) -> Batch:
        """The padded batch of one planned batch; reads its examples from the source."""
        return collate(
            self.source,
            planned,
            self.spec,
            lengths=self.lengths,
            label_lengths=self.label_lengths,
            layouts=self._layouts,
        )

    def abstract_batch(self, bucket: int) -> Batch:
        """The batch of a bucket as shapes and dtypes, to compile for it ahead of time.

        >>> import numpy as np
        >>> loader = Loader([{"features": np.ones((4, 1))}], BucketSpec((5,), (2,)))
        >>> loader.abstract_batch(0).arrays["features"].shape
        (2, 5, 1)
        """
        labelled = self.label_lengths is not None
        return abstract_batch(bucket, self.spec, self._layouts, labelled=labelled)

    @functools.cached_property
    def _layouts(self) -> dict[str, Layout]:
        # The first example that the plan uses stands for all: each is checked against it.
        first = next(index for index in self.plan.rows.tolist() if index >= 0)
        return layouts_of(self.source, first, self.spec, self._pad)

    def _collate_and_place(self, planned: PlannedBatch) -> Any:
        assert self._place is not None
        return self._place(self.collate(planned))

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
