"""The UNIPEN reader: every segment of the real data, and each trap of the format by itself."""

import functools

import numpy as np
import pytest

from bucketjax.ink import extract
from bucketjax.ink.unipen import UnipenError, read_unipen


@functools.cache
def read_real(folder, category):
    return read_unipen(folder / "unipen", category=category)


@pytest.mark.parametrize(
    ("category", "counts"),
    [
        ("words", {"cec": 5625, "sta": 16415, "phi": 2506, "lex": 7235}),
        ("lines", {"cec": 604, "sta": 156, "phi": 91, "lex": 1796}),
    ],
)
def test_every_segment_of_the_real_data_is_found(data_dir, category, counts):
    inks, report = read_real(data_dir, category)
    assert dict(report.found) == counts
    assert len(inks) == sum(counts.values())
    assert not report.left_out
    assert report.bad == 0


def test_real_words_have_ink_enough_for_their_label(data_dir):
    # Components that were numbered wrongly show as words of a point or two.
    inks, _ = read_real(data_dir, "words")
    for ink in inks:
        repeats = sum(a == b for a, b in zip(ink.label, ink.label[1:], strict=False))
        assert ink.num_points >= len(ink.label) + repeats


def test_real_words_get_wider_with_their_labels(data_dir):
    inks, _ = read_real(data_dir, "words")
    some = inks[::40]
    lengths = [len(extract(ink)) for ink in some]
    characters = [len(ink.label) for ink in some]
    assert np.corrcoef(lengths, characters)[0, 1] > 0.7


def test_writers_are_files_of_a_contributor(data_dir):
    inks, _ = read_real(data_dir, "words")
    writers = {ink.writer for ink in inks}
    assert len(writers) == 121
    assert {writer.split("/")[0] for writer in writers} == {"cec", "sta", "phi", "lex"}


def make(folder, segments, ink, *, name="w1.dat", include="me/INK.DAT"):
    (folder / "data/7/me").mkdir(parents=True, exist_ok=True)
    (folder / "include/me").mkdir(parents=True, exist_ok=True)
    (folder / "data/7/me" / name).write_text(
        f".VERSION 1.0\n.INCLUDE {include}\n{segments}\n", encoding="latin-1"
    )
    (folder / "include/me/ink.dat").write_text(ink, encoding="latin-1")


# Component 0 (down), an empty pen-down, 1 (up), an empty pen-up, 2 (down), 3 (down).
INK = """.WRITER_ID w7
.PEN_DOWN
0 0
1 1
2 0
.PEN_DOWN
.PEN_UP
3 3
.PEN_UP
.PEN_DOWN
4 4
5 5
6 4
.PEN_UP
.PEN_DOWN
7 7
8 8
"""


def read(folder, **options):
    return read_unipen(folder, category="words", **options)


@pytest.mark.parametrize(
    ("components", "expected"),
    [
        ("0", [[0, 1, 2]]),
        ("2", [[4, 5, 6]]),  # neither empty component has a number
        ("0-2", [[0, 1, 2], [4, 5, 6]]),  # pen-up points are left out
        ("0,3", [[0, 1, 2], [7, 8]]),
        ("0-1,3", [[0, 1, 2], [7, 8]]),
        ("0:1-2:1", [[1, 2], [4, 5]]),  # points p and q are included
        ("2-3:0", [[4, 5, 6], [7]]),
        ("2:1", [[5]]),
        ("2:1-2:2", [[5, 6]]),
    ],
)
def test_component_lists(tmp_path, components, expected):
    make(tmp_path, f'.SEGMENT WORD {components} OK "it"', INK)
    inks, _ = read(tmp_path)
    assert [stroke[:, 0].tolist() for stroke in inks[0].strokes] == expected
    assert inks[0].writer == "me/w7"


