"""`python -m experiments.prediction`: predicted against measured epoch seconds of the recogniser.

A few shapes of the training step are timed and a cost model fitted to them. Then whole epochs are
trained with several bucket counts, which the fit has not seen, in turns; the median of each is
compared with what the model predicts for the very batches of that epoch's plan.
"""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import tyro
from flax import nnx
from jax.sharding import Mesh

from bucketjax import BucketSpec, Loader, Shape, compiles, costs, parallel
from bucketjax.ink import Alphabet, InkSource, load, make_source
from bucketjax.nn import Recognizer
from bucketjax.training import loop, steps


@dataclasses.dataclass(frozen=True)
class Config:
    """Fit a cost model to a few shapes, then train whole epochs and compare."""

    dataset: Literal["synthetic", "unipen-words", "unipen-lines", "pendigits-strings"] = "synthetic"
    """What to read; as in experiments.buckets."""

    data_dir: Path | None = None
    """Folder of the data set."""

    num_lines: int = 600
    """Lines of synthetic ink."""

    num_buckets: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Bucket counts whose epochs are predicted and measured."""

    batch_size: int = 8
    """Examples in a batch."""

    num_probes: int = 5
    """Shapes that the cost model is fitted to."""

    probe_repeats: int = 31
    """How often each of these shapes is timed, in turns; the median counts."""

    in_a_row: int = 4
    """Steps that one such timing spans."""

    repeats: int = 5
    """Epochs of each bucket count, in turns; the median counts."""

    hidden: int = 64
    """Units of each LSTM direction."""

    layers: int = 1
    """Bidirectional LSTM layers."""

    resample: float = 0.1
    """Distance between frames along the pen's path, in heights of the ink."""

    max_examples: int | None = None
    """Most training examples to use."""

    seed: int = 0
    """Seed of the ink, the weights and the order."""

    workdir: Path = Path("results/prediction")
    """Folder for result.json."""


def main(config: Config) -> None:
    """Prints the fit, then a line per bucket count and the median error."""
    source = read(config)
    mesh = parallel.data_mesh(1)
    model = Recognizer(
        source[0]["features"].shape[1],
        int(max(labels.max(initial=0) for labels in source.labels)) + 1,
        hidden=config.hidden,
        layers=config.layers,
        rngs=nnx.Rngs(config.seed),
    )
    optimizer = steps.make_optimizer(learning_rate=1e-3, total_steps=1000)
    state = jax.tree.map(np.array, steps.init_state(model, optimizer))

    def make_step() -> Any:
        step = steps.make_step(model, optimizer)
        return compiles.watch(
            parallel.data_parallel(step, mesh, row_results=steps.ROW_RESULTS), name="step"
        )

    def arguments(shape: Shape) -> tuple[Any, ...]:
        learn = parallel.replicate(np.bool_(True), mesh)  # as the loop places it
        return parallel.replicate(state, mesh), zeros(source, shape, mesh), learn

    probes = costs.probe_shapes(
        source.lengths,
        batch_size=config.batch_size,
        num_shapes=config.num_probes,
        label_lengths=source.label_lengths,
    )
    measured = costs.measure(
        make_step(),
        arguments,
        probes,
        repeats=config.probe_repeats,
        carry=lambda results, given: (results[0], *given[1:]),
        in_a_row=config.in_a_row,
    )
    print(measured.report(), flush=True)
    specs = {
        number: BucketSpec.fit(
            source.lengths,
            num_buckets=number,
            batch_size=config.batch_size,
            label_lengths=source.label_lengths,
        )
        for number in config.num_buckets
    }
    step = make_step()
    for spec in specs.values():
        compiles.warm_up(step, [arguments(shape) for shape in spec.shapes])
    seconds: dict[int, list[float]] = {number: [] for number in specs}
    predicted: dict[int, float] = {}
    for repeat in range(config.repeats):
        for number in np.random.default_rng(repeat).permutation(list(specs)).tolist():
            took, plan = train(source, specs[number], step, state, mesh, config.seed)
            seconds[number].append(took)
            sizes, lengths = np.array([(rows, n) for rows, n, _ in specs[number].shapes]).T
            per_step = measured.cost.step_seconds(sizes, lengths)
            predicted[number] = float(np.bincount(plan.buckets, minlength=len(sizes)) @ per_step)
    rows = []
    print("buckets  steps' prediction (s)  measured (s)  error")
    for number in specs:
        median = float(np.median(seconds[number]))
        error = predicted[number] / median - 1
        rows.append(
            {
                "num_buckets": number,
                "predicted_seconds": predicted[number],
                "measured_seconds": seconds[number],
                "error": error,
            }
        )
        print(f"{number:7d}  {predicted[number]:21.2f}  {median:12.2f}  {error:+6.1%}")
    median_error = float(np.median([abs(row["error"]) for row in rows]))
    print(f"median error {median_error:.1%}")
    config.workdir.mkdir(parents=True, exist_ok=True)
    (config.workdir / "result.json").write_text(
        json.dumps({"cost": measured.cost.source, "epochs": rows, "median_error": median_error})
    )


def read(config: Config) -> InkSource:
    """Training examples, the longest half per cent left out."""
    inks, _ = load(config.dataset, config.data_dir, seed=config.seed, num_lines=config.num_lines)
    inks = inks[: config.max_examples]
    source = make_source(
        inks, Alphabet.from_labels(ink.label for ink in inks), resample=config.resample
    )
    order = np.argsort(source.lengths, kind="stable")
    return source.select(np.sort(order[: len(order) - len(order) // 200]))


def zeros(source: InkSource, shape: Shape, mesh: Mesh) -> Any:
    """A batch of the shape without anything in it: time does not depend on what is."""
    loader = Loader(
        source,
        BucketSpec((shape.length,), (shape.batch_size,), (shape.label_length or 1,)),
        lengths=source.lengths,
        label_lengths=source.label_lengths,
        too_long="drop",
    )
    abstract = loader.abstract_batch(0)
    filled = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), abstract)
    ones = np.ones(shape.batch_size)
    return parallel.split_rows(
        filled._replace(
            lengths=np.full(shape.batch_size, shape.length, np.int32),
            weights=ones.astype(np.float32),
        ),
        mesh,
    )


def train(
    source: InkSource, spec: BucketSpec, step: Any, state: Any, mesh: Mesh, seed: int
) -> tuple[float, Any]:
    """Trains an epoch from the given state; its seconds, and its plan."""
    loader = Loader(
        source,
        spec,
        lengths=source.lengths,
        label_lengths=source.label_lengths,
        seed=seed,
        place=lambda batch: parallel.split_rows(batch, mesh),
    )
    plan = loader.plan
    placed = parallel.replicate(state, mesh)
    with compiles.forbid(only_watched=True):
        start = time.perf_counter()
        placed = loop.train_epoch(placed, loader, step, first_step=0)
        jax.block_until_ready(placed.params)
        return time.perf_counter() - start, plan


if __name__ == "__main__":
    main(tyro.cli(Config))
