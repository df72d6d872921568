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


def plain(lstm, params, inputs, lengths):
    """The same network from the textbook's equations, with every derivative left to JAX."""
    frames, mask = inputs.swapaxes(0, 1), frame_mask(lengths, inputs.shape[1]).T[..., None]
    for layer in range(len(params["layers"])):
        outputs = []
        for backward, weights in params["layers"][layer].items():
            kernel, recurrent, bias = (weights[name][...] for name in PARAMS)
            projection = weights["projection"][...] if "projection" in weights else None

            def frame(carry, now, recurrent=recurrent, projection=projection):
                projected, real = now
                z = projected + carry[0] @ recurrent
                into, keep, value, out = jnp.split(z, 4, axis=-1)
                cell = jax.nn.sigmoid(keep) * carry[1]
                cell = cell + jax.nn.sigmoid(into) * jnp.tanh(value)
                output = jax.nn.sigmoid(out) * jnp.tanh(cell)
                new = output if projection is None else output @ projection, cell
                carry = jax.tree.map(lambda a, b: jnp.where(real, a, b), new, carry)
                return carry, jnp.where(real, carry[0], 0)

            units = recurrent.shape[1] // 4
            empty = [jnp.zeros((inputs.shape[0], n)) for n in (recurrent.shape[0], units)]
            _, states = jax.lax.scan(
                frame, tuple(empty), (frames @ kernel + bias, mask), reverse=bool(backward)
            )
            outputs.append(states)
        frames = jnp.concatenate(outputs, -1)
        if lstm.norms:
            norm = params["norms"][layer]
            centred = frames - frames.mean(-1, keepdims=True)
            centred = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6)
            frames = jnp.where(mask, centred * norm["scale"][...] + norm["bias"][...], 0)
    return frames.swapaxes(0, 1)


