"""Read lengths from a file: text, .npy, .npz, JSON lines, CSV, Parquet, or standard input."""

from __future__ import annotations

import csv
import io
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Integer

from bucketjax.boundaries import as_lengths

__all__ = ["ReadingError", "read_lengths"]

_TABLES = (".json", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet", ".npz")


class ReadingError(ValueError):
    """A file that does not hold lengths: which, where, and what was expected."""


def read_lengths(
    path: str | Path, *, field: str | None = None, stream: Iterable[str] | None = None
) -> Integer[np.ndarray, " example"]:
    """The lengths in a file, one integer per example.

    Text has one length on each line (empty lines and what follows # are skipped); JSON lines, CSV,
    Parquet and .npz have a field. The ending of the name tells which; `-` is standard input, read
    as JSON lines where a field is given and as text otherwise.

    Args:
      path: the file.
      field: the column, key or array. It may be left out where there is only one.
      stream: lines to read where `path` is `-`, instead of standard input.

    Raises:
      ReadingError: no such file, no such field, or something that is not a length; the message
        names the file, the line, and what was expected.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "lengths.txt")
    ...     _ = path.write_text("3\\n5 # a comment\\n\\n8\\n")
    ...     read_lengths(path)
    array([3, 5, 8])
    """
    name = "standard input" if str(path) == "-" else str(path)
    ending = Path(path).suffix.lower()
    if field is not None and str(path) != "-" and ending not in _TABLES:
        raise ReadingError(
            f"{name}: a {ending or 'text'} file has no field {field!r}; leave it out"
        )
    try:
        if str(path) == "-":
            lines = _lines(sys.stdin if stream is None else stream)
            found = _from_text(lines, name) if field is None else _from_json(lines, name, field)
        elif ending in (".npy", ".npz"):
            found = _from_numpy(Path(path), name, field)
        elif ending == ".parquet":
            found = _from_parquet(Path(path), name, field)
        else:
            # A byte order mark, as some spreadsheets write it, is no part of the first line.
            with Path(path).open(encoding="utf-8-sig", newline="") as file:
                if ending in (".csv", ".tsv"):
                    found = _from_csv(file, name, field, "\t" if ending == ".tsv" else ",")
                elif ending in (".json", ".jsonl", ".ndjson"):
                    found = _from_json(_lines(file), name, field)
                else:
                    found = _from_text(_lines(file), name)
    except OSError as error:
        raise ReadingError(f"{name}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ReadingError(
            f"{name}: not text (byte {error.start} is {error.object[error.start]:#04x}); expected "
            "one length per line, or a name that ends in .npy, .npz or .parquet"
        ) from error
    if not np.size(found):
        raise ReadingError(f"{name}: no lengths in it; expected at least one")
    try:
        return as_lengths(found)
    except (TypeError, ValueError) as error:
        raise ReadingError(f"{name}: {error}") from error


def _lines(file: Iterable[str]) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(file, start=1):
        if line.strip():
            yield number, line.strip()


def _from_text(lines: Iterable[tuple[int, str]], name: str) -> Any:
    found = []
    for number, line in lines:
        text = line.split("#", 1)[0].strip()
        if text:
            found.append(_length(text, name, number))
    return np.array(found, np.int64)


def _from_json(lines: Iterable[tuple[int, str]], name: str, field: str | None) -> Any:
    found = []
    for number, line in lines:
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ReadingError(
                f"{name}, line {number}: expected one JSON value per line; {error.msg} at column "
                f"{error.colno}: {line[:60]!r}"
            ) from error
        if isinstance(value, dict):
            if field is None:
                raise ReadingError(
                    f"{name}, line {number}: an object; say which field holds the length, one of "
                    f"{', '.join(map(str, value))}"
                )
            if field not in value:
                raise ReadingError(
                    f"{name}, line {number}: no field {field!r}; it has "
                    f"{', '.join(value) or 'none'}"
                )
            value = value[field]
        elif field is not None:
            raise ReadingError(
                f"{name}, line {number}: expected an object with the field {field!r}; got "
                f"{line[:60]!r}"
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise ReadingError(
                f"{name}, line {number}: expected a length, an integer of at least 0; got "
                f"{json.dumps(value)[:60]}"
            )
        found.append(_length(str(value), name, number))
    return np.array(found, np.int64)


def _from_csv(file: IO[str], name: str, field: str | None, delimiter: str) -> Any:
    rows = csv.reader(file, delimiter=delimiter)
    try:
        header = next(rows, [])
        if len(header) == 1 and field is None and header[0].strip().isdecimal():
            raise ReadingError(
                f"{name}, line 1: expected the column's name, got the number {header[0]!r}; add a "
                "first line with a name, or call the file .txt"
            )
        column = _one_of(header, field, name, "column")
        found = []
        for row in rows:
            if row:
                if len(row) <= column:
                    raise ReadingError(
                        f"{name}, line {rows.line_num}: {len(row)} columns; expected {len(header)}"
                    )
                found.append(_length(row[column], name, rows.line_num))
    except csv.Error as error:
        raise ReadingError(f"{name}, line {rows.line_num}: {error}") from error
    return np.array(found, np.int64)


def _from_numpy(path: Path, name: str, field: str | None) -> Any:
    # Read as a whole: a file object that NumPy opens by itself stays open where it fails.
    content = io.BytesIO(path.read_bytes())
    try:
        loaded = np.load(content, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        names = loaded.files
        return loaded[names[_one_of(names, field, name, "array")]]
    except ReadingError:
        raise
    except (ValueError, EOFError, OSError, zipfile.BadZipFile) as error:
        raise ReadingError(f"{name}: expected NumPy's {path.suffix} format ({error})") from error


def _from_parquet(path: Path, name: str, field: str | None) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise ReadingError(
            f"{name}: reading Parquet needs pyarrow, which is not installed; install it, or write "
            "the column as text, CSV or .npy"
        ) from error
    try:
        names = parquet.read_schema(path).names
        column = names[_one_of(names, field, name, "column")]
        table = parquet.read_table(path, columns=[column])
    except pyarrow.ArrowException as error:
        raise ReadingError(f"{name}: expected a Parquet file ({error})") from error
    values = table.column(column)
    if values.null_count:
        raise ReadingError(f"{name}: {values.null_count} rows of {column!r} are empty")
    return values.to_numpy()


def _one_of(names: list[str], field: str | None, name: str, kind: str) -> int:
    if field is not None and field in names:
        return names.index(field)
    if field is None and len(names) == 1:
        return 0
    has = ", ".join(names) or "none"
    if field is None:
        raise ReadingError(f"{name}: say which {kind} holds the lengths, one of {has}")
    raise ReadingError(f"{name}: no {kind} {field!r}; it has {has}")


def _length(text: str, name: str, number: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**63:
        raise ReadingError(
            f"{name}, line {number}: expected a length, an integer of at least 0; got {text[:60]!r}"
        )
    return value
