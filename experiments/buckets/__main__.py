"""`python -m experiments.buckets`: train with and without bucketing, and compare."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import tyro

from bucketjax.launching import keep_freed_memory
from experiments.buckets import report
from experiments.buckets.config import Config

_PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "bucketjax")


def main(config: Config) -> None:
    """Runs every arm, then writes and prints what came out."""
    config.check()
    folder = config.workdir
    _open_folder(config)
    print(keep_freed_memory(), flush=True)
    import jax

    if config.num_devices > 1:
        # Only CPU devices are made on demand; where there is an accelerator this changes nothing.
        jax.config.update("jax_num_cpu_devices", config.num_devices)
    from bucketjax import compiles, parallel
    from bucketjax.training.loop import stop_on_signal
    from experiments.buckets.arms import Hooks, Stopped, run_arm
    from experiments.buckets.data import read_data

    if config.compile_cache:
        print(f"compiled programs: kept in {compiles.persist()}", flush=True)
    mesh = parallel.data_mesh(config.num_devices)
    print(f"reading {config.dataset} ...", flush=True)
    data = read_data(config)
    facts = data.facts
    print(
        f"{facts['train_examples']} training and {facts['validation_examples']} validation "
        f"examples of {facts['train_writers']} and {facts['validation_writers']} writers; "
        f"{facts['longest_dropped']} longest left out, {facts['validation_too_long']} too long to "
        f"validate, {facts['unknown_characters']} unknown characters; mean length "
        f"{facts['mean_length']:.0f}, longest {facts['longest_length']} frames",
        flush=True,
    )
    _write(folder / "environment.json", _environment(jax))
    if config.resume:
        _rewind_metrics(config)
    runs: list[dict[str, Any]] = []
    arms: list[dict[str, Any]] = []
    with (
        _metrics(config) as metrics,
        _progress() as (progress, say),
        stop_on_signal(signal.SIGTERM, signal.SIGINT) as stopped,
    ):
        for repeat in range(config.repeats):
            for arm in config.arms:
                place = folder / "runs" / f"{arm}-{repeat}"
                done = place / "run.json"
                if config.resume and done.is_file():
                    runs.append(json.loads(done.read_text()))
                    arms = report.summarise(runs)
                    continue
                hooks = Hooks(metrics, progress, say, stopped)
                try:
                    run = run_arm(arm, repeat, config, data, mesh, place / "checkpoints", hooks)
                except Stopped:
                    say(f"stopped and saved; go on with --resume --workdir {folder}")
                    return
                runs.append(run)
                _write(done, run)
                arms = report.summarise(runs)
                content = {"dataset": facts, "config": config.as_json(), "arms": arms}
                _write(folder / report.RESULT, content)
                jax.clear_caches()  # an arm's programs are of no use to the next one
                if stopped():
                    say(f"stopped between two arms; go on with --resume --workdir {folder}")
                    return
    text = report.table(arms)
    (folder / report.TABLE).write_text(text + "\n")
    print(f"\n{text}\n\nfigure: {report.draw(folder)}")


def _open_folder(config: Config) -> None:
    settings = config.as_json()
    path = config.workdir / "config.json"
    if path.is_file():
        before = json.loads(path.read_text())
        if not config.resume:
            raise ValueError(
                f"{config.workdir} already holds a comparison: go on with it by --resume, or give "
                "another --workdir"
            )
        free = {"resume", "tensorboard", "workdir", "compile_cache", "background_compile"}
        differing = [
            f"--{name.replace('_', '-')} was {before.get(name)} and is {settings[name]}"
            for name in settings
            if name not in free and before.get(name) != settings[name]
        ]
        if differing:
            raise ValueError(
                f"cannot resume {config.workdir}: {'; '.join(differing)}; give the same settings"
            )
    elif config.resume:
        raise ValueError(f"nothing to resume in {config.workdir}: leave out --resume")
    _write(path, settings)


def _rewind_metrics(config: Config) -> None:
    """Forgets what runs measured after the checkpoint from which they go on."""
    from bucketjax.training.checkpoints import latest_step

    path = config.workdir / report.METRICS
    if not path.is_file():
        return
    kept, known = [], {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        run = config.workdir / "runs" / f"{row['arm']}-{row['repeat']}"
        if run not in known:
            done = (run / "run.json").is_file()
            known[run] = float("inf") if done else latest_step(run / "checkpoints") or 0
        if row["step"] <= known[run]:
            kept.append(line + "\n")
    path.write_text("".join(kept))


@contextlib.contextmanager
def _metrics(config: Config) -> Iterator[Any]:
    path = config.workdir / report.METRICS
    writer = None
    if config.tensorboard:
        from tensorboardX import SummaryWriter

        writer = SummaryWriter(str(config.workdir / "tensorboard"))
    with path.open("a", buffering=1) as file:  # a line is there as soon as it is written

        def write(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            if writer is not None:
                for name in ("loss", "grad_norm", "validation_loss", "label_error_rate"):
                    if name in row:
                        tag = f"{row['arm']}-{row['repeat']}/{name}"
                        writer.add_scalar(tag, row[name], row["step"])

        try:
            yield write
        finally:
            if writer is not None:
                writer.close()


@contextlib.contextmanager
def _progress() -> Iterator[Any]:
    """A bar on a terminal; elsewhere the epochs' lines are enough."""
    if not sys.stdout.isatty():
        yield (lambda *_: None), (lambda text: print(text, flush=True))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("", total=None)
        shown = [""]

        def progress(what: str, done: int, of: int) -> None:
            if what != shown[0]:
                shown[0] = what
                bar.reset(task, total=of, description=what)
            bar.update(task, completed=done)

        yield progress, bar.console.print


def _environment(jax: Any) -> dict[str, Any]:
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "devices": [str(device) for device in jax.devices()],
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }


def _write(path: Path, content: Any) -> None:
    """Writes JSON so that a reader never sees half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    partial.replace(path)


if __name__ == "__main__":
    try:
        main(tyro.cli(Config, description=Config.__doc__))
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from error