def assert_close(found, expected, tolerance=1e-5):
    """Leaf by leaf, relative to the leaf's largest entry."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * max(scale, 1e-6))


KINDS = {
    "plain": {},
    "one direction": {"bidirectional": False},
    "projection": {"projection": 2},
    "layer norm": {"layer_norm": True},
    "chunks": {"chunk": 3},
    "chunks of a projection": {"chunk": 2, "projection": 3, "unroll": 2},
}


@pytest.mark.parametrize("kind", KINDS)
@given(st.integers(0, 2**32 - 1), st.lists(st.integers(0, 7), min_size=3, max_size=3))
@settings(
    max_examples=4, phases=[Phase.generate]
)  # every example compiles: shrinking takes minutes
def test_the_gradients_are_those_of_autodiff(kind, seed, lengths):
    rng = np.random.default_rng(seed)
    lstm = make_lstm(seed=seed % 1000, **KINDS[kind])
    inputs = jnp.array(rng.normal(size=(3, 7, 3)), jnp.float32)
    by_outputs = jnp.array(rng.normal(size=(3, 7, lstm.out_features)), jnp.float32)
    lengths = jnp.array(lengths)
    graph, params = nnx.split(lstm)

    def ours(params, inputs):
        outputs = nnx.merge(graph, params)(inputs, lengths)
        return (outputs * by_outputs).sum(), outputs

    def theirs(params, inputs):
        outputs = plain(lstm, params, inputs, lengths)
        return (outputs * by_outputs).sum(), outputs

    found, outputs = jax.grad(ours, argnums=(0, 1), has_aux=True)(params, inputs)
    expected, plain_outputs = jax.grad(theirs, argnums=(0, 1), has_aux=True)(params, inputs)
    assert_close(outputs, plain_outputs)
    assert_close(found, expected)
    # What is not differentiated runs through another loop.
    assert_close(lstm(inputs, lengths), outputs, 1e-6)


def test_second_derivatives_are_right_and_forward_mode_is_refused():
    lstm = make_lstm(projection=2)
    inputs, lengths = jax.random.normal(jax.random.key(0), (2, 4, 3)), jnp.array([4, 2])
    graph, params = nnx.split(lstm)

    def of(run):
        def size_of_gradient(params, inputs):
            gradient = jax.grad(lambda *args: (run(*args) ** 2).sum(), argnums=(0, 1))
            return sum((leaf**2).sum() for leaf in jax.tree.leaves(gradient(params, inputs)))

        return jax.grad(size_of_gradient, argnums=(0, 1))(params, inputs)

    found = of(lambda params, inputs: nnx.merge(graph, params)(inputs, lengths))
    expected = of(lambda params, inputs: plain(lstm, params, inputs, lengths))
    assert_close(found, expected)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda x: lstm(x, lengths), (inputs,), (inputs,))


def temporaries(num_frames, chunk):
    """Bytes that the gradient needs beside its inputs and results, for one layer of one row."""
    lstm = LSTM(1, 32, bidirectional=False, chunk=chunk, rngs=nnx.Rngs(0))
    graph, params = nnx.split(lstm)

    def run(params, inputs, lengths):
        # The last frame alone: the outputs themselves grow with time, whatever is done.
        return nnx.merge(graph, params)(inputs, lengths)[:, -1].sum()

    shapes = jax.eval_shape(lambda: (jnp.zeros((1, num_frames, 1)), jnp.zeros(1, int)))
    compiled = jax.jit(jax.grad(run)).lower(params, *shapes).compile()
    return compiled.memory_analysis().temp_size_in_bytes


def test_with_chunks_the_memory_grows_as_the_root_of_time():
    outputs = 4 * 32  # bytes of one frame's
    # The outputs and the gradient by them grow with time, whatever is done between.
    short, long = (
        [temporaries(frames, chunk) - 2 * frames * outputs for chunk in (None, round(frames**0.5))]
        for frames in (1024, 16 * 1024)
    )
    assert 15 < long[0] / short[0] < 17
    assert long[1] / short[1] < 5  # the root of 16, and what does not grow
    assert long[1] < long[0] / 50


def test_half_precision_is_close_and_sums_in_float32():
    inputs = jax.random.normal(jax.random.key(0), (3, 40, 3))
    lengths = jnp.array([40, 17, 0])
    graph, params = nnx.split(make_lstm())
    half, _ = nnx.split(make_lstm(dtype=jnp.bfloat16))

    def loss(params, graph):
        outputs = nnx.merge(graph, params)(inputs, lengths)
        return (outputs.astype(jnp.float32) ** 2).sum(), outputs.dtype

    found, dtype = jax.grad(loss, has_aux=True)(params, half)
    expected, _ = jax.grad(loss, has_aux=True)(params, graph)
    assert dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype(jnp.float32)}
    assert_close(found, expected, 0.03)  # bfloat16 has 8 bits: 0.4 % a rounding
    program = jax.jit(jax.grad(lambda params: loss(params, half)[0])).lower(params).as_text()
    products = [line for line in program.splitlines() if "dot_general" in line]
    assert len(products) > 10
    for line in products:
        inputs, result = line.split(" : ")[-1].split("->")
        assert inputs.count("bf16>") == 2, line
        assert "xf32>" in result, line


def test_padding_may_hold_anything():
    lengths = jnp.array([5, 2, 0])
    clean = jax.random.normal(jax.random.key(0), (3, 5, 3))
    mask = frame_mask(lengths, 5)[..., None]
    graph, params = nnx.split(make_lstm(layer_norm=True))

    def gradients(filling):
        inputs = jnp.where(mask, clean, filling)
        outputs = lambda params, x: nnx.merge(graph, params)(x, lengths)  # noqa: E731
        run = lambda params, x: (outputs(params, x) ** 2).sum()  # noqa: E731
        return outputs(params, inputs), jax.grad(run, argnums=(0, 1))(params, inputs)

    expected = jax.tree.leaves(gradients(0.0))
    assert not np.asarray(expected[0])[~np.asarray(mask)[..., 0]].any()
    for filling in (jnp.nan, jnp.inf, 1e30):
        for one, other in zip(jax.tree.leaves(gradients(filling)), expected, strict=True):
            assert np.array_equal(one, other)


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
        ({"projection": 0}, "projection must be at least 1; got 0"),
        ({"chunk": 0}, "chunk must be at least 1; got 0"),
        ({"dtype": jnp.int32}, "dtype must be a floating one"),
        ({"implementation": "cudnn", "projection": 1}, "'cudnn' has no projection; say 'auto'"),
        ({"implementation": "cudnn", "chunk": 1}, "'cudnn' has no chunks"),
        ({"implementation": "cudnn", "dtype": jnp.bfloat16}, "'cudnn' has no bfloat16, only"),
    ],
)
def test_sizes_that_are_wrong(arguments, message):
    with pytest.raises(ValueError, match=message):
        LSTM(**{"in_features": 3, "hidden": 2, **arguments}, rngs=nnx.Rngs(0))


def test_an_unknown_implementation_is_named(unchecked):
    with pytest.raises(ValueError, match="one of 'auto', 'scan', 'cudnn'; got 'torch'"):
        LSTM(3, 2, implementation="torch", rngs=nnx.Rngs(0))


def test_inputs_with_other_channels_are_refused():
    with pytest.raises(ValueError, match="reads 3 channels; the inputs have 4"):
        make_lstm()(jnp.ones((1, 2, 4)), jnp.array([2]))


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_cudnn_without_a_gpu_is_refused():
    with pytest.raises(ValueError, match="needs a GPU; JAX runs on cpu"):
        make_lstm(implementation="cudnn")(jnp.ones((1, 2, 3)), jnp.array([2]))
