"""NVIDIA's LSTM, through `jax.experimental.rnn`: same weights, same results as the scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.experimental import rnn
from jaxtyping import Array, Float, Int

from bucketjax.nn.recurrence import Weights

__all__ = ["pack", "run_layer"]


def run_layer(
    frames: Float[Array, "time batch channels"],
    lengths: Int[Array, " batch"],
    directions: Sequence[Weights],
) -> Float[Array, "time batch outputs"]:
    """One layer's outputs, its directions side by side; exactly 0 at padded frames. GPU only.

    Derivatives are cuDNN's: of first order.

    Args:
      frames: finite at padded frames.
      lengths: real frames of each row; 0 is allowed.
      directions: weights of the forward direction, and of the backward one if there is one.
    """
    channels, units = directions[0].kernel.shape[0], directions[0].recurrent.shape[0]
    start = jnp.zeros((len(directions), frames.shape[1], units), frames.dtype)
    results: Any = rnn.lstm(
        frames.swapaxes(0, 1),
        start,
        start,
        pack(directions),
        jnp.maximum(lengths, 1).astype(jnp.int32),  # cuDNN refuses rows without frames
        channels,
        units,
        1,
        0.0,
        len(directions) == 2,
    )
    outputs, _, _ = results
    real = jnp.arange(frames.shape[0])[:, None, None] < lengths[:, None]
    return jnp.where(real, outputs.swapaxes(0, 1), 0)


def pack(directions: Sequence[Weights]) -> Float[Array, " weights"]:
    """One layer's weights as cuDNN's flat vector: all matrices, then all biases.

    cuDNN has two biases per gate, which it adds; the second is 0.

    >>> weights = Weights(jnp.ones((3, 8)), jnp.ones((2, 8)), jnp.zeros(8))
    >>> pack([weights]).shape
    (56,)
    """
    matrices = [matrix.T.ravel() for one in directions for matrix in (one.kernel, one.recurrent)]
    biases = [bias for one in directions for bias in (one.bias, jnp.zeros_like(one.bias))]
    return jnp.concatenate([*matrices, *biases])
