"""CTC on padded batches: the loss of each row, and which rows have one.

The loss is optax's; what is added is that lengths take the place of padding masks, and that a
row without any alignment is found and weighs nothing, where optax gives it a loss of about 1e5
with a gradient.
"""

from __future__ import annotations

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from bucketjax.nn.lstm import frame_mask

__all__ = ["ctc_loss", "feasible"]


def feasible(
    lengths: Int[Array, " batch"],
    labels: Int[Array, "batch label"],
    label_lengths: Int[Array, " batch"],
) -> Bool[Array, " batch"]:
    """Whether an alignment exists: length >= label length + adjacent repeats.

    Two equal characters in a row need a blank between them (Graves et al. 2006, section 3).

    >>> feasible(jnp.array([3, 2]), jnp.array([[7, 7], [7, 7]]), jnp.array([2, 2])).tolist()
    [True, False]
    """
    positions = jnp.arange(1, labels.shape[1])
    repeats = (labels[:, 1:] == labels[:, :-1]) & (positions < label_lengths[:, None])
    return lengths >= label_lengths + repeats.sum(axis=1)


def ctc_loss(
    logits: Float[Array, "batch time classes"],
    lengths: Int[Array, " batch"],
    labels: Int[Array, "batch label"],
    label_lengths: Int[Array, " batch"],
    *,
    blank_id: int = 0,
) -> tuple[Float[Array, " batch"], Bool[Array, " batch"]]:
    """The CTC loss of each row in nats, and whether the row is feasible.

    An infeasible row has loss 0 and gradient 0: count it, or lose it silently. What the padding
    of logits and labels holds does not matter, as long as it is finite.

    Source: Graves et al. 2006, "Connectionist Temporal Classification".

    >>> logits = jnp.zeros((1, 2, 2))
    >>> loss, possible = ctc_loss(logits, jnp.array([2]), jnp.array([[1]]), jnp.array([1]))
    >>> round(float(jnp.exp(-loss[0])), 4), possible.tolist()  # 3 of the 4 paths spell it
    (0.75, [True])
    """
    possible = feasible(lengths, labels, label_lengths)
    real = jnp.arange(labels.shape[1]) < label_lengths[:, None]
    losses = optax.ctc_loss(
        logits,
        1.0 - frame_mask(lengths, logits.shape[1]),
        jnp.where(real, labels, blank_id),
        1.0 - real,
        blank_id=blank_id,
    )
    return jnp.where(possible, losses, 0.0), possible
