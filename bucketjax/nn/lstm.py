"""A stacked, bidirectional LSTM over padded sequences.

>>> lstm = LSTM(3, 8, layers=2, rngs=nnx.Rngs(0))
>>> lstm(jnp.ones((4, 10, 3)), jnp.array([10, 7, 1, 0])).shape
(4, 10, 16)
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from bucketjax.nn import cudnn
from bucketjax.nn.recurrence import Weights, run_direction

__all__ = ["LSTM", "Implementation", "frame_mask"]

Implementation = Literal["auto", "scan", "cudnn"]


def frame_mask(lengths: Int[Array, " batch"], num_frames: int) -> Bool[Array, "batch time"]:
    """True at the real frames of each row.

    >>> frame_mask(jnp.array([1, 2]), 3).tolist()
    [[True, False, False], [True, True, False]]
    """
    return jnp.arange(num_frames) < lengths[:, None]


class LSTM(nnx.Module):
    """Stacked LSTM layers, bidirectional unless told otherwise.

    Gates are in the order input, forget, cell, output, as in Gers et al. 2000 ("Learning to
    forget"), whose forget bias of 1 is the initial one. Input weights are Glorot-uniform,
    recurrent weights orthogonal. `bucketjax.nn.layouts` moves weights from and to torch and flax.

    Args:
      in_features: channels of the input.
      hidden: units of each direction; `out_features` says how many channels the output has.
      layers: how many layers.
      bidirectional: also read each row backwards, from its last real frame.
      dropout: share of the units dropped between layers while learning, in [0, 1).
      layer_norm: normalise every layer's outputs over their channels. It is outside of the loop
        over time: inside, each frame would wait for two sums.
      projection: units that each direction's output is reduced to inside the loop (Sak et al.
        2014, "Long short-term memory based recurrent neural network architectures"); None for no
        projection.
      implementation: "scan" is `lax.scan`, written out in `bucketjax.nn.recurrence`; "cudnn" is
        NVIDIA's, with the same weights and results; "auto" takes cuDNN on a GPU where it serves
        (float32, no projection, no chunks).
      dtype: of matrix products and of what is kept for the backward pass, such as jnp.bfloat16;
        that of the inputs by default. Parameters, carry and sums stay float32.
      chunk: frames between two carries that are kept, everything between them being computed
        twice; sqrt(time) makes the memory of long sequences grow as sqrt(time). None keeps all.
      unroll: frames per iteration of the compiled loop.
      rngs: where the initial weights come from.

    Raises:
      ValueError: sizes below 1, a dropout outside [0, 1), an unknown implementation, or one that
        cannot do what is asked.

    >>> LSTM(3, 8, bidirectional=False, projection=4, rngs=nnx.Rngs(0)).out_features
    4
    """

    def __init__(
        self,
        in_features: int,
        hidden: int,
        *,
        layers: int = 1,
        bidirectional: bool = True,
        dropout: float = 0.0,
        layer_norm: bool = False,
        projection: int | None = None,
        implementation: Implementation = "auto",
        dtype: DTypeLike | None = None,
        chunk: int | None = None,
        unroll: int = 1,
        rngs: nnx.Rngs,
    ):
        sizes = {
            "in_features": in_features,
            "hidden": hidden,
            "layers": layers,
            "projection": projection,
            "chunk": chunk,
            "unroll": unroll,
        }
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1; got {value}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
        if implementation not in get_args(Implementation):
            allowed = ", ".join(map(repr, get_args(Implementation)))
            raise ValueError(f"implementation must be one of {allowed}; got {implementation!r}")
        if dtype is not None and not jnp.issubdtype(dtype, jnp.floating):
            raise ValueError(f"dtype must be a floating one, such as bfloat16; got {dtype!r}")
        self.dropout = dropout
        self.implementation: Implementation = implementation
        self.dtype = None if dtype is None else jnp.dtype(dtype)
        self.chunk = chunk
        self.unroll = unroll
        self.projects = projection is not None
        if implementation == "cudnn" and self._not_cudnn(self.dtype or jnp.dtype(jnp.float32)):
            raise ValueError(
                f"implementation='cudnn' has {self._not_cudnn(self.dtype)}; say 'auto' or 'scan'"
            )
        directions = 2 if bidirectional else 1
        self.out_features = directions * (projection or hidden)
        self.layers = nnx.List(
            nnx.List(
                _Direction(
                    in_features if layer == 0 else self.out_features, hidden, projection, rngs
                )
                for _ in range(directions)
            )
            for layer in range(layers)
        )
        self.norms = nnx.List(
            nnx.LayerNorm(self.out_features, rngs=rngs) for _ in range(layers if layer_norm else 0)
        )

    def __call__(
        self,
        inputs: Float[Array, "batch time channels"],
        lengths: Int[Array, " batch"],
        *,
        dropout_key: Key[Array, ""] | None = None,
        learn: Bool[Array, ""] | bool = True,
    ) -> Float[Array, "batch time units"]:
        """The outputs of the last layer; exactly 0 at padded frames.

        Args:
          inputs: may hold anything at padded frames, NaN included.
          lengths: real frames of each row; 0 is allowed.
          dropout_key: drops units between layers where given, and `learn` is true.
          learn: decided on the device, so that one program serves training and evaluation.

        Raises:
          ValueError: inputs with another number of channels, or `implementation="cudnn"` without
            a GPU.
        """
        channels = self.layers[0][0].kernel.shape[0]
        if inputs.shape[-1] != channels:
            raise ValueError(
                f"this LSTM reads {channels} channels; the inputs have {inputs.shape[-1]}"
            )
        dtype = self.dtype or inputs.dtype
        use_cudnn = self._use_cudnn(dtype)
        mask = frame_mask(lengths, inputs.shape[1]).T[..., None]
        frames = jnp.where(mask, inputs.swapaxes(0, 1), 0).astype(dtype)
        for number, directions in enumerate(self.layers):
            if number and dropout_key is not None and self.dropout:
                key = jax.random.fold_in(dropout_key, number)
                kept = jax.random.bernoulli(key, 1 - self.dropout, frames.shape)
                dropped = jnp.where(kept, frames / (1 - self.dropout), 0)
                frames = jnp.where(learn, dropped, frames)
            weights = [direction.weights() for direction in directions]
            if use_cudnn:
                frames = cudnn.run_layer(frames, lengths, weights)
            else:
                outputs = [
                    run_direction(
                        frames,
                        mask,
                        one,
                        reverse=bool(backward),
                        unroll=self.unroll,
                        chunk=self.chunk,
                    )
                    for backward, one in enumerate(weights)
                ]
                frames = jnp.concatenate(outputs, axis=-1)
            if self.norms:
                frames = jnp.where(mask, self.norms[number](frames), 0).astype(dtype)
        return frames.swapaxes(0, 1)

    def _use_cudnn(self, dtype: Any) -> bool:
        backend = jax.default_backend()
        if self.implementation != "cudnn":
            return self.implementation == "auto" and backend == "gpu" and not self._not_cudnn(dtype)
        if backend != "gpu":
            raise ValueError(
                f"implementation='cudnn' needs a GPU; JAX runs on {backend}: say 'auto' or 'scan'"
            )
        if self._not_cudnn(dtype):
            raise ValueError(
                f"implementation='cudnn' has {self._not_cudnn(dtype)}; say 'auto' or 'scan'"
            )
        return True

    def _not_cudnn(self, dtype: Any) -> str:
        """Why cuDNN cannot do it; "" if it can."""
        if self.projects:
            return "no projection"
        if self.chunk is not None:
            return "no chunks"
        return "" if dtype == jnp.float32 else f"no {dtype}, only float32"


class _Direction(nnx.Module):
    def __init__(self, in_features: int, hidden: int, projection: int | None, rngs: nnx.Rngs):
        glorot, orthogonal = nnx.initializers.glorot_uniform(), nnx.initializers.orthogonal()
        outputs = projection or hidden
        # Each gate is initialised by itself: Glorot's variance is that of one gate's matrix.
        self.kernel = nnx.Param(_per_gate(glorot, rngs, in_features, hidden))
        self.recurrent = nnx.Param(_per_gate(orthogonal, rngs, outputs, hidden))
        self.bias = nnx.Param(jnp.zeros(4 * hidden).at[hidden : 2 * hidden].set(1.0))
        self.projection = (
            None if projection is None else nnx.Param(glorot(rngs.params(), (hidden, projection)))
        )

    def weights(self) -> Weights:
        projection = None if self.projection is None else self.projection[...]
        return Weights(self.kernel[...], self.recurrent[...], self.bias[...], projection)


def _per_gate(initializer: Any, rngs: nnx.Rngs, rows: int, hidden: int) -> Float[Array, "_ _"]:
    return jnp.concatenate([initializer(rngs.params(), (rows, hidden)) for _ in range(4)], axis=1)
