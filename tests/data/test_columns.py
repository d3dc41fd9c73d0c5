"""Flat views of list columns equal the rows returned by ``datasets`` and share its memory."""

import datasets
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.data.columns import ListColumn, is_list, numbers

RAGGED = [[3, 1], [], [4, 1, 5, 9], [2], [6, 5, 3]]
FIXED = [[i, i + 1, i + 2] for i in range(5)]
KINDS = {
    "list": (pa.list_(pa.uint8()), RAGGED),
    "large": (pa.large_list(pa.int32()), RAGGED),
    "fixed": (pa.list_(pa.uint8(), 3), FIXED),
    "floats": (pa.list_(pa.float32()), [[0.5, 1.5], [2.5], [3.5], [4.5], [5.5]]),
}


def dataset(column, kind, rows_per_chunk=2, name="tokens"):
    parts = [column[start : start + rows_per_chunk] for start in range(0, len(column), rows_per_chunk)]
    return datasets.Dataset(pa.table({name: pa.chunked_array([pa.array(part, kind) for part in parts])}))


@pytest.fixture(params=["in memory", "on disk", "sliced", "selected", "shuffled"])
def stored(request, tmp_path):
    """Return a function that converts a data set to one in memory, on disk, sliced or with indices."""

    def store(made):
        if request.param == "on disk":
            made.save_to_disk(str(tmp_path / "made"))
            return datasets.load_from_disk(str(tmp_path / "made"))
        if request.param == "sliced":
            return made.select(range(1, 4))
        if request.param == "selected":
            return made.select([4, 0, 0, 3])
        if request.param == "shuffled":
            return made.shuffle(seed=3)
        return made

    return store


@pytest.fixture(autouse=True)
def without_bars():
    datasets.disable_progress_bars()
    yield
    datasets.enable_progress_bars()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_those_of_the_data_set(kind, stored):
    arrow, column = KINDS[kind]
    made = stored(dataset(column, arrow))
    read = ListColumn(made, "tokens")
    expected = made["tokens"][:]
    assert len(read) == len(expected)
    assert [read.row(i).tolist() for i in range(len(read))] == expected
    assert read.lengths.tolist() == [len(row) for row in expected]
    assert read.starts.dtype == read.lengths.dtype == np.int64
    by_chunk = {
        int(row): values[start : start + length].tolist()
        for rows, values, starts, lengths in read.by_chunk()
        for row, start, length in zip(rows, starts, lengths, strict=True)
    }
    assert [by_chunk[i] for i in range(len(expected))] == expected


def test_two_documents(stored):
    pairs = [[[1, 2], [3]], [[], [4, 5, 6]], [[7], [8]], [[9, 9], []], [[1], [1, 2, 3, 4]]]
    for arrow in (pa.list_(pa.list_(pa.uint8())), pa.list_(pa.large_list(pa.uint8()), 2)):
        made = stored(dataset(pairs, arrow))
        read = ListColumn(made, "tokens", documents=True)
        expected = made["tokens"][:]
        assert [[read.row(i, 0).tolist(), read.row(i, 1).tolist()] for i in range(len(read))] == expected
        padded = read.padded(np.arange(len(read)), 4, np.int64, 0)
        assert padded.shape == (len(read), 2, 4)
        assert padded.tolist() == [[doc + [0] * (4 - len(doc)) for doc in pair] for pair in expected]


@pytest.mark.parametrize("inner", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)])
def test_channels(inner, stored):
    column = [[[i + 0.5, -i] for i in range(length)] for length in (2, 1, 3, 4, 2)]
    made = stored(dataset(column, pa.list_(inner)))
    read = ListColumn(made, "tokens")
    assert [read.row(i).tolist() for i in range(len(read))] == made["tokens"][:]
    assert read.padded(np.array([0, 1]), 5, np.float32, 0).shape == (2, 5, 2)


@pytest.mark.parametrize("kind", ["list", "fixed"])
def test_nothing_is_copied(kind, tmp_path):
    arrow, column = KINDS[kind]
    dataset(column, arrow).save_to_disk(str(tmp_path / "made"))
    read_only = ListColumn(datasets.load_from_disk(str(tmp_path / "made")), "tokens")
    assert all(not values.flags.owndata and not values.flags.writeable for values in read_only.values)
    made = dataset(column, arrow)
    mine = ListColumn(made, "tokens")
    for values, chunk in zip(mine.values, made.data.column("tokens").chunks, strict=True):
        buffer = chunk.values.buffers()[-1]
        assert values.__array_interface__["data"][0] == buffer.address


@given(
    st.lists(st.lists(st.integers(0, 255), max_size=6), min_size=1, max_size=30),
    st.integers(1, 7),
    st.data(),
)
@settings(max_examples=50, deadline=None)
def test_padded_equals_a_loop(column, rows_per_chunk, data):
    read = ListColumn(dataset(column, pa.list_(pa.uint8()), rows_per_chunk), "tokens")
    indices = np.array(data.draw(st.lists(st.integers(0, len(column) - 1), min_size=1, max_size=9)))
    padded = read.padded(indices, 6, np.int64, -100)
    assert padded.tolist() == [column[i] + [-100] * (6 - len(column[i])) for i in indices]


def test_offsets_beyond_32_bits_do_not_wrap():
    length = 128 * 128
    rows = 2**31 // length + 2
    zeros = pa.array(np.zeros(rows * length, dtype=np.uint8))
    made = datasets.Dataset(pa.table({"tokens": pa.FixedSizeListArray.from_arrays(zeros, length)}), fingerprint="x")
    read = ListColumn(made, "tokens")
    assert int(read.starts[-1]) == (rows - 1) * length > 2**31
    assert len(read.row(rows - 1)) == length


def test_numbers_are_in_the_order_of_rows(stored):
    made = stored(datasets.Dataset.from_dict({"target": [5, 3, 8, 1, 2]}))
    assert numbers(made, "target").tolist() == made["target"][:]


def test_invalid_columns_are_errors():
    with pytest.raises(ValueError, match="no column values"):
        ListColumn(dataset(RAGGED, pa.list_(pa.uint8())), "values")
    with pytest.raises(ValueError, match="missing rows"):
        ListColumn(dataset([[1], None], pa.list_(pa.uint8())), "tokens")
    with pytest.raises(ValueError, match="number of channels"):
        ListColumn(dataset([[[1, 2], [3]]], pa.list_(pa.list_(pa.uint8()))), "tokens")
    with pytest.raises(ValueError, match="contains another number of lists"):
        ListColumn(dataset([[[1], [2], [3]]], pa.list_(pa.list_(pa.uint8()))), "tokens", documents=True)
    with pytest.raises(ValueError, match="contains no lists"):
        ListColumn(datasets.Dataset.from_dict({"tokens": [1, 2]}), "tokens")
    assert is_list(dataset(RAGGED, pa.list_(pa.uint8())), "tokens")
    assert not is_list(datasets.Dataset.from_dict({"tokens": [1, 2]}), "tokens")
