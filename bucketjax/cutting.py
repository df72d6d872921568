"""The two searches behind the optimum: how to cut a sorted row of lengths into buckets.

Both are dynamic programs over the distinct lengths. `cheapest_cuts` is fast and is for padding
alone. `cheapest_batches` also knows that a bucket is run in whole batches and that a shape costs
something by itself; there the fast way would be wrong, and so it looks at every cut.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int

__all__ = ["cheapest_batches", "cheapest_cuts"]


def cheapest_cuts(
    padded: Int[np.ndarray, " distinct"],
    num_examples: Int[np.ndarray, " distinct"],
    most_cuts: int,
    kept: Bool[np.ndarray, " distinct"],
) -> list[Int[np.ndarray, " _cut"]]:
    """For every number of buckets from 1 to `most_cuts`: the cuts of least padded total.

    A bucket that holds the distinct lengths i..j-1 costs padded[j - 1] * (below[j] - below[i]).
    That satisfies the quadrangle inequality, so the best cut moves monotonically and each layer
    is solved by divide and conquer (Yao 1980, "Efficient dynamic programming using quadrangle
    inequalities"), level by level in NumPy: O(most_cuts * distinct * log distinct).

    Args:
      padded: distinct padded lengths, increasing.
      num_examples: how many examples have each.
      most_cuts: most buckets, no more than there are distinct lengths.
      kept: which of them must end a bucket.

    Returns:
      For each number of buckets the last distinct length of each; empty where there is no such
      plan, because more lengths must be kept.

    >>> five = np.array([3, 4, 5, 7, 8])
    >>> cheapest_cuts(five, np.array([2, 1, 3, 1, 2]), 3, np.zeros(5, bool))
    [array([4]), array([2, 4]), array([0, 2, 4])]
    """
    distinct = len(padded)
    below = np.concatenate([[0], np.cumsum(num_examples)])
    height = np.concatenate([[0], padded])
    # A bucket that runs across a kept length costs more than any plan that does not. The number
    # of kept lengths within is a difference of two sums, which leaves the inequality as it was.
    crossed = np.concatenate([[0], np.cumsum(kept)])
    fine = int(padded[-1]) * int(below[-1]) + 1 if kept[:-1].any() else 0
    within = np.concatenate([[0], crossed[:-1]]) * fine
    before = crossed * fine
    # best[j] is the least padded total of the first j distinct lengths.
    best = height * below + within
    layers = []
    for layer in range(2, most_cuts + 1):
        cut = np.zeros(distinct + 1, np.int32)
        lower = np.full(distinct + 1, -1, np.int64)
        # Ranges of j still to solve, each with the range its best i must lie in.
        first, last = np.array([layer]), np.array([distinct])
        least, most = np.array([layer - 1]), np.array([distinct - 1])
        while len(first):
            middle = (first + last) // 2
            many = np.minimum(most, middle - 1) - least + 1
            start = np.cumsum(many) - many
            candidate = np.arange(int(many.sum())) + np.repeat(least - start, many)
            cost = (best[candidate] - before[candidate]) + (
                np.repeat(height[middle], many)
                * (np.repeat(below[middle], many) - below[candidate])
                + np.repeat(within[middle], many)
            )
            cheapest = np.minimum.reduceat(cost, start)
            hits = np.flatnonzero(cost == np.repeat(cheapest, many))
            chosen = candidate[hits[np.searchsorted(hits, start)]]
            lower[middle], cut[middle] = cheapest, chosen
            left, right = first < middle, middle < last
            first, last = (
                np.concatenate([first[left], middle[right] + 1]),
                np.concatenate([middle[left] - 1, last[right]]),
            )
            least, most = (
                np.concatenate([least[left], chosen[right]]),
                np.concatenate([chosen[left], most[right]]),
            )
        best = lower
        layers.append(cut)
    fewest = int(kept[:-1].sum()) + 1
    cuts = []
    for count in range(1, most_cuts + 1):
        ends = [distinct] if count >= fewest else []
        while ends and len(ends) < count:
            ends.append(int(layers[count - len(ends) - 1][ends[-1]]))
        cuts.append(np.array(ends[::-1], np.int64) - 1)
    return cuts


def cheapest_batches(
    num_examples: Int[np.ndarray, " distinct"],
    rows: Int[np.ndarray, " distinct"],
    step_price: Float[np.ndarray, " distinct"],
    shape_price: Float[np.ndarray, " distinct"],
    most_cuts: int,
    kept: Bool[np.ndarray, " distinct"],
) -> tuple[Float[np.ndarray, " count"], list[Int[np.ndarray, " _cut"]]]:
    """For every number of buckets from 1 to `most_cuts`: the least total, and its cuts.

    A bucket that ends at distinct length j costs `shape_price[j]`, and `step_price[j]` for each
    batch of `rows[j]` examples or part of one. Rounding up to whole batches breaks the quadrangle
    inequality, so every cut is looked at: O(most_cuts * distinct^2), about a second for 4,000
    distinct lengths and 32 buckets.

    Args:
      num_examples: how many examples have each distinct (increasing) length.
      rows: batch size of a bucket that ends there.
      step_price: what one of its batches costs.
      shape_price: what it costs that there is such a bucket.
      most_cuts: most buckets.
      kept: which lengths must end a bucket.

    Returns:
      Totals, infinite where there is no such plan, and for each the last distinct length of each
      bucket (empty where there is no plan).

    >>> ones = np.ones(3)
    >>> totals, cuts = cheapest_batches(
    ...     np.array([3, 1, 4]), np.array([4, 4, 4]), np.array([5.0, 6, 9]), ones, 3, ones > 1
    ... )
    >>> totals, cuts[1]
    (array([19., 17., 23.]), array([1, 2]))
    """
    distinct = len(num_examples)
    below = np.concatenate([[0], np.cumsum(num_examples)])
    best = np.full((most_cuts + 1, distinct + 1), np.inf)
    best[0, 0] = 0.0
    came_from = np.zeros((most_cuts + 1, distinct + 1), np.int32)
    earliest = 0  # a bucket must not begin before the last kept length below its end
    for end in range(1, distinct + 1):
        steps = -(-(below[end] - below[earliest:end]) // rows[end - 1])
        cost = steps * step_price[end - 1] + shape_price[end - 1]
        total = best[:-1, earliest:end] + cost
        start = total.argmin(axis=1)
        best[1:, end] = total[np.arange(most_cuts), start]
        came_from[1:, end] = start + earliest
        if kept[end - 1]:
            earliest = end
    cuts = []
    for count in range(1, most_cuts + 1):
        ends = [distinct] if np.isfinite(best[count, distinct]) else []
        while ends and len(ends) < count:
            ends.append(int(came_from[count - len(ends) + 1, ends[-1]]))
        cuts.append(np.array(ends[::-1], np.int64) - 1)
    return best[1:, distinct], cuts
