"""The table and the figure of a comparison, made from the files of its folder alone.

python -m experiments.buckets.report RESULTS_FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

RESULT, METRICS, FIGURE, TABLE = "result.json", "metrics.jsonl", "figure.png", "table.md"

# Column of the table: field of result.json, heading, format.
_COLUMNS = (
    ("padding_fraction", "padding", "{:.1%}"),
    ("filler_fraction", "filler", "{:.1%}"),
    ("compile_count", "compiled", "{:.0f}"),
    ("compile_seconds", "compile s", "{:.1f}"),
    ("train_seconds", "train s", "{:.1f}"),
    ("train_seconds_with_compile", "with compile s", "{:.1f}"),
    ("epochs", "epochs", "{:.0f}"),
    ("steps", "steps", "{:.0f}"),
    ("validation_loss", "val. loss", "{:.2f}"),
    ("label_error_rate", "label errors", "{:.1%}"),
    ("seconds_to_target", "s to target", "{:.1f}"),
    ("examples_per_second", "examples/s", "{:.0f}"),
    ("speedup", "speed-up", "{:.2f}x"),
)


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per arm: medians over its runs, the spread, and the runs themselves.

    The target of a repeat is the validation loss at which its baseline (the arm with one bucket)
    ended; without a baseline there is none. Speed-up is the baseline's training seconds, compile
    excluded, over the arm's.
    """
    baselines = {run["repeat"]: run for run in runs if run["arm"] == "1"}
    arms = []
    for arm in dict.fromkeys(run["arm"] for run in runs):
        own = []
        for run in runs:
            if run["arm"] == arm:
                baseline = baselines.get(run["repeat"])
                own.append({**run, **_against(run, baseline)})
        entry: dict[str, Any] = {"arm": arm, "num_buckets": own[0]["num_buckets"]}
        spread = {}
        for name, _, _ in _COLUMNS:
            values = [run[name] for run in own]
            if None in values:
                entry[name] = None
                continue
            entry[name] = median(values)
            spread[name] = [min(values), max(values)]
        arms.append({**entry, "spread": spread, "runs": own})
    return arms


def _against(run: dict[str, Any], baseline: dict[str, Any] | None) -> dict[str, float | None]:
    if baseline is None:
        return {"seconds_to_target": None, "speedup": None}
    target = baseline["curve"][-1]["validation_loss"]
    reached = [point["seconds"] for point in run["curve"] if point["validation_loss"] <= target]
    return {
        "seconds_to_target": reached[0] if reached else None,
        "speedup": baseline["train_seconds"] / run["train_seconds"],
    }


def table(arms: list[dict[str, Any]]) -> str:
    """The arms as a Markdown table with aligned columns."""
    heads = ["arm", *(head for _, head, _ in _COLUMNS)]
    rows = []
    for arm in arms:
        name = arm["arm"] if arm["num_buckets"] is None else _plural(arm["num_buckets"])
        cells = [
            "-" if arm[field] is None else form.format(arm[field]) for field, _, form in _COLUMNS
        ]
        rows.append([name, *cells])
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    lines = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in (heads, rows and rule, *rows)
        if row
    ]
    return "\n".join(lines)


def _plural(count: int) -> str:
    return "1 bucket" if count == 1 else f"{count} buckets"


def read_result(folder: Path) -> dict[str, Any]:
    """The content of a comparison's result.json.

    Raises:
      FileNotFoundError: a folder without results, saying how to make them.
    """
    path = folder / RESULT
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} does not exist: give the --workdir of a comparison that has ended"
        )
    return json.loads(path.read_text())


def draw(folder: Path) -> Path:
    """Draws the figure of a comparison from its result.json; returns the picture's path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    result = read_result(folder)
    arms = result["arms"]
    names = [arm["arm"] if arm["num_buckets"] is not None else "batch\nmax" for arm in arms]
    shades = pyplot.get_cmap("viridis")
    colours = [shades(0.9 * place / max(len(arms) - 1, 1)) for place in range(len(arms))]
    figure, axes = pyplot.subplots(1, 4, figsize=(16, 3.8), layout="constrained")
    padding, seconds, loss, errors = axes

    padding.bar(names, [100 * arm["padding_fraction"] for arm in arms], color=colours)
    for place, arm in enumerate(arms):
        padding.annotate(
            f"{arm['compile_count']:.0f} compiled",
            (place, 100 * arm["padding_fraction"]),
            ha="center",
            va="bottom",
            fontsize=7,
        )
    padding.set(title="padding", xlabel="buckets", ylabel="% of the padded frames")
    padding.margins(y=0.12)

    train = [arm["train_seconds"] for arm in arms]
    low, high = zip(*(arm["spread"]["train_seconds"] for arm in arms), strict=True)
    around = [
        [value - least for value, least in zip(train, low, strict=True)],
        [most - value for value, most in zip(train, high, strict=True)],
    ]
    seconds.bar(names, train, color=colours, yerr=around, capsize=3, label="training")
    seconds.bar(
        names,
        [arm["compile_seconds"] for arm in arms],
        bottom=train,
        color="lightgrey",
        edgecolor="grey",
        label="compiling",
    )
    seconds.set(title=f"time for {arms[0]['epochs']:.0f} epochs", xlabel="buckets", ylabel="s")
    seconds.legend(fontsize=7)

    for arm, name, colour in zip(arms, names, colours, strict=True):
        name = name.replace("\n", " ")
        for run in arm["runs"]:
            clock = [point["seconds"] for point in run["curve"]]
            for axis, field, scale in (
                (loss, "validation_loss", 1),
                (errors, "label_error_rate", 100),
            ):
                axis.plot(
                    clock,
                    [scale * point[field] for point in run["curve"]],
                    marker=".",
                    color=colour,
                    label=name if run is arm["runs"][0] else None,
                )
    training = "training time, compiling included (s)"
    loss.set(title="validation loss", xlabel=training, ylabel="nats per example")
    errors.set(title="label error rate", xlabel=training, ylabel="% of the characters")
    loss.legend(fontsize=7, title="buckets")
    figure.suptitle(
        f"{result['dataset']['name']}: {result['dataset']['train_examples']} training examples, "
        f"{result['config']['repeats']} run(s) per arm"
    )
    path = folder / FIGURE
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return path


def main(arguments: list[str]) -> None:
    """Prints the table of each folder named, and draws its figure."""
    if not arguments:
        raise SystemExit("usage: python -m experiments.buckets.report RESULTS_FOLDER ...")
    for folder in map(Path, arguments):
        try:
            print(table(read_result(folder)["arms"]))
            print(f"figure: {draw(folder)}")
        except FileNotFoundError as error:
            raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main(sys.argv[1:])
