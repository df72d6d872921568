"""The benchmark of the step: every contender runs, and the ratios are the right way round."""

import math

import jax
import numpy as np
import pytest

from experiments.step import __main__ as benchmark
from experiments.step import epochs, jax_side, report
from experiments.step.config import Case, Config, cases
from experiments.step.workers import Worker

SMALL = Case("lstm", frames=12, hidden=4, layers=2, batch=4, label=3, channels=3, classes=6)


@pytest.mark.parametrize("contender", ["ours", "theirs"])
@pytest.mark.parametrize("part", ["lstm", "ctc", "step"])
def test_every_contender_runs_on_one_device_and_on_two(part, contender):
    memory = []
    for devices in (1, 2):
        run, taken = jax_side.build(SMALL._replace(part=part), contender, devices)
        run()
        run()  # the step's state is donated: the second time it is another one
        memory.append(taken)
    assert min(memory) > 0


def test_flaxs_recogniser_has_our_weights_and_logits():
    from flax import nnx

    from bucketjax.nn import Recognizer

    ours = Recognizer(3, 6, hidden=4, layers=2, rngs=nnx.Rngs(0))
    features = jax.random.normal(jax.random.key(0), (2, 7, 3))
    lengths = jax.numpy.array([7, 4])
    expected = np.asarray(ours(features, lengths))
    found = np.asarray(jax_side.FlaxRecognizer(ours)(features, lengths))
    real = np.arange(7) < np.asarray(lengths)[:, None]
    np.testing.assert_allclose(found[real], expected[real], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("part", ["lstm", "ctc", "step"])
@pytest.mark.parametrize("contender", ["torch packed", "torch padded"])
def test_torch_runs(part, contender):
    pytest.importorskip("torch", reason="needs the extra `bench`")
    from experiments.step import torch_side

    run, _ = torch_side.build(SMALL._replace(part=part), contender, 1)
    run()


def words(tmp_path, count=70):
    rng = np.random.default_rng(0)
    lengths, sizes = rng.integers(5, 60, count), rng.integers(1, 3, count)
    np.savez(
        tmp_path / "words.npz",
        lengths=lengths,
        features=rng.normal(size=(lengths.sum(), 3)).astype(np.float32),
        label_lengths=sizes,
        labels=rng.integers(1, 5, sizes.sum()).astype(np.int32),
        classes=5,
    )
    return tmp_path / "words.npz"


@pytest.mark.parametrize("arm", ["3 buckets", "batch-max"])
def test_our_epoch_trains_each_example_once(tmp_path, monkeypatch, arm):
    monkeypatch.setattr(epochs, "_HIDDEN", 4)
    epoch, facts = epochs.build_ours(words(tmp_path), arm, 2)
    assert epoch() == epoch() == 70
    assert facts["programs"] == (3 if arm == "3 buckets" else 2)


def test_torchs_epoch_trains_each_example_once(tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="needs the extra `bench`")
    monkeypatch.setattr(epochs, "_HIDDEN", 4)
    epoch, _ = epochs.build_torch(words(tmp_path), "packed, sorted", 1)
    assert epoch() == 70


def test_a_workers_failure_comes_back_with_its_traceback():
    worker = Worker("jax", False, 1)
    try:
        assert worker.facts["devices"] == 1
        with pytest.raises(RuntimeError, match="KeyError: 'nobody'"):
            worker.ask("time", "nobody")
        worker.ask("build", "it", SMALL._replace(part="ctc"), "ours", 1)
        seconds, _ = worker.ask("time", "it")
        assert seconds > 0
    finally:
        worker.close()


def test_a_ratio_above_one_says_that_ours_is_faster():
    assert report.ratio([1.0, 2.0, 1.0], [3.0, 6.0, 3.0]) == "3.00 (3.00-3.00)"


def test_the_tables_hold_every_case_and_contender():
    names = ["ours, 2 devices", "ours, 1 device", "flax, 2 devices"]
    row = {
        "part": "lstm",
        "case": "small",
        "allocator": "default",
        "flops": 1e9,
        "seconds": {name: [0.02 * k, 0.02 * k] for k, name in enumerate(names, 1)},
        "memory": {names[0]: 3_000_000, names[2]: 5_000_000},
    }
    result = {"peak_gflops": 100.0, "cases": [row], "epochs": []}
    text = benchmark.tables(result, 2)
    assert "| small | 20.0 | 2.00 (2.00-2.00) | 3.00 (3.00-3.00) | 50% | 3 / 5 |" in text
    rows = [
        {"name": "a", "rates": [10.0, 20.0], "programs": 8, "compile_seconds": 1.0},
        {"name": "b", "rates": [5.0, 10.0], "programs": 0, "compile_seconds": 0.0},
    ]
    assert "| b | 7.5 (5.0-10.0) | 2.00 | 0 | 0.0 |" in report.epoch_table(rows, "a")


def test_the_count_of_operations_by_hand():
    case = Case("lstm", frames=1, hidden=1, layers=1, batch=1, channels=1)
    # Two directions; 4 gates from an input and a state: 8 multiplications and 8 additions, three
    # times over.
    assert case.flops == 2 * 3 * 16
    assert Case("ctc").flops == 0
    assert all(case.part == part for part in ("lstm", "ctc", "step") for case in cases(part, False))
    assert math.prod(len(cases(part, True)) for part in ("lstm", "ctc", "step")) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repeats": 0}, "--repeats is 0; it must be at least 1"),
        ({"max_examples": 3}, "--max-examples is 3; it must be at least 64"),
        ({"parts": ()}, "no part to time"),
        ({"parts": ("epoch",)}, "--parts epoch needs --data-dir"),
    ],
)
def test_settings_that_are_wrong(options, message):
    with pytest.raises(ValueError, match=message):
        Config(**options).check()
