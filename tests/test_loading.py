"""The loader: what a batch holds, that nothing is lost, and that it resumes anywhere."""

import itertools
import json
import threading

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bucketjax.batching import plan_mixed_epoch
from bucketjax.loading import Batch, ExampleError, Loader, measure_lengths
from bucketjax.spec import BucketSpec


def make_source(lengths, label_lengths=None, seed=0):
    rng = np.random.default_rng(seed)
    source = [{"features": rng.normal(size=(n, 3)).astype(np.float32)} for n in lengths]
    for example, count in zip(source, label_lengths or [], strict=False):
        example["labels"] = rng.integers(1, 9, count).astype(np.int32)
    return source


@st.composite
def cases(draw):
    lengths = draw(st.lists(st.integers(1, 30), min_size=1, max_size=30))
    label_lengths = [max(length // 3, 0) for length in lengths]
    devices = draw(st.sampled_from([1, 2, 4, 8]))
    spec = BucketSpec.fit(
        lengths,
        num_buckets=draw(st.integers(1, 40)),
        batch_size=devices * draw(st.integers(1, 3)),
        batch_multiple_of=devices,
        label_lengths=label_lengths,
    )
    return make_source(lengths, label_lengths), spec


@given(cases(), st.integers(0, 9), st.sampled_from(["pad", "merge"]), st.integers(0, 2))
@settings(max_examples=50)
def test_an_epoch_holds_every_example_once_padded_with_zeros(case, seed, remainder, prefetch):
    source, spec = case
    loader = Loader(source, spec, seed=seed, remainder=remainder, prefetch=prefetch)
    for _ in range(2):
        expected, seen = len(loader), []
        for batch in loader:
            expected -= 1
            rows, length, label_length = spec.shapes[batch.bucket]
            assert batch.arrays["features"].shape == (rows, length, 3)
            assert batch.arrays["labels"].shape == (rows, label_length)
            assert batch.label_lengths is not None
            for row, index in enumerate(batch.indices):
                features, labels = batch.arrays["features"][row], batch.arrays["labels"][row]
                if index < 0:
                    assert (batch.weights[row], batch.lengths[row]) == (0, 1)
                    assert not features.any()
                    assert not labels.any()
                    assert batch.label_lengths[row] == 0
                    continue
                seen.append(index)
                example = source[index]
                real, label = batch.lengths[row], batch.label_lengths[row]
                assert batch.weights[row] == 1
                assert np.array_equal(features[:real], example["features"])
                assert np.array_equal(labels[:label], example["labels"])
                assert not features[real:].any()
                assert not labels[label:].any()
        assert expected == 0
        assert sorted(seen) == list(range(len(source)))


def signature(batches):
    return [(int(b.bucket), b.indices.tolist(), b.arrays["features"].tobytes()) for b in batches]


@given(cases(), st.integers(0, 5), st.data())
@settings(max_examples=30)
def test_it_resumes_at_every_batch_with_the_same_tail(case, seed, data):
    source, spec = case
    loader = Loader(source, spec, seed=seed)
    whole = signature(itertools.chain(loader, loader, loader))
    position = data.draw(st.integers(0, len(whole) - 1))
    other = Loader(source, spec, seed=seed)
    batches = itertools.chain.from_iterable(itertools.repeat(other, 3))
    for _ in itertools.islice(batches, position):
        pass
    state = json.loads(json.dumps(other.get_state()))
    resumed = Loader(source, spec)
    resumed.set_state(state)
    tail = signature(itertools.chain.from_iterable(itertools.repeat(resumed, 3)))
    assert tail[: len(whole) - position] == whole[position:]


def test_the_state_is_a_few_plain_values_and_counts_what_was_handed_out():
    loader = Loader(make_source([3] * 10), BucketSpec((3,), (2,)), seed=4, prefetch=3)
    for step, _ in enumerate(loader):
        state = loader.get_state()
        assert state["step"] == (step + 1) % 5  # what is prefetched is not counted
        assert all(type(value) in (int, str) for value in state.values())
    assert (loader.epoch, loader.step) == (1, 0)


def test_a_loop_left_early_is_continued_and_leaves_no_thread():
    loader = Loader(make_source([3] * 10), BucketSpec((3,), (2,)), prefetch=2)
    before = threading.active_count()
    seen = []
    for batch in loader:
        seen += batch.indices.tolist()
        if len(seen) == 4:
            break
    assert threading.active_count() == before
    assert len(loader) == 3
    seen += [index for batch in loader for index in batch.indices.tolist()]
    assert sorted(seen) == list(range(10))
    loader.seek(epoch=0)
    assert len(loader) == 5
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"spec": BucketSpec((4, 9), (2, 2))}, "the spec is another one .fingerprint is"),
        ({"source": make_source([3, 9, 4, 4])}, "the number of examples is another"),
        ({"source": make_source([3, 9, 5])}, "the examples have other lengths or another order"),
        ({"remainder": "merge"}, "batches are drawn in another way"),
        ({"shuffle": False}, "batches are drawn in another way"),
        ({"plan": plan_mixed_epoch}, "batches are drawn in another way"),
    ],
)
def test_a_state_of_something_else_is_refused(change, message):
    arguments = {"source": make_source([3, 9, 4]), "spec": BucketSpec((5, 9), (2, 2))}
    state = Loader(**arguments).get_state()
    with pytest.raises(ValueError, match=f"cannot restore: {message}"):
        Loader(**{**arguments, **change}).set_state(state)


