"""The contenders that run on JAX: ours, and flax's RNN with optax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P

from bucketjax import Batch, parallel
from bucketjax.nn import LSTM, Recognizer, ctc_loss, layouts
from bucketjax.training import steps
from experiments.step.config import Case

Run = Callable[[], None]


def start(num_devices: int | None) -> dict[str, Any]:
    """Makes the devices; says what there is."""
    if num_devices is not None:
        jax.config.update("jax_num_cpu_devices", num_devices)
    devices = jax.devices()
    return {
        "platform": devices[0].platform,
        "device": devices[0].device_kind,
        "devices": len(devices),
    }


def peak() -> float:
    """Floating-point operations per second of a large matrix product on all cores."""
    matrix = jnp.ones((2048, 2048), jnp.float32)
    product = jax.jit(jnp.matmul)
    return _best_rate(lambda: product(matrix, matrix).block_until_ready())


def _best_rate(run: Callable[[], Any]) -> float:
    import time

    run()
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return 2 * 2048**3 / min(seconds)


def build(case: Case, contender: str, devices: int) -> tuple[Run, int]:
    """(runs it once, to the end; bytes of memory while it runs), everything compiled."""
    mesh = parallel.data_mesh(devices)
    make = {"lstm": _lstm, "ctc": _ctc, "step": _step}[case.part]
    return make(case, contender, mesh)


def _inputs(case: Case) -> Any:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(case.batch, case.frames, case.channels)).astype(np.float32)
    lengths = np.full(case.batch, case.frames, np.int32)
    labels = rng.integers(1, case.classes, size=(case.batch, case.label)).astype(np.int32)
    return features, lengths, labels, np.full(case.batch, case.label, np.int32)


def _by_rows(function: Any, mesh: Any, arguments: Any, summed: Any) -> tuple[Run, int]:
    """`function(params, *rows)` on every device's rows, its `summed` results added up."""
    params, *rows = arguments

    def local(params: Any, *rows: Any) -> Any:
        results = function(params, *rows)
        return tuple(
            jax.lax.psum(result, parallel.AXIS) if add else result
            for result, add in zip(results, summed, strict=True)
        )

    step = jax.jit(
        jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(), *[P(parallel.AXIS)] * len(rows)),
            out_specs=tuple(P() if add else P(parallel.AXIS) for add in summed),
            check_vma=False,
        )
    )
    placed = parallel.replicate(params, mesh), *(parallel.split_rows(row, mesh) for row in rows)
    compiled = step.lower(*placed).compile()
    return lambda: jax.block_until_ready(compiled(*placed)), _memory(compiled, mesh)


def _memory(compiled: Any, mesh: Any) -> int:
    found = compiled.memory_analysis()  # of one device
    return mesh.size * int(found.temp_size_in_bytes + found.output_size_in_bytes)


def _lstm(case: Case, contender: str, mesh: Any) -> tuple[Run, int]:
    ours = LSTM(
        case.channels,
        case.hidden,
        layers=case.layers,
        implementation="scan" if contender == "ours by scan" else "auto",
        rngs=nnx.Rngs(0),
    )
    model: Any = ours if contender.startswith("ours") else FlaxLSTM(ours)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    features, lengths, _, _ = _inputs(case)

    def gradients(params: Any, features: Any, lengths: Any) -> Any:
        def size(params: Any, features: Any) -> Any:
            return (nnx.merge(graph, params, rest)(features, lengths) ** 2).sum()

        return jax.grad(size, argnums=(0, 1))(params, features)

    return _by_rows(gradients, mesh, (params, features, lengths), (True, False))


def _ctc(case: Case, contender: str, mesh: Any) -> tuple[Run, int]:
    _, lengths, labels, label_lengths = _inputs(case)
    shape = case.batch, case.frames, case.classes
    logits = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    loss = _our_losses if contender == "ours" else _optax_losses

    def gradient(_: Any, logits: Any, *rest: Any) -> Any:
        value, by_logits = jax.value_and_grad(lambda x: loss(x, *rest).sum())(logits)
        return value, by_logits

    arguments = np.float32(0), logits, lengths, labels, label_lengths
    return _by_rows(gradient, mesh, arguments, (True, False))


