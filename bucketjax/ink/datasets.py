"""Ink data sets by name, and the recogniser's examples made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float32, Int, Int32

from bucketjax.ink.alphabet import Alphabet
from bucketjax.ink.features import extract
from bucketjax.ink.ink import Ink
from bucketjax.ink.pendigits import read_digit_strings
from bucketjax.ink.splits import hold_out_writers
from bucketjax.ink.synthetic import write_lines
from bucketjax.ink.unipen import read_unipen

__all__ = ["DATASETS", "InkSource", "load", "make_source"]

DATASETS = ("synthetic", "unipen-words", "unipen-lines", "pendigits-strings")


@dataclasses.dataclass(frozen=True, eq=False)
class InkSource:
    """Features and encoded labels of inks: a source for `loading.Loader`.

    Attributes:
      features: `[time channels]` of each example.
      labels: classes of each example's label.
      unknown_characters: how many characters of the labels the alphabet does not have.
    """

    features: Sequence[Float32[np.ndarray, "_ channels"]]
    labels: Sequence[Int32[np.ndarray, " _"]]
    unknown_characters: int

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"features": self.features[index], "labels": self.labels[index]}

    @property
    def lengths(self) -> Int[np.ndarray, " example"]:
        """Frames of each example."""
        return np.array([len(frames) for frames in self.features], np.int64)

    @property
    def label_lengths(self) -> Int[np.ndarray, " example"]:
        """Characters of each example's label that the alphabet has."""
        return np.array([len(label) for label in self.labels], np.int64)

    def select(self, indices: Int[np.ndarray, " chosen"]) -> InkSource:
        """The examples with these numbers, in their order."""
        return InkSource(
            [self.features[index] for index in indices],
            [self.labels[index] for index in indices],
            self.unknown_characters,
        )


def load(
    name: str,
    folder: Path | None,
    *,
    seed: int = 0,
    validation_fraction: float = 0.15,
    num_lines: int = 2000,
) -> tuple[list[Ink], list[Ink]]:
    """The inks of a data set for training and for validation, without a writer in both.

    Args:
      name: one of `DATASETS`.
      folder: where its files are; None for "synthetic".
      seed: of the synthetic ink, of the digit strings' lengths, and of the writers held out.
      validation_fraction: share of the examples to hold out; pendigits has a split of its own.
      num_lines: lines of synthetic ink.

    Raises:
      ValueError: an unknown name, or no folder.
      FileNotFoundError: a folder without the data set; says where that comes from.
    """
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; choose one of {', '.join(DATASETS)}")
    if name == "synthetic":
        inks = write_lines(num_lines, seed=seed)
    elif folder is None:
        raise ValueError(f"the data set {name!r} needs the folder of its files")
    elif name == "pendigits-strings":
        return (
            read_digit_strings(folder, split="train", seed=seed),
            read_digit_strings(folder, split="test", seed=seed),
        )
    else:
        category = "words" if name == "unipen-words" else "lines"
        inks, _ = read_unipen(folder, category=category)
    train, validation = hold_out_writers(
        [ink.writer for ink in inks], fraction=validation_fraction, seed=seed
    )
    return [inks[index] for index in train], [inks[index] for index in validation]


def make_source(inks: Sequence[Ink], alphabet: Alphabet, *, resample: float = 0.05) -> InkSource:
    """Features and encoded labels of every ink; unknown characters are counted and left out.

    >>> inks = write_lines(2, seed=0)
    >>> source = make_source(inks, Alphabet.from_labels(ink.label for ink in inks))
    >>> len(source), source[0]["features"].shape[1]
    (2, 7)
    """
    encoded = [alphabet.encode(ink.label) for ink in inks]
    return InkSource(
        [extract(ink, resample=resample) for ink in inks],
        [label for label, _ in encoded],
        sum(unknown for _, unknown in encoded),
    )
