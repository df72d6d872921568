"""What is measured, and how often."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal, NamedTuple

Part = Literal["lstm", "ctc", "step", "epoch"]


@dataclasses.dataclass(frozen=True)
class Config:
    """Time our LSTM, CTC, whole step and epoch beside flax with optax and beside torch."""

    parts: tuple[Part, ...] = ("lstm", "ctc", "step")
    """What to time; "epoch" needs --data-dir."""

    data_dir: Path | None = None
    """Folder of UNIPEN, with data/ and include/, for the epoch over its words."""

    max_examples: int = 4000
    """Training examples of the epoch, drawn at random."""

    epoch_repeats: int = 3
    """Epochs of each contender, in turns."""

    repeats: int = 9
    """Timings of each contender, in turns; the median counts."""

    num_devices: int | None = None
    """Devices that share our batch (and flax's); by default one per core, or all accelerators."""

    tuned: bool = True
    """Also run every contender with glibc told to keep freed memory, as our experiments do."""

    quick: bool = False
    """The base case of each part only."""

    workdir: Path = Path("results/step")
    """Folder for results.json and the tables."""

    def check(self) -> None:
        """Raises ValueError for the first setting that is wrong."""
        for name in ("max_examples", "epoch_repeats", "repeats", "num_devices"):
            value = getattr(self, name)
            least = 64 if name == "max_examples" else 1
            if value is not None and value < least:
                flag = name.replace("_", "-")
                raise ValueError(f"--{flag} is {value}; it must be at least {least}")
        if not self.parts:
            raise ValueError("no part to time: give --parts lstm ctc step epoch, or some of them")
        if "epoch" in self.parts and self.data_dir is None:
            raise ValueError("--parts epoch needs --data-dir, the folder of UNIPEN's files")


class Case(NamedTuple):
    """One setting that all contenders are timed at."""

    part: Part
    frames: int = 256
    hidden: int = 128
    layers: int = 1
    batch: int = 32
    label: int = 32
    channels: int = 64
    classes: int = 80

    @property
    def name(self) -> str:
        """What tables call it."""
        if self.part == "ctc":
            return f"T={self.frames}, L={self.label}, batch {self.batch}"
        return f"T={self.frames}, hidden {self.hidden}, layers {self.layers}, batch {self.batch}"

    @property
    def flops(self) -> float:
        """Of the LSTM's matrix products, forward and backward; 0 where there is no LSTM."""
        if self.part not in ("lstm", "step"):
            return 0.0
        rows, total = 2 * self.hidden, 0.0
        for layer in range(self.layers):
            inputs = rows if layer else self.channels
            once = 2 * self.frames * self.batch * (inputs + self.hidden) * 4 * self.hidden
            total += 2 * 3 * once  # two directions; outputs, their inputs' and weights' gradients
        return total


def cases(part: Part, quick: bool) -> list[Case]:
    """Around a base case, one setting at a time, and the largest together."""
    if part == "lstm":
        base = Case(part)
        others = [
            *(base._replace(frames=frames) for frames in (64, 1024)),
            *(base._replace(batch=batch) for batch in (8, 128)),
            *(base._replace(layers=layers) for layers in (2, 3)),
            base._replace(hidden=256),
            base._replace(hidden=256, frames=1024),
        ]
    elif part == "ctc":
        base = Case(part)
        others = [base._replace(frames=1024, label=64), base._replace(batch=8)]
    else:
        base = Case(part, layers=2, channels=7)
        others = [
            base._replace(frames=64, label=8),
            base._replace(frames=1024, label=64),
            base._replace(batch=8),
        ]
    return [base] if quick else [base, *others]
