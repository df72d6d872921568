"""A whole epoch over real words, as each contender would run it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_BATCH, _HIDDEN, _LAYERS = 32, 128, 2

Epoch = Callable[[], int]  # trains one and says how many examples that were


def write_words(data_dir: Path, max_examples: int, path: Path) -> dict[str, Any]:
    """Reads UNIPEN's words once, for all contenders; returns what there is."""
    from bucketjax.ink import Alphabet, load, make_source
    from bucketjax.nn import feasible

    inks, _ = load("unipen-words", data_dir, seed=0, validation_fraction=0.15)
    keys = np.random.Philox(np.random.SeedSequence(0)).random_raw(len(inks))
    inks = [inks[index] for index in np.sort(np.argsort(keys, kind="stable")[:max_examples])]
    alphabet = Alphabet.from_labels(ink.label for ink in inks)
    source = make_source(inks, alphabet)
    order = np.argsort(source.lengths, kind="stable")
    order = order[: len(order) - int(0.005 * len(order))]  # as experiments.buckets does
    examples = [source[index] for index in order]
    labels = np.zeros((len(order), int(source.label_lengths.max())), np.int32)
    for row, example in enumerate(examples):
        labels[row, : len(example["labels"])] = example["labels"]
    rows: list[Any] = [source.lengths[order], labels, source.label_lengths[order]]
    possible = np.flatnonzero(np.asarray(feasible(*rows)))
    examples = [examples[index] for index in possible]  # torch's loss of the others is infinite
    lengths = np.array([len(example["features"]) for example in examples])
    np.savez(
        path,
        lengths=lengths,
        features=np.concatenate([example["features"] for example in examples]),
        label_lengths=np.array([len(example["labels"]) for example in examples]),
        labels=np.concatenate([example["labels"] for example in examples]),
        classes=alphabet.num_classes,
    )
    return {
        "examples": len(examples),
        "mean_length": float(lengths.mean()),
        "longest_length": int(lengths.max()),
    }


def _read(path: Path) -> tuple[list[dict[str, np.ndarray]], int]:
    with np.load(path) as file:
        features = np.split(file["features"], np.cumsum(file["lengths"])[:-1])
        labels = np.split(file["labels"], np.cumsum(file["label_lengths"])[:-1])
        examples = [
            {"features": one, "labels": label} for one, label in zip(features, labels, strict=True)
        ]
        return examples, int(file["classes"])


def build_ours(path: Path, arm: str, devices: int) -> tuple[Epoch, dict[str, Any]]:
    """Our loop over "1 bucket", "8 buckets" or "batch-max", everything compiled."""
    import jax
    from flax import nnx

    from bucketjax import BucketSpec, Loader, compiles, parallel
    from bucketjax.batching import plan_epoch, plan_mixed_epoch
    from bucketjax.nn import Recognizer
    from bucketjax.training import loop, steps

    examples, classes = _read(path)
    lengths = np.array([len(example["features"]) for example in examples])
    label_lengths = np.array([len(example["labels"]) for example in examples])
    mixed = arm == "batch-max"
    every = np.arange(32, lengths.max() + 32, 32)
    shared: Any = {"batch_size": _BATCH, "batch_multiple_of": devices}
    if mixed:  # each shuffled batch padded to its own longest, rounded up to 32 frames
        spec = BucketSpec.fit(
            lengths,
            num_buckets=len(every),
            strategy=lambda *_, **__: every,
            label_lengths=np.full(len(lengths), label_lengths.max()),
            **shared,
        )
    else:
        number = int(arm.split()[0])
        spec = BucketSpec.fit(lengths, num_buckets=number, label_lengths=label_lengths, **shared)
    mesh = parallel.data_mesh(devices)
    loader = Loader(
        examples,
        spec,
        lengths=lengths,
        label_lengths=label_lengths,
        seed=0,
        plan=plan_mixed_epoch if mixed else plan_epoch,
        place=lambda batch: parallel.split_rows(batch, mesh),
    )
    model = Recognizer(
        examples[0]["features"].shape[1], classes, hidden=_HIDDEN, layers=_LAYERS, rngs=nnx.Rngs(0)
    )
    optimizer = steps.make_optimizer(learning_rate=1e-3, total_steps=100_000)
    step = parallel.data_parallel(
        steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
    )
    held = [parallel.replicate(steps.init_state(model, optimizer), mesh)]
    learn = parallel.abstract_like(np.bool_(True), mesh)
    started = time.perf_counter()
    shapes = [
        (
            parallel.abstract_like(held[0], mesh),
            parallel.abstract_like(loader.abstract_batch(bucket), mesh, rows=True),
            learn,
        )
        for bucket in range(spec.num_buckets)
    ]
    compiles.warm_up(step, shapes)
    facts = {"programs": spec.num_buckets, "compile_seconds": time.perf_counter() - started}

    def epoch() -> int:
        before: Any = held.pop()
        after = loop.train_epoch(before, loader, step, first_step=0)
        jax.block_until_ready(after.params)
        held.append(after)
        return len(examples)

    return epoch, facts


def build_torch(path: Path, arm: str, _: int) -> tuple[Epoch, dict[str, Any]]:
    """torch over batches of neighbours in length, in random order, "packed" or "padded" ones.

    Without packing the backward direction begins in the padding, which is another network; it is
    here because it shows what packing costs.
    """
    import torch  # pyright: ignore[reportMissingImports]

    from experiments.step import torch_side

    examples, classes = _read(path)
    order = np.argsort([len(example["features"]) for example in examples], kind="stable")[::-1]
    batches = [order[start : start + _BATCH] for start in range(0, len(order), _BATCH)]
    tensors = [
        (torch.from_numpy(example["features"]), torch.from_numpy(example["labels"]).long())
        for example in examples
    ]
    channels = examples[0]["features"].shape[1]
    step = torch_side.make_step(
        torch_side.Model(channels, _HIDDEN, _LAYERS, classes, arm.startswith("packed"))
    )
    rng = np.random.default_rng(0)
    device = torch_side._DEVICE

    def epoch() -> int:
        for number in rng.permutation(len(batches)):
            pairs = [tensors[index] for index in batches[number]]
            features, labels = [one for one, _ in pairs], [label for _, label in pairs]
            lengths, sizes = (
                torch.tensor([len(one) for one in rows]) for rows in (features, labels)
            )
            padded = torch.nn.utils.rnn.pad_sequence(features, batch_first=True).to(device)
            step(padded, lengths, torch.cat(labels).to(device), sizes)
        torch_side.wait()
        return len(examples)

    return epoch, {"programs": 0, "compile_seconds": 0.0}
