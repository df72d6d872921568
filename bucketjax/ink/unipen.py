"""Reader for UNIPEN, the exchange format of Guyon et al. 1994.

A data set is a folder with `data/<category>/<contributor>/*.dat`, which name segments, and
`include/`, which holds the ink they refer to. Source of the format: "UNIPEN project of on-line data
exchange and recognizer benchmarks", ICPR 1994, and the UNIPEN 1.0 format definition.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from bucketjax.ink.ink import Ink

__all__ = ["UnipenError", "UnipenReport", "read_unipen", "statements"]

_FOLDERS = {"words": "7", "lines": "8"}
_HIERARCHY = {"words": "WORD", "lines": "TEXT"}
_STATEMENT = re.compile(r"^\.([A-Z_0-9]+)[ \t]*", re.MULTILINE)
_LABEL = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_PART = re.compile(r"(\d+)(?::(\d+))?(?:-(\d+)(?::(\d+))?)?")


class UnipenError(ValueError):
    """A file that is not as UNIPEN's format says, with its path and line."""


@dataclasses.dataclass
class UnipenReport:
    """What a reader found: nothing is left out without being counted here.

    Attributes:
      found: inks per contributor.
      bad: segments left out because they are marked BAD.
      left_out: why other segments were left out, and how many.
    """

    found: Counter[str] = dataclasses.field(default_factory=Counter)
    bad: int = 0
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)


class Statement(NamedTuple):
    """`.KEYWORD body`, and the line on which it stands."""

    keyword: str
    body: str
    line: int


def read_unipen(
    folder: Path,
    *,
    category: Literal["words", "lines"],
    contributors: Sequence[str] | None = None,
    keep_bad: bool = False,
) -> tuple[list[Ink], UnipenReport]:
    """Every word or line of text in a UNIPEN folder, in the order of its files.

    Strokes are the pen-down parts; recorded pen-up movement is left out. Labels are as the
    contributor gave them, spaces around punctuation included. A writer is one file of one
    contributor. Times are there where the contributor states the sampling rate.

    Args:
      folder: holds `data/` and `include/`.
      category: "words" (category 7) or "lines" (category 8).
      contributors: which to read; all by default.
      keep_bad: also give segments that are marked BAD.

    Returns:
      The inks, and a report of what was found and what was left out.

    Raises:
      FileNotFoundError: no such folder, or an included file that is not there.
      UnipenError: a broken file, with its line.
    """
    if category not in _FOLDERS:
        raise ValueError(f"unknown category {category!r}; choose words or lines")
    root = Path(folder) / "data" / _FOLDERS[category]
    if not root.is_dir():
        raise FileNotFoundError(
            f"{root} is not there: give the folder of a UNIPEN release, which holds data/ and "
            "include/ (train_r01_v07 is distributed by the International Unipen Foundation)"
        )
    known = sorted(path.name for path in root.iterdir() if path.is_dir())
    unknown = sorted(set(contributors or ()) - set(known))
    if unknown:
        raise ValueError(f"no contributor {unknown[0]!r} in {root}; there are {', '.join(known)}")
    includes = _Includes(Path(folder) / "include")
    inks, report = [], UnipenReport()
    for contributor in known if contributors is None else contributors:
        for path in sorted((root / contributor).iterdir()):
            if path.is_file():
                document = _Document(path, includes)
                writer = f"{contributor}/{document.writer or path.stem}"
                found = list(_inks(document, writer, _HIERARCHY[category], keep_bad, report))
                report.found[contributor] += len(found)
                inks += found
    return inks, report


def statements(text: str) -> Iterator[Statement]:
    """The statements of a UNIPEN text; a statement goes on until a line begins with a full stop.

    >>> [tuple(statement) for statement in statements(".PEN_DOWN\\n1 2\\n.PEN_UP\\n")]
    [('PEN_DOWN', '1 2', 1), ('PEN_UP', '', 3)]
    """
    found = list(_STATEMENT.finditer(text))
    line, counted = 1, 0
    for number, match in enumerate(found):
        end = found[number + 1].start() if number + 1 < len(found) else len(text)
        line += text.count("\n", counted, match.start())
        counted = match.start()
        yield Statement(match.group(1), text[match.end() : end].strip(), line)


