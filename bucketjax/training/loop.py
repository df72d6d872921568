"""Run steps over a loader: metrics one step late, a watch on the loss, a clean way to stop.

The metrics of a step are read after the next one was handed to the device, so the device never
waits for the host. Every transfer is written out: the loop runs under
`jax.transfer_guard("disallow")`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Int

from bucketjax.loading import Batch, Loader
from bucketjax.nn.decoding import collapse, label_errors
from bucketjax.training.steps import Metrics, TrainState

__all__ = ["Evaluation", "NonFiniteLoss", "StepReport", "evaluate", "stop_on_signal", "train_epoch"]

Step = Callable[[TrainState, Any, Any], tuple[TrainState, Metrics]]


class NonFiniteLoss(RuntimeError):
    """The loss of a step is not finite; says which step, bucket and examples."""

    def __init__(self, loss: float, step: int, bucket: int, indices: Int[np.ndarray, " batch"]):
        examples = [index for index in indices.tolist() if index >= 0]
        super().__init__(
            f"the loss is {loss} at step {step}, bucket {bucket}, examples {examples}; look at "
            "their features, or lower the learning rate or the clipping norm"
        )
        self.step, self.bucket, self.indices = step, bucket, np.array(examples)


class StepReport(NamedTuple):
    """One step on the host.

    Attributes:
      step: number of the step in the whole run, from 1.
      bucket: the bucket of its batch.
      loss: mean CTC loss of its real, feasible rows, in nats.
      examples: its real rows.
      infeasible: real rows without any alignment.
      grad_norm: global norm of the gradient before clipping.
    """

    step: int
    bucket: int
    loss: float
    examples: int
    infeasible: int
    grad_norm: float


class Evaluation(NamedTuple):
    """Sums over a data set, each example once.

    Attributes:
      loss_sum: summed CTC loss of the feasible examples, in nats.
      weight: how many those are.
      infeasible: examples without any alignment: no loss, but their errors count.
      edits: summed edit distance between the greedy decoding and the label.
      label_length: summed label length.
      examples: how many examples there were.
    """

    loss_sum: float
    weight: float
    infeasible: int
    edits: int
    label_length: int
    examples: int

    @property
    def loss(self) -> float:
        """Mean loss of the feasible examples; NaN where there are none."""
        return self.loss_sum / self.weight if self.weight else float("nan")

    @property
    def label_error_rate(self) -> float:
        """Summed edit distance over summed label length; NaN where there are no labels."""
        return self.edits / self.label_length if self.label_length else float("nan")


class _Pending(NamedTuple):
    batch: Batch
    metrics: Metrics
    step: int


def train_epoch(
    state: TrainState,
    loader: Loader[Any],
    step: Step,
    *,
    first_step: int,
    on_step: Callable[[StepReport], None] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> TrainState:
    """Trains on the rest of the loader's epoch, or until `stop` says so after a step.

    Args:
      state: donated; use the state that is returned.
      loader: places its batches (`place=`) as `step` wants them.
      step: from `parallel.data_parallel(make_step(...))`.
      first_step: steps done before, so that reports number the whole run.
      on_step: called with every step's report, one step late.
      stop: asked after every step. The loader's state then says where to go on.

    Raises:
      NonFiniteLoss: as soon as it is seen, which is one step after it happened.
    """
    pending: _Pending | None = None
    number = first_step
    learn = _flag(True, state)
    with contextlib.closing(cast(Generator[Any], iter(loader))) as batches:
        for batch in batches:
            state, metrics = step(state, batch, learn)
            number += 1
            pending, before = _Pending(batch, metrics, number), pending
            if before is not None:
                _report(before, on_step)
            if stop():
                break
    if pending is not None:
        _report(pending, on_step)
    return state


def evaluate(
    state: TrainState, loader: Loader[Any], step: Step, *, blank_id: int = 0
) -> tuple[TrainState, Evaluation]:
    """Loss and greedy label errors over one epoch of the loader, each example once.

    Args:
      state: donated, and returned as it was.
      loader: stands at the beginning of an epoch.
      step: the one that trains, so that nothing more is compiled.
    """
    total = Evaluation(0.0, 0.0, 0, 0, 0, 0)
    pending: tuple[Batch, Metrics] | None = None
    learn = _flag(False, state)
    for batch in loader:
        state, metrics = step(state, batch, learn)
        if pending is not None:
            total = _add(total, *pending, blank_id)
        pending = batch, metrics
    if pending is not None:
        total = _add(total, *pending, blank_id)
    return state, total


@contextlib.contextmanager
def stop_on_signal(*signals: int) -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether a signal (SIGTERM by default) has arrived.

    The handler that was there before comes back as soon as its signal has arrived, so that a
    second one acts as usual, and at the end of the block. Outside the main thread, where Python
    allows no handlers, the answer is always no.

    >>> with stop_on_signal() as stopped:
    ...     stopped()
    False
    """
    arrived = threading.Event()
    before = {}

    def arrive(number: int, _: Any) -> None:
        arrived.set()
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        for number in signals or (signal.SIGTERM,):
            before[number] = signal.signal(number, arrive)
    try:
        yield arrived.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _flag(value: bool, state: TrainState) -> Any:
    # Placed once, where the state is: left on the host it would be sent again with every step.
    return jax.device_put(np.bool_(value), state.step.sharding)


def _report(pending: _Pending, on_step: Callable[[StepReport], None] | None) -> None:
    metrics, bucket = jax.device_get((pending.metrics._replace(classes=None), pending.batch.bucket))
    loss_sum = float(metrics.loss)
    if not np.isfinite(loss_sum):
        indices = np.asarray(jax.device_get(pending.batch.indices))
        raise NonFiniteLoss(loss_sum, pending.step, int(bucket), indices)
    if on_step is not None:
        on_step(
            StepReport(
                step=pending.step,
                bucket=int(bucket),
                loss=loss_sum / max(float(metrics.weight), 1.0),
                examples=int(metrics.weight + metrics.infeasible),
                infeasible=int(metrics.infeasible),
                grad_norm=float(metrics.grad_norm),
            )
        )


def _add(total: Evaluation, batch: Batch, metrics: Metrics, blank_id: int) -> Evaluation:
    metrics, batch = jax.device_get((metrics, batch._replace(arrays=_labels_only(batch))))
    rows = np.flatnonzero(batch.weights)
    assert batch.label_lengths is not None
    classes, labels = np.asarray(metrics.classes), batch.arrays["labels"]
    edits, label_length = label_errors(
        (collapse(classes[row, : batch.lengths[row]], blank_id=blank_id) for row in rows),
        (labels[row, : batch.label_lengths[row]] for row in rows),
    )
    return Evaluation(
        loss_sum=total.loss_sum + float(metrics.loss),
        weight=total.weight + float(metrics.weight),
        infeasible=total.infeasible + int(metrics.infeasible),
        edits=total.edits + edits,
        label_length=total.label_length + label_length,
        examples=total.examples + len(rows),
    )


def _labels_only(batch: Batch) -> dict[str, Any]:
    return {"labels": batch.arrays["labels"]}
