"""Data sets by name: no writer on both sides, labels encoded, nothing lost."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax.ink import Alphabet, load, make_source
from bucketjax.ink.splits import hold_out_writers


@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=60).filter(
        lambda w: len(set(w)) > 1
    ),
    st.floats(0.05, 0.95),
    st.integers(0, 99),
)
def test_held_out_writers_are_on_one_side_only_and_no_example_is_lost(writers, fraction, seed):
    train, validation = hold_out_writers(writers, fraction=fraction, seed=seed)
    assert sorted([*train, *validation]) == list(range(len(writers)))
    assert not {writers[i] for i in train} & {writers[i] for i in validation}
    assert len(validation) > 0
    again = hold_out_writers(writers, fraction=fraction, seed=seed)
    assert np.array_equal(validation, again[1])


@given(st.integers(0, 99))
def test_about_the_fraction_is_held_out(seed):
    writers = [f"w{number % 50}" for number in range(1000)]
    _, validation = hold_out_writers(writers, fraction=0.2, seed=seed)
    assert len(validation) == 200


def test_splits_that_cannot_be():
    with pytest.raises(ValueError, match="needs at least 2; there are 1"):
        hold_out_writers(["a", "a"], fraction=0.5, seed=0)
    with pytest.raises(ValueError, match="fraction must be between 0 and 1; got 1"):
        hold_out_writers(["a", "b"], fraction=1.0, seed=0)


@pytest.mark.parametrize("name", ["synthetic", "pendigits-strings", "unipen-lines"])
def test_every_data_set_loads(name, request):
    folder = None
    if name != "synthetic":
        folder = request.getfixturevalue("data_dir") / name.split("-")[0]
    train, validation = load(name, folder, num_lines=100)
    assert not {ink.writer for ink in train} & {ink.writer for ink in validation}
    alphabet = Alphabet.from_labels(ink.label for ink in train)
    source = make_source(train[:20], alphabet)
    assert source.unknown_characters == 0
    assert source.label_lengths.tolist() == [len(ink.label) for ink in train[:20]]
    for index, ink in enumerate(train[:20]):
        assert alphabet.decode(source[index]["labels"]) == ink.label
        assert len(source[index]["features"]) == source.lengths[index]


def test_unknown_characters_are_counted():
    train, _ = load("synthetic", None, num_lines=50)
    source = make_source(train, Alphabet(("a", "e")))
    letters = "".join(ink.label for ink in train)
    assert source.unknown_characters == len(letters) - letters.count("a") - letters.count("e")


def test_select_keeps_the_order_that_is_asked_for():
    train, _ = load("synthetic", None, num_lines=30)
    source = make_source(train, Alphabet.from_labels(ink.label for ink in train))
    chosen = source.select(np.array([3, 1]))
    assert len(chosen) == 2
    assert chosen[0]["features"] is source[3]["features"]


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(ValueError, match="unknown data set 'iam'; choose one of synthetic, unipen"):
        load("iam", None)
    with pytest.raises(ValueError, match="'unipen-words' needs the folder of its files"):
        load("unipen-words", None)
