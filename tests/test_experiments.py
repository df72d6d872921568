"""The smaller experiments: padding by rule, and prediction."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bucketjax import boundaries as cuts
from experiments import padding

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"


def histogram(lengths):
    return cuts.histogram(np.array(lengths))


@pytest.mark.parametrize("name", padding.RULES)
@given(st.lists(st.integers(1, 3000), min_size=1, max_size=60), st.integers(1, 9))
def test_every_rule_holds_all_lengths_in_no_more_buckets_and_none_beats_the_optimum(
    name, lengths, number
):
    values, counts = histogram(lengths)
    boundaries = padding.RULES[name](values, counts, number)
    assert np.all(np.diff(boundaries) > 0)
    assert boundaries[0] >= 1
    assert boundaries[-1] == max(lengths)
    assert len(boundaries) <= number
    best = cuts.optimal(values, counts=counts, num_buckets=number)
    assert cuts.padding_fraction(values, boundaries, counts=counts) >= (
        cuts.padding_fraction(values, best, counts=counts) - 1e-12
    )


def test_the_rules_by_hand():
    values, counts = histogram([1, 2, 3, 4, 5, 6, 7, 8])
    assert padding.fairseq(values, counts, 2).tolist() == [4, 8]
    # 36 time steps, 18 for each of two: 1 + ... + 6 = 21 passes 18, and 7 begins the next.
    assert padding.lhotse(values, counts, 2).tolist() == [6, 8]
    assert padding.jetstream(values, counts, 3).tolist() == [2, 4, 8]
    assert padding.speechbrain(values, counts, 1).tolist() == [8]
    # Three quantiles of a log-normal distribution: e^-0.674, 1, e^0.674, scaled to 8 at the last.
    assert padding.speechbrain(values, counts, 3).tolist() == [2, 4, 8]


def test_the_table_goes_between_the_markers_and_nowhere_else(tmp_path, capsys):
    np.savez(tmp_path / "lengths.npz", a_samples16k=[1600, 3200, 3201], b=[3, 4, 9])
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- padding -->\nold\n<!-- end of padding -->\nafter\n")
    padding.main(
        padding.Config(tmp_path / "lengths.npz", (1,), readme, histograms=None),
    )
    text = readme.read_text()
    assert text.startswith("before\n<!-- padding -->\n\n| workload")
    assert text.endswith("|\n\n<!-- end of padding -->\nafter\n")
    assert "old" not in text
    # 10, 20 and 21 frames in 63; 3, 4 and 9 in 27.
    assert f"| a | {100 * (1 - 51 / 63):.1f} |" in text
    assert f"| b | {100 * (1 - 16 / 27):.1f} |" in text
    readme.write_text("no markers")
    with pytest.raises(ValueError, match="has no <!-- padding -->"):
        padding.main(padding.Config(tmp_path / "lengths.npz", (1,), readme))


def test_the_readme_has_the_table_of_the_real_lengths(data_dir):
    workloads = padding.read(data_dir / "lengths" / "lengths.npz")
    assert padding.table(workloads, (4, 8, 16, 32)) in (ROOT / "README.md").read_text()


def test_the_notebooks_have_the_histograms_of_the_real_lengths(data_dir, tmp_path):
    path = data_dir / "lengths" / "lengths.npz"
    padding.main(padding.Config(path, (1,), histograms=tmp_path / "made.json"))
    assert (tmp_path / "made.json").read_text() == (NOTEBOOKS / "lengths.json").read_text()


@pytest.mark.slow
def test_prediction_runs_whole_and_writes_what_it_found(tmp_path):
    flags = (
        "--num-lines 80 --num-buckets 1 2 --hidden 4 --repeats 1 --num-probes 3 --probe-repeats 2 "
        f"--workdir {tmp_path}"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "experiments.prediction", *flags.split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert [row["num_buckets"] for row in result["epochs"]] == [1, 2]
    for row in result["epochs"]:
        assert 0 < row["predicted_seconds"] < np.inf
        assert row["error"] == pytest.approx(
            row["predicted_seconds"] / np.median(row["measured_seconds"]) - 1
        )
    errors = [abs(row["error"]) for row in result["epochs"]]
    assert result["median_error"] == pytest.approx(np.median(errors))
