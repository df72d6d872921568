"""Shapes of two dimensions: at most S pairs (length, label length) that hold every example.

>>> cheapest_pairs([9, 9, 2, 2], [1, 1, 8, 8], num_shapes=2)
array([[2, 8],
       [9, 1]])
"""

from __future__ import annotations

import itertools
import math

import numpy as np
from jaxtyping import Bool, Float, Int

from bucketjax import boundaries as cuts
from bucketjax.boundaries import ArrayLike

__all__ = ["cheapest_pairs", "holds", "product_pairs"]

Shapes = Int[np.ndarray, "_ 2"]
Pairs = Int[np.ndarray, "pair 2"]

# All sets of shapes are tried where there are at most so many.
_MOST_SETS, _MOST_PAIRS = 20_000, 200
# Otherwise the search looks at a grid of so many values a side, of examples and of new shapes.
_EXAMPLE_GRID, _SHAPE_GRID = 96, 24


def cheapest_pairs(
    lengths: ArrayLike,
    label_lengths: ArrayLike,
    *,
    num_shapes: int,
    label_weight: float = 1.0,
    multiple_of: int = 1,
    label_multiple_of: int = 1,
    counts: ArrayLike | None = None,
) -> Shapes:
    """At most `num_shapes` padded (length, label length) of the least total padding.

    A row of a shape costs `length + label_weight * label_length`, and each example takes the
    cheapest shape that holds both its length and its label. Exact where all sets of shapes can
    be tried (some 20,000 of them). Where they can't, the search starts from the cheapest of all
    products of one-dimensional optima and from the chain in which longer examples have longer
    labels, and exchanges shapes for better ones while that helps: never worse than its starts.

    Args:
      lengths: real length of each example, in time steps.
      label_lengths: label length of each example.
      num_shapes: most shapes, at least 1.
      label_weight: what a padded label costs beside a padded time step, at least 0.
      multiple_of: each padded length is a multiple of this.
      label_multiple_of: each padded label length is a multiple of this.
      counts: how often each entry of `lengths` and `label_lengths` occurs.

    Returns:
      The shapes, cheapest first, no one of them within another that comes before it.

    Raises:
      TypeError: lengths that are not integers.
      ValueError: arrays of different sizes, or an argument that is too small.

    >>> cheapest_pairs([4, 8, 8], [2, 2, 6], num_shapes=2, counts=[10, 1, 1])
    array([[4, 2],
           [8, 6]])
    """
    cuts.at_least_one(num_shapes, "num_shapes")
    if not (math.isfinite(label_weight) and label_weight >= 0):
        raise ValueError(f"label_weight must be a number, at least 0; got {label_weight}")
    pairs, weights = _padded_pairs(lengths, label_lengths, counts, multiple_of, label_multiple_of)
    prices = np.array([1.0, float(label_weight)])
    grid = _corners(pairs) if len(pairs) <= _MOST_PAIRS else pairs
    size = min(num_shapes, len(grid))
    if len(pairs) <= _MOST_PAIRS and math.comb(len(grid), size) <= _MOST_SETS:
        found = _best_of_all(pairs, weights, grid, size, prices)
    else:
        starts = [_chain(pairs, weights, num_shapes)]
        for split in range(1, num_shapes + 1):
            starts.append(_product(pairs, weights, split, num_shapes // split))
        costs = [_total(shapes, pairs, weights, prices) for shapes in starts]
        best = starts[int(np.argmin(costs))]
        found = _exchanged(best, pairs, weights, num_shapes, prices)
    return _tidy(found, pairs, prices)


def product_pairs(
    lengths: ArrayLike, label_lengths: ArrayLike, *, num_lengths: int, num_label_lengths: int
) -> Shapes:
    """Each of the optimal lengths with each of the optimal label lengths, less those not needed.

    >>> product_pairs([9, 9, 2, 2], [1, 1, 8, 8], num_lengths=2, num_label_lengths=2)
    array([[2, 8],
           [9, 1]])
    """
    pairs, weights = _padded_pairs(lengths, label_lengths, None, 1, 1)
    return _product(pairs, weights, num_lengths, num_label_lengths)


def holds(shapes: Shapes, pairs: Pairs) -> Bool[np.ndarray, "_ pair"]:
    """Which shape holds which (length, label length).

    >>> holds(np.array([[9, 1], [2, 8]]), np.array([[2, 1], [9, 2]]))
    array([[ True, False],
           [ True, False]])
    """
    return (shapes[:, None, 0] >= pairs[None, :, 0]) & (shapes[:, None, 1] >= pairs[None, :, 1])


def _padded_pairs(
    lengths: ArrayLike,
    label_lengths: ArrayLike,
    counts: ArrayLike | None,
    multiple_of: int,
    label_multiple_of: int,
) -> tuple[Pairs, Int[np.ndarray, " pair"]]:
    cuts.histogram(lengths, counts=counts)  # for its errors
    lengths = cuts.as_lengths(lengths)
    label_lengths = cuts.as_lengths(label_lengths, "label_lengths")
    if lengths.shape != label_lengths.shape:
        raise ValueError(
            f"{len(label_lengths)} label lengths for {len(lengths)} lengths; give one each"
        )
    times = np.ones(len(lengths), np.int64) if counts is None else np.asarray(counts, np.int64)
    cuts.at_least_one(multiple_of, "multiple_of")
    cuts.at_least_one(label_multiple_of, "label_multiple_of")
    both = np.stack(
        [
            cuts.round_up(lengths.astype(np.int64), multiple_of),
            cuts.round_up(label_lengths.astype(np.int64), label_multiple_of),
        ],
        axis=1,
    )[times > 0]
    pairs, where = np.unique(both, axis=0, return_inverse=True)
    weights = np.zeros(len(pairs), np.int64)
    np.add.at(weights, where.reshape(-1), times[times > 0])
    return pairs, weights


def _corners(pairs: Pairs) -> Shapes:
    """The bounding boxes that a best shape may be: every length there is with every label."""
    every = itertools.product(np.unique(pairs[:, 0]), np.unique(pairs[:, 1]))
    grid = np.array(list(every))
    # A box is tight: it holds an example of its length, and one of its label length.
    inside = holds(grid, pairs)
    tight = [
        (inside & (pairs[None, :, axis] == grid[:, None, axis])).any(axis=1) for axis in (0, 1)
    ]
    return grid[tight[0] & tight[1]]


def _each(shapes: Shapes, pairs: Pairs, prices: Float[np.ndarray, " 2"]) -> np.ndarray:
    """What every example costs in the cheapest of the shapes; infinite where none holds it."""
    cost = np.where(holds(shapes, pairs), (shapes @ prices)[:, None], np.inf)
    return cost.min(axis=0)


def _total(
    shapes: Shapes,
    pairs: Pairs,
    weights: Int[np.ndarray, " pair"],
    prices: Float[np.ndarray, " 2"],
) -> float:
    return float(_each(shapes, pairs, prices) @ weights)


def _best_of_all(
    pairs: Pairs,
    weights: Int[np.ndarray, " pair"],
    grid: Shapes,
    size: int,
    prices: Float[np.ndarray, " 2"],
) -> Shapes:
    cost = np.where(holds(grid, pairs), (grid @ prices)[:, None], np.inf)
    sets = np.array(list(itertools.combinations(range(len(grid)), size)))
    least = np.full((len(sets), len(pairs)), np.inf)
    for column in range(size):
        np.minimum(least, cost[sets[:, column]], out=least)
    return grid[sets[int(np.argmin(least @ weights))]]


def _chain(pairs: Pairs, weights: Int[np.ndarray, " pair"], num_shapes: int) -> Shapes:
    boundaries = cuts.optimal(pairs[:, 0], num_buckets=num_shapes, counts=weights)
    labels = np.ones(len(boundaries), np.int64)
    np.maximum.at(labels, cuts.assign(pairs[:, 0], boundaries), pairs[:, 1])
    return np.stack([boundaries, np.maximum.accumulate(labels)], axis=1)


def _product(
    pairs: Pairs, weights: Int[np.ndarray, " pair"], num_lengths: int, num_label_lengths: int
) -> Shapes:
    lengths = cuts.optimal(pairs[:, 0], num_buckets=num_lengths, counts=weights)
    labels = cuts.optimal(pairs[:, 1], num_buckets=num_label_lengths, counts=weights)
    return np.unique(
        np.stack(
            [
                lengths[cuts.assign(pairs[:, 0], lengths)],
                labels[cuts.assign(pairs[:, 1], labels)],
            ],
            axis=1,
        ),
        axis=0,
    )


def _exchanged(
    start: Shapes,
    pairs: Pairs,
    weights: Int[np.ndarray, " pair"],
    num_shapes: int,
    prices: Float[np.ndarray, " 2"],
) -> Shapes:
    """`start`, with shapes exchanged for better ones for as long as that helps."""
    coarse, mass = _coarse(pairs, weights, _EXAMPLE_GRID)
    offered = _coarse(pairs, weights, _SHAPE_GRID)[0]
    sides = [np.unique(offered[:, axis]) for axis in (0, 1)]
    grid = np.array(list(itertools.product(*sides)))
    grid = grid[holds(grid, coarse).any(axis=1)]
    inside, price = holds(grid, coarse), grid @ prices

    def grow(shapes: Shapes) -> Shapes:
        """With the shapes added that save most, up to the number allowed."""
        while len(shapes) < num_shapes:
            now = np.minimum(_each(shapes, coarse, prices), 1e300)
            saved = np.where(inside, np.maximum(now[None, :] - price[:, None], 0.0), 0.0) @ mass
            if not saved.max() > 0:
                break
            shapes = np.concatenate([shapes, grid[[int(saved.argmax())]]])
        return shapes

    def shrunk(shapes: Shapes) -> Shapes:
        return _tidy(shapes, coarse, prices)

    # The start covers the finer pairs; on the coarse ones its shapes are rounded up likewise.
    best = shrunk(grow(_on_grid(start, coarse)))
    least = _total(best, coarse, mass, prices)
    improved = True
    while improved:
        improved = False
        for number in range(len(best)):
            rest = np.delete(best, number, axis=0)
            if not len(rest):
                continue
            tried = shrunk(grow(rest))
            total = _total(tried, coarse, mass, prices)
            if total < least * (1 - 1e-9):
                best, least, improved = tried, total, True
                break
    fine = _tidy(best, pairs, prices)
    better = _total(fine, pairs, weights, prices) < _total(start, pairs, weights, prices)
    return fine if better else start


def _coarse(
    pairs: Pairs, weights: Int[np.ndarray, " pair"], side: int
) -> tuple[Int[np.ndarray, "coarse 2"], Int[np.ndarray, " coarse"]]:
    """The pairs rounded up to a grid of at most `side` lengths and `side` label lengths."""
    rounded = []
    for axis in (0, 1):
        grid = cuts.optimal(pairs[:, axis], num_buckets=side, counts=weights)
        rounded.append(grid[cuts.assign(pairs[:, axis], grid)])
    coarse, where = np.unique(np.stack(rounded, axis=1), axis=0, return_inverse=True)
    mass = np.zeros(len(coarse), np.int64)
    np.add.at(mass, where.reshape(-1), weights)
    return coarse, mass


def _on_grid(shapes: Shapes, coarse: Pairs) -> Shapes:
    columns = []
    for axis in (0, 1):
        side = np.unique(coarse[:, axis])
        where = np.minimum(np.searchsorted(side, shapes[:, axis]), len(side) - 1)
        columns.append(side[where])
    return np.unique(np.stack(columns, axis=1), axis=0)


def _tidy(shapes: Shapes, pairs: Pairs, prices: Float[np.ndarray, " 2"]) -> Shapes:
    """Each shape as small as its own examples allow, the unused ones left out, cheapest first."""
    for _ in range(len(shapes) + 1):
        order = np.lexsort((shapes[:, 0], shapes @ prices))
        shapes = shapes[order]
        inside = holds(shapes, pairs)
        owner = np.where(inside.any(axis=0), inside.argmax(axis=0), -1)
        boxes = [pairs[owner == number].max(axis=0) for number in np.unique(owner[owner >= 0])]
        smaller = np.unique(np.array(boxes), axis=0)
        smaller = smaller[np.lexsort((smaller[:, 0], smaller @ prices))]
        if np.array_equal(smaller, shapes):
            break
        shapes = smaller
    # Of equal price (a label weight of 0), one may lie within an earlier one.
    kept: list[int] = []
    for number, shape in enumerate(shapes):
        if not any((shapes[other] >= shape).all() for other in kept):
            kept.append(number)
    return shapes[kept]
