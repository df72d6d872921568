"""Checkpoints: a run that was stopped goes on bit for bit, and only where it fits."""

import jax
import numpy as np
import pytest
from flax import nnx
from test_loop import make_run, make_task

from bucketjax import parallel
from bucketjax.nn import Recognizer
from bucketjax.training import checkpoints, loop, steps

CONFIG = {"hidden": 16, "dataset": "toy", "arms": (1, 2)}


def train_steps(state, loader, step, count):
    """Exactly `count` steps, across epochs if need be."""
    target = int(state.step) + count
    while int(state.step) < target:
        done = int(state.step)
        remaining = iter(range(target - done - 1))
        state = loop.train_epoch(
            state,
            loader,
            step,
            first_step=done,
            stop=lambda remaining=remaining: next(remaining, None) is None,
        )
    return state


def leaves(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(jax.device_get(tree))]


@pytest.mark.parametrize("devices", [1, 2])
def test_ten_steps_resumed_and_ten_more_are_twenty_straight_bit_for_bit(tmp_path, devices):
    source = make_task()
    straight, loader, step = make_run(source, devices)
    straight = train_steps(straight, loader, step, 20)

    state, loader, step = make_run(source, devices)
    state = train_steps(state, loader, step, 10)
    saved = checkpoints.save(
        tmp_path, state, position=loader.get_state(), config=CONFIG, extra={"alphabet": "äbc"}
    )
    assert saved == 10 == checkpoints.latest_step(tmp_path)

    fresh, loader, step = make_run(source, devices)
    restored = checkpoints.restore(tmp_path, fresh, config=CONFIG)
    assert restored.extra == {"alphabet": "äbc"}
    assert leaves(restored.state) == leaves(state)
    loader.set_state(restored.position)
    resumed = train_steps(restored.state, loader, step, 10)
    assert leaves(resumed) == leaves(straight)


def save_at(folder, state, step, **options):
    state = state._replace(step=np.int32(step))
    return checkpoints.save(folder, state, position={"step": step}, config=CONFIG, **options)


def test_the_newest_are_kept_and_the_newest_is_restored(tmp_path):
    state, _, _ = make_run(make_task())
    for step in (3, 5, 9):
        save_at(tmp_path, state, step, keep=2)
    kept = sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert kept == [5, 9]
    assert checkpoints.restore(tmp_path, state, config=CONFIG).position == {"step": 9}


def test_saving_the_same_step_again_replaces_it(tmp_path):
    state, _, _ = make_run(make_task())
    save_at(tmp_path, state, 3, extra={"try": 1})
    save_at(tmp_path, state, 3, extra={"try": 2})
    assert checkpoints.restore(tmp_path, state, config=CONFIG).extra == {"try": 2}


def test_nothing_to_restore(tmp_path):
    state, _, _ = make_run(make_task())
    assert checkpoints.latest_step(tmp_path / "absent") is None
    with pytest.raises(FileNotFoundError, match="no checkpoint in .*absent: start without resum"):
        checkpoints.restore(tmp_path / "absent", state, config=CONFIG)


def test_another_config_is_refused_and_named(tmp_path):
    state, _, _ = make_run(make_task())
    save_at(tmp_path, state, 1)
    with pytest.raises(ValueError, match=r"cannot resume from .*: hidden is 8 now and was 16\."):
        checkpoints.restore(tmp_path, state, config={**CONFIG, "hidden": 8})


def test_a_model_of_another_shape_is_refused_and_named(tmp_path):
    state, _, _ = make_run(make_task())
    save_at(tmp_path, state, 1)
    mesh = parallel.data_mesh(1)
    model = Recognizer(5, 5, hidden=8, layers=1, rngs=nnx.Rngs(0))
    optimizer = steps.make_optimizer(learning_rate=0.1, total_steps=5)
    other = parallel.replicate(steps.init_state(model, optimizer), mesh)
    with pytest.raises(
        ValueError, match=r"arrays differ, the first is .*lstm.*: \(32,\) now and \("
    ):
        checkpoints.restore(tmp_path, other, config=CONFIG)
