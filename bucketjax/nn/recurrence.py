"""The loop over time of one LSTM direction, and its derivative, written out for speed.

What makes it fast, in the order in which it was measured to matter:

- The weights' gradients are one matrix product over all frames, after the loop.
- The forward pass stores the *factors* of the derivative. So the backward pass has no `tanh`: per
  frame it is one matrix product and six multiplications.
- Those factors take the place of the pre-activations they came from, frame by frame, in one
  buffer that travels through the loop; the gradient then takes theirs. Half the memory, and
  nothing to clear before the loop.
- All four gates come from one `tanh`: sigmoid(z) = (tanh(z / 2) + 1) / 2, with the half folded
  into the weights.
- Padding is folded into the pre-activations: at a padded frame the input, forget and output gates
  are driven to 0, so carry, output and every gradient are exactly 0 there in both directions.
  Nothing is selected inside the loop, and the backward direction needs no flipping: it arrives at
  the last real frame with an empty carry.

Matrix products take their inputs as `dtype`; the carry and all sums are at least float32.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

__all__ = ["Weights", "run_direction"]

# Far below any pre-activation, so that adding the recurrent part leaves every gate at exactly 0.
_CLOSED = -1e9


class Weights(NamedTuple):
    """The weights of one direction; gates in the order input, forget, cell, output.

    `outputs` is the number of units, or of the projection where there is one.
    """

    kernel: Float[Array, "channels gates"]
    recurrent: Float[Array, "outputs gates"]
    bias: Float[Array, " gates"]
    projection: Float[Array, "units outputs"] | None = None


class _Carry(NamedTuple):
    output: Float[Array, "batch outputs"]
    cell: Float[Array, "batch units"]


class _Kept(NamedTuple):
    """What the forward pass keeps for the backward pass.

    Attributes:
      factors: of the gradient by the pre-activations, gate by gate.
      into_cell: d cell / d (output before the projection).
      forget: the forget gate.
      ungated: the outputs before the projection; None where there is none.
    """

    frames: Float[Array, "time batch channels"]
    start: _Carry
    weights: Weights
    outputs: Float[Array, "time batch outputs"]
    factors: Float[Array, "time batch gates"]
    into_cell: Float[Array, "time batch units"]
    forget: Float[Array, "time batch units"]
    ungated: Float[Array, "time batch units"] | None


def run_direction(
    frames: Float[Array, "time batch channels"],
    mask: Bool[Array, "time batch 1"],
    weights: Weights,
    *,
    reverse: bool = False,
    unroll: int = 1,
    dtype: DTypeLike | None = None,
    chunk: int | None = None,
) -> Float[Array, "time batch outputs"]:
    """The outputs of one direction; exactly 0 at padded frames.

    Reverse-mode derivatives of any order are right. A forward-mode derivative (`jax.jvp` of this
    function itself) is refused by JAX with a TypeError.

    Args:
      frames: may hold any finite value at padded frames.
      mask: True at real frames, which come first.
      weights: of this direction.
      reverse: read from the last frame to the first.
      unroll: frames per iteration of the compiled loop.
      dtype: of the matrix products and of what is kept; that of `frames` by default.
      chunk: keep only the carry at the end of every so many frames, and compute the rest a second
        time in the backward pass (`jax.checkpoint`): with about sqrt(time), what is kept beside
        inputs and outputs grows as sqrt(time).

    Sources: Gers et al. 2000, "Learning to forget" (the cell); Chen et al. 2016, "Training deep
    nets with sublinear memory cost" (chunks).

    >>> weights = Weights(jnp.ones((3, 8)), jnp.ones((2, 8)), jnp.zeros(8))
    >>> run_direction(jnp.ones((5, 4, 3)), jnp.ones((5, 4, 1), bool), weights).shape
    (5, 4, 2)
    """
    frames = frames.astype(frames.dtype if dtype is None else dtype)
    batch = frames.shape[1]
    carried = jnp.promote_types(frames.dtype, jnp.float32)
    units = weights.bias.shape[0] // 4
    start = _Carry(
        jnp.zeros((batch, weights.recurrent.shape[0]), carried), jnp.zeros((batch, units), carried)
    )
    if chunk is None or chunk >= len(frames):
        whole: Any = _run(frames, mask, start, weights, reverse, unroll)
        return whole[0]
    number = math.ceil(len(frames) / chunk)
    # Closed frames at the end: the forward direction is done by then, the backward one has not
    # begun.
    missing = ((0, number * chunk - len(frames)), (0, 0), (0, 0))
    pieces = [
        jnp.pad(whole, missing).reshape(number, chunk, *whole.shape[1:]) for whole in (frames, mask)
    ]

    @functools.partial(jax.checkpoint, prevent_cse=False)  # a scan's body: nothing to merge with
    def run_piece(carry: _Carry, piece: Any) -> Any:
        results: Any = _run(*piece, carry, weights, reverse, unroll)
        outputs, carry = results
        return carry, outputs

    _, outputs = lax.scan(run_piece, start, tuple(pieces), reverse=reverse)
    return outputs.reshape(number * chunk, *outputs.shape[2:])[: len(frames)]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _run(
    frames: Array, mask: Array, start: _Carry, weights: Weights, reverse: bool, unroll: int
) -> Any:
    """(outputs, the carry after the last frame)."""
    recurrent = _halved(weights.recurrent, frames.dtype)

    def frame(carry: _Carry, projected: Array) -> Any:
        into, keep, value, out = _gates(projected, carry.output, recurrent)
        cell = keep * carry.cell + into * value
        output = _project(out * jnp.tanh(cell), weights.projection, frames.dtype)
        return _Carry(output, cell), output.astype(frames.dtype)

    projected = _pre_activations(frames, mask, weights)
    end, outputs = lax.scan(frame, start, projected, reverse=reverse, unroll=unroll)
    return outputs, end


def _run_forward(
    frames: Array, mask: Array, start: _Carry, weights: Weights, reverse: bool, unroll: int
) -> tuple[tuple[Array, _Carry], _Kept]:
    recurrent = _halved(weights.recurrent, frames.dtype)
    projects = weights.projection is not None

    def frame(carry: tuple[_Carry, Array], time: Array) -> Any:
        (output, before), buffer = carry
        projected = lax.dynamic_index_in_dim(buffer, time, keepdims=False)
        into, keep, value, out = _gates(projected, output, recurrent)
        cell = keep * before + into * value
        squashed = jnp.tanh(cell)
        factors = [
            value * into * (1 - into),
            before * keep * (1 - keep),
            into * (1 - value * value),
            squashed * out * (1 - out),
        ]
        factors = jnp.concatenate(factors, axis=-1).astype(frames.dtype)
        buffer = lax.dynamic_update_index_in_dim(buffer, factors, time, 0)
        ungated = out * squashed
        output = _project(ungated, weights.projection, frames.dtype)
        kept = (output, out * (1 - squashed * squashed), keep, ungated if projects else None)
        kept = jax.tree.map(lambda leaf: leaf.astype(frames.dtype), kept)
        return (_Carry(output, cell), buffer), kept

    projected = _pre_activations(frames, mask, weights)
    (end, factors), (outputs, into_cell, forget, ungated) = lax.scan(
        frame, (start, projected), jnp.arange(len(frames)), reverse=reverse, unroll=unroll
    )
    kept = _Kept(frames, start, weights, outputs, factors, into_cell, forget, ungated)
    return (outputs, end), kept


def _run_backward(
    reverse: bool, unroll: int, kept: _Kept, by_results: tuple[Array, _Carry]
) -> tuple[Array, None, _Carry, Weights]:
    frames, start, weights, outputs = kept.frames, kept.start, kept.weights, kept.outputs
    by_outputs, by_end = by_results
    dtype = frames.dtype
    backwards = _transposed(weights.recurrent, dtype)
    unproject = None if weights.projection is None else _transposed(weights.projection, dtype)

    def frame(carry: tuple[_Carry, Array], now: Any) -> Any:
        (by_output, by_cell), buffer = carry
        time, by_later, into_cell, forget = now
        factors = lax.dynamic_index_in_dim(buffer, time, keepdims=False)
        by_output = by_output + by_later
        by_ungated = _project(by_output, unproject, dtype)
        by_cell = by_cell + by_ungated * into_cell
        by_gates = jnp.concatenate([by_cell, by_cell, by_cell, by_ungated], axis=-1) * factors
        by_gates = by_gates.astype(dtype)
        buffer = lax.dynamic_update_index_in_dim(buffer, by_gates, time, 0)
        earlier = _Carry(_product(by_gates, backwards), by_cell * forget)
        return (earlier, buffer), None if unproject is None else by_output.astype(dtype)

    (by_start, by_gates), by_projected = lax.scan(
        frame,
        (by_end, kept.factors),
        (jnp.arange(len(frames)), by_outputs, kept.into_cell, kept.forget),
        reverse=not reverse,
        unroll=unroll,
    )
    flat = by_gates.reshape(-1, by_gates.shape[-1])
    by_frames = _product(flat, _transposed(weights.kernel, dtype)).astype(dtype)
    first = start.output.astype(dtype)[None]
    before = [outputs[1:], first] if reverse else [first, outputs[:-1]]
    both = jnp.concatenate([frames, jnp.concatenate(before)], axis=-1)
    by_both = _over_frames(both, by_gates)
    channels = frames.shape[-1]
    by_projection = None
    if kept.ungated is not None:
        by_projection = _over_frames(kept.ungated, by_projected)
    by_weights = Weights(
        by_both[:channels],
        by_both[channels:],
        flat.sum(axis=0, dtype=by_both.dtype),
        by_projection,
    )
    by_weights = jax.tree.map(lambda by, leaf: by.astype(leaf.dtype), by_weights, weights)
    return by_frames.reshape(frames.shape), None, by_start, by_weights


_run.defvjp(_run_forward, _run_backward)


def _pre_activations(frames: Array, mask: Array, weights: Weights) -> Array:
    """All but the recurrent part, halved for `_gates`: one product for the inputs of all frames."""
    flat = frames.reshape(-1, frames.shape[-1])
    projected = _product(flat, _halved(weights.kernel, frames.dtype))
    projected = projected.reshape(*frames.shape[:-1], -1) + weights.bias * _halves(weights.bias)
    return jnp.where(mask, projected, _CLOSED).astype(frames.dtype)


def _gates(projected: Array, output: Array, recurrent: Array) -> tuple[Array, Array, Array, Array]:
    squashed = jnp.tanh(projected + _product(output.astype(recurrent.dtype), recurrent))
    into, keep, value, out = jnp.split(squashed, 4, axis=-1)
    return (into + 1) * 0.5, (keep + 1) * 0.5, value, (out + 1) * 0.5


def _project(states: Array, matrix: Array | None, dtype: Any) -> Array:
    if matrix is None:
        return states
    return _product(states.astype(dtype), matrix.astype(dtype))


def _product(left: Array, right: Array) -> Array:
    """The product of two matrices, summed in float32 at least."""
    wide = jnp.promote_types(left.dtype, jnp.float32)
    return jnp.matmul(left, right, preferred_element_type=wide)


def _over_frames(left: Array, right: Array) -> Array:
    """The sum of every frame's outer product of `left` and `right`."""
    left, right = (states.reshape(-1, states.shape[-1]) for states in (left, right))
    wide = jnp.promote_types(left.dtype, jnp.float32)
    return lax.dot_general(left, right, (((0,), (0,)), ((), ())), preferred_element_type=wide)


def _halved(matrix: Array, dtype: Any) -> Array:
    return (matrix * _halves(matrix)).astype(dtype)


def _halves(matrix: Array) -> np.ndarray:
    return np.repeat(np.array([0.5, 0.5, 1.0, 0.5], matrix.dtype), matrix.shape[-1] // 4)


def _transposed(matrix: Array, dtype: Any) -> Array:
    # Behind a barrier, or XLA folds the transposition into every product of the loop: 1.5 times
    # the time on CPU.
    return lax.optimization_barrier(matrix.T.astype(dtype))
