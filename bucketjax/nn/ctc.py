"""CTC on padded batches: the loss of each row with its exact gradient, and which rows have one.

Probabilities are kept as a mantissa and an exponent of its own (`_Wide`), so that the loop over
time needs neither `exp` nor `log` and cannot underflow. The forward pass stores, for each sum of
two paths, the share that the first had in it. With those the backward pass is linear: the
posteriors of the last frame are handed back, share by share, and stay in [0, 1].

States are laid out as `[label + 1, batch]`: `blank` j is the one before label j, `char` j the
label that ends there, so `char` 0 does not exist. The blanks' probability at a padded frame is 1
and all others' 0, which carries the sum of a row's last two states to the end of the batch.

Source: Graves et al. 2006, "Connectionist Temporal Classification", section 4.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from bucketjax.nn.lstm import frame_mask

__all__ = ["Alignment", "align", "ctc_loss", "feasible"]

_LOG2E = 1.4426950408889634
_NONE = -(1 << 29)  # the exponent of a probability of 0
_LEAST = -(1 << 17)  # the least exponent of one frame's probability: about e^-90000


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

    An infeasible row has loss 0 and gradient exactly 0: count it, or lose it silently. Logits
    that are not numbers at a *real* frame make the row's loss and gradient NaN.

    The loss is computed in float32, whatever the logits are. It has first derivatives only.

    Args:
      logits: of every frame; padded frames may hold anything, NaN included.
      lengths: real frames of each row.
      labels: classes other than the blank's; may hold anything after a row's label.
      label_lengths: 0 is allowed.
      blank_id: the blank's class.

    Raises:
      ValueError: a blank that is no class.
      NotImplementedError: when it is differentiated twice.

    >>> logits = jnp.zeros((1, 2, 2))
    >>> loss, possible = ctc_loss(logits, jnp.array([2]), jnp.array([[1]]), jnp.array([1]))
    >>> round(float(jnp.exp(-loss[0])), 4), possible.tolist()  # 3 of the 4 paths spell it
    (0.75, [True])
    """
    labels = _checked(logits, labels, label_lengths, blank_id)
    possible = feasible(lengths, labels, label_lengths)
    losses: Any = _losses(
        logits.astype(jnp.float32), lengths, labels, label_lengths, possible, blank_id
    )
    return losses, possible


class Alignment(NamedTuple):
    """The likeliest path of each row that spells its label.

    Attributes:
      positions: which entry of the label each frame shows; -1 for a blank, and at padded frames.
      log_probability: of the path, in nats; -inf, and no positions, for an infeasible row.
    """

    positions: Int[Array, "batch time"]
    log_probability: Float[Array, " batch"]


def align(
    logits: Float[Array, "batch time classes"],
    lengths: Int[Array, " batch"],
    labels: Int[Array, "batch label"],
    label_lengths: Int[Array, " batch"],
    *,
    blank_id: int = 0,
) -> Alignment:
    """Where in a row each character of its label is: the likeliest path (Viterbi 1967).

    It takes what `ctc_loss` takes, over the same states, with the better of two paths in the
    place of their sum.

    Raises:
      ValueError: a blank that is no class.

    >>> logits = jnp.array([[[0.0, 3, 0], [3, 0, 0], [0, 0, 3], [0, 0, 3]]])
    >>> align(logits, jnp.array([4]), jnp.array([[1, 2]]), jnp.array([2])).positions.tolist()
    [[0, -1, 1, 1]]
    """
    labels = _checked(logits, labels, label_lengths, blank_id)
    possible = feasible(lengths, labels, label_lengths)
    table = _tabulate(logits.astype(jnp.float32), lengths, labels, blank_id)
    states = jnp.arange(labels.shape[1] + 1)[:, None]

    def frame(carry: tuple[Array, Array], chosen: Array) -> Any:
        blanks, chars = carry
        either, ended = jnp.maximum(blanks, chars), chars > blanks
        from_left = jnp.where(table.skips, either, blanks)
        from_left = jnp.concatenate([jnp.full_like(from_left[:1], -jnp.inf), from_left[:-1]])
        moved = from_left > chars
        arrived = jnp.where(moved, from_left, chars)
        seen_char = jnp.where(states == 0, -jnp.inf, chosen)
        return (either + chosen[:1], arrived + seen_char), (ended, moved)

    def frame_before(carry: tuple[Array, Array], choices: tuple[Array, Array]) -> Any:
        # `state` and whether it is a char after the frame; the choices say what they were before.
        state, is_char = carry
        ended, moved, skips = (
            jnp.take_along_axis(choice, place, axis=0)[0]
            for choice, place in (
                (choices[0], jnp.where(is_char, state - 1, state)[None]),
                (choices[1], state[None]),
                (table.skips, state[None] - 1),
            )
        )
        steps = is_char & moved
        was_char = jnp.where(is_char, ~moved | (skips & ended), ended)
        return (state - steps, was_char), jnp.where(is_char, state - 1, -1)

    nowhere = jnp.full((len(states), len(labels)), -jnp.inf)
    ends, choices = lax.scan(frame, (nowhere.at[0].set(0), nowhere), table.chosen)
    blank_end, char_end = (jnp.take_along_axis(end, label_lengths[None], axis=0)[0] for end in ends)
    start = label_lengths.astype(jnp.int32), char_end > blank_end
    _, positions = lax.scan(frame_before, start, choices, reverse=True)
    score = jnp.maximum(blank_end, char_end) / _LOG2E
    score = jnp.where(jnp.isfinite(table.normalizers).all(axis=1), score, jnp.nan)
    return Alignment(jnp.where(possible, positions, -1).T, jnp.where(possible, score, -jnp.inf))


