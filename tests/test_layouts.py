"""Weights from and to torch and flax: the moved model computes the same, gradients included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bucketjax.nn.layouts import load_flax, load_torch, to_flax, to_torch
from bucketjax.nn.lstm import LSTM

LENGTHS = np.array([9, 5, 2])
KINDS = [
    {"layers": 2},
    {"layers": 1, "bidirectional": False},
    {"layers": 3, "bidirectional": False},
    {"layers": 2, "projection": 3},
]


def make(seed=0, **options):
    return LSTM(4, 6, rngs=nnx.Rngs(seed), **options)


def inputs_and_by_outputs(lstm):
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(3, 9, 4)).astype(np.float32)
    return inputs, rng.normal(size=(3, 9, lstm.out_features)).astype(np.float32)


def gradients(lstm, inputs, by_outputs):
    graph, params = nnx.split(lstm)

    def run(params, inputs):
        outputs = nnx.merge(graph, params)(inputs, jnp.array(LENGTHS))
        return (outputs * by_outputs).sum(), outputs

    (by_params, by_inputs), outputs = jax.grad(run, argnums=(0, 1), has_aux=True)(params, inputs)
    return outputs, nnx.merge(graph, by_params), by_inputs


def assert_close(found, expected):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_torch_computes_the_same_from_the_saved_weights(kind):
    torch = pytest.importorskip("torch", reason="needs the extra `bench`")
    ours = make(**kind)
    theirs = torch.nn.LSTM(
        4,
        6,
        kind["layers"],
        bidirectional=kind.get("bidirectional", True),
        proj_size=kind.get("projection", 0),
        batch_first=True,
    )
    saved = {name: torch.from_numpy(value) for name, value in to_torch(ours).items()}
    theirs.load_state_dict(saved)  # refuses names or shapes that are not its own
    inputs, by_outputs = inputs_and_by_outputs(ours)
    given = torch.from_numpy(inputs).requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(given, LENGTHS, batch_first=True)
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    (expected * torch.from_numpy(by_outputs)).sum().backward()
    outputs, by_weights, by_inputs = gradients(ours, inputs, by_outputs)
    assert_close(outputs, expected.detach().numpy())
    assert_close(by_inputs, given.grad.numpy())
    by_theirs = {name: weight.grad.numpy() for name, weight in theirs.named_parameters()}
    for name, gradient in to_torch(by_weights).items():
        if not name.startswith("bias_hh"):
            assert_close(gradient, by_theirs[name])
    # And back, into weights that were others.
    back = make(seed=1, **kind)
    load_torch(back, theirs.state_dict())
    assert np.array_equal(back(jnp.array(inputs), jnp.array(LENGTHS)), outputs)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_there_and_back_through_torchs_layout(kind):
    ours, back = make(**kind), make(seed=1, **kind)
    weights = to_torch(ours)
    assert weights["weight_ih_l0"].shape == (24, 4)
    assert all(value.flags["C_CONTIGUOUS"] for value in weights.values())
    weights["bias_hh_l0"] = weights["bias_hh_l0"] + 1  # torch adds its two biases
    weights["bias_ih_l0"] = weights["bias_ih_l0"] - 1
    load_torch(back, weights)
    for one, other in zip(*(jax.tree.leaves(nnx.state(m)) for m in (ours, back)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_a_torch_lstm_without_biases_has_none():
    weights = {k: v for k, v in to_torch(make()).items() if not k.startswith("bias")}
    back = make(seed=1)
    load_torch(back, weights)
    assert not any(direction.bias[...].any() for direction in back.layers[0])


def test_weights_that_do_not_fit_are_named_and_nothing_is_changed():
    lstm = make()
    before = to_torch(lstm)
    weights = to_torch(make(seed=1))
    with pytest.raises(ValueError, match=r"missing \['weight_hh_l0'\], left over \['more'\]"):
        load_torch(lstm, {"more": 0, **{k: v for k, v in weights.items() if k != "weight_hh_l0"}})
    with pytest.raises(
        ValueError, match=r"weight_hh_l0_reverse does not fit: .*\(6, 20\).*\(6, 24"
    ):
        load_torch(lstm, {**weights, "weight_hh_l0_reverse": np.zeros((20, 6), np.float32)})
    for name, value in to_torch(lstm).items():
        assert np.array_equal(value, before[name])


@pytest.mark.parametrize("kind", KINDS[:3], ids=str)
def test_flax_computes_the_same_from_our_weights(kind):
    ours = make(**kind)
    inputs, by_outputs = inputs_and_by_outputs(ours)
    frames, lengths = jnp.array(inputs), jnp.array(LENGTHS)
    for cells in to_flax(ours):
        runs = [
            nnx.RNN(cell, reverse=bool(backward), keep_order=True, rngs=nnx.Rngs(0))
            for backward, cell in enumerate(cells)
        ]
        frames = jnp.concatenate([run(frames, seq_lengths=lengths) for run in runs], axis=-1)
    outputs = gradients(ours, inputs, by_outputs)[0]
    real = np.arange(9) < LENGTHS[:, None]
    assert_close(np.asarray(outputs)[real], np.asarray(frames)[real])
    back = make(seed=1, **kind)
    load_flax(back, to_flax(ours))
    assert np.array_equal(back(jnp.array(inputs), lengths), outputs)


def test_what_flax_and_torch_lack_is_refused():
    with pytest.raises(ValueError, match="neither layer norm nor projection"):
        to_flax(make(projection=2))
    with pytest.raises(ValueError, match="no layer norm"):
        to_torch(make(layer_norm=True))
    with pytest.raises(ValueError, match="cells of 1 layers with .* this LSTM has 2 layers"):
        load_flax(make(layers=2), to_flax(make()))
    other = LSTM(4, 5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match=r"cells\[0\]\[0\].dense_i.kernel does not fit"):
        load_flax(make(), to_flax(other))
