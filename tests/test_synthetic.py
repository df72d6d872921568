"""Synthetic ink: the same everywhere, of very different lengths, and legible."""

import subprocess
import sys

import numpy as np
import pytest

from bucketjax.ink import extract
from bucketjax.ink.synthetic import WORDS, write_lines


def test_the_same_arguments_give_the_same_ink_in_any_process():
    program = (
        "import zlib; from bucketjax.ink.synthetic import write_lines;"
        "print([zlib.crc32(b''.join(s.tobytes() for s in ink.strokes))"
        " for ink in write_lines(5, seed=3)])"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_another_seed_is_other_ink():
    labels = [[ink.label for ink in write_lines(20, seed=seed)] for seed in (0, 1)]
    assert labels[0] != labels[1]


def test_lines_are_words_of_the_list_and_every_word_can_be_written():
    inks = write_lines(300, seed=0)
    for ink in inks:
        assert set(ink.label.split(" ")) <= set(WORDS)
        assert 1 <= len(ink.label.split(" ")) <= 12
    assert len(WORDS) == len(set(WORDS)) > 180


def test_padding_to_the_longest_line_makes_most_of_the_work_padding():
    lengths = np.array([len(extract(ink)) for ink in write_lines(1000, seed=0)])
    assert 0.7 < 1 - lengths.mean() / lengths.max() < 0.85


def test_time_goes_on_along_the_line_and_writers_differ():
    inks = write_lines(40, seed=0, num_writers=8)
    for ink in inks:
        times = np.concatenate(ink.times)
        assert np.all(np.diff(times) >= 0)
    assert len({ink.writer for ink in inks}) == 8
    heights = {
        ink.writer: np.ptp(np.concatenate([stroke[:, 1] for stroke in ink.strokes])) for ink in inks
    }
    assert max(heights.values()) > 1.5 * min(heights.values())


def test_letters_stand_upright_and_from_left_to_right():
    # A "b" begins at the top of its stem, and has its belly to the right of it.
    ink = next(ink for ink in write_lines(400, seed=1) if ink.label.startswith("b"))
    stem = ink.strokes[0]
    assert stem[:, 1].argmax() < stem[:, 1].argmin()
    centres = [stroke[:, 0].mean() for stroke in ink.strokes]
    assert np.corrcoef(centres, np.arange(len(centres)))[0, 1] > 0.8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_lines": 0}, "num_lines must be at least 1; got 0"),
        ({"num_writers": 0}, "num_writers must be at least 1; got 0"),
        ({"seed": -1}, "seed must be at least 0; got -1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        write_lines(**{"num_lines": 1, "seed": 0, **arguments})
