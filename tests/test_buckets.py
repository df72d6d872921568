"""The main job as a user runs it: flags, files, a stop and a resume, in real processes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bucketjax.batching import plan_epoch
from bucketjax.training.checkpoints import latest_step
from experiments.buckets import report
from experiments.buckets.arms import fit_spec
from experiments.buckets.config import Config
from experiments.buckets.data import read_data

ROOT = Path(__file__).resolve().parents[1]
SMALL = (
    "--num-lines 80 --resample 0.3 --hidden 8 --layers 1 --batch-size 8 --epochs 2 "
    "--num-buckets 1 3"
).split()


def command(*flags):
    return [sys.executable, "-m", "experiments.buckets", *flags]


def run(*flags, ok=True):
    done = subprocess.run(command(*flags), cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small") / "work"
    done = run(*SMALL, "--batch-max-multiple-of", "64", "--num-devices", "2", "--workdir", folder)
    return folder, done.stdout


def test_each_arm_is_measured_and_compiles_once_per_bucket(small):
    folder, _ = small
    result = json.loads((folder / "result.json").read_text())
    arms = {arm["arm"]: arm for arm in result["arms"]}
    assert list(arms) == ["1", "3", "batch-max"]
    assert [arms[name]["num_buckets"] for name in arms] == [1, 3, None]
    assert [arms[name]["compile_count"] for name in ("1", "3")] == [1, 3]
    for arm in arms.values():
        for name in (
            "padding_fraction compile_count compile_seconds train_seconds epochs steps "
            "validation_loss label_error_rate examples_per_second"
        ).split():
            assert np.isfinite(arm[name]), name
        assert arm["epochs"] == 2
        assert arm["train_seconds_with_compile"] == pytest.approx(
            arm["train_seconds"] + arm["compile_seconds"]
        )
    assert arms["3"]["padding_fraction"] < arms["1"]["padding_fraction"]
    assert arms["1"]["seconds_to_target"] is not None


def test_all_arms_see_the_same_examples_from_the_same_weights(small):
    folder, _ = small
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("runs/*/run.json"))]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seen = {
        one["arm"]: sum(
            row["examples"] for row in rows if row["kind"] == "train" and row["arm"] == one["arm"]
        )
        for one in runs
    }
    examples = json.loads((folder / "result.json").read_text())["dataset"]["train_examples"]
    assert set(seen.values()) == {2 * examples}


def test_the_trained_model_is_kept_with_its_alphabet(small):
    folder, _ = small
    for arm in ("1-0", "3-0", "batch-max-0"):
        run = json.loads((folder / "runs" / arm / "run.json").read_text())
        checkpoints = folder / "runs" / arm / "checkpoints"
        assert latest_step(checkpoints) == run["steps"]
        kept = json.loads((checkpoints / str(run["steps"]) / "run" / "metadata").read_text())
        assert len(json.loads(kept["extra"]["alphabet"])) > 10


def test_a_target_ends_an_arm_early(tmp_path):
    flags = ["--num-buckets", "3", "--no-batch-max", "--target-loss", "1000000"]
    run(*SMALL, *flags, "--workdir", tmp_path / "work")
    result = json.loads((tmp_path / "work" / "result.json").read_text())
    assert result["arms"][0]["epochs"] == 1


def test_the_files_tell_everything_and_the_figure_is_made_from_them_alone(small):
    folder, printed = small
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_lines"], config["num_devices"]) == (80, 2)
    environment = json.loads((folder / "environment.json").read_text())
    assert len(environment["devices"]) == 2
    assert "jax" in environment["packages"]
    text = (folder / "table.md").read_text()
    assert text.strip() in printed
    (folder / "figure.png").unlink()
    done = subprocess.run(
        [sys.executable, "-m", "experiments.buckets.report", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert text.strip() in done.stdout
    assert (folder / "figure.png").stat().st_size > 10_000


def test_a_folder_that_holds_results_is_not_overwritten(small):
    folder, _ = small
    done = run(*SMALL, "--workdir", folder, ok=False)
    assert "already holds a comparison: go on with it by --resume" in done.stderr


def test_a_stopped_comparison_resumes_to_the_same_numbers(tmp_path):
    flags = [*SMALL, "--epochs", "3", "--no-batch-max", "--num-buckets", "3"]
    run(*flags, "--workdir", tmp_path / "straight")
    metrics = tmp_path / "stopped" / "metrics.jsonl"
    process = subprocess.Popen(
        command(*flags, "--workdir", tmp_path / "stopped"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        if metrics.is_file() and len(metrics.read_text().splitlines()) > 3:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "go on with --resume" in printed
    assert not (tmp_path / "stopped" / "figure.png").exists()

    other = run(*flags, "--hidden", "9", "--resume", "--workdir", tmp_path / "stopped", ok=False)
    assert "--hidden was 8 and is 9; give the same settings" in other.stderr

    resumed = run(*flags, "--resume", "--workdir", tmp_path / "stopped")
    assert "resumed at step" in resumed.stdout
    curves, rows = [], []
    for name in ("straight", "stopped"):
        one = json.loads((tmp_path / name / "runs" / "3-0" / "run.json").read_text())
        curves.append(
            [
                (p["epoch"], p["step"], p["validation_loss"], p["label_error_rate"])
                for p in one["curve"]
            ]
        )
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        rows.append([(r["kind"], r["step"], r.get("loss")) for r in map(json.loads, lines)])
    assert curves[0] == curves[1]  # bit for bit
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-buckets", "0"], "--num-buckets is (0,); it must be counts of at least 1"),
        (["--num-buckets", "2", "2"], "it must be each count once"),
        (["--dropout", "1"], "--dropout is 1.0; it must be at least 0 and below 1"),
        (["--strategy", "best"], "--strategy is best; it must be one of equal_duration, geometric"),
        (["--dataset", "unipen-words"], "--dataset unipen-words needs --data-dir, the folder of"),
        (["--data-dir", "x"], "--dataset synthetic makes its own ink; leave out --data-dir"),
        (["--epochs", "0"], "--epochs is 0; it must be at least 1"),
        (["--learning-rate", "0"], "--learning-rate is 0.0; it must be above 0"),
        (["--validation-fraction", "1"], "it must be between 0 and 1"),
    ],
)
def test_a_setting_that_is_wrong_is_said(flags, message):
    import tyro

    with pytest.raises(ValueError) as error:  # noqa: PT011 - the text is what is tested
        tyro.cli(Config, args=flags).check()
    assert message in str(error.value)


def test_a_wrong_flag_reaches_the_user_as_one_line():
    done = run("--num-buckets", "0", ok=False)
    assert done.stderr.startswith("error: --num-buckets is (0,)")
    assert "Traceback" not in done.stderr
    done = run("--dataset", "mnist", ok=False)
    assert "invalid choice" in done.stdout + done.stderr


def test_every_flag_has_help():
    shown = run("--help").stdout
    assert "Examples in a global batch of every bucket" in shown
    for field in Config.__dataclass_fields__:
        assert f"--{field.replace('_', '-')}" in shown


def test_batch_max_has_a_shape_for_every_multiple_and_the_rows_that_always_fit():
    config = Config(num_lines=60, token_budget=9000, batch_size=None, num_devices=2)
    data = read_data(config)
    spec = fit_spec("batch-max", config, data)
    assert all(length % 32 == 0 for length in spec.boundaries)
    assert set(np.diff(spec.boundaries)) == {32}
    assert len(set(spec.batch_sizes)) == 1
    rows = spec.batch_sizes[0]
    assert rows % 2 == 0
    assert rows * spec.boundaries[-1] <= 9000 < (rows + 2) * spec.boundaries[-1]


def test_the_longest_are_dropped_and_counted():
    data = read_data(Config(num_lines=400, drop_longest=0.05))
    everything = read_data(Config(num_lines=400, drop_longest=0.0))
    dropped = data.facts["longest_dropped"]
    assert dropped == int(0.05 * len(everything.train))
    assert len(data.train) + dropped == len(everything.train)
    assert data.train.lengths.max() < everything.train.lengths.max()
    assert everything.facts["longest_dropped"] == 0


def make_run(arm, repeat, seconds, losses):
    curve = [
        {"seconds": seconds * (n + 1), "validation_loss": loss, "label_error_rate": 0.5}
        for n, loss in enumerate(losses)
    ]
    numbers = dict.fromkeys((name for name, _, _ in report._COLUMNS), 1.0)
    return {
        **numbers,
        "arm": arm,
        "repeat": repeat,
        "num_buckets": int(arm),
        "train_seconds": seconds,
        "curve": curve,
    }


def test_medians_spread_speed_up_and_the_time_to_the_baselines_loss():
    runs = [
        make_run("1", 0, 10.0, [5.0, 3.0]),
        make_run("4", 0, 2.0, [4.0, 2.5]),
        make_run("1", 1, 20.0, [5.0, 3.0]),
        make_run("4", 1, 4.0, [2.0, 3.5]),
    ]
    one, four = report.summarise(runs)
    assert (one["train_seconds"], four["train_seconds"]) == (15.0, 3.0)
    assert four["spread"]["train_seconds"] == [2.0, 4.0]
    assert four["speedup"] == 5.0
    assert [run["seconds_to_target"] for run in one["runs"]] == [20.0, 40.0]
    assert [run["seconds_to_target"] for run in four["runs"]] == [4.0, 4.0]


def test_an_arm_that_never_reaches_the_target_has_no_time_to_it():
    arms = report.summarise([make_run("1", 0, 1.0, [1.0]), make_run("2", 0, 1.0, [9.0])])
    assert arms[1]["seconds_to_target"] is None
    assert report.summarise([make_run("2", 0, 1.0, [9.0])])[0]["speedup"] is None
    assert " - |" in report.table(arms)


def test_a_folder_without_results(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"result.json does not exist: give the --workdir"):
        report.read_result(tmp_path)


def test_the_plan_of_an_arm_is_the_loaders():
    config = Config(num_lines=60)
    data = read_data(config)
    spec = fit_spec("4", config, data)
    assert spec.num_buckets == 4
    plan = plan_epoch(
        data.train.lengths, spec, seed=0, epoch=0, label_lengths=data.train.label_lengths
    )
    assert plan.report()["examples"] == len(data.train)
