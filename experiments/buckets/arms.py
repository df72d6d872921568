"""One run: train one arm of the comparison from the same weights, and measure it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from bucketjax import BucketSpec, Loader, compiles, parallel, warming
from bucketjax.batching import plan_epoch, plan_mixed_epoch
from bucketjax.nn import Recognizer
from bucketjax.training import checkpoints, loop, steps
from experiments.buckets.config import Config
from experiments.buckets.data import Data

_DEFAULT_BATCH_SIZE = 32


class Stopped(Exception):
    """A signal arrived; the run was saved and can be resumed."""


@dataclasses.dataclass(frozen=True)
class Hooks:
    """Where a run tells what it is doing."""

    metrics: Callable[[dict[str, Any]], None]
    progress: Callable[[str, int, int], None]
    say: Callable[[str], None]
    stopped: Callable[[], bool]


def fit_spec(arm: str, config: Config, data: Data) -> BucketSpec:
    """The shapes of an arm; batch-max has one for every multiple of its step."""
    budget, rows = config.token_budget, config.batch_size
    if budget is None and rows is None:
        rows = _DEFAULT_BATCH_SIZE
    lengths = data.train.lengths
    shared = {
        "label_lengths": data.train.label_lengths,
        "batch_multiple_of": config.num_devices * config.accumulate,
    }
    if arm != "batch-max":
        return BucketSpec.fit(
            lengths,
            num_buckets=int(arm),
            token_budget=budget,
            batch_size=rows,
            multiple_of=config.multiple_of,
            strategy=config.strategy,
            **shared,
        )
    multiple = config.batch_max_multiple_of
    every = np.arange(multiple, lengths.max() + multiple, multiple)
    if budget is not None:
        multiple = config.num_devices * config.accumulate
        fitting = budget // int(every[-1]) // multiple * multiple
        rows = fitting if rows is None else min(rows, fitting)
    return BucketSpec.fit(
        lengths,
        num_buckets=len(every),
        batch_size=rows,
        strategy=lambda *_, **__: every,
        # One label length for all: else a long label alone would lift a batch to a longer bucket.
        **{**shared, "label_lengths": np.full(len(lengths), data.train.label_lengths.max())},
    )


def run_arm(
    arm: str, repeat: int, config: Config, data: Data, mesh: Mesh, folder: Path, hooks: Hooks
) -> dict[str, Any]:
    """Trains and evaluates one arm; returns its measurements as plain JSON values.

    Everything is compiled before the clock of the training starts (unless the background is to do
    it), and compiling anything else after that is an error: the compile count is exact, and
    training seconds hold no compilation.

    Raises:
      Stopped: a signal arrived. A checkpoint was saved in `folder`.
    """
    seed = config.seed + repeat
    spec = fit_spec(arm, config, data)
    draw = plan_mixed_epoch if arm == "batch-max" else plan_epoch

    def place(batch: Any) -> Any:
        return parallel.split_rows(batch, mesh)

    def load(source: Any, **options: Any) -> Loader[Any]:
        return Loader(
            source,
            spec,
            lengths=source.lengths,
            label_lengths=source.label_lengths,
            place=place,
            **options,
        )

    train = load(data.train, seed=seed, plan=draw)
    validation = load(data.validation, shuffle=False, plan=draw)
    plans = [draw_plan(draw, data, spec, seed, epoch) for epoch in range(config.epochs)]
    total_steps = sum(map(len, plans))
    model = Recognizer(
        data.train[0]["features"].shape[1],
        data.alphabet.num_classes,
        hidden=config.hidden,
        layers=config.layers,
        dropout=config.dropout,
        dtype=config.precision,
        chunk=config.chunk,
        rngs=nnx.Rngs(seed),
    )
    optimizer = steps.make_optimizer(
        learning_rate=config.learning_rate,
        total_steps=total_steps,
        warmup=config.warmup,
        weight_decay=config.weight_decay,
        clip_norm=config.clip_norm,
    )
    step = compiles.watch(
        parallel.data_parallel(
            steps.make_step(model, optimizer, dropout_seed=seed, accumulate=config.accumulate),
            mesh,
            row_results=steps.ROW_RESULTS,
        ),
        name="step",
    )
    state = parallel.replicate(steps.init_state(model, optimizer), mesh)
    clock = {"train_seconds": 0.0, "examples": 0, "step": 0}
    curve: list[dict[str, float]] = []
    settings = {**config.as_json(), "arm": arm, "repeat": repeat}
    for name in ("workdir", "resume", "tensorboard", "compile_cache", "background_compile"):
        del settings[name]
    if config.resume and checkpoints.latest_step(folder) is not None:
        saved = checkpoints.restore(folder, state, config=settings)
        state = saved.state
        train.set_state(saved.position)
        clock, curve = saved.extra["clock"], saved.extra["curve"]
        hooks.say(f"{arm}: resumed at step {clock['step']}, epoch {train.epoch + 1}")

    def save() -> None:
        checkpoints.save(
            folder,
            state,
            position=train.get_state(),
            config=settings,
            extra={"clock": clock, "curve": curve, "alphabet": data.alphabet.to_json()},
        )

    # In the order of need, which is what compiling in the background goes by.
    used = dict.fromkeys(int(b) for plan in [*plans, validation.plan] for b in plan.buckets)
    learn = parallel.abstract_like(np.bool_(True), mesh)
    shapes = [
        (
            parallel.abstract_like(state, mesh),
            parallel.abstract_like(train.abstract_batch(bucket), mesh, rows=True),
            learn,
        )
        for bucket in used
    ]

    def note(report: loop.StepReport) -> None:
        clock["step"] = report.step
        clock["examples"] += report.examples
        hooks.metrics({"arm": arm, "repeat": repeat, "kind": "train", **report._asdict()})
        hooks.progress(f"{arm} buckets" if arm.isdigit() else arm, report.step, total_steps)

    with compiles.count() as log, contextlib.ExitStack() as background:
        started = time.perf_counter()
        if config.background_compile:
            step = background.enter_context(warming.in_background(step, shapes))
        else:
            compiles.warm_up(
                step,
                shapes,
                progress=lambda done, of, _, __: hooks.progress("compiling", done, of),
            )
        compile_seconds = time.perf_counter() - started
        with compiles.forbid(only_watched=True):
            while not _is_done(curve, config):
                epoch = train.epoch
                started = time.perf_counter()
                state = loop.train_epoch(
                    state,
                    train,
                    step,
                    first_step=clock["step"],
                    on_step=note,
                    stop=hooks.stopped,
                )
                jax.block_until_ready(state.params)
                clock["train_seconds"] += time.perf_counter() - started
                if hooks.stopped() and train.epoch == epoch:
                    save()
                    raise Stopped
                validation.seek(epoch=0)
                state, found = loop.evaluate(state, validation, step)
                curve.append(
                    {
                        "epoch": epoch + 1,
                        "step": clock["step"],
                        "seconds": clock["train_seconds"] + compile_seconds,
                        "validation_loss": found.loss,
                        "label_error_rate": found.label_error_rate,
                        "infeasible": found.infeasible,
                    }
                )
                hooks.metrics({"arm": arm, "repeat": repeat, "kind": "validation", **curve[-1]})
                hooks.say(
                    f"{arm}: epoch {epoch + 1}/{config.epochs}, {clock['train_seconds']:.1f} s, "
                    f"validation loss {found.loss:.3f} nats/example, label error rate "
                    f"{found.label_error_rate:.1%}"
                )
                save()  # the last one too: it holds the trained model and its alphabet
                if hooks.stopped() and not _is_done(curve, config):
                    raise Stopped
    return {
        "arm": arm,
        "repeat": repeat,
        "num_buckets": None if arm == "batch-max" else spec.num_buckets,
        **_work(plans[: len(curve)], data.train.lengths, spec),
        "compile_count": log.count,
        "other_compile_count": len(log.other),  # outside the step: eager operations
        "cached_compile_count": sum(one.cached for one in log.compilations),
        "compile_seconds": compile_seconds,
        "train_seconds": clock["train_seconds"],
        "train_seconds_with_compile": clock["train_seconds"] + compile_seconds,
        "epochs": len(curve),
        "steps": clock["step"],
        "validation_loss": curve[-1]["validation_loss"],
        "label_error_rate": curve[-1]["label_error_rate"],
        "infeasible": curve[-1]["infeasible"],
        "examples_per_second": clock["examples"] / clock["train_seconds"],
        "spec": [shape._asdict() for shape in spec.shapes] if arm != "batch-max" else None,
        "curve": curve,
    }


def _is_done(curve: list[dict[str, float]], config: Config) -> bool:
    if not curve:
        return False
    target = config.target_loss
    reached = target is not None and curve[-1]["validation_loss"] <= target
    return reached or len(curve) == config.epochs


def draw_plan(draw: Any, data: Data, spec: BucketSpec, seed: int, epoch: int) -> Any:
    """The plan of one epoch of training, as the loader draws it."""
    return draw(
        data.train.lengths,
        spec,
        seed=seed,
        epoch=epoch,
        label_lengths=data.train.label_lengths,
    )


def _work(plans: Any, lengths: Any, spec: BucketSpec) -> dict[str, float]:
    """Padded time steps of the epochs, and which share of them was padding, or filler rows."""
    padded = real = filler = 0
    for plan in plans:
        for bucket, indices in plan:
            rows = indices[indices >= 0]
            padded += spec.boundaries[bucket] * len(indices)
            filler += spec.boundaries[bucket] * (len(indices) - len(rows))
            real += int(lengths[rows].sum())
    return {
        "padding_fraction": 1 - real / (padded - filler),
        "filler_fraction": filler / padded,
        "padded_time_steps": padded,
    }
