"""cuDNN's LSTM: its weights against JAX's own reference of it, its results where there is a GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.experimental import rnn

from bucketjax.nn import cudnn
from bucketjax.nn.lstm import LSTM

LENGTHS = np.array([6, 4, 1], np.int32)


def case(bidirectional):
    lstm = LSTM(3, 5, bidirectional=bidirectional, implementation="scan", rngs=nnx.Rngs(0))
    return lstm, jax.random.normal(jax.random.key(1), (3, 6, 3))


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_packed_weights_are_those_that_cudnn_reads(bidirectional):
    lstm, inputs = case(bidirectional)
    directions = [direction.weights() for direction in lstm.layers[0]]
    unpacked = rnn.unpack_lstm_weights(cudnn.pack(directions), 3, 5, 1, bidirectional)
    start = jnp.zeros((len(directions), 3, 5))
    expected, _, _ = rnn.lstm_ref(
        inputs, start, start, *unpacked, LENGTHS, 3, 5, 1, 0.0, bidirectional
    )
    np.testing.assert_allclose(lstm(inputs, jnp.array(LENGTHS)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("bidirectional", [True, False])
def test_cudnn_and_the_scan_agree(bidirectional):
    lstm, inputs = case(bidirectional)
    lengths = jnp.array([6, 4, 0])
    graph, params = nnx.split(lstm)

    def loss(params, inputs, implementation):
        model = nnx.merge(graph, params)
        model.implementation = implementation
        return (model(inputs, lengths) ** 2).sum()

    with jax.default_matmul_precision("highest"):
        run = jax.value_and_grad(loss, argnums=(0, 1))
        found, expected = run(params, inputs, "cudnn"), run(params, inputs, "scan")
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
