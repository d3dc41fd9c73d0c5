"""Examples survive the round trip through tables; validation examples are stratified."""

import datasets
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lra_bench.contracts import TaskSpec
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.examples import Examples, content_sha256, digests_of, repeats
from lra_bench.data.splits import hold_out


def stored(parts, fixed=False):
    import pyarrow

    return datasets.Dataset(pyarrow.concat_tables([part.table(fixed) for part in parts]))


def spec(kind="classification", **options):
    return TaskSpec("toy", "1", kind, "either", 3, train_length=8, **options)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=9), st.integers(0, 3))
def test_ragged_examples_round_trip(lengths, split_at):
    generator = np.random.default_rng(sum(lengths))
    lengths = np.array(lengths)
    rows = [generator.integers(0, 200, n).astype(np.uint8) for n in lengths]
    targets = generator.integers(0, 3, len(lengths))
    pieces = [piece for piece in (slice(0, split_at), slice(split_at, None)) if len(lengths[piece])]
    parts = [Examples(np.concatenate(rows[p] or [np.zeros(0, np.uint8)]), lengths[p], targets[p]) for p in pieces]
    back = Rows(stored(parts), spec(vocabulary_size=256))
    assert [back.row(i).tolist() for i in range(len(rows))] == [row.tolist() for row in rows]
    assert back.batch(range(len(rows))).targets.tolist() == targets.tolist()
    assert content_sha256(stored(parts)) == content_sha256(stored([Examples(np.concatenate(rows), lengths, targets)]))


def test_pairs_grids_channels_and_targets_per_token():
    pair = Examples(np.arange(7, dtype=np.uint8), np.array([[3, 1], [0, 3]]), np.array([0, 1]))
    batch = Rows(stored([pair]), spec("matching", vocabulary_size=9)).batch([1, 0], multiple=1)
    assert batch.tokens.tolist() == [[[0, 0, 0], [4, 5, 6]], [[0, 1, 2], [3, 0, 0]]]
    assert stored([pair])["length"][:] == [3, 3]

    image = Examples(np.arange(12, dtype=np.uint8), np.array([6, 6]), np.array([2, 0]))
    table = image.table(fixed=True)
    assert table.schema.field("tokens").type.list_size == 6
    assert Rows(stored([image], fixed=True), spec(vocabulary_size=16)).row(1).tolist() == list(range(6, 12))

    linear = Examples(np.arange(6, dtype=np.float32).reshape(6, 1), np.array([2, 4]), np.array([1, 1]))
    assert Rows(stored([linear]), spec(channels=1)).row(1).tolist() == [[2], [3], [4], [5]]

    tagged = Examples(np.zeros(6, np.uint8), np.array([3, 3]), np.array([[-100, 1, 2], [0, -100, 1]]))
    batch = Rows(stored([tagged]), spec("tagging", vocabulary_size=2)).batch([1, 0], multiple=1)
    assert batch.targets.tolist() == [[0, -100, 1], [-100, 1, 2]]


def test_digests_distinguish_examples():
    same = Examples(np.array([1, 2, 1, 2, 1, 3], np.uint8), np.array([2, 2, 2]), np.array([0, 1, 0]))
    assert len(digests_of(stored([same]))) == 2
    assert digests_of(stored([same])) == set(same.digests())
    # The boundary between two documents is part of the input.
    pairs = Examples(np.array([1, 1, 1, 1, 1, 1], np.uint8), np.array([[1, 2], [2, 1]]), np.array([0, 0]))
    assert len(digests_of(stored([pairs]))) == 2
    other = Examples(same.values, same.lengths, np.array([0, 1, 1]))
    assert content_sha256(stored([same])) != content_sha256(stored([other]))


def test_extra_columns_are_selected_with_the_examples():
    part = Examples(np.arange(4, dtype=np.uint8), np.array([1, 3]), np.array([0, 1]), {"margin": np.array([2, 3])})
    assert part.select(np.array([1])).table().to_pylist() == [
        {"tokens": [1, 2, 3], "target": 1, "length": 3, "margin": 3}
    ]


def test_the_cache_accepts_a_generator_of_tables(tmp_path):
    def make(advance):
        for start in range(0, 50, 10):
            advance(10)
            yield Examples(np.arange(start, start + 10, dtype=np.uint8), np.ones(10, np.int64), np.arange(10)).table()

    made = Cache(tmp_path).dataset("toy", "k", make, 50, "making")
    assert [row[0] for row in made["tokens"]] == list(range(50))
    assert [path.name for path in (tmp_path / "data").iterdir() if path.is_dir()] == ["toy-k"]


def test_tables_that_fail_leave_nothing(tmp_path):
    def make(advance):
        yield Examples(np.zeros(1, np.uint8), np.ones(1, np.int64), np.zeros(1, np.int64)).table()
        raise RuntimeError("broken source")

    with pytest.raises(RuntimeError, match="broken source"):
        Cache(tmp_path).dataset("toy", "k", make, 1, "making")
    assert [path for path in (tmp_path / "data").iterdir() if path.is_dir()] == []


def test_notes_are_cached_and_recomputed_if_truncated(tmp_path):
    cache, calls = Cache(tmp_path), []

    def make():
        calls.append(1)
        return {"majority": 0.5}

    assert cache.note("floors", "k", make) == cache.note("floors", "k", make) == {"majority": 0.5}
    assert len(calls) == 1
    (tmp_path / "data" / "floors-k.json").write_text('{"majo')
    assert cache.note("floors", "k", make) == {"majority": 0.5}
    assert len(calls) == 2


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(0, 5), st.data())
def test_the_split_is_stratified_and_deterministic(targets, seed, data):
    targets = np.array(targets)
    count = data.draw(st.integers(1, len(targets) - 1))
    kept, out = hold_out(targets, count, seed)
    assert len(out) == count
    assert sorted([*kept, *out]) == list(range(len(targets)))
    for label in np.unique(targets):
        share = (targets == label).sum() * count / len(targets)
        assert np.floor(share) <= (targets[out] == label).sum() <= np.ceil(share)
    again = hold_out(targets, count, seed)
    assert (kept == again[0]).all() and (out == again[1]).all()


def test_examples_in_several_splits_are_counted():
    def part(*values):
        return stored([Examples(np.array(values, np.uint8), np.ones(len(values), np.int64), np.arange(len(values)))])

    splits = {"train": part(1, 2, 3, 3), "validation": part(4, 5), "test": part(3, 3, 4, 6)}
    assert repeats(splits) == {"test in train": 2, "test in validation": 1}


def test_another_seed_holds_out_other_examples():
    targets = np.arange(1000) % 2
    assert set(hold_out(targets, 100, 0)[1]) != set(hold_out(targets, 100, 1)[1])
