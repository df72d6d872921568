"""Alphabets: every label of the training set survives; what is unknown is counted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax.ink import Alphabet

texts = st.lists(st.text(max_size=12), min_size=1, max_size=6).filter(any)


@given(texts)
def test_labels_of_the_training_set_round_trip(labels):
    alphabet = Alphabet.from_labels(labels)
    assert alphabet.num_classes == len(set("".join(labels))) + 1
    for label in labels:
        classes, unknown = alphabet.encode(label)
        assert unknown == 0
        assert alphabet.decode(classes) == label
        assert all(0 < number < alphabet.num_classes for number in classes)


@given(texts, st.text(max_size=12))
def test_unknown_characters_are_left_out_and_counted(labels, other):
    alphabet = Alphabet.from_labels(labels)
    classes, unknown = alphabet.encode(other)
    known = [character for character in other if character in alphabet.characters]
    assert alphabet.decode(classes) == "".join(known)
    assert unknown == len(other) - len(known)


@given(texts)
def test_json_round_trips_whatever_the_characters(labels):
    alphabet = Alphabet.from_labels(labels)
    assert Alphabet.from_json(alphabet.to_json()) == alphabet


def test_the_order_does_not_depend_on_that_of_the_labels():
    assert Alphabet.from_labels(["éa", "b"]) == Alphabet.from_labels(["b", "aé"])


@pytest.mark.parametrize(
    ("characters", "message"),
    [
        ((), "an alphabet needs at least one character; the labels were empty"),
        (("a", "a"), "a character occurs twice in the alphabet"),
        (("ab",), "'ab' is not one character"),
    ],
)
def test_alphabets_that_cannot_be(characters, message):
    with pytest.raises(ValueError, match=message):
        Alphabet(characters)


@pytest.mark.parametrize("number", [0, 3, -1])
def test_a_class_that_is_no_character(number):
    with pytest.raises(ValueError, match=f"class {number} is no character; they are 1 to 2"):
        Alphabet(("a", "b")).decode([1, number])
