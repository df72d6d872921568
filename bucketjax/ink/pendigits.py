"""Digit strings from pendigits: one writer's digits, joined in the order of the session.

The strokes are real; the layout is composed: the data set has single digits, each written in a
box of its own. Source: E. Alpaydin, F. Alimoglu 1998, UCI data set 81 (doi 10.24432/C5MG6K), the
files `pendigits-orig.tra` (30 writers) and `pendigits-orig.tes` (14 other writers).
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bucketjax.ink.ink import Ink
from bucketjax.ink.unipen import UnipenError, statements

__all__ = ["read_digit_strings"]

_FILES = {"train": "pendigits-orig.tra", "test": "pendigits-orig.tes"}
_LONGEST = 20


class _Digit(NamedTuple):
    label: str
    writer: int
    place: int
    strokes: list[np.ndarray]


def read_digit_strings(
    folder: Path, *, split: Literal["train", "test"], seed: int = 0
) -> list[Ink]:
    """Strings of 1 to 20 digits, each digit of the data set in exactly one of them.

    A string is a run of one writer's digits in session order, its length drawn from a geometric
    distribution of mean 4.5 or so, so that most are short and a few long. Digits keep their size
    and stand side by side, a third of a digit's height apart.

    Args:
      folder: holds the file of the split.
      split: "train" or "test"; their writers are disjoint.
      seed: of the strings' lengths.

    Raises:
      FileNotFoundError: the file is not there; says where it comes from.
      UnipenError: a broken file, with its line.
    """
    if split not in _FILES:
        raise ValueError(f"unknown split {split!r}; choose train or test")
    path = Path(folder) / _FILES[split]
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: it is part of the UCI data set 81, pendigits-orig "
            "(doi 10.24432/C5MG6K)"
        )
    by_writer = defaultdict(list)
    for digit in _read(path):
        by_writer[digit.writer].append(digit)
    rng = np.random.default_rng(seed)
    inks = []
    for writer, digits in sorted(by_writer.items()):
        digits.sort(key=lambda digit: digit.place)
        start = 0
        while start < len(digits):
            length = min(int(rng.geometric(0.22)), _LONGEST)
            inks.append(_join(digits[start : start + length], f"{split}/{writer}"))
            start += length
    return inks


def _read(path: Path) -> list[_Digit]:
    digits = []
    for keyword, body, line in statements(path.read_text(encoding="latin-1")):
        if keyword == "COMMENT":
            fields = body.split()
            if len(fields) != 3 or not all(field.isdigit() for field in fields):
                raise UnipenError(f"{path}:{line}: expected .COMMENT DIGIT WRITER PLACE; {body!r}")
            digits.append(_Digit(fields[0], int(fields[1]), int(fields[2]), []))
        elif keyword == "PEN_DOWN":
            try:
                points = np.array(body.split(), np.float64).reshape(-1, 2)
            except ValueError as error:
                raise UnipenError(f"{path}:{line}: expected rows of X Y ({error})") from error
            if not digits or not len(points):
                raise UnipenError(f"{path}:{line}: a stroke without points or without a digit")
            digits[-1].strokes.append(points)
    return digits


def _join(digits: list[_Digit], writer: str) -> Ink:
    gap = np.mean([np.ptp(np.concatenate(digit.strokes)[:, 1]) for digit in digits]) / 3
    right, strokes = 0.0, []
    for digit in digits:
        every = np.concatenate(digit.strokes)
        low, high = every.min(axis=0), every.max(axis=0)
        shift = np.array([right - low[0], -(low[1] + high[1]) / 2])
        strokes += [stroke + shift for stroke in digit.strokes]
        right += high[0] - low[0] + gap
    return Ink(tuple(strokes), "".join(digit.label for digit in digits), writer)
