"""From frame-wise classes to labels, and how wrong they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Integer

__all__ = ["collapse", "edit_distance", "label_errors"]


def collapse(
    classes: Integer[np.ndarray, " time"], *, blank_id: int = 0
) -> Integer[np.ndarray, " label"]:
    """The label that a path of classes spells: repeats merged, then blanks dropped.

    Applied to the likeliest class of each frame this is greedy decoding (Graves et al. 2006,
    section 3.2, "best path decoding").

    >>> collapse(np.array([0, 3, 3, 0, 3, 5, 5])).tolist()
    [3, 3, 5]
    """
    starts = np.ones(len(classes), bool)
    starts[1:] = classes[1:] != classes[:-1]
    return classes[starts & (classes != blank_id)]


def edit_distance(
    first: Sequence[int] | Integer[np.ndarray, " first"],
    second: Sequence[int] | Integer[np.ndarray, " second"],
) -> int:
    """The fewest insertions, deletions and substitutions between two labels (Levenshtein 1966).

    >>> edit_distance([1, 2, 3], [2, 3, 4])
    2
    """
    a, b = np.asarray(first), np.asarray(second)
    place = np.arange(len(b) + 1)
    row = place
    for number, entry in enumerate(a.tolist(), 1):
        # Without insertions, the best of a deletion and a substitution ...
        best = np.concatenate([[number], np.minimum(row[1:] + 1, row[:-1] + (b != entry))])
        # ... and an insertion costs 1 per place: a running minimum takes all of them at once.
        row = np.minimum.accumulate(best - place) + place
    return int(row[-1])


def label_errors(
    predicted: Iterable[Sequence[int] | Integer[np.ndarray, " _"]],
    truth: Iterable[Sequence[int] | Integer[np.ndarray, " _"]],
) -> tuple[int, int]:
    """(summed edit distance, summed label length): their ratio is the label error rate.

    They are sums so that batches and processes can be added up before the one division.

    >>> label_errors([[1, 2], [3]], [[1, 2, 2], [4]])
    (2, 4)
    """
    edits = length = 0
    for one, other in zip(predicted, truth, strict=True):
        edits += edit_distance(one, other)
        length += len(other)
    return edits, length
