"""The settings of the bucketing comparison; every hyper-parameter is this project's choice."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Literal, get_args

from bucketjax.boundaries import STRATEGIES

DatasetName = Literal["synthetic", "unipen-words", "unipen-lines", "pendigits-strings"]


@dataclasses.dataclass(frozen=True)
class Config:
    """Train one recogniser with and without bucketing, and say what bucketing bought."""

    dataset: DatasetName = "synthetic"
    """What to read. "synthetic" writes its own ink; the others are read from --data-dir."""

    data_dir: Path | None = None
    """Folder of the data set: UNIPEN's, with data/ and include/, or that of pendigits-orig.tra."""

    num_buckets: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Bucket counts to compare, one arm each; 1 is no bucketing: all padded to the longest."""

    batch_max: bool = True
    """Also the usual practice: each shuffled batch padded to its own longest example. Under
    --token-budget it has as many rows as fit at the longest length."""

    batch_max_multiple_of: int = 32
    """The batch-max arm rounds padded lengths up to a multiple of this many frames."""

    strategy: str = "optimal"
    """How boundaries are chosen: optimal, quantile, uniform, geometric or equal_duration."""

    multiple_of: int = 1
    """Boundaries are multiples of this many frames."""

    batch_size: int | None = None
    """Examples in a global batch of every bucket; 32 where --token-budget is not given."""

    token_budget: int | None = None
    """Most padded frames in a global batch: short buckets get more examples."""

    epochs: int = 5
    """Epochs of every arm."""

    target_loss: float | None = None
    """Stop an arm at the end of the epoch whose validation loss (nats/example) is this low."""

    repeats: int = 1
    """Runs of every arm, with seeds --seed, --seed + 1, ...; medians and spread are reported."""

    seed: int = 0
    """Seed of the initial weights, the order of the examples and the synthetic ink."""

    num_devices: int = 1
    """Devices that share each batch; on CPU as many are made, and one per core is fastest."""

    accumulate: int = 1
    """Parts that each device computes its rows in, one after the other, to save memory."""

    precision: Literal["float32", "bfloat16"] = "float32"
    """Of the LSTM's matrix products; carry, loss and parameters are float32 always."""

    chunk: int | None = None
    """Keep one of so many frames for the backward pass and compute the others twice."""

    compile_cache: bool = True
    """Keep compiled programs in the user's folder for caches, for the next start."""

    background_compile: bool = False
    """Train on the first bucket while the others compile: sooner done where a core is idle, but
    the compile seconds are then part of the training's."""

    hidden: int = 128
    """Units of each LSTM direction."""

    layers: int = 2
    """Bidirectional LSTM layers."""

    dropout: float = 0.0
    """Share of the units dropped between layers while training, in [0, 1)."""

    learning_rate: float = 3e-3
    """Peak learning rate of Adam."""

    warmup: float = 0.1
    """Share of all steps over which the learning rate rises; a cosine takes it down again."""

    weight_decay: float = 0.0
    """AdamW's decoupled weight decay; 0 is Adam."""

    clip_norm: float = 1.0
    """Largest global norm of a gradient."""

    resample: float = 0.05
    """Distance between frames along the pen's path, in heights of the ink."""

    drop_longest: float = 0.005
    """Share of the longest training examples to leave out (counted), in [0, 1)."""

    validation_fraction: float = 0.15
    """Share of the writers held out for validation; pendigits has a split of its own."""

    num_lines: int = 2000
    """Lines of synthetic ink to write, validation included."""

    max_examples: int | None = None
    """Most training examples to use, drawn at random (validation: a quarter as many)."""

    workdir: Path = Path("results/buckets")
    """Folder for results, metrics, the figure and checkpoints."""

    resume: bool = False
    """Continue the runs in --workdir from where they stopped."""

    tensorboard: bool = False
    """Also write the metrics for TensorBoard, into --workdir/tensorboard."""

    def check(self) -> None:
        """Raises ValueError for the first setting that is wrong: flag, value, what is allowed."""
        at_least = {
            "batch_max_multiple_of": 1,
            "multiple_of": 1,
            "batch_size": 1,
            "token_budget": 1,
            "epochs": 1,
            "repeats": 1,
            "seed": 0,
            "num_devices": 1,
            "accumulate": 1,
            "chunk": 1,
            "hidden": 1,
            "layers": 1,
            "num_lines": 20,
            "max_examples": 8,
            "weight_decay": 0,
        }
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise _wrong(name, value, f"at least {least}")
        for name in ("learning_rate", "clip_norm", "resample"):
            if not getattr(self, name) > 0:
                raise _wrong(name, getattr(self, name), "above 0")
        for name in ("dropout", "warmup", "drop_longest"):
            if not 0 <= getattr(self, name) < 1:
                raise _wrong(name, getattr(self, name), "at least 0 and below 1")
        if not 0 < self.validation_fraction < 1:
            raise _wrong("validation_fraction", self.validation_fraction, "between 0 and 1")
        if self.dataset not in get_args(DatasetName):
            raise _wrong("dataset", self.dataset, f"one of {', '.join(get_args(DatasetName))}")
        if self.strategy not in STRATEGIES:
            raise _wrong("strategy", self.strategy, f"one of {', '.join(sorted(STRATEGIES))}")
        if not self.num_buckets and not self.batch_max:
            raise ValueError("no arm to run: give --num-buckets, --batch-max, or both")
        if any(count < 1 for count in self.num_buckets):
            raise _wrong("num_buckets", self.num_buckets, "counts of at least 1")
        if len(set(self.num_buckets)) < len(self.num_buckets):
            raise _wrong("num_buckets", self.num_buckets, "each count once")
        if self.dataset == "synthetic" and self.data_dir is not None:
            raise ValueError("--dataset synthetic makes its own ink; leave out --data-dir")
        if self.dataset != "synthetic" and self.data_dir is None:
            raise ValueError(f"--dataset {self.dataset} needs --data-dir, the folder of its files")

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order in which they run; the baseline, "1", first."""
        counts = tuple(str(count) for count in sorted(self.num_buckets))
        return counts + (("batch-max",) if self.batch_max else ())

    def as_json(self) -> dict[str, object]:
        """The settings as plain JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))


def _wrong(name: str, value: object, allowed: str) -> ValueError:
    return ValueError(f"--{name.replace('_', '-')} is {value}; it must be {allowed}")