class _Includes:
    """The include folder; names are found whatever their case."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._names = {
            str(path.relative_to(folder)).lower(): path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }

    def find(self, name: str) -> Path | None:
        return self._names.get(name.strip().lower())


class _Component(NamedTuple):
    """One PEN_DOWN or PEN_UP with points in it, not parsed before a segment asks for it."""

    down: bool
    body: str
    where: str
    columns: tuple[str, ...]
    rate: float | None


class _Segment(NamedTuple):
    hierarchy: str
    components: str
    quality: str
    label: str
    where: str


class _Document:
    """A file with everything it includes: its components in order, and its segments."""

    def __init__(self, path: Path, includes: _Includes):
        self.components: list[_Component] = []
        self.segments: list[_Segment] = []
        self.writer: str | None = None
        self._columns: tuple[str, ...] = ("X", "Y")
        self._rate: float | None = None
        self._read(path, includes, ())

    def _read(self, path: Path, includes: _Includes, within: tuple[Path, ...]) -> None:
        if path in within:
            raise UnipenError(f"{path} includes itself by way of {within[-1]}")
        for statement in statements(path.read_text(encoding="latin-1")):
            keyword, body = statement.keyword, statement.body
            where = f"{path}:{statement.line}"
            if keyword in ("PEN_DOWN", "PEN_UP") and body:  # empty ones are not numbered
                self.components.append(
                    _Component(keyword == "PEN_DOWN", body, where, self._columns, self._rate)
                )
            elif keyword == "INCLUDE":
                included = includes.find(body)
                if included is None:
                    raise FileNotFoundError(
                        f"{where} includes {body!r}, which is not in {includes.folder}"
                    )
                self._read(included, includes, (*within, path))
            elif keyword == "COORD":
                self._columns = tuple(body.upper().split())
                if not {"X", "Y"} <= set(self._columns):
                    raise UnipenError(f"{where}: .COORD must name X and Y; got {body!r}")
            elif keyword == "POINTS_PER_SECOND":
                self._rate = _number(body, where)
            elif keyword == "WRITER_ID":
                self.writer = body
            elif keyword == "SEGMENT":
                self.segments.append(_segment(body, where))


def _segment(body: str, where: str) -> _Segment:
    label = _LABEL.search(body)
    fields = body[: label.start()].split() if label else []
    if label is None or not 2 <= len(fields) <= 3:
        raise UnipenError(
            f'{where}: expected .SEGMENT HIERARCHY COMPONENTS QUALITY "label"; got {body[:60]!r}'
        )
    text = re.sub(r"\\(.)", r"\1", label.group(1))
    return _Segment(fields[0], fields[1], fields[2] if len(fields) > 2 else "?", text, where)


def _inks(
    document: _Document, writer: str, hierarchy: str, keep_bad: bool, report: UnipenReport
) -> Iterator[Ink]:
    for segment in document.segments:
        if segment.hierarchy != hierarchy:
            continue
        if segment.quality == "BAD" and not keep_bad:
            report.bad += 1
            continue
        pieces = _pieces(segment, len(document.components))
        if pieces is None:
            report.left_out["components that do not exist"] += 1
            continue
        strokes, times, known = [], [], True
        for number, first, last in pieces:
            component = document.components[number]
            if component.down:
                points = _points(component)[first:last]
                if len(points):
                    strokes.append(points)
                    known = known and component.rate is not None
                    times.append(np.arange(len(points)) / (component.rate or 1.0))
        if not strokes:
            report.left_out["no point with the pen down"] += 1
            continue
        yield Ink(tuple(strokes), segment.label, writer, tuple(times) if known else None)


def _pieces(segment: _Segment, available: int) -> list[tuple[int, int, int | None]] | None:
    """(component, first point, last point + 1) of each component; None where one is missing.

    `a`, `a-b`, lists of them with commas, and `a:p-b:q`, where p and q are points within the first
    and last component, both included.
    """
    pieces = []
    for part in segment.components.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise UnipenError(
                f"{segment.where}: cannot read components {segment.components!r}; expected numbers "
                "such as 3, 3-5, 3-5,8 or 3:10-5:20"
            )
        first, first_point, last, last_point = match.groups()
        start, stop = int(first), int(last or first)
        if stop < start or stop >= available:
            return None
        if last is None and first_point is not None:  # a single point within a component
            pieces.append((start, int(first_point), int(first_point) + 1))
            continue
        for number in range(start, stop + 1):
            begin = int(first_point) if number == start and first_point else 0
            end = int(last_point) + 1 if number == stop and last_point else None
            pieces.append((number, begin, end))
    return pieces


def _points(component: _Component) -> np.ndarray:
    try:
        values = np.array(component.body.split(), np.float64)
    except ValueError as error:
        raise UnipenError(f"{component.where}: a coordinate is not a number ({error})") from error
    width = len(component.columns)
    if len(values) % width:
        raise UnipenError(
            f"{component.where}: {len(values)} numbers do not fill rows of {width} "
            f"({' '.join(component.columns)})"
        )
    rows = values.reshape(-1, width)
    return rows[:, [component.columns.index("X"), component.columns.index("Y")]]


def _number(body: str, where: str) -> float:
    try:
        return float(body.split()[0])
    except (IndexError, ValueError) as error:
        raise UnipenError(f"{where}: expected a number; got {body!r}") from error
