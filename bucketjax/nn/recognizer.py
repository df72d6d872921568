"""The recogniser: a bidirectional LSTM and a linear layer over the classes."""

from __future__ import annotations

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, Key

from bucketjax.nn.lstm import LSTM, Implementation

__all__ = ["Recognizer"]


class Recognizer(nnx.Module):
    """Features to logits, frame by frame, for CTC.

    Args:
      channels: channels of the features.
      num_classes: characters of the alphabet + 1 for the blank.
      hidden: LSTM units of each direction.
      layers: bidirectional LSTM layers.
      dropout: share of the units dropped between layers while learning.
      implementation, dtype, chunk: of the LSTM, see there. The logits are float32 always.
      rngs: where the initial weights come from.

    >>> recognizer = Recognizer(5, 27, hidden=8, layers=1, rngs=nnx.Rngs(0))
    >>> recognizer(jnp.ones((2, 30, 5)), jnp.array([30, 12])).shape
    (2, 30, 27)
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        *,
        hidden: int = 128,
        layers: int = 2,
        dropout: float = 0.0,
        implementation: Implementation = "auto",
        dtype: DTypeLike | None = None,
        chunk: int | None = None,
        rngs: nnx.Rngs,
    ):
        if num_classes < 2:
            raise ValueError(
                f"num_classes must be at least 2, one character and the blank; got {num_classes}"
            )
        self.lstm = LSTM(
            channels,
            hidden,
            layers=layers,
            dropout=dropout,
            implementation=implementation,
            dtype=dtype,
            chunk=chunk,
            rngs=rngs,
        )
        self.output = nnx.Linear(2 * hidden, num_classes, dtype=jnp.float32, rngs=rngs)

    def __call__(
        self,
        features: Float[Array, "batch time channels"],
        lengths: Int[Array, " batch"],
        *,
        dropout_key: Key[Array, ""] | None = None,
        learn: Bool[Array, ""] | bool = True,
    ) -> Float[Array, "batch time classes"]:
        """Logits of every frame; those of padded frames mean nothing.

        Padding may hold anything, NaN included. Dropout is the LSTM's: it needs a key, and `learn`.
        """
        return self.output(self.lstm(features, lengths, dropout_key=dropout_key, learn=learn))