def test_includes_nest_and_their_case_may_differ(tmp_path):
    make(tmp_path, '.SEGMENT WORD 0 ? "a"', INK, include="ME/outer.Doc")
    (tmp_path / "include/me/Outer.doc").write_text(
        ".POINTS_PER_SECOND 100\n.COORD T Y X\n.INCLUDE me/INK2.dat\n"
    )
    (tmp_path / "include/me/ink2.dat").write_text(".PEN_DOWN\n9 2 1\n9 4 3\n")
    inks, report = read(tmp_path)
    assert inks[0].strokes[0].tolist() == [[1, 2], [3, 4]]
    assert inks[0].times[0].tolist() == [0, 0.01]
    assert report.found["me"] == 1


def test_labels_with_escapes_latin_1_and_full_stops(tmp_path):
    lines = [r'"say \"hi\" \\ ok"', '"naïve ü"', '"."', '"two\nlines"']
    make(tmp_path, "\n".join(f".SEGMENT WORD 0 ? {line}" for line in lines), INK)
    inks, _ = read(tmp_path)
    assert [ink.label for ink in inks] == ['say "hi" \\ ok', "naïve ü", ".", "two\nlines"]


def test_bad_segments_are_counted_and_kept_only_on_demand(tmp_path):
    make(tmp_path, '.SEGMENT WORD 0 BAD "a"\n.SEGMENT WORD 2 OK "b"', INK)
    inks, report = read(tmp_path)
    assert ([ink.label for ink in inks], report.bad) == (["b"], 1)
    inks, report = read(tmp_path, keep_bad=True)
    assert ([ink.label for ink in inks], report.bad) == (["a", "b"], 0)


def test_segments_without_ink_are_left_out_and_counted(tmp_path):
    make(
        tmp_path,
        '.SEGMENT WORD 1 OK "up"\n.SEGMENT WORD 3-9 OK "gone"\n.SEGMENT TEXT 0 OK "a line"',
        INK,
    )
    inks, report = read(tmp_path)
    assert inks == []
    assert report.left_out == {
        "no point with the pen down": 1,
        "components that do not exist": 1,
    }


@pytest.mark.parametrize(
    ("segments", "ink", "message"),
    [
        ('.SEGMENT WORD 0 OK "a"', ".PEN_DOWN\n1 2\n3 x\n", r"ink.dat:1: a coordinate is not a n"),
        ('.SEGMENT WORD 0 OK "a"', ".PEN_DOWN\n1 2\n3\n", r"ink.dat:1: 3 numbers do not fill rows"),
        ('.SEGMENT WORD 0 OK "a"', ".COORD X T\n", r"ink.dat:1: .COORD must name X and Y; got"),
        ('.SEGMENT WORD 0 OK "a"', ".POINTS_PER_SECOND\n", r"ink.dat:1: expected a number"),
        ('.SEGMENT WORD 0-x OK "a"', INK, r"w1.dat:3: cannot read components '0-x'; expected nu"),
        (".SEGMENT WORD 0 OK a", INK, r"w1.dat:3: expected .SEGMENT HIERARCHY COMPONENTS QUALITY"),
        (".INCLUDE me/ink.dat", ".INCLUDE me/ink.dat\n", "includes itself by way of"),
    ],
)
def test_a_broken_file_is_named_with_its_line(tmp_path, segments, ink, message):
    make(tmp_path, segments, ink)
    with pytest.raises(UnipenError, match=message):
        read(tmp_path)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="data/7 is not there: give the folder of a UNIPEN"):
        read(tmp_path)
    make(tmp_path, "", INK, include="me/absent.dat")
    with pytest.raises(FileNotFoundError, match=r"w1.dat:2 includes 'me/absent.dat', which is not"):
        read(tmp_path)
    with pytest.raises(ValueError, match="no contributor 'you' in .*; there are me"):
        read(tmp_path, contributors=["you"])


def test_an_unknown_category(unchecked, tmp_path):
    with pytest.raises(ValueError, match="unknown category 'letters'; choose words or lines"):
        read_unipen(tmp_path, category="letters")
