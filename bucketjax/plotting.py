"""Figures of a trade-off and of a spec; needs matplotlib (`pip install "bucketjax[plot]"`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bucketjax.explaining import Explanation
from bucketjax.exploring import Exploration

__all__ = ["explanation", "save", "trade_off"]

_PANELS = {
    "padding_fraction": "padding (share of padded time steps)",
    "compile_seconds": "compiling (s)",
    "epoch_seconds": "one epoch (s)",
    "total_seconds": "total (s)",
}


def trade_off(exploration: Exploration) -> Figure:
    """Padding, compile, epoch and total seconds over the number of shapes, the optimum marked.

    What was measured is drawn as crosses over the lines of the prediction. Seconds that differ
    by more than a factor of 20 are on a logarithmic scale.

    >>> from bucketjax.exploring import explore
    >>> found = explore([1, 2, 4, 8], num_buckets=[1, 2, 3], batch_size=2)
    >>> [panel.get_xlabel() for panel in trade_off(found).axes][0]
    'shapes, each one compilation'
    """
    figure = Figure(figsize=(11, 7), layout="constrained")
    panels = figure.subplots(2, 2)
    names = list(dict.fromkeys(point.strategy for point in exploration.points))
    best = exploration.best()
    for panel, (field, label) in zip(panels.flat, _PANELS.items(), strict=True):
        for number, name in enumerate(names):
            points = [point for point in exploration.points if point.strategy == name]
            counts = [point.spec.num_buckets for point in points]
            panel.plot(
                counts, [getattr(point, field) for point in points], color=f"C{number}", label=name
            )
            seen = [(point, *point.measured) for point in points if point.measured is not None]
            if seen and field != "padding_fraction":
                panel.plot(
                    [point.spec.num_buckets for point, *_ in seen],
                    [_measured(field, *row[1:], exploration.epochs) for row in seen],
                    "x",
                    color=f"C{number}",
                    label=f"{name}, measured",
                )
        panel.plot(
            best.spec.num_buckets,
            getattr(best, field),
            "o",
            color="black",
            fillstyle="none",
            markersize=11,
            label=f"least total: {best.spec.num_buckets}",
        )
        panel.set_xlabel("shapes, each one compilation")
        panel.set_ylabel(label)
        values = [getattr(point, field) for point in exploration.points]
        if field.endswith("seconds") and max(values) > 20 * min(values) > 0:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[1, 1].set_title(f"{exploration.epochs} epoch(s), compilations included", fontsize=10)
    panels[0, 0].legend(fontsize=8)
    return figure


def explanation(explained: Explanation) -> Figure:
    """Padded time steps of every bucket: real, padding and filler.

    >>> from bucketjax.explaining import explain
    >>> from bucketjax.spec import BucketSpec
    >>> figure = explanation(explain(BucketSpec((4, 8), (2, 2)), [3, 4, 4, 8]))
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['4', '8']
    """
    figure = Figure(figsize=(9, 4), layout="constrained")
    panel = figure.subplots()
    rows = explained.rows
    padded = np.array([row.examples * (row.length or 0) for row in rows], float)
    padding = padded * [row.padding_fraction for row in rows]
    share = np.array([row.filler_share for row in rows])
    filler = padded * share / np.maximum(1 - share, 1e-9)
    position, bottom = np.arange(len(rows)), np.zeros(len(rows))
    for label, height in (("real", padded - padding), ("padding", padding), ("filler", filler)):
        panel.bar(position, height, bottom=bottom, label=label)
        bottom += height
    names = [
        f"{row.length}" if row.label_length is None else f"{row.length}\n{row.label_length}"
        for row in rows
    ]
    panel.set_xticks(position, names)
    panel.set_xlabel("padded length of the bucket")
    panel.set_ylabel("time steps an epoch")
    panel.legend()
    return figure


def save(figure: Figure, path: Path | str) -> None:
    """Writes the figure; the ending says the format, such as .png or .svg.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(Figure(), Path(folder, "out.png"))
    ...     Path(folder, "out.png").stat().st_size > 0
    True
    """
    figure.savefig(path, dpi=120)


def _measured(field: str, compile_seconds: float, epoch_seconds: float, epochs: int) -> Any:
    return {
        "compile_seconds": compile_seconds,
        "epoch_seconds": epoch_seconds,
        "total_seconds": compile_seconds + epochs * epoch_seconds,
    }[field]
