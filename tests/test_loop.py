"""The loop: reports, evaluation over every example once, non-finite losses, stopping."""

import os
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bucketjax import BucketSpec, Loader, parallel
from bucketjax.nn import Recognizer, collapse, label_errors
from bucketjax.training import loop, steps


def make_task(count=50, seed=0):
    """Labels of 1 to 6 classes, each spelt by three noisy frames: easy to learn."""
    rng = np.random.default_rng(seed)
    source = []
    for _ in range(count):
        label = rng.integers(1, 5, rng.integers(1, 7))
        frames = np.repeat(np.eye(5)[label], 3, axis=0)
        frames[1::3] = 0
        frames[1::3, 0] = 1
        noise = 0.1 * rng.normal(size=frames.shape)
        source.append({"features": (frames + noise).astype("f"), "labels": label.astype(np.int32)})
    return source


def make_run(source, devices=1, batch_size=8, learning_rate=0.02, total_steps=200, **options):
    mesh = parallel.data_mesh(devices)
    spec = BucketSpec.fit(
        [len(example["features"]) for example in source],
        num_buckets=3,
        batch_size=batch_size,
        batch_multiple_of=devices,
        label_lengths=[len(example["labels"]) for example in source],
    )
    model = Recognizer(5, 5, hidden=16, layers=1, rngs=nnx.Rngs(0))
    optimizer = steps.make_optimizer(learning_rate=learning_rate, total_steps=total_steps)
    step = parallel.data_parallel(
        steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
    )
    state = parallel.replicate(steps.init_state(model, optimizer), mesh)
    loader = Loader(source, spec, place=lambda batch: parallel.split_rows(batch, mesh), **options)
    return state, loader, step


def test_it_learns_what_can_be_learnt():
    state, loader, step = make_run(make_task(200))
    for _ in range(8):
        state = loop.train_epoch(state, loader, step, first_step=int(state.step))
    state, found = loop.evaluate(state, make_run(make_task(60, seed=1), shuffle=False)[1], step)
    assert found.label_error_rate < 0.05
    assert found.loss < 0.5


def test_it_does_not_learn_what_cannot_be_learnt():
    source = make_task(100)
    rng = np.random.default_rng(3)
    for example in source:
        example["labels"] = rng.integers(1, 5, len(example["labels"])).astype(np.int32)
    state, loader, step = make_run(source)
    for _ in range(4):
        state = loop.train_epoch(state, loader, step, first_step=int(state.step))
    state, found = loop.evaluate(state, make_run(make_task(60, seed=1), shuffle=False)[1], step)
    assert found.label_error_rate > 0.5


def test_every_step_is_reported_once_and_in_order():
    state, loader, step = make_run(make_task())
    reports, batches = [], len(loader)
    state = loop.train_epoch(state, loader, step, first_step=5, on_step=reports.append)
    assert [report.step for report in reports] == list(range(6, 6 + batches))
    assert sum(report.examples for report in reports) == 50
    assert all(report.grad_norm > 0 for report in reports)
    assert int(state.step) == batches
    assert loader.epoch == 1


def test_every_transfer_is_written_out():
    state, loader, step = make_run(make_task(20), devices=2)
    before = jax.config.jax_transfer_guard
    jax.config.update("jax_transfer_guard", "disallow")  # in all threads, the loader's too
    try:
        state = loop.train_epoch(state, loader, step, first_step=0, on_step=lambda _: None)
        state, found = loop.evaluate(state, loader, step)
    finally:
        jax.config.update("jax_transfer_guard", before)
    assert found.examples == 20


def test_a_steps_metrics_are_read_after_the_next_step_was_handed_over():
    state, loader, step = make_run(make_task(30))
    events = []

    def handing_over(*arguments):
        events.append("step")
        return step(*arguments)

    loop.train_epoch(
        state, loader, handing_over, first_step=0, on_step=lambda _: events.append("report")
    )
    number = events.count("step")
    assert events == ["step", *["step", "report"] * (number - 1), "report"]


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize("count", [39, 40, 41])
def test_evaluation_counts_each_example_once_whatever_the_batches(devices, count):
    source = make_task(count)
    state, loader, step = make_run(source, devices, shuffle=False)
    before = jax.device_get(state)
    state, found = loop.evaluate(state, loader, step)
    for one, other in zip(jax.tree.leaves(before), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(one, other)
    model = Recognizer(5, 5, hidden=16, layers=1, rngs=nnx.Rngs(0))
    predicted = [collapse(classes_of(model, example["features"])) for example in source]
    truth = [example["labels"] for example in source]
    assert (found.edits, found.label_length) == label_errors(predicted, truth)
    assert found.examples == found.weight == count


def classes_of(model, features):
    logits = model(jnp.array(features[None]), jnp.array([len(features)]))
    return np.asarray(logits[0].argmax(-1))


def test_labels_longer_than_the_frames_are_counted_in_evaluation():
    source = make_task(20)
    source[3]["labels"] = np.array([1, 2] * 12, np.int32)
    state, loader, step = make_run(source, shuffle=False)
    _, found = loop.evaluate(state, loader, step)
    assert (found.infeasible, found.weight, found.examples) == (1, 19, 20)
    assert np.isfinite(found.loss)


def test_a_loss_that_is_not_finite_names_step_bucket_and_examples():
    source = make_task()
    source[17]["features"][2, 1] = np.nan
    state, loader, step = make_run(source)
    planned = [indices.tolist() for _, indices in loader.plan]
    guilty = next(number for number, indices in enumerate(planned) if 17 in indices)
    with pytest.raises(loop.NonFiniteLoss, match=f"nan at step {guilty + 1}, bucket .*17") as error:
        loop.train_epoch(state, loader, step, first_step=0)
    assert error.value.step == guilty + 1
    assert sorted(error.value.indices) == sorted(i for i in planned[guilty] if i >= 0)
    assert error.value.bucket == loader.plan[guilty].bucket


def test_a_signal_stops_after_the_running_step_and_the_old_handler_comes_back():
    before = signal.getsignal(signal.SIGTERM)
    state, loader, step = make_run(make_task())
    reports = []

    def on_step(report):
        reports.append(report)
        if report.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    with loop.stop_on_signal() as stopped:
        state = loop.train_epoch(state, loader, step, first_step=0, on_step=on_step, stop=stopped)
        assert stopped()
    assert signal.getsignal(signal.SIGTERM) is before
    assert int(state.step) == loader.step == len(reports) == 3


def test_an_evaluation_of_nothing_is_not_a_number():
    nothing = loop.Evaluation(0.0, 0.0, 0, 0, 0, 0)
    assert np.isnan(nothing.loss)
    assert np.isnan(nothing.label_error_rate)
