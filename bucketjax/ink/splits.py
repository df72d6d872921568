"""Whole writers held out: a recogniser is judged on hands that it has not seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

__all__ = ["hold_out_writers"]


def hold_out_writers(
    writers: Sequence[str], *, fraction: float, seed: int
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " validation"]]:
    """Example numbers for training and validation, without a writer in both.

    Writers are drawn at random until the validation set has `fraction` of the examples; one that
    would take it past twice that is passed over. Where all would, the smallest is held out.

    Args:
      writers: the writer of each example.
      fraction: share of the examples to hold out, between 0 and 1.
      seed: of the draw.

    Raises:
      ValueError: a fraction outside (0, 1), or fewer than two writers.

    >>> train, validation = hold_out_writers(["a", "b", "a", "c"], fraction=0.3, seed=0)
    >>> sorted([*train.tolist(), *validation.tolist()])
    [0, 1, 2, 3]
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must be between 0 and 1; got {fraction}")
    sizes = Counter(writers)
    if len(sizes) < 2:
        raise ValueError(f"holding out whole writers needs at least 2; there are {len(sizes)}")
    names = sorted(sizes)
    # Raw bits, sorted: the same draw under every NumPy version.
    keys = np.random.Philox(np.random.SeedSequence(seed)).random_raw(len(names))
    order = [names[number] for number in np.argsort(keys, kind="stable")]
    wanted, held, size = fraction * len(writers), set(), 0
    for name in order:
        if size < wanted and size + sizes[name] <= 2 * wanted:
            held.add(name)
            size += sizes[name]
    held = held or {min(names, key=lambda name: sizes[name])}
    is_held = np.array([writer in held for writer in writers])
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)
