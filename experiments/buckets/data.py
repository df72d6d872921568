"""The examples of a comparison, the same for every arm: what was read and what was left out."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bucketjax.ink import Alphabet, InkSource, load, make_source
from experiments.buckets.config import Config

# What --max-examples leaves of the validation set, as a share of the training examples.
_VALIDATION_SHARE = 4


@dataclasses.dataclass(frozen=True)
class Data:
    """Training and validation examples, the alphabet, and counts of what was left out."""

    train: InkSource
    validation: InkSource
    alphabet: Alphabet
    facts: dict[str, Any]


def read_data(config: Config) -> Data:
    """Reads the data set of the config, makes features, and leaves out the longest.

    Raises:
      ValueError: fewer than 8 training examples or none to validate on.
    """
    train_inks, validation_inks = load(
        config.dataset,
        config.data_dir,
        seed=config.seed,
        validation_fraction=config.validation_fraction,
        num_lines=config.num_lines,
    )
    if config.max_examples is not None:
        train_inks = _some(train_inks, config.max_examples, config.seed)
        few = max(config.max_examples // _VALIDATION_SHARE, 1)
        validation_inks = _some(validation_inks, few, config.seed)
    alphabet = Alphabet.from_labels(ink.label for ink in train_inks)
    train = make_source(train_inks, alphabet, resample=config.resample)
    validation = make_source(validation_inks, alphabet, resample=config.resample)
    kept = _without_longest(train, config.drop_longest)
    # What is longer than anything trained on has no bucket: it is counted, and left out alike in
    # every arm.
    fits = (validation.lengths <= kept.lengths.max()) & (
        validation.label_lengths <= kept.label_lengths.max()
    )
    if len(kept) < 8 or not fits.any():
        raise ValueError(
            f"{len(kept)} training and {int(fits.sum())} validation examples are too few; use more "
            "of the data"
        )
    facts = {
        "name": config.dataset,
        "train_examples": len(kept),
        "validation_examples": int(fits.sum()),
        "train_writers": len({ink.writer for ink in train_inks}),
        "validation_writers": len({ink.writer for ink in validation_inks}),
        "longest_dropped": len(train) - len(kept),
        "validation_too_long": int((~fits).sum()),
        "unknown_characters": validation.unknown_characters,
        "num_classes": alphabet.num_classes,
        "mean_length": float(kept.lengths.mean()),
        "longest_length": int(kept.lengths.max()),
    }
    return Data(kept, validation.select(np.flatnonzero(fits)), alphabet, facts)


def _some(inks: list[Any], count: int, seed: int) -> list[Any]:
    keys = np.random.Philox(np.random.SeedSequence(seed)).random_raw(len(inks))
    return [inks[index] for index in np.sort(np.argsort(keys, kind="stable")[:count])]


def _without_longest(source: InkSource, share: float) -> InkSource:
    lengths = source.lengths
    order = np.argsort(lengths, kind="stable")
    return source.select(np.sort(order[: len(order) - int(share * len(order))]))
