"""Checkpoints of a whole run: train state, data position, settings, alphabet.

The arrays are orbax's business; all else is one JSON item beside them, so that a checkpoint can
be read without knowing what is in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

from bucketjax.training.steps import TrainState

__all__ = ["Checkpoint", "latest_step", "restore", "save"]


class Checkpoint(NamedTuple):
    """What `restore` gives back.

    Attributes:
      state: the train state, placed as the example was.
      position: the loader's state.
      config: the settings that the run was started with.
      extra: whatever else was saved: the alphabet, clocks, results so far.
    """

    state: TrainState
    position: dict[str, int | str]
    config: dict[str, Any]
    extra: dict[str, Any]


def save(
    folder: Path,
    state: TrainState,
    *,
    position: Mapping[str, int | str],
    config: Mapping[str, Any],
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> int:
    """Saves a checkpoint, complete or not at all; returns its step.

    Args:
      folder: of this run's checkpoints; made where it does not exist.
      state: the train state; its step numbers the checkpoint.
      position: from `Loader.get_state()`.
      config: plain JSON values. Restoring demands the same.
      extra: more plain JSON values.
      keep: how many of the newest checkpoints stay.
    """
    step = int(state.step)
    with _manager(folder, keep) as manager:
        if step in manager.all_steps():
            manager.delete(step)
        content = {"position": dict(position), "config": dict(config), "extra": dict(extra or {})}
        manager.save(
            step,
            args=ocp.args.Composite(
                state=ocp.args.StandardSave(state._asdict()), run=ocp.args.JsonSave(content)
            ),
        )
        manager.wait_until_finished()
    return step


def latest_step(folder: Path) -> int | None:
    """The step of the newest checkpoint in the folder; None where there is none."""
    if not folder.is_dir():
        return None
    with _manager(folder, None) as manager:
        return manager.latest_step()


def restore(folder: Path, like: TrainState, *, config: Mapping[str, Any]) -> Checkpoint:
    """The newest checkpoint of the folder.

    Args:
      folder: given to `save`.
      like: a state of the same structure, shapes and shardings, such as a fresh one.
      config: must be what was saved.

    Raises:
      FileNotFoundError: no checkpoint in the folder.
      ValueError: another config, or a state of other shapes, with what differs.
    """
    step = latest_step(folder)
    if step is None:
        raise FileNotFoundError(f"no checkpoint in {folder}: start without resuming")
    with _manager(folder, None) as manager:
        run = manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore()))["run"]
        config = json.loads(json.dumps(dict(config)))  # tuples come back from JSON as lists
        differing = [
            f"{name} is {config.get(name)!r} now and was {run['config'].get(name)!r}"
            for name in sorted({*config, *run["config"]})
            if config.get(name) != run["config"].get(name)
        ]
        if differing:
            raise ValueError(
                f"cannot resume from {folder}: {'; '.join(differing)}. Give the same settings, or "
                "another folder"
            )
        saved = manager.item_metadata(step)["state"]
        _check_shapes(folder, saved, like)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like._asdict())
        state = manager.restore(
            step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract))
        )["state"]
    return Checkpoint(TrainState(**state), run["position"], run["config"], run["extra"])


def _check_shapes(folder: Path, saved: Any, like: TrainState) -> None:
    def shapes(tree: Any) -> dict[str, tuple[int, ...]]:
        return {
            _path(path): tuple(leaf.shape)
            for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        }

    before, now = shapes(saved), shapes(like._asdict())
    differing = sorted(
        (name for name in {*before, *now} if before.get(name) != now.get(name)),
        # A parameter tells what is wrong; the optimizer's state may be one long vector.
        key=lambda name: (not name.startswith("params"), name),
    )
    if differing:
        name = differing[0]
        raise ValueError(
            f"cannot restore from {folder}: {len(differing)} arrays differ, the first is {name}: "
            f"{now.get(name, 'absent')} now and {before.get(name, 'absent')} in the checkpoint; "
            "build the model that was saved"
        )


def _path(path: Any) -> str:
    names = [
        str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path
    ]
    return "/".join(name for name in names if name != "value")


def _manager(folder: Path, keep: int | None) -> ocp.CheckpointManager:
    return ocp.CheckpointManager(
        Path(folder).absolute(),
        options=ocp.CheckpointManagerOptions(max_to_keep=keep, create=True),
        item_handlers={
            "state": ocp.StandardCheckpointHandler(),
            "run": ocp.JsonCheckpointHandler(),
        },
    )
