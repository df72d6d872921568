"""Digit strings: every real digit once, in the order in which its writer wrote."""

import numpy as np
import pytest

from bucketjax.ink.pendigits import read_digit_strings
from bucketjax.ink.unipen import UnipenError


@pytest.mark.parametrize(("split", "digits", "writers"), [("train", 7494, 30), ("test", 3498, 14)])
def test_every_real_digit_is_in_exactly_one_string(data_dir, split, digits, writers):
    strings = read_digit_strings(data_dir / "pendigits", split=split)
    assert sum(len(ink.label) for ink in strings) == digits
    assert len({ink.writer for ink in strings}) == writers
    lengths = [len(ink.label) for ink in strings]
    assert (min(lengths), max(lengths)) == (1, 20)
    assert 3 < np.mean(lengths) < 6
    assert "".join(sorted(set("".join(ink.label for ink in strings)))) == "0123456789"


def test_the_splits_share_no_writer_and_the_seed_decides(data_dir):
    folder = data_dir / "pendigits"
    train, test = (read_digit_strings(folder, split=split) for split in ("train", "test"))
    assert not {ink.writer for ink in train} & {ink.writer for ink in test}
    again = read_digit_strings(folder, split="test")
    other = read_digit_strings(folder, split="test", seed=1)
    assert [ink.label for ink in again] == [ink.label for ink in test]
    assert [ink.label for ink in other] != [ink.label for ink in test]


def write(folder, *digits):
    text = "".join(
        f'.SEGMENT DIGIT {n} ? "{label}"\n.COMMENT {label} {writer} {place}\n.PEN_DOWN\n'
        f"{x} 0\n{x} 30\n.PEN_UP\n.DT 100\n"
        for n, (label, writer, place, x) in enumerate(digits)
    )
    (folder / "pendigits-orig.tra").write_text(text)


def test_digits_stand_in_session_order_from_left_to_right(tmp_path):
    write(tmp_path, (7, 3, 2, 400), (4, 3, 0, 100), (1, 3, 1, 900), (9, 8, 0, 5))
    strings = read_digit_strings(tmp_path, split="train")
    by_writer = {}
    for ink in strings:
        by_writer[ink.writer] = by_writer.get(ink.writer, "") + ink.label
    assert by_writer == {"train/3": "417", "train/8": "9"}
    for ink in strings:
        places = [stroke[0, 0] for stroke in ink.strokes]
        assert places == sorted(places)
        assert len(set(places)) == len(places)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (".COMMENT 8 x 1\n", "tra:1: expected .COMMENT DIGIT WRITER PLACE"),
        (".COMMENT 8 1 1\n.PEN_DOWN\n1 2 3\n", "tra:2: expected rows of X Y"),
        (".PEN_DOWN\n1 2\n", "tra:1: a stroke without points or without a digit"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, text, message):
    (tmp_path / "pendigits-orig.tra").write_text(text)
    with pytest.raises(UnipenError, match=message):
        read_digit_strings(tmp_path, split="train")


def test_a_file_that_is_not_there_says_where_it_comes_from(tmp_path):
    with pytest.raises(FileNotFoundError, match="UCI data set 81"):
        read_digit_strings(tmp_path, split="test")
