"""Online handwriting: types, readers, features, alphabets. Needs the extra `handwriting`."""

from bucketjax.ink.alphabet import Alphabet
from bucketjax.ink.datasets import DATASETS, InkSource, load, make_source
from bucketjax.ink.features import FEATURE_NAMES, extract
from bucketjax.ink.ink import Ink

__all__ = [
    "DATASETS",
    "FEATURE_NAMES",
    "Alphabet",
    "Ink",
    "InkSource",
    "extract",
    "load",
    "make_source",
]
