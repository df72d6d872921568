"""Tables of ratios from the timings of one run."""

from __future__ import annotations

from typing import Any

import numpy as np


def ratio(ours: list[float], theirs: list[float]) -> str:
    """How often as long the others took, round by round: the median and both quartiles."""
    ratios = np.array(theirs) / np.array(ours)
    low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def case_table(rows: list[dict[str, Any]], allocator: str, reference: str, peak: float) -> str:
    """A line per case: our milliseconds, and how many times as long the others took."""
    rows = [row for row in rows if row["allocator"] == allocator]
    names = [name for name in rows[0]["seconds"] if name != reference]
    share = any(row["flops"] for row in rows)
    head = ["case", f"{reference}, ms", *names]
    head += (["share of matmul peak"] if share else []) + [
        "memory, MB: " + " / ".join(_short(n) for n in rows[0]["memory"])
    ]
    lines = []
    for row in rows:
        ours = row["seconds"][reference]
        line = [row["case"], f"{1e3 * np.median(ours):.1f}"]
        line += [ratio(ours, row["seconds"][name]) for name in names]
        if share:
            line.append(f"{row['flops'] / np.median(ours) / peak:.0%}")
        line.append(" / ".join(f"{(row['memory'][name] or 0) / 1e6:.0f}" for name in row["memory"]))
        lines.append(line)
    return _markdown(head, lines)


def _short(name: str) -> str:
    return name.split(",")[0]


def epoch_table(rows: list[dict[str, Any]], reference: str) -> str:
    """A line per contender: examples per second, and how our reference compares."""
    base = next(row for row in rows if row["name"] == reference)
    lines = [
        [
            row["name"],
            f"{np.median(row['rates']):.1f} ({min(row['rates']):.1f}-{max(row['rates']):.1f})",
            f"{np.median(np.array(base['rates']) / np.array(row['rates'])):.2f}",
            f"{row['programs']}",
            f"{row['compile_seconds']:.1f}",
        ]
        for row in rows
    ]
    head = ["", "examples/s (range)", f"{reference} is faster by", "programs", "compile s"]
    return _markdown(head, lines)


def _markdown(head: list[str], lines: list[list[str]]) -> str:
    rows = [head, ["---"] + ["---:"] * (len(head) - 1), *lines]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
