"""`python -m experiments.step`: our step beside flax with optax and beside torch, in one run."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

import tyro

from experiments.step import epochs, report
from experiments.step.config import Config, cases
from experiments.step.workers import Worker

_TITLES = {
    "lstm": "LSTM, forward and backward",
    "ctc": "CTC, loss and gradient",
    "step": "Whole training step",
}


def main(config: Config) -> None:
    """Times every case and prints the tables."""
    config.check()
    config.workdir.mkdir(parents=True, exist_ok=True)
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print("torch is not installed (extra `bench`): its columns are left out", flush=True)
    sides = ["jax", *(["torch"] if has_torch else [])]
    on_cpu = config.num_devices or os.cpu_count() or 1
    with contextlib.ExitStack() as stack:
        workers: dict[tuple[str, str], Worker] = {}
        for allocator in ("default", "tuned"):
            for side in sides:
                if allocator == "tuned" and not (config.tuned and _is_cpu(workers)):
                    continue
                worker = Worker(side, allocator == "tuned", on_cpu)
                stack.callback(worker.close)
                workers[side, allocator] = worker
        facts = workers["jax", "default"].facts
        devices = config.num_devices or facts["devices"]
        peak = max(worker.ask("peak") for worker in workers.values())
        result: dict[str, Any] = {
            "environment": _environment(facts, has_torch),
            "peak_gflops": peak / 1e9,
            "cases": [],
            "epochs": [],
        }
        print(f"{facts['devices']} x {facts['device']}, {peak / 1e9:.0f} GFLOP/s", flush=True)
        for part in ("lstm", "ctc", "step"):
            if part in config.parts:
                for case in cases(part, config.quick):
                    contenders = _contenders(part, devices, has_torch, _is_cpu(workers))
                    result["cases"] += _time(case, contenders, workers, devices, config.repeats)
                    _write(config.workdir, result)
        if "epoch" in config.parts:
            result["epochs"], result["words"] = _time_epochs(config, workers, devices)
            _write(config.workdir, result)
    text = tables(result, devices)
    (config.workdir / "tables.md").write_text(text + "\n")
    print(f"\n{text}")


def _is_cpu(workers: dict[tuple[str, str], Worker]) -> bool:
    return workers["jax", "default"].facts["platform"] == "cpu"


def tables(result: dict[str, Any], devices: int) -> str:
    """Everything that was measured, as Markdown."""
    texts = [f"Matmul peak {result['peak_gflops']:.0f} GFLOP/s."]
    for part, title in _TITLES.items():
        rows = [row for row in result["cases"] if row["part"] == part]
        for allocator in dict.fromkeys(row["allocator"] for row in rows):
            texts.append(f"{title}, {allocator} allocator: our time, and theirs over ours")
            texts.append(
                report.case_table(
                    rows, allocator, f"ours, {_on(devices)}", 1e9 * result["peak_gflops"]
                )
            )
    if result["epochs"]:
        texts.append(f"An epoch of UNIPEN words: {result['words']}")
        texts.append(report.epoch_table(result["epochs"], result["epochs"][-1]["reference"]))
    return "\n\n".join(texts)


def _on(devices: int) -> str:
    return f"{devices} device" + ("s" if devices > 1 else "")


def _contenders(
    part: str, devices: int, has_torch: bool, is_cpu: bool
) -> list[tuple[str, str, str, int]]:
    """(name, side, contender, devices) of each, ours on all devices first."""
    counts = list(dict.fromkeys([devices, 1]))
    theirs = {"lstm": "flax", "ctc": "optax", "step": "flax + optax"}[part]
    found = [
        (f"{name}, {_on(count)}", "jax", name, count)
        for name in ("ours", theirs)
        for count in counts
    ]
    if part == "lstm" and not is_cpu:  # where "ours" is cuDNN's
        found.insert(1, (f"ours by scan, {_on(devices)}", "jax", "ours by scan", devices))
    if has_torch:
        names = ["torch"] if part == "ctc" else ["torch packed", "torch padded"]
        found += [(name, "torch", name, 1) for name in names]
    return found


def _time(
    case: Any, contenders: Any, workers: Any, devices: int, repeats: int
) -> list[dict[str, Any]]:
    allocators = list(dict.fromkeys(allocator for _, allocator in workers))
    rows = {
        allocator: {
            "part": case.part,
            "case": case.name,
            "allocator": allocator,
            "flops": case.flops,
            "seconds": {name: [] for name, *_ in contenders},
            "memory": {},
        }
        for allocator in allocators
    }
    memory: dict[str, int] = {}
    for allocator, row in rows.items():
        row["memory"] = memory
        for name, side, contender, count in contenders:
            found = workers[side, allocator].ask("build", name, case, contender, count)
            # One number of devices is enough; and what torch takes shows only where freed memory
            # goes back.
            if allocator == "default" and (side == "torch" or count == devices):
                memory[name] = found
    for _ in range(repeats):
        for name, side, _, _ in contenders:
            for allocator, row in rows.items():
                seconds, _ = workers[side, allocator].ask("time", name)
                row["seconds"][name].append(seconds)
    for worker in workers.values():
        worker.ask("free")
    for allocator, row in rows.items():
        first, *others = row["seconds"].items()
        said = [f"{name} {report.ratio(first[1], seconds)}" for name, seconds in others]
        print(f"{case.part}, {case.name}, {allocator}: {'; '.join(said)}", flush=True)
    return list(rows.values())


def _time_epochs(config: Config, workers: Any, devices: int) -> tuple[list[dict[str, Any]], Any]:
    assert config.data_dir is not None
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "words.npz"
        words = epochs.write_words(config.data_dir, config.max_examples, path)
        print(f"words: {words}", flush=True)
        for (side, allocator), worker in workers.items():
            arms = {"jax": ["8 buckets", "1 bucket", "batch-max"]}.get(
                side, ["packed, sorted", "padded, sorted"]
            )
            if side == "jax" and allocator == "default" and ("jax", "tuned") in workers:
                arms = arms[:1]  # one shows what the allocator does
            for arm in arms:
                whose = f"ours, {arm}, {_on(devices)}" if side == "jax" else f"torch, {arm}"
                name = f"{whose}, {allocator}"
                facts = worker.ask("build epoch", name, str(path), arm, devices)
                rows.append(
                    {"name": name, "side": side, "allocator": allocator, "rates": [], **facts}
                )
        for number in range(config.epoch_repeats):
            for row in rows:
                worker = workers[row["side"], row["allocator"]]
                seconds, examples = worker.ask("time", row["name"])
                row["rates"].append(examples / seconds)
                print(f"epoch {number + 1}: {row['name']}: {examples / seconds:.1f}/s", flush=True)
    allocator = "tuned" if ("jax", "tuned") in workers else "default"
    reference = f"ours, 8 buckets, {_on(devices)}, {allocator}"
    return [{**row, "reference": reference} for row in rows], words


def _environment(facts: dict[str, Any], has_torch: bool) -> dict[str, Any]:
    names = ("jax", "jaxlib", "flax", "optax", *(["torch"] if has_torch else []))
    return {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": {name: metadata.version(name) for name in names},
        **facts,
    }


def _write(folder: Path, result: dict[str, Any]) -> None:
    partial = folder / "results.partial"
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(folder / "results.json")


if __name__ == "__main__":
    try:
        main(tyro.cli(Config, description=Config.__doc__))
    except (ValueError, OSError, RuntimeError) as error:
        raise SystemExit(f"error: {error}") from error
