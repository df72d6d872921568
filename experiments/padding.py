"""`python -m experiments.padding`: padding on real lengths, by strategy and by the peers' rules.

The peers' rules are written anew from their public descriptions, with the longest length as the
last boundary, and get as many buckets as bucketjax:

- fairseq: equal counts, the lower percentile at every k/K (`get_buckets`);
- Lhotse and NeMo: equal total duration (`estimate_duration_buckets`): a bucket ends before the
  length at which the sum since its beginning has passed total/K;
- JetStream: powers of two up to the longest (`DEFAULT_PREFILL_BUCKETS`); of more than K the
  longest K;
- SpeechBrain: quantiles of a log-normal distribution of sigma 1, scaled to the longest
  (`DynamicBatchSampler`);
- lingvo: the optimum on a histogram of 500 bins.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from jaxtyping import Int

from bucketjax import boundaries as cuts

Histogram = tuple[Int[np.ndarray, " distinct"], Int[np.ndarray, " distinct"]]

_START, _END = "<!-- padding -->", "<!-- end of padding -->"
_FRAME = 160  # samples of 16 kHz in a frame of 10 ms

# What the notebooks look at: counts of lengths, which are facts, by the names of their sets.
_SHIPPED = {
    "LibriSpeech train-clean-100, 10 ms frames": "librispeech_train-clean-100_samples16k",
    "UNIPEN words, points": "unipen_words_points",
    "UNIPEN lines, points": "unipen_lines_points",
    "Multi30k English, tokens": "multi30k_en_tok",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Padding fraction of every workload, for several bucket counts."""

    lengths: Path
    """File of lengths, .npz, one array per workload; LibriSpeech in samples of 16 kHz."""

    num_buckets: tuple[int, ...] = (4, 8, 16, 32)
    """Bucket counts to compare."""

    readme: Path | None = None
    """Also put the table between the markers of this file."""

    histograms: Path | None = None
    """Also write the histograms that the notebooks read, as JSON."""


def main(config: Config) -> None:
    """Prints the table; writes it into the README if asked."""
    workloads = read(config.lengths)
    text = table(workloads, config.num_buckets)
    print(text)
    if config.readme is not None:
        whole = config.readme.read_text()
        if _START not in whole or _END not in whole:
            raise ValueError(f"{config.readme} has no {_START} ... {_END} to put the table between")
        before, rest = whole.split(_START, 1)
        after = rest.split(_END, 1)[1]
        config.readme.write_text(f"{before}{_START}\n\n{text}\n\n{_END}{after}")
    if config.histograms is not None:
        shipped: dict[str, Any] = {}
        for name, key in _SHIPPED.items():
            values, counts = workloads[key]
            shipped[name] = {
                # Steps from one length to the next are small numbers, and so is the file.
                "steps": np.diff(values, prepend=0).tolist(),
                "counts": counts.tolist(),
            }
        lines = [
            f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}"
            for name, one in shipped.items()
        ]
        config.histograms.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> dict[str, Histogram]:
    """The histogram of every workload in the file, audio in frames of 10 ms."""
    found = {}
    with np.load(path) as stored:
        for name in stored.files:
            lengths = stored[name]
            if name.endswith("_samples16k"):
                lengths = -(-lengths // _FRAME)
            found[name] = cuts.histogram(lengths)
    return found


def table(workloads: dict[str, Histogram], num_buckets: tuple[int, ...]) -> str:
    """Padding in percent as Markdown: a row per workload, a cell with a number per bucket count."""
    header = ["workload", *(f"{name}" for name in RULES)]
    lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * len(RULES)}"]
    for name, (values, counts) in workloads.items():
        cells = [name.removesuffix("_samples16k").replace("_", " ")]
        for rule in RULES.values():
            padded = []
            for number in num_buckets:
                boundaries = rule(values, counts, number)
                fraction = cuts.padding_fraction(values, boundaries, counts=counts)
                padded.append(f"{100 * fraction:.1f}")
            cells.append(" / ".join(padded))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by(strategy: str) -> Any:
    def rule(values: np.ndarray, counts: np.ndarray, number: int) -> np.ndarray:
        return cuts.STRATEGIES[strategy](values, counts=counts, num_buckets=number)

    return rule


def fairseq(values: np.ndarray, counts: np.ndarray, number: int) -> np.ndarray:
    """Equal counts: the lower percentile at every k/K."""
    last = np.cumsum(counts) - 1  # the last position of each value among the sorted examples
    place = np.floor(np.linspace(0, 1, number + 1)[1:] * last[-1]).astype(np.int64)
    return np.unique(np.maximum(values[np.searchsorted(last, place)], 1))


def lhotse(values: np.ndarray, counts: np.ndarray, number: int) -> np.ndarray:
    """Equal total duration, one example after the other, each sum beginning anew."""
    share = float(values @ counts) / number
    total, ends, before = 0.0, [], 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        for _ in range(count):
            if total > share:
                # The next bucket begins with this length, so the last one ends before it.
                ends.append(before)
                total = 0.0
            total += value
        before = value
    inner = [end for end in ends[: number - 1] if end >= 1]
    return np.unique([*inner, values[-1]])


def jetstream(values: np.ndarray, _: np.ndarray, number: int) -> np.ndarray:
    """Powers of two below the longest, and the longest; the K longest of them."""
    longest = int(values[-1])
    powers = [2**power for power in range(longest.bit_length()) if 2**power < longest]
    return np.array([*powers, longest])[-number:]


def speechbrain(values: np.ndarray, _: np.ndarray, number: int) -> np.ndarray:
    """Quantiles of a log-normal distribution of sigma 1, scaled to the longest."""
    normal = statistics.NormalDist()
    quantiles = np.exp([normal.inv_cdf(k / (number + 1)) for k in range(1, number + 1)])
    scaled = np.floor(quantiles * (int(values[-1]) / quantiles[-1])).astype(np.int64)
    return np.unique(np.maximum([*scaled[:-1], values[-1]], 1))


def lingvo(values: np.ndarray, counts: np.ndarray, number: int) -> np.ndarray:
    """The optimum on 500 bins of equal width."""
    width = -(-int(values[-1]) // 500)
    coarse = cuts.optimal(values, counts=counts, num_buckets=number, multiple_of=width)
    return np.unique(np.minimum(coarse, values[-1]))


RULES = {
    "**optimal**": _by("optimal"),
    "quantile": _by("quantile"),
    "equal_duration": _by("equal_duration"),
    "uniform": _by("uniform"),
    "geometric": _by("geometric"),
    "fairseq": fairseq,
    "Lhotse, NeMo": lhotse,
    "JetStream": jetstream,
    "SpeechBrain": speechbrain,
    "lingvo": lingvo,
}


if __name__ == "__main__":
    main(tyro.cli(Config))
