"""The step: one pure function that trains on a batch or evaluates it.

One compiled program per bucket serves both, so K buckets cost K compilations. The forward pass
is shared; a flag decides on the device whether the gradient is taken and the state moves.
Losses travel as sums over real, feasible rows and are divided once, after they were added up over
the devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PyTree

from bucketjax.loading import Batch
from bucketjax.nn.ctc import ctc_loss
from bucketjax.nn.recognizer import Recognizer
from bucketjax.parallel import AXIS

__all__ = ["Metrics", "TrainState", "init_state", "make_optimizer", "make_step"]


class TrainState(NamedTuple):
    """Everything that a step changes.

    Attributes:
      params: the model's parameters.
      opt_state: the optimizer's state.
      step: optimizer steps done.
    """

    params: PyTree[Any]
    opt_state: PyTree[Any]
    step: Int[Array, ""]


class Metrics(NamedTuple):
    """What a step measured, as sums over the global batch; divide once, when all are added.

    Attributes:
      loss: summed CTC loss of the real, feasible rows, in nats.
      weight: how many those are.
      infeasible: real rows without any alignment; they weigh nothing.
      grad_norm: global norm of the gradient before clipping; 0 when evaluating.
      classes: likeliest class of every frame, `[batch time]`, split like the batch.
    """

    loss: Float[Array, ""]
    weight: Float[Array, ""]
    infeasible: Float[Array, ""]
    grad_norm: Float[Array, ""]
    classes: Int[Array, "batch time"]


# Which results of a step are split by rows, for `parallel.data_parallel`.
ROW_RESULTS = Metrics(False, False, False, False, True)  # pyright: ignore[reportArgumentType]


def make_optimizer(
    *,
    learning_rate: float,
    total_steps: int,
    warmup: float = 0.1,
    weight_decay: float = 0.0,
    clip_norm: float = 1.0,
) -> optax.GradientTransformation:
    """Adam (AdamW with weight decay), gradients clipped by global norm, warm-up and cosine.

    Args:
      learning_rate: at the end of the warm-up.
      total_steps: optimizer steps of the whole run; the cosine reaches 0 there.
      warmup: share of the steps over which the rate rises from 0, in [0, 1).
      weight_decay: AdamW's decoupled decay.
      clip_norm: largest global norm of a gradient.

    Raises:
      ValueError: no steps, or a warm-up outside [0, 1).

    >>> optimizer = make_optimizer(learning_rate=1e-3, total_steps=100)
    """
    if total_steps < 1:
        raise ValueError(f"total_steps must be at least 1; got {total_steps}")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup must be at least 0 and below 1; got {warmup}")
    rise = round(warmup * total_steps)
    schedule = optax.warmup_cosine_decay_schedule(
        init_value=0.0 if rise else learning_rate,
        peak_value=learning_rate,
        warmup_steps=rise,
        decay_steps=max(total_steps, rise + 1),
    )
    # As one vector: fewer kernels than a few per parameter, which take long to compile.
    return optax.flatten(
        optax.chain(
            optax.clip_by_global_norm(clip_norm),
            optax.adamw(schedule, weight_decay=weight_decay),
        )
    )


def init_state(model: Recognizer, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step.

    >>> model = Recognizer(3, 5, hidden=4, layers=1, rngs=nnx.Rngs(0))
    >>> int(init_state(model, optax.sgd(0.1)).step)
    0
    """
    params = nnx.state(model, nnx.Param)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def make_step(
    model: Recognizer,
    optimizer: optax.GradientTransformation,
    *,
    dropout_seed: int = 0,
    accumulate: int = 1,
) -> Callable[[TrainState, Batch, Bool[Array, ""]], tuple[TrainState, Metrics]]:
    """The per-device step `(state, batch, learn) -> (state, metrics)`.

    To be wrapped by `parallel.data_parallel(step, mesh, row_results=ROW_RESULTS)`. With `learn`
    false the state comes back as it was. A batch without any real, feasible row moves nothing.

    Args:
      model: gives the structure; its parameters are in the state.
      optimizer: from `make_optimizer`, or any optax transformation.
      dropout_seed: seed of the units dropped while learning; the step number joins it.
      accumulate: parts that each device computes its rows in, one after the other, with the memory
        of one part; without dropout the same result up to rounding, because sums are added up
        and divided once.

    Raises:
      ValueError: less than one part; or, when it is traced, rows that the parts do not divide.
    """
    if accumulate < 1:
        raise ValueError(f"accumulate must be at least 1; got {accumulate}")
    graph, _ = nnx.split(model, nnx.Param)
    with_dropout = model.lstm.dropout > 0

    def sums(state: TrainState, batch: Any, part: Any, learn: Bool[Array, ""]) -> Any:
        """(what is added up over parts and devices, classes) of some of a device's rows."""
        features, labels = batch.arrays["features"], batch.arrays["labels"]
        lengths, label_lengths = batch.lengths, batch.label_lengths

        def summed_loss(params: PyTree[Any]) -> Any:
            recognizer = nnx.merge(graph, params)
            key = None
            if with_dropout:
                key = jax.random.fold_in(jax.random.key(dropout_seed), state.step)
                key = jax.random.fold_in(key, jax.lax.axis_index(AXIS))
                key = jax.random.fold_in(key, part)
            logits = recognizer(features, lengths, dropout_key=key, learn=learn)
            losses, possible = ctc_loss(logits, lengths, labels, label_lengths)
            weights = batch.weights * possible
            return (losses * weights).sum(), (weights.sum(), possible, logits.argmax(-1))

        loss, by_params, (weight, possible, classes) = jax.vjp(
            summed_loss, state.params, has_aux=True
        )
        gradient = jax.lax.cond(
            learn,
            lambda: by_params(jnp.ones_like(loss))[0],
            lambda: jax.tree.map(jnp.zeros_like, state.params),
        )
        infeasible = (batch.weights * ~possible).sum()
        return (loss, weight, infeasible, gradient), classes.astype(jnp.int32)

    def step(state: TrainState, batch: Batch, learn: Bool[Array, ""]) -> Any:
        if accumulate == 1:
            summed, classes = sums(state, batch, 0, learn)
        else:
            summed, classes = _in_parts(
                lambda rows, part: sums(state, rows, part, learn), batch, accumulate
            )
        loss, weight, infeasible, gradient = summed
        loss, weight, infeasible = jax.lax.psum((loss, weight, infeasible), AXIS)

        def move(state: TrainState) -> tuple[TrainState, Any]:
            total = jax.lax.psum(gradient, AXIS)
            mean = jax.tree.map(lambda leaf: leaf / jnp.maximum(weight, 1.0), total)
            updates, opt_state = optimizer.update(mean, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
            return TrainState(params, opt_state, state.step + 1), optax.tree.norm(mean)

        def stay(state: TrainState) -> tuple[TrainState, Any]:
            return state, jnp.zeros_like(loss)

        state, grad_norm = jax.lax.cond(learn & (weight > 0), move, stay, state)
        return state, Metrics(loss, weight, infeasible, grad_norm, classes)

    return step


def _in_parts(sums: Callable[[Any, Any], Any], batch: Any, parts: int) -> Any:
    """`sums(rows, part)` over equal parts of the rows: its sums added up, its rows in a row."""
    num_rows = len(batch.lengths)
    if num_rows % parts:
        raise ValueError(
            f"{num_rows} rows on each device cannot be computed in {parts} equal parts; fit the "
            f"spec with batch_multiple_of={parts} x the number of devices"
        )
    rows = jax.tree.map(
        lambda leaf: leaf.reshape(parts, -1, *leaf.shape[1:]),
        batch._replace(bucket=None),  # the one leaf that has no rows
    )

    def add(added: Any, now: Any) -> Any:
        part, rows = now
        summed, by_row = sums(rows, part)
        return jax.tree.map(jnp.add, added, summed), by_row

    first = jax.tree.map(lambda leaf: leaf[0], rows)
    shapes = jax.eval_shape(lambda: sums(first, 0)[0])
    nothing = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)
    summed, by_row = jax.lax.scan(add, nothing, (jnp.arange(parts), rows))
    return summed, by_row.reshape(num_rows, -1)
