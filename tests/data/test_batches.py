"""Batches equal loops over the examples; their order is a pure function of seed and step."""

import time
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import NOT_SCORED, TaskSpec
from lra_bench.data.batches import Rows, ShuffledBatches, evaluation_batches


def spec(kind="classification", train_length=500, **changes):
    given: dict[str, Any] = {"vocabulary_size": 256} if "channels" not in changes else {}
    return TaskSpec(
        name="toy",
        version="1",
        kind=kind,
        direction="either",
        classes=10,
        train_length=train_length,
        **given,
        **changes,
    )


def ragged(count=100, longest=500, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, length).tolist() for length in generator.integers(1, longest + 1, count)]


def rows_of(tokens, targets=None, **changes):
    columns = {"tokens": pa.array(tokens, pa.list_(pa.uint8()))}
    columns["target"] = pa.array(targets if targets is not None else [i % 10 for i in range(len(tokens))])
    return Rows(datasets.Dataset(pa.table(columns), fingerprint="toy"), spec(**changes))


def test_batch_equals_a_loop():
    tokens = ragged()
    rows = rows_of(tokens)
    assert len(rows) == 100 and rows.lengths.tolist() == [len(row) for row in tokens]
    indices = [5, 99, 0, 5]
    batch = rows.batch(indices)
    assert batch.inputs.dtype == batch.lengths.dtype == batch.targets.dtype == torch.int64
    assert batch.targets.tolist() == [i % 10 for i in indices]
    assert batch.lengths.tolist() == [len(tokens[i]) for i in indices]
    for row, i in zip(batch.inputs.tolist(), indices, strict=True):
        assert row == tokens[i] + [0] * (batch.width - len(tokens[i]))


@pytest.mark.parametrize(
    ("longest", "width"), [(1, 64), (64, 64), (65, 128), (450, 500), (500, 500), (501, 512), (900, 960)]
)
def test_width_is_rounded_up_at_most_to_the_training_length(longest, width):
    assert rows_of([[1] * longest]).batch([0]).width == width


def test_the_multiple_of_the_width_can_be_set():
    rows = rows_of([[1] * 100, [2] * 3])
    assert [rows.batch([n], multiple=1).width for n in (0, 1)] == [100, 3]


def test_full_is_set_for_batches_without_padding():
    rows = rows_of([[1] * 64, [2] * 64, [3] * 5])
    assert rows.batch([0, 1]).full is True
    assert rows.batch([0, 2]).full is False


def test_matching_examples_have_two_documents():
    pairs = [[[1, 2, 3], [4]], [[], [5, 6]]]
    made = datasets.Dataset(pa.table({"tokens": pa.array(pairs, pa.list_(pa.list_(pa.uint8()))), "target": [1, 0]}))
    rows = Rows(made, spec("matching"))
    assert rows.lengths.tolist() == [[3, 1], [0, 2]] and rows.row_lengths.tolist() == [3, 2]
    batch = rows.batch([1, 0], multiple=4)
    assert batch.inputs.tolist() == [[[0, 0, 0, 0], [5, 6, 0, 0]], [[1, 2, 3, 0], [4, 0, 0, 0]]]
    assert batch.lengths.tolist() == [[0, 2], [3, 1]] and batch.targets.tolist() == [0, 1]


def test_tagging_targets_are_padded_with_not_scored():
    made = datasets.Dataset.from_dict({"tokens": [[1, 2, 3], [4]], "target": [[7, NOT_SCORED, 9], [8]]})
    batch = Rows(made, spec("tagging")).batch([0, 1], multiple=4)
    assert batch.targets.tolist() == [[7, -100, 9, -100], [8, -100, -100, -100]]
    with pytest.raises(ValueError, match="list per row"):
        Rows(datasets.Dataset.from_dict({"tokens": [[1]], "target": [1]}), spec("tagging"))


def test_language_modelling_targets_are_the_next_tokens():
    made = datasets.Dataset.from_dict({"tokens": [[1, 2, 3], [4]]})
    batch = Rows(made, spec("language_modeling")).batch([0, 1], multiple=4)
    assert batch.targets.tolist() == [[2, 3, -100, -100], [-100] * 4]


@pytest.mark.parametrize("channels", [1, 2])
def test_values(channels):
    column = [[[0.5] * channels] * 3, [[1.5] * channels]] if channels > 1 else [[0.5] * 3, [1.5]]
    made = datasets.Dataset.from_dict({"values": column, "target": [0, 1]})
    batch = Rows(made, spec(channels=channels)).batch([0, 1], multiple=4)
    assert batch.tokens is None and batch.inputs.dtype == torch.float32
    assert batch.inputs.shape == (2, 4, channels)
    assert batch.inputs[:, :, 0].tolist() == [[0.5, 0.5, 0.5, 0], [1.5, 0, 0, 0]]


def test_assembling_a_training_batch_takes_well_under_a_millisecond():
    batches = ShuffledBatches(rows_of([[1] * 500] * 1000), 32, seed=0)
    batches(0)
    times = []
    for step in range(1, 30):
        start = time.perf_counter()
        batches(step)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5e-3


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_epochs_are_permutations_and_batches_may_contain_two_epochs(count, batch_size, seed):
    batches = ShuffledBatches(rows_of([[1]] * count), batch_size, seed)
    sampled = np.concatenate([batches.indices(step) for step in range(3 * count // batch_size + 2)])
    for epoch in range(3):
        assert sorted(sampled[epoch * count : (epoch + 1) * count].tolist()) == list(range(count))


def test_order_is_a_pure_function_of_seed_and_step():
    rows = rows_of([[1]] * 50)
    forward, backward = ShuffledBatches(rows, 8, seed=1), ShuffledBatches(rows, 8, seed=1)
    steps = list(range(40))
    np.random.seed(0)
    first = [forward.indices(step).tolist() for step in steps]
    np.random.seed(1)
    torch.manual_seed(1)
    again = {step: backward.indices(step).tolist() for step in reversed(steps)}
    assert first == [again[step] for step in steps]
    assert first != [ShuffledBatches(rows, 8, seed=2).indices(step).tolist() for step in steps]
    whole = ShuffledBatches(rows, 50, seed=1)
    assert whole.indices(0).tolist() != whole.indices(1).tolist()


def test_the_order_of_one_seed_never_changes():
    # Checkpoints resume in the middle of an epoch, so another order would repeat examples.
    assert ShuffledBatches(rows_of([[1]] * 10), 10, seed=3).indices(0).tolist() == [9, 6, 0, 2, 1, 4, 7, 5, 3, 8]


def test_an_empty_split_is_an_error():
    with pytest.raises(ValueError, match="no rows"):
        ShuffledBatches(rows_of([]), 4, seed=0)


def test_evaluation_visits_every_example_once_from_short_to_long():
    tokens = ragged(101)
    rows = rows_of(tokens)
    visited, longest = [], 0
    for indices, batch in evaluation_batches(rows, 16, multiple=1):
        lengths = [len(tokens[i]) for i in indices]
        assert batch.lengths.tolist() == lengths == sorted(lengths)
        assert min(lengths) >= longest
        longest = max(lengths)
        assert batch.width == longest
        assert batch.inputs[0, : lengths[0]].tolist() == tokens[indices[0]]
        visited += indices.tolist()
    assert sorted(visited) == list(range(101))