def test_a_state_that_is_none_is_refused_and_changes_nothing(unchecked):
    loader = Loader(make_source([3] * 4), BucketSpec((3,), (2,)), seed=1)
    state = loader.get_state()
    with pytest.raises(ValueError, match="not a loader state: it lacks epoch, fingerprint"):
        loader.set_state({"step": 1, "seed": 0})
    with pytest.raises(ValueError, match=r"step 2 is not in an epoch of 2 batches"):
        loader.set_state({**state, "seed": 5, "step": 2})
    with pytest.raises(ValueError, match="epoch must be at least 0; got -1"):
        loader.set_state({**state, "epoch": -1})
    with pytest.raises(ValueError, match="seed must be at least 0; got -1"):
        loader.set_state({**state, "seed": -1})
    with pytest.raises(TypeError, match="step must be an integer; got 1.5"):
        loader.set_state({**state, "step": 1.5})
    assert loader.get_state() == state


class Broken:
    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index == self.bad:
            raise OSError("unreadable sector")
        return {"features": np.ones((4, 1), np.float32)}


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_in_the_source_names_the_example(prefetch):
    loader = Loader(Broken(3), BucketSpec((4,), (2,)), lengths=[4] * 6, prefetch=prefetch)
    before = threading.active_count()
    with pytest.raises(ExampleError, match="example 3 of the source: OSError: unreadable") as error:
        for _ in loader:
            pass
    assert error.value.index == 3
    assert isinstance(error.value.__cause__, OSError)
    assert threading.active_count() == before


def test_an_error_while_placing_reaches_the_consumer():
    def place(batch):
        raise RuntimeError("no such device")

    loader = Loader(make_source([3] * 4), BucketSpec((3,), (2,)), place=place)
    with pytest.raises(RuntimeError, match="no such device"):
        next(iter(loader))


def test_place_makes_what_is_iterated():
    loader = Loader(
        make_source([3] * 4), BucketSpec((3,), (2,)), place=lambda batch: jax.device_put(batch)
    )
    batch = next(iter(loader))
    assert isinstance(batch, Batch)
    assert isinstance(batch.arrays["features"], jax.Array)


def test_truncation_keeps_the_beginning_and_the_length_says_so():
    source = make_source([3, 9])
    loader = Loader(source, BucketSpec((5,), (2,)), too_long="truncate", shuffle=False)
    batch = next(iter(loader))
    assert batch.lengths.tolist() == [3, 5]
    assert np.array_equal(batch.arrays["features"][1], source[1]["features"][:5])
    loader.seek(epoch=0)
    assert loader.plan.report()["truncated"] == 1


def test_scalars_fixed_shapes_and_frames_beside_the_features():
    source = [
        {
            "features": np.ones((n, 2), np.float32),
            "voiced": np.ones(n, bool),
            "speaker": np.int32(n),
            "embedding": np.full(4, n, np.float32),
        }
        for n in (3, 5)
    ]
    loader = Loader(source, BucketSpec((6,), (2,)), pad={"embedding": "none"}, shuffle=False)
    arrays = next(iter(loader)).arrays
    assert arrays["voiced"].sum(axis=1).tolist() == [3, 5]
    assert arrays["voiced"].dtype == bool
    assert arrays["speaker"].tolist() == [3, 5]
    assert arrays["embedding"].tolist() == [[3.0] * 4, [5.0] * 4]


def test_an_example_of_length_0_is_kept():
    source = make_source([0, 4], [0, 2])
    spec = BucketSpec.fit([0, 4], num_buckets=2, batch_size=1, label_lengths=[0, 2])
    batches = {int(b.indices[0]): b for b in Loader(source, spec)}
    assert batches[0].lengths.tolist() == [0]
    assert batches[0].weights.tolist() == [1]
    assert batches[0].arrays["features"].shape == (1, 1, 3)


