"""An LSTM's weights in the layouts of torch.nn.LSTM and of flax's cells, to load and to save.

>>> ours, same = (LSTM(3, 4, rngs=nnx.Rngs(seed)) for seed in (0, 1))
>>> load_torch(same, to_torch(ours))
>>> inputs, lengths = jnp.ones((1, 5, 3)), jnp.array([5])
>>> bool(jnp.array_equal(ours(inputs, lengths), same(inputs, lengths)))
True
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from bucketjax.nn.lstm import LSTM

__all__ = ["load_flax", "load_torch", "to_flax", "to_torch"]


def to_torch(lstm: LSTM) -> dict[str, np.ndarray]:
    """The weights under the names and in the layout of `torch.nn.LSTM.state_dict()`.

    torch adds two biases; the second one is 0 here. Layer norms are not part of torch's LSTM.

    Raises:
      ValueError: an LSTM with layer norms.

    >>> sorted(to_torch(LSTM(3, 4, bidirectional=False, rngs=nnx.Rngs(0))))
    ['bias_hh_l0', 'bias_ih_l0', 'weight_hh_l0', 'weight_ih_l0']
    """
    if lstm.norms:
        raise ValueError("torch.nn.LSTM has no layer norm; save lstm.norms beside it")
    found = {}
    for suffix, direction in _directions(lstm):
        found[f"weight_ih_{suffix}"] = np.asarray(direction.kernel[...]).T
        found[f"weight_hh_{suffix}"] = np.asarray(direction.recurrent[...]).T
        found[f"bias_ih_{suffix}"] = np.asarray(direction.bias[...])
        found[f"bias_hh_{suffix}"] = np.zeros_like(found[f"bias_ih_{suffix}"])
        if direction.projection is not None:
            found[f"weight_hr_{suffix}"] = np.asarray(direction.projection[...]).T
    # Copies: JAX's memory is not to be written to, and torch would.
    return {name: np.array(value, order="C") for name, value in found.items()}


def load_torch(lstm: LSTM, weights: Mapping[str, Any]) -> None:
    """Takes over the weights of a `torch.nn.LSTM.state_dict()`; nothing if one does not fit.

    Args:
      lstm: of the same sizes.
      weights: tensors on CPU, or arrays. A torch LSTM without biases has none.

    Raises:
      ValueError: names missing or left over, or a shape that does not fit.
    """
    for_all: list[tuple[str, Any, Any]] = []
    wanted: set[str] = set()
    has_bias = any(name.startswith("bias_") for name in weights)
    for suffix, direction in _directions(lstm):
        parts = [("weight_ih_", direction.kernel), ("weight_hh_", direction.recurrent)]
        if direction.projection is not None:
            parts.append(("weight_hr_", direction.projection))
        for kind, param in parts:
            name = kind + suffix
            wanted.add(name)
            if name in weights:
                for_all.append((name, param, np.asarray(weights[name]).T))
        names = [f"bias_ih_{suffix}", f"bias_hh_{suffix}"]
        if has_bias:
            wanted.update(names)
        biases = [np.asarray(weights[name]) for name in names if name in weights]
        summed = sum(biases) if biases else np.zeros(direction.bias.shape, np.float32)
        for_all.append((names[0], direction.bias, summed))
    missing, left_over = sorted(wanted - set(weights)), sorted(set(weights) - wanted)
    if missing or left_over:
        raise ValueError(
            f"these are not this LSTM's weights: missing {missing}, left over {left_over}; it "
            f"wants {sorted(wanted)}"
        )
    _assign(for_all)


def to_flax(lstm: LSTM) -> list[list[nnx.OptimizedLSTMCell]]:
    """The same weights in flax's cells, by layer and direction, to be run by `nnx.RNN`.

    Raises:
      ValueError: an LSTM with layer norms or projections, which these cells lack.

    >>> [[cell]] = to_flax(LSTM(3, 4, bidirectional=False, rngs=nnx.Rngs(0)))
    >>> cell.dense_i.kernel.shape
    (3, 16)
    """
    if lstm.norms or lstm.projects:
        raise ValueError("flax's OptimizedLSTMCell has neither layer norm nor projection")
    found: list[list[nnx.OptimizedLSTMCell]] = []
    for directions in lstm.layers:
        cells: list[Any] = []
        for direction in directions:
            rows, hidden = direction.kernel.shape[0], direction.recurrent.shape[0]
            cell: Any = nnx.OptimizedLSTMCell(rows, hidden, rngs=nnx.Rngs(0))
            cell.dense_i.kernel[...] = direction.kernel[...]
            cell.dense_h.kernel[...] = direction.recurrent[...]
            cell.dense_h.bias[...] = direction.bias[...]
            cells.append(cell)
        found.append(cells)
    return found


def load_flax(lstm: LSTM, cells: Sequence[Sequence[Any]]) -> None:
    """Takes over the weights of flax's cells, by layer and direction; nothing if one does not fit.

    Raises:
      ValueError: another number of layers or directions, or a shape that does not fit.
    """
    counts = [len(directions) for directions in lstm.layers]
    if [len(directions) for directions in cells] != counts:
        raise ValueError(
            f"cells of {len(cells)} layers with {[len(one) for one in cells]} directions; this "
            f"LSTM has {len(counts)} layers with {counts}"
        )
    for_all: list[tuple[str, Any, Any]] = []
    for layer, (directions, theirs) in enumerate(zip(lstm.layers, cells, strict=True)):
        for number, (direction, cell) in enumerate(zip(directions, theirs, strict=True)):
            name = f"cells[{layer}][{number}]."
            for_all += [
                (f"{name}dense_i.kernel", direction.kernel, cell.dense_i.kernel[...]),
                (f"{name}dense_h.kernel", direction.recurrent, cell.dense_h.kernel[...]),
                (f"{name}dense_h.bias", direction.bias, cell.dense_h.bias[...]),
            ]
    _assign(for_all)


def _directions(lstm: LSTM) -> list[tuple[str, Any]]:
    return [
        (f"l{layer}{'_reverse' if backward else ''}", direction)
        for layer, directions in enumerate(lstm.layers)
        for backward, direction in enumerate(directions)
    ]


def _assign(values: Sequence[tuple[str, Any, Any]]) -> None:
    for name, param, value in values:
        if value.shape != param.shape:
            raise ValueError(
                f"{name} does not fit: as this LSTM holds it, it is {value.shape} and should be "
                f"{param.shape}"
            )
    for _, param, value in values:
        param[...] = jnp.asarray(value, param.dtype)
