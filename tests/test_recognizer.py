"""The recogniser: what the padding holds, and how much there is of it, changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketjax.nn import Recognizer, ctc_loss

LENGTHS = jnp.array([6, 3, 1])
LABELS, LABEL_LENGTHS = jnp.array([[1, 2], [3, 3], [1, 0]]), jnp.array([2, 2, 1])


def make():
    return nnx.split(Recognizer(4, 5, hidden=6, layers=2, rngs=nnx.Rngs(0)))


@jax.jit
def loss_and_gradients(params, features):
    graph, _ = make()

    def total(params, features):
        logits = nnx.merge(graph, params)(features, LENGTHS)
        return ctc_loss(logits, LENGTHS, LABELS, LABEL_LENGTHS)[0].sum()

    return jax.value_and_grad(total, argnums=(0, 1))(params, features)


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=56, max_size=56)
)
@settings(max_examples=30)
def test_any_finite_padding_gives_the_same_loss_and_gradients_bit_for_bit(values):
    _, params = make()
    features = np.random.default_rng(0).normal(size=(3, 8, 4)).astype(np.float32)
    padded = np.arange(8) >= np.asarray(LENGTHS)[:, None]
    clean, dirty = features.copy(), features.copy()
    clean[padded] = 0
    dirty[padded] = np.array(values, np.float32).reshape(14, 4)
    for a, b in zip(
        jax.tree.leaves(loss_and_gradients(params, clean)),
        jax.tree.leaves(loss_and_gradients(params, dirty)),
        strict=True,
    ):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_even_nan_in_the_padding_does_no_harm(value):
    _, params = make()
    features = np.random.default_rng(0).normal(size=(3, 8, 4)).astype(np.float32)
    dirty = np.where((np.arange(8) >= np.asarray(LENGTHS)[:, None])[..., None], value, features)
    for a, b in zip(
        jax.tree.leaves(loss_and_gradients(params, features)),
        jax.tree.leaves(loss_and_gradients(params, jnp.array(dirty, jnp.float32))),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


def test_an_example_has_the_same_outputs_whatever_bucket_it_is_padded_to():
    graph, params = make()
    run = jax.jit(lambda params, features, lengths: nnx.merge(graph, params)(features, lengths))
    features = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    expected = run(params, features, LENGTHS)
    for length in (7, 16, 33, 100):
        padded = np.zeros((3, length, 4), np.float32)
        padded[:, :6] = features
        found = run(params, padded, LENGTHS)
        for row, real in enumerate(LENGTHS):
            # Not bit for bit: the product of all frames with the weights has another number of
            # rows, and the CPU's kernels round by shape (seen: 5e-8).
            np.testing.assert_allclose(found[row, :real], expected[row, :real], atol=5e-7, rtol=0)


def test_too_few_classes():
    with pytest.raises(ValueError, match="num_classes must be at least 2, .* got 1"):
        Recognizer(4, 1, rngs=nnx.Rngs(0))
