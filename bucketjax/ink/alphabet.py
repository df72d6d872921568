"""The alphabet: which characters a model knows, and their class numbers."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

import numpy as np
from jaxtyping import Int32, Integer

__all__ = ["Alphabet"]


@dataclasses.dataclass(frozen=True)
class Alphabet:
    """Characters in the order of their classes: character k is class k + 1, the blank is 0.

    Attributes:
      characters: each once, sorted by code point.

    Raises:
      ValueError: no characters, one that occurs twice, or an entry that is not one character.

    >>> alphabet = Alphabet.from_labels(["cab", "bad"])
    >>> alphabet.encode("dab?")
    (array([4, 1, 2], dtype=int32), 1)
    >>> alphabet.decode([4, 1, 2])
    'dab'
    """

    characters: tuple[str, ...]

    blank_id = 0

    def __post_init__(self) -> None:
        if not self.characters:
            raise ValueError("an alphabet needs at least one character; the labels were empty")
        wrong = [entry for entry in self.characters if len(entry) != 1]
        if wrong:
            raise ValueError(f"{wrong[0]!r} is not one character")
        if len(set(self.characters)) != len(self.characters):
            raise ValueError("a character occurs twice in the alphabet")

    @classmethod
    def from_labels(cls, labels: Iterable[str]) -> Alphabet:
        """The characters that occur in the labels of a training set."""
        return cls(tuple(sorted(set().union(*labels))))

    @property
    def num_classes(self) -> int:
        """Characters and the blank."""
        return len(self.characters) + 1

    def encode(self, text: str) -> tuple[Int32[np.ndarray, " label"], int]:
        """The classes of the text's known characters, and how many were unknown and left out."""
        classes = self._classes
        known = [classes[character] for character in text if character in classes]
        return np.array(known, np.int32), len(text) - len(known)

    def decode(self, classes: Iterable[int] | Integer[np.ndarray, " label"]) -> str:
        """The text of classes without blanks.

        Raises:
          ValueError: a class that is the blank or beyond the alphabet.
        """
        classes = [int(number) for number in classes]
        for number in classes:
            if not 1 <= number < self.num_classes:
                raise ValueError(
                    f"class {number} is no character; they are 1 to {self.num_classes - 1} "
                    "(collapse the path first)"
                )
        return "".join(self.characters[number - 1] for number in classes)

    def to_json(self) -> str:
        """The characters as JSON."""
        return json.dumps(list(self.characters), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Alphabet:
        """The alphabet that `to_json` wrote.

        >>> Alphabet.from_json(Alphabet(("a", "é")).to_json()).characters
        ('a', 'é')
        """
        return cls(tuple(json.loads(text)))

    @property
    def _classes(self) -> dict[str, int]:
        return {character: number for number, character in enumerate(self.characters, 1)}