def _our_losses(logits: Any, lengths: Any, labels: Any, label_lengths: Any) -> Any:
    return ctc_loss(logits, lengths, labels, label_lengths)[0]


def _optax_losses(logits: Any, lengths: Any, labels: Any, label_lengths: Any) -> Any:
    padding, label_padding = (
        1.0 - (jnp.arange(array.shape[1]) < sizes[:, None])
        for array, sizes in ((logits, lengths), (labels, label_lengths))
    )
    return optax.ctc_loss(logits, padding, labels, label_padding)


def _step(case: Case, contender: str, mesh: Any) -> tuple[Run, int]:
    features, lengths, labels, label_lengths = _inputs(case)
    model = Recognizer(
        case.channels, case.classes, hidden=case.hidden, layers=case.layers, rngs=nnx.Rngs(0)
    )
    weights, rows = np.ones(case.batch, np.float32), np.arange(case.batch, dtype=np.int32)
    arrays = {"features": features, "labels": labels}
    batch = Batch(arrays, lengths, label_lengths, weights, rows, np.int32(0))
    if contender == "ours":
        optimizer = steps.make_optimizer(learning_rate=1e-3, total_steps=10_000)
        step: Any = parallel.data_parallel(
            steps.make_step(model, optimizer), mesh, row_results=steps.ROW_RESULTS
        )
        state: Any = steps.init_state(model, optimizer)
        extra: Any = (parallel.replicate(np.bool_(True), mesh),)
    else:
        state, step, extra = *_usual_step(model, mesh), ()
    placed = parallel.split_rows(batch, mesh)
    held = [parallel.replicate(state, mesh)]
    compiled = step.lower(held[0], placed, *extra).compile()

    def run() -> None:
        held[0], metrics = compiled(held[0], placed, *extra)
        jax.block_until_ready((held[0], metrics))

    return run, _memory(compiled, mesh)


def _usual_step(model: Recognizer, mesh: Any) -> tuple[Any, Any]:
    """What a user of flax and optax writes: RNN, CTC, Adam, gradients averaged by weight."""
    usual = FlaxRecognizer(model)
    graph, params, rest = nnx.split(usual, nnx.Param, ...)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state

        def total(params: Any) -> Any:
            logits = nnx.merge(graph, params, rest)(batch.arrays["features"], batch.lengths)
            labels, sizes = batch.arrays["labels"], batch.label_lengths
            losses = _optax_losses(logits, batch.lengths, labels, sizes)
            return (losses * batch.weights).sum()

        loss, gradient = jax.value_and_grad(total)(params)
        loss, weight, gradient = jax.lax.psum((loss, batch.weights.sum(), gradient), parallel.AXIS)
        gradient = jax.tree.map(lambda leaf: leaf / weight, gradient)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss / weight

    return (params, optimizer.init(params)), parallel.data_parallel(step, mesh)


class FlaxLSTM(nnx.Module):
    """The same LSTM from flax's parts: two `nnx.RNN`s a layer."""

    def __init__(self, ours: LSTM):
        self.hidden = ours.out_features // 2
        self.layers = nnx.List(
            nnx.List(
                nnx.RNN(cell, reverse=bool(backward), keep_order=True)
                for backward, cell in enumerate(cells)
            )
            for cells in layouts.to_flax(ours)
        )

    def __call__(self, frames: Any, lengths: Any) -> Any:
        """`[batch time 2 * hidden]`."""
        nothing = jnp.zeros((len(frames), self.hidden), frames.dtype)
        for directions in self.layers:
            outputs: list[Any] = [
                direction(frames, initial_carry=(nothing, nothing), seq_lengths=lengths)
                for direction in directions
            ]
            frames = jnp.concatenate(outputs, axis=-1)
        return frames


class FlaxRecognizer(nnx.Module):
    """`FlaxLSTM` and a linear layer."""

    def __init__(self, ours: Recognizer):
        self.lstm = FlaxLSTM(ours.lstm)
        self.output = ours.output

    def __call__(self, frames: Any, lengths: Any) -> Any:
        """Logits of every frame."""
        return self.output(self.lstm(frames, lengths))
