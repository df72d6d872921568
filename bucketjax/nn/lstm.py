"""A stacked, bidirectional LSTM over padded sequences, scanned with `lax.scan`.

Padding is folded into the pre-activations: at a padded frame the input, forget and output gates
are driven to 0, so the carry and the output are 0 there in both directions. Nothing is selected
inside the loop, and the backward direction needs no flipping: it arrives at the last real frame
with an empty carry.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

__all__ = ["LSTM", "frame_mask"]

# Far below any pre-activation, so that adding the recurrent part leaves every gate at exactly 0.
_CLOSED = -1e9


def frame_mask(lengths: Int[Array, " batch"], num_frames: int) -> Bool[Array, "batch time"]:
    """True at the real frames of each row.

    >>> frame_mask(jnp.array([1, 2]), 3).tolist()
    [[True, False, False], [True, True, False]]
    """
    return jnp.arange(num_frames) < lengths[:, None]


class LSTM(nnx.Module):
    """Stacked LSTM layers, bidirectional unless told otherwise.

    Gates are in the order input, forget, cell, output, as in Gers et al. 2000 ("Learning to
    forget"), whose forget bias of 1 is the initial one. Input weights are Glorot-uniform,
    recurrent weights orthogonal.

    Args:
      in_features: channels of the input.
      hidden: units of each direction; the output has twice as many channels if bidirectional.
      layers: how many layers.
      bidirectional: also read each row backwards, from its last real frame.
      dropout: share of the units dropped between layers while learning, in [0, 1).
      unroll: frames per iteration of the compiled loop.
      rngs: where the initial weights come from.

    Raises:
      ValueError: sizes below 1, or a dropout outside [0, 1).

    >>> lstm = LSTM(3, 8, layers=2, rngs=nnx.Rngs(0))
    >>> lstm(jnp.ones((4, 10, 3)), jnp.array([10, 7, 1, 0])).shape
    (4, 10, 16)
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        *,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
        unroll: int = 1,
        rngs: nnx.Rngs,
    ):
        sizes = {"in_features": in_features, "hidden": hidden, "layers": layers, "unroll": unroll}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
        self.dropout = dropout
        self.unroll = unroll
        directions = 2 if bidirectional else 1
        self.layers = nnx.List(
            nnx.List(
                _Direction(in_features if layer == 0 else directions * hidden, hidden, rngs)
                for _ in range(directions)
            )
            for layer in range(layers)
        )

    def __call__(
        self,
        inputs: Float[Array, "batch time channels"],
        lengths: Int[Array, " batch"],
        *,
        dropout_key: Key[Array, ""] | None = None,
        learn: Bool[Array, ""] | bool = True,
    ) -> Float[Array, "batch time units"]:
        """The outputs of the last layer; exactly 0 at padded frames.

        Args:
          inputs: may hold any finite value at padded frames.
          lengths: real frames of each row; 0 is allowed.
          dropout_key: drops units between layers where given, and `learn` is true.
          learn: decided on the device, so that one program serves training and evaluation.
        """
        mask = frame_mask(lengths, inputs.shape[1]).T[..., None]
        frames = inputs.swapaxes(0, 1)
        for number, directions in enumerate(self.layers):
            if number and dropout_key is not None and self.dropout:
                kept = jax.random.bernoulli(
                    jax.random.fold_in(dropout_key, number), 1 - self.dropout, frames.shape
                )
                dropped = jnp.where(kept, frames / (1 - self.dropout), 0)
                frames = jnp.where(learn, dropped, frames)
            frames = jnp.concatenate(
                [
                    direction(frames, mask, reverse=bool(backward), unroll=self.unroll)
                    for backward, direction in enumerate(directions)
                ],
                axis=-1,
            )
        return frames.swapaxes(0, 1)