def _checked(logits: Array, labels: Array, label_lengths: Array, blank_id: int) -> Array:
    """The labels, with blanks after each row's."""
    num_classes = logits.shape[-1]
    if not 0 <= blank_id < num_classes:
        raise ValueError(f"blank_id must be 0 to {num_classes - 1}, a class; got {blank_id}")
    real = jnp.arange(labels.shape[1]) < label_lengths[:, None]
    return jnp.where(real, labels, blank_id).astype(jnp.int32)


class _Table(NamedTuple):
    """What the loops over time read.

    Attributes:
      logits: 0 at padded frames.
      normalizers: log of the summed exponentials of each frame's logits.
      classes: of each state; state 0 has the blank's.
      chosen: log2 of the probability of each state's class at every frame.
      skips: whether label j + 1 can follow label j without a blank between them.
    """

    logits: Float[Array, "batch time classes"]
    normalizers: Float[Array, "batch time"]
    real: Bool[Array, "batch time"]
    classes: Int[Array, "batch states"]
    chosen: Float[Array, "time states batch"] | None
    skips: Bool[Array, "states batch"]


def _tabulate(logits: Array, lengths: Array, labels: Array, blank: int) -> _Table:
    batch, num_frames, _ = logits.shape
    states = labels.shape[1] + 1
    real = frame_mask(lengths, num_frames)
    logits = jnp.where(real[..., None], logits, 0)
    normalizers = jax.nn.logsumexp(logits, axis=-1)
    classes = jnp.concatenate([jnp.full((batch, 1), blank, jnp.int32), labels], axis=1)
    chosen = jnp.take_along_axis(logits, classes[:, None, :], axis=2, mode="clip")
    chosen = jnp.maximum((chosen - normalizers[..., None]) * _LOG2E, _LEAST)
    at_padding = jnp.where(np.arange(states) == 0, 0.0, float(_NONE))
    chosen = jnp.where(real[..., None], chosen, at_padding)
    # Behind a barrier, or XLA puts the gathering and its transposition into the loop.
    chosen = lax.optimization_barrier(chosen.transpose(1, 2, 0))
    skips = jnp.pad(classes[:, 1:] != classes[:, :-1], ((0, 0), (0, 1))).T
    return _Table(logits, normalizers, real, classes, chosen, skips)


class _Wide(NamedTuple):
    """Probabilities `mantissa * 2 ** exponent`, with mantissas in [1, 2)."""

    mantissa: Array
    exponent: Array


class _Kept(NamedTuple):
    """What the backward pass needs.

    Attributes:
      table: without `chosen`.
      blank_shares: of blank j in (blank j + char j).
      stay_shares: of char j in (char j + what came from its left).
      end: the share of each row's probability in the last blank and the last char.
    """

    table: _Table
    blank_shares: Float[Array, "time states batch"]
    stay_shares: Float[Array, "time states batch"]
    end: tuple[Float[Array, "states batch"], Float[Array, "states batch"]]
    possible: Bool[Array, " batch"]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _losses(
    logits: Array, lengths: Array, labels: Array, label_lengths: Array, possible: Array, blank: int
) -> Any:
    return _losses_forward(logits, lengths, labels, label_lengths, possible, blank)[0]