def test_the_abstract_batch_is_the_batch_without_its_values():
    source = make_source([3, 9], [1, 2])
    spec = BucketSpec((5, 9), (2, 4), label_lengths=(2, 3))
    loader = Loader(source, spec)
    for batch in loader:
        abstract = loader.abstract_batch(int(batch.bucket))
        assert jax.tree.structure(abstract) == jax.tree.structure(batch)
        for described, real in zip(jax.tree.leaves(abstract), jax.tree.leaves(batch), strict=True):
            assert described.shape == np.shape(real)
            assert described.dtype == np.asarray(real).dtype


def first_batch(source, spec=None, **arguments):
    spec = spec or BucketSpec((9,), (2,))
    return next(iter(Loader(source, spec, shuffle=False, **arguments)))


@pytest.mark.parametrize(
    ("source", "arguments", "error", "message"),
    [
        ([], {}, ValueError, "the source is empty"),
        (make_source([3]), {"prefetch": -1}, ValueError, "prefetch is a number of batches, at le"),
        (make_source([3]), {"lengths": [3, 3]}, ValueError, "2 lengths for 1 examples"),
        (make_source([3]), {"lengths": [3.0]}, TypeError, "lengths must be integers"),
        (make_source([10]), {}, ValueError, "1 of 1 examples fit no bucket"),
        (make_source([3]), {"seed": -1}, ValueError, "seed must be at least 0"),
        (make_source([3]), {"remainder": "drop"}, ValueError, "no batch is left of 1 examples"),
        (make_source([3]), {"pad": {"x": "none"}}, ValueError, "pad names x, but an example has f"),
        (make_source([3]), {"pad": {"features": "time"}}, ValueError, "unknown pad 'time' for 'f"),
        (
            make_source([3]),
            {"pad": {"features": "label_length"}},
            ValueError,
            "'features' is to be padded to the label length, but the spec has none",
        ),
        (
            make_source([3]),
            {"spec": BucketSpec((9,), (2,), label_lengths=(3,))},
            ValueError,
            'the spec pads labels, but the examples have no "labels"',
        ),
        (
            make_source([3, 4]),
            {"lengths": [3, 3]},
            ExampleError,
            "example 1 .*array 'features' has 4 entries, but the example's length is 3",
        ),
        (
            make_source([3], [2]),
            {},
            ExampleError,
            r"array 'labels' has 2 entries.*pad=.\"labels\": \"length\", \"label_length\" or \"n",
        ),
        ([{"features": np.ones(3)}, {}], {}, ExampleError, "example 1 .*cannot tell its length"),
        ([{"a": np.ones(3), "b": np.ones(4)}], {}, ExampleError, "cannot tell its length from a"),
        (
            [{"features": np.ones(3), "x": 1}, {"features": np.ones(3)}],
            {},
            ExampleError,
            "example 1 .*it has features, other examples have features, x",
        ),
        ([np.ones(3)], {}, ExampleError, "expected a dict of arrays, got ndarray"),
        ([{"features": np.array(["x", "y"])}], {}, ExampleError, "has dtype <U1; only numbers"),
        (
            [{"features": np.ones((3, 2))}, {"features": np.ones((3, 4))}],
            {},
            ExampleError,
            r"example 1 .*shape \(3, 4\) and dtype float64; other examples have \(2,\) after",
        ),
        (
            [{"features": np.ones(3, int)}, {"features": np.ones(3)}],
            {},
            ExampleError,
            "example 1 .*dtype float64; other examples have .* and int64",
        ),
    ],
)
def test_what_is_wrong_is_said(unchecked, source, arguments, error, message):
    with pytest.raises(error, match=message):
        first_batch(source, **arguments)


def test_measuring_names_the_example_that_cannot_be_read():
    with pytest.raises(ExampleError, match="example 2 of the source: OSError"):
        measure_lengths(Broken(2))


def test_the_length_is_what_all_arrays_but_the_labels_share():
    source = [{"x": np.ones((4, 2)), "y": np.ones(4), "labels": np.ones(2), "speaker": 3}]
    lengths, label_lengths = measure_lengths(source)
    assert (lengths.tolist(), label_lengths.tolist()) == ([4], [2])


def test_a_loader_has_one_position_and_a_second_loop_takes_it():
    loader = Loader(make_source([3] * 10), BucketSpec((3,), (2,)))
    first = iter(loader)
    seen = next(first).indices.tolist()
    seen += [index for batch in loader for index in batch.indices.tolist()]
    assert sorted(seen) == list(range(10))
    with pytest.raises(RuntimeError, match="another loop over this loader, .* make a second Load"):
        next(first)
    assert (loader.epoch, loader.step) == (1, 0)
    third = iter(loader)
    next(third)
    loader.seek(epoch=0)
    with pytest.raises(RuntimeError, match="seek or set_state, has begun since"):
        next(third)
    assert "bucketjax-prefetch" not in {thread.name for thread in threading.enumerate()}