class _Direction(nnx.Module):
    def __init__(self, in_features: int, hidden: int, rngs: nnx.Rngs):
        glorot, orthogonal = nnx.initializers.glorot_uniform(), nnx.initializers.orthogonal()
        self.hidden = hidden
        # Each gate is initialised by itself: Glorot's variance is that of one gate's matrix.
        self.kernel = nnx.Param(_per_gate(glorot, rngs, in_features, hidden))
        self.recurrent = nnx.Param(_per_gate(orthogonal, rngs, hidden, hidden))
        self.bias = nnx.Param(jnp.zeros(4 * hidden).at[hidden : 2 * hidden].set(1.0))

    def __call__(
        self,
        frames: Float[Array, "time batch channels"],
        mask: Bool[Array, "time batch 1"],
        *,
        reverse: bool,
        unroll: int,
    ) -> Float[Array, "time batch units"]:
        # sigmoid(z) = (tanh(z / 2) + 1) / 2: with the half folded into the weights, one tanh
        # serves all four gates.
        half = jnp.repeat(jnp.array([0.5, 0.5, 1.0, 0.5], frames.dtype), self.hidden)
        # The input's part of every frame is one matrix product before the loop.
        projected = frames @ (self.kernel[...] * half) + self.bias[...] * half
        closed = jnp.where(mask, projected, _CLOSED)
        return _recur(closed, self.recurrent[...] * half, reverse, unroll)


def _per_gate(initializer: Any, rngs: nnx.Rngs, rows: int, hidden: int) -> Float[Array, "_ _"]:
    return jnp.concatenate([initializer(rngs.params(), (rows, hidden)) for _ in range(4)], axis=1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _recur(
    projected: Float[Array, "time batch gates"],
    recurrent: Float[Array, "units gates"],
    reverse: bool,
    unroll: int,
) -> Float[Array, "time batch units"]:
    """The loop over time: outputs from pre-activations that lack only the recurrent part.

    Its derivative is written out: the forward pass keeps the gates, so that the backward loop
    computes no matrix product but the one that carries the gradient back, and the gradient of
    the recurrent weights is one product over all frames after it.
    """
    return _recur_forward(projected, recurrent, reverse, unroll)[0]


def _recur_forward(
    projected: Float[Array, "time batch gates"],
    recurrent: Float[Array, "units gates"],
    reverse: bool,
    unroll: int,
) -> tuple[Float[Array, "time batch units"], Sequence[Array]]:
    def frame(carry: tuple[Array, Array], projected: Array) -> Any:
        output, cell = carry
        squashed = jnp.tanh(projected + output @ recurrent)
        into, keep, value, out = _gates(squashed)
        cell = keep * cell + into * value
        output = out * jnp.tanh(cell)
        return (output, cell), (output, cell, squashed)

    empty = jnp.zeros((projected.shape[1], recurrent.shape[0]), projected.dtype)
    _, (outputs, cells, squashed) = lax.scan(
        frame, (empty, empty), projected, reverse=reverse, unroll=unroll
    )
    return outputs, (outputs, cells, squashed, recurrent)


def _recur_backward(
    reverse: bool,
    unroll: int,
    kept: Sequence[Array],
    by_outputs: Float[Array, "time batch units"],
) -> tuple[Array, Array]:
    outputs, cells, squashed, recurrent = kept

    def frame(carry: tuple[Array, Array], kept: Any) -> Any:
        by_output, by_cell = carry
        by_later, cell, before, squashed = kept
        t_into, t_keep, value, t_out = jnp.split(squashed, 4, axis=-1)
        into, keep, _, out = _gates(squashed)
        by_output = by_output + by_later
        through = jnp.tanh(cell)
        by_cell = by_cell + by_output * out * (1 - through * through)
        by_gates = jnp.concatenate(
            [
                by_cell * value * 0.5 * (1 - t_into * t_into),
                by_cell * before * 0.5 * (1 - t_keep * t_keep),
                by_cell * into * (1 - value * value),
                by_output * through * 0.5 * (1 - t_out * t_out),
            ],
            axis=-1,
        )
        return (by_gates @ recurrent.T, by_cell * keep), by_gates

    empty = jnp.zeros_like(outputs[0])
    _, by_projected = lax.scan(
        frame,
        (empty, empty),
        (by_outputs, cells, _one_before(cells, reverse), squashed),
        reverse=not reverse,
        unroll=unroll,
    )
    by_recurrent = jnp.einsum("tbu,tbg->ug", _one_before(outputs, reverse), by_projected)
    return by_projected, by_recurrent


_recur.defvjp(_recur_forward, _recur_backward)


def _gates(squashed: Array) -> tuple[Array, Array, Array, Array]:
    into, keep, value, out = jnp.split(squashed, 4, axis=-1)
    return (into + 1) * 0.5, (keep + 1) * 0.5, value, (out + 1) * 0.5


def _one_before(states: Array, reverse: bool) -> Array:
    """The state that each frame started from."""
    empty = jnp.zeros_like(states[:1])
    return jnp.concatenate([states[1:], empty] if reverse else [empty, states[:-1]])