def _losses_forward(
    logits: Array, lengths: Array, labels: Array, label_lengths: Array, possible: Array, blank: int
) -> tuple[Array, _Kept]:
    table = _tabulate(logits, lengths, labels, blank)
    states = jnp.arange(labels.shape[1] + 1)[:, None]

    def frame(carry: tuple[_Wide, _Wide], chosen: Array) -> Any:
        blanks, chars = carry
        whole = jnp.floor(chosen)
        seen = _Wide(jnp.exp2(chosen - whole), whole.astype(jnp.int32))
        seen_blank = _Wide(seen.mantissa[:1], seen.exponent[:1])
        seen_char = seen._replace(exponent=jnp.where(states == 0, _NONE, seen.exponent))
        either, blank_share = _add(blanks, chars)
        from_left = jax.tree.map(lambda a, b: jnp.where(table.skips, a, b), either, blanks)
        arrived, stay_share = _add(chars, _shift(from_left))
        carry = _times(either, seen_blank), _times(arrived, seen_char)
        return carry, (blank_share, stay_share)

    shape = len(states), len(labels)
    one, none = jnp.ones(shape), jnp.full(shape, _NONE, jnp.int32)
    start = _Wide(one, none.at[0].set(0)), _Wide(one, none)
    (blanks, chars), (blank_shares, stay_shares) = lax.scan(frame, start, table.chosen)
    total, blank_share = _add(blanks, chars)
    last = states == label_lengths
    logs = jnp.log2(total.mantissa) + total.exponent.astype(jnp.float32)
    losses = -jnp.where(last, logs, 0).sum(axis=0) / _LOG2E
    losses = jnp.maximum(losses, 0)  # rounding can take a certain label's probability beyond 1
    losses = jnp.where(jnp.isfinite(table.normalizers).all(axis=1), losses, jnp.nan)
    end = jnp.where(last, blank_share, 0), jnp.where(last, 1 - blank_share, 0)
    kept = _Kept(table._replace(chosen=None), blank_shares, stay_shares, end, possible)
    return jnp.where(possible, losses, 0), kept


def _losses_backward(blank: int, kept: _Kept, by_losses: Array) -> tuple[Any, ...]:
    return _gradient(kept, by_losses, blank), None, None, None, None


_losses.defvjp(_losses_forward, _losses_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _gradient(kept: _Kept, by_losses: Array, blank: int) -> Any:
    """By the logits: each frame's softmax less the classes' posteriors (Graves 2006, eq. 16)."""
    table = kept.table

    def frame(carry: tuple[Array, Array], shares: tuple[Array, Array]) -> Any:
        # The posteriors of the states after a frame; their part of the gradient is the frame's.
        of_blanks, of_chars = carry
        blank_share, stay_share = shares
        moved = of_chars * (1 - stay_share)
        moved = jnp.concatenate([moved[1:], jnp.zeros_like(moved[:1])])
        of_either = of_blanks + jnp.where(table.skips, moved, 0)
        before = (
            blank_share * of_either + jnp.where(table.skips, 0, moved),
            stay_share * of_chars + (1 - blank_share) * of_either,
        )
        return before, (of_chars, of_blanks.sum(axis=0))

    shares = kept.blank_shares, kept.stay_shares
    _, (of_chars, of_blank) = lax.scan(frame, kept.end, shares, reverse=True)
    num_classes = table.logits.shape[-1]
    one_hot = jax.nn.one_hot(table.classes, num_classes, dtype=jnp.float32)
    posteriors = jnp.einsum("tsb,bsc->btc", of_chars, one_hot)
    posteriors = posteriors + of_blank.T[..., None] * jax.nn.one_hot(blank, num_classes)
    by_logits = jnp.exp(table.logits - table.normalizers[..., None]) - posteriors
    finite = jnp.isfinite(table.normalizers).all(axis=1)
    scale = jnp.where(finite, by_losses, jnp.nan)[:, None, None]
    counts = (table.real & kept.possible[:, None])[..., None]
    return jnp.where(counts, by_logits * scale, 0)


def _gradient_forward(kept: _Kept, by_losses: Array, blank: int) -> Any:
    return _gradient(kept, by_losses, blank), None


def _gradient_backward(blank: int, kept: None, by_gradient: Array) -> Any:
    raise NotImplementedError(
        "ctc_loss has first derivatives only; for second ones take optax.ctc_loss"
    )


_gradient.defvjp(_gradient_forward, _gradient_backward)


def _add(first: _Wide, second: _Wide) -> tuple[_Wide, Array]:
    """The sum, and the share of the first in it."""
    exponent = jnp.maximum(first.exponent, second.exponent)
    summands = [
        wide.mantissa * _power_of_two(jnp.maximum(wide.exponent - exponent, -126))
        for wide in (first, second)
    ]
    total = summands[0] + summands[1]
    return _normalized(total, exponent), summands[0] / total


def _times(first: _Wide, second: _Wide) -> _Wide:
    mantissa = first.mantissa * second.mantissa
    return _normalized(mantissa, first.exponent + second.exponent)


def _normalized(mantissa: Array, exponent: Array) -> _Wide:
    bits = lax.bitcast_convert_type(mantissa, jnp.int32)
    exponent = jnp.maximum(exponent + (bits >> 23) - 127, _NONE)
    bits = (bits & 0x7FFFFF) | 0x3F800000
    return _Wide(lax.bitcast_convert_type(bits, jnp.float32), exponent)


def _power_of_two(exponent: Array) -> Array:
    """Exact, for exponents from -126 to 127."""
    return lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def _shift(states: _Wide) -> _Wide:
    """State j - 1 in the place of j."""
    mantissa, exponent = states
    return _Wide(
        jnp.concatenate([jnp.ones_like(mantissa[:1]), mantissa[:-1]]),
        jnp.concatenate([jnp.full_like(exponent[:1], _NONE), exponent[:-1]]),
    )
