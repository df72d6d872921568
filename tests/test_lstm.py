"""The LSTM: against a plain one, and blind to padding bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from bucketjax.nn.lstm import LSTM, frame_mask


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def plain_direction(params, frames):
    """One row through one direction, frame by frame, from the textbook's equations."""
    kernel, recurrent, bias = (np.asarray(params[name][...], np.float64) for name in PARAMS)
    hidden = recurrent.shape[0]
    output, cell, outputs = np.zeros(hidden), np.zeros(hidden), []
    for frame in np.asarray(frames, np.float64):
        into, keep, value, out = np.split(frame @ kernel + output @ recurrent + bias, 4)
        cell = sigmoid(keep) * cell + sigmoid(into) * np.tanh(value)
        output = sigmoid(out) * np.tanh(cell)
        outputs.append(output)
    return np.array(outputs).reshape(-1, hidden)


PARAMS = ("kernel", "recurrent", "bias")


def plain_lstm(lstm, frames):
    for directions in lstm.layers:
        outputs = []
        for backward, direction in enumerate(directions):
            params = {name: getattr(direction, name) for name in PARAMS}
            order = slice(None, None, -1) if backward else slice(None)
            outputs.append(plain_direction(params, frames[order])[order])
        frames = np.concatenate(outputs, axis=1)
    return frames


def make_lstm(layers=2, bidirectional=True, seed=0, **options):
    return LSTM(3, 5, layers=layers, bidirectional=bidirectional, rngs=nnx.Rngs(seed), **options)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 3])
def test_every_row_is_as_a_plain_lstm_computes_it_alone(layers, bidirectional):
    lstm = make_lstm(layers, bidirectional)
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(4, 9, 3)).astype(np.float32)
    lengths = np.array([9, 4, 1, 0])
    outputs = np.asarray(lstm(jnp.array(inputs), jnp.array(lengths)))
    for row, length in enumerate(lengths):
        expected = plain_lstm(lstm, inputs[row, :length])
        np.testing.assert_allclose(outputs[row, :length], expected, rtol=1e-5, atol=1e-6)
        assert not outputs[row, length:].any()  # exactly 0


def gradient_by_autodiff(lstm, inputs, lengths, by_outputs):
    """The same network with the loop's derivative left to JAX."""

    def run(params, inputs):
        frames, mask = inputs.swapaxes(0, 1), frame_mask(lengths, inputs.shape[1]).T[..., None]
        for directions in params:
            outputs = []
            for backward, (kernel, recurrent, bias) in enumerate(directions):

                def frame(carry, now, recurrent=recurrent):
                    projected, real = now
                    z = projected + carry[0] @ recurrent
                    into, keep, value, out = jnp.split(z, 4, axis=-1)
                    cell = jax.nn.sigmoid(keep) * carry[1]
                    cell = cell + jax.nn.sigmoid(into) * jnp.tanh(value)
                    new = jax.nn.sigmoid(out) * jnp.tanh(cell), cell
                    carry = jax.tree.map(lambda a, b: jnp.where(real, a, b), new, carry)
                    return carry, jnp.where(real, carry[0], 0)

                empty = jnp.zeros((inputs.shape[0], recurrent.shape[0]))
                _, states = jax.lax.scan(
                    frame, (empty, empty), (frames @ kernel + bias, mask), reverse=bool(backward)
                )
                outputs.append(states)
            frames = jnp.concatenate(outputs, -1)
        return (frames.swapaxes(0, 1) * by_outputs).sum()

    params = [
        [tuple(getattr(direction, name)[...] for name in PARAMS) for direction in directions]
        for directions in lstm.layers
    ]
    return jax.grad(run, argnums=(0, 1))(params, inputs)


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 7), min_size=3, max_size=3))
@settings(
    max_examples=5, phases=[Phase.generate]
)  # every example compiles: shrinking takes minutes
def test_the_gradients_are_those_of_autodiff(seed, lengths):
    rng = np.random.default_rng(seed)
    lstm = make_lstm(seed=seed % 1000)
    inputs = jnp.array(rng.normal(size=(3, 7, 3)), jnp.float32)
    by_outputs = jnp.array(rng.normal(size=(3, 7, 10)), jnp.float32)
    lengths = jnp.array(lengths)
    graph, params = nnx.split(lstm)

    def run(params, inputs):
        return (nnx.merge(graph, params)(inputs, lengths) * by_outputs).sum()

    by_params, by_inputs = jax.grad(run, argnums=(0, 1))(params, inputs)
    expected_params, expected_inputs = gradient_by_autodiff(lstm, inputs, lengths, by_outputs)
    np.testing.assert_allclose(by_inputs, expected_inputs, rtol=1e-4, atol=1e-5)
    flat = jax.tree.leaves(
        [
            [tuple(by_params["layers"][a][b][name][...] for name in PARAMS) for b in range(2)]
            for a in range(2)
        ]
    )
    for found, expected in zip(flat, jax.tree.leaves(expected_params), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_frame_mask():
    assert frame_mask(jnp.array([0, 2, 3]), 3).sum(axis=1).tolist() == [0, 2, 3]


def test_unrolling_changes_nothing():
    inputs, lengths = jnp.ones((2, 7, 3)), jnp.array([7, 3])
    once, thrice = (make_lstm(unroll=unroll)(inputs, lengths) for unroll in (1, 3))
    np.testing.assert_allclose(once, thrice, rtol=1e-6, atol=1e-7)


def test_dropout_acts_between_layers_and_only_where_a_key_is_given():
    lstm = make_lstm(dropout=0.5)
    inputs, lengths = jnp.ones((2, 7, 3)), jnp.array([7, 3])
    plain = lstm(inputs, lengths)
    assert np.array_equal(plain, make_lstm()(inputs, lengths))
    dropped = lstm(inputs, lengths, dropout_key=jax.random.key(0))
    assert not np.allclose(plain, dropped)
    assert np.array_equal(dropped, lstm(inputs, lengths, dropout_key=jax.random.key(0)))
    assert not np.array_equal(dropped, lstm(inputs, lengths, dropout_key=jax.random.key(1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"hidden": 0}, "hidden must be at least 1; got 0"),
        ({"layers": 0}, "layers must be at least 1; got 0"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1; got 1.0"),
    ],
)
def test_sizes_that_are_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        LSTM(**{"in_features": 3, "hidden": 2, **arguments}, rngs=nnx.Rngs(0))
