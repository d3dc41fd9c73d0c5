"""Tests of the ListOps task: splits, lengths, floors, checks, provenance."""

import gzip
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest

from lra_bench.contracts import UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.examples import content_sha256, digests_of, join
from lra_bench.tasks.listops.floors import correct_rows, guesses_of_levels, root_and_label
from lra_bench.tasks.listops.generation import distinct, matched
from lra_bench.tasks.listops.levels import read_rows
from lra_bench.tasks.listops.task import ListOps
from lra_bench.tasks.listops.trees import DEPTH, IDS, LABEL, MAX, MED, MIN, NO_DIGIT, SM, describe, describe_rows

SMALL: dict[str, Any] = {
    "window": [20, 100],
    "rows": {"train": 3000, "validation": 300, "test": 400},
    "extrapolation_rows": 500,
}
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("listops"))


@pytest.fixture(scope="module")
def task(cache):
    task = ListOps(**SMALL)
    task.prepare(cache)
    return task


def prepared(cache, **options):
    task = ListOps(**{**SMALL, **options})
    task.prepare(cache)
    return task


def contents(task):
    return {name: content_sha256(task.split(name)) for name in SPLITS}


def test_splits(task):
    for name, count in SMALL["rows"].items():
        split = task.split(name)
        assert split.column_names == ["tokens", "target", "length"] and len(split) == count
        lengths = np.array(split["length"][:])
        assert lengths.min() > 20 and lengths.max() < 100
        assert lengths.tolist() == [len(row) for row in split["tokens"][:]]
        task.check(name)
    digests = [digests_of(task.split(name)) for name in SPLITS]
    assert len(set().union(*digests)) == sum(SMALL["rows"].values())
    batch = Rows(task.split("test"), task.spec).batch([0, 1])
    assert batch.inputs.shape[0] == 2 and int(batch.inputs.max()) < task.spec.vocabulary_size
    with pytest.raises(ValueError, match="no split valid"):
        task.split("valid")


def test_spec():
    spec = ListOps().spec
    assert (spec.name, spec.version, spec.kind, spec.direction) == ("listops", "1", "classification", "either")
    assert (spec.vocabulary_size, spec.classes, spec.train_length, spec.chance) == (16, 10, 2000, 0.1)
    assert ListOps(max_length=2048).spec.train_length == 2048


def test_data_depends_only_on_the_seed(task, tmp_path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    again = prepared(Cache(tmp_path))
    assert contents(again) == contents(task)
    assert content_sha256(again.split("test", 200)) == content_sha256(task.split("test", 200))
    other = prepared(Cache(tmp_path), seed=1)
    assert all(contents(other)[name] != digest for name, digest in contents(task).items())
    assert not digests_of(other.split("train")) & digests_of(task.split("train"))


def test_size_of_train_does_not_affect_other_splits(task, cache):
    small = prepared(cache, rows={**SMALL["rows"], "train": 100})
    assert contents(small)["test"] == contents(task)["test"]
    assert contents(small)["validation"] == contents(task)["validation"]
    assert small.split("train")["tokens"][:] == task.split("train")["tokens"][:100]


def test_prepared_data_is_not_generated_again(task, cache, monkeypatch):
    def never(*_):
        raise AssertionError("examples were generated again")

    task.split("test", 200)
    monkeypatch.setattr("lra_bench.tasks.listops.generation.draw_chunk", never)
    again = prepared(cache)
    assert contents(again) == contents(task)
    assert again.split("test", 200)["target"][:] == task.split("test", 200)["target"][:]


def test_short_windows_have_no_duplicates(cache):
    tiny = prepared(cache, window=[1, 9], rows={"train": 5000, "validation": 500, "test": 500})
    for name in SPLITS:
        tiny.check(name)


def test_too_few_different_trees_raise_an_error(cache):
    with pytest.raises(UserError, match=r"task\.window=\[1, 5\]: only \d+ different trees were found"):
        prepared(cache, window=[1, 5])  # four operators over two digits: 400 trees


def test_window_that_random_trees_do_not_reach_is_refused(cache):
    with pytest.raises(UserError, match=r"task\.window=\[90000, 100000\]: only .* of random trees"):
        prepared(cache, window=[90_000, 100_000])


@pytest.mark.parametrize("ratio", [0.5, 2, 8])
def test_other_lengths_have_the_same_distribution_of_root_and_label(task, ratio):
    length = round(100 * ratio)
    bucket = task.split("test", length)
    lengths = np.array(bucket["length"][:])
    assert len(bucket) == 500
    assert lengths.min() > 20 * ratio and lengths.max() < 100 * ratio
    table, train = describe_rows(bucket), describe_rows(task.split("train"))
    counts = root_and_label(table) * 500
    assert np.abs(counts - root_and_label(train) * 500).max() < 1  # largest remainders
    task.check("test", length)
    assert task.drift("test", length)["total_variation_from_train"] < 40 / 500
    assert task.supports_length(length) is None


def test_root_operator_floor_is_the_same_at_every_length(task):
    """Compare floors to within 2 points; without selection, trees of eight times the length differ in distribution."""
    train = describe_rows(task.split("train"))
    train_floor = task.floors("train")["root_operator"]
    for ratio in (0.5, 2, 4, 8):
        length = round(100 * ratio)
        assert task.floors("test", length)["root_operator"] == pytest.approx(train_floor, abs=0.02), length
        assert task.drift("test", length)["mean_root_arity"] > 2
    unselected = join(distinct(task._trees(800), 1, 0, 2000, lambda n: None))
    table = describe(unselected.values, unselected.starts, unselected.lengths)
    distance = np.abs(root_and_label(table) - root_and_label(train)).sum() / 2
    assert distance > 2 * task.drift("test", 800)["total_variation_from_train"]


def test_rare_kinds_of_examples_are_not_last():
    wanted = np.zeros((5, 10))
    wanted[MIN, [0, 5]] = 0.5, 0.5  # one of the two kinds occurs once in a hundred trees
    [examples] = matched(ListOps()._trees(2000), 0, 1, 40, wanted, frozenset(), lambda n: None)
    assert sorted(examples.targets.tolist()) == [0] * 20 + [5] * 20
    for quarter in np.array_split(examples.targets, 4):
        assert set(quarter) == {0, 5}


def test_split_at_the_training_length_is_the_split_itself(task):
    assert task.split("test", 100) is task.split("test")
    assert task.floors("test", 100) == task.floors("test")


def test_examples_of_other_lengths_are_not_in_train(cache):
    tiny = prepared(cache, window=[4, 12], rows={"train": 20_000, "validation": 10, "test": 10})
    longer = tiny.split("test", 15)
    train_digests = digests_of(tiny.split("train"))
    assert len(digests_of(longer)) == len(longer) and not digests_of(longer) & train_digests
    assert (
        np.array(longer["length"][:]) < 12
    ).any()  # otherwise the windows do not overlap, and the test has no meaning


def test_long_examples_use_a_higher_operator_probability():
    task = ListOps(window=[500, 2000])
    assert [task._trees(length).operator_probability for length in (1000, 2000, 4000, 8000)] == [0.25, 0.25, 0.25, 0.3]
    assert ListOps(window=[2000, 8000])._trees(8000).operator_probability == 0.25
    assert task.supports_length(32_000) is None
    assert "only" in str(task.supports_length(200_000))
    assert "only 0 of random trees" in str(task.supports_length(1))


def test_impossible_lengths_are_refused(task):
    with pytest.raises(UserError, match=r"measure\.extrapolation_ratios: length 100,000 is not possible"):
        task.split("test", 100_000)


def nested(tokens):
    """Return a tree as nested lists: a digit, or an operator followed by its arguments."""
    stack = [[]]
    for token in tokens:
        if token < IDS["[MIN"]:
            stack[-1].append(token - 1)
        elif token < IDS["]"]:
            stack.append([token - IDS["[MIN"]])
        else:
            tree = stack.pop()
            stack[-1].append(tree)
    return stack[0][0]


def value_of(tree, levels):
    """Return the value of a nested list without what lies deeper than ``levels`` operators, None if nothing remains."""
    if isinstance(tree, int):
        return tree
    if levels == 0:
        return None
    values = sorted(value for child in tree[1:] if (value := value_of(child, levels - 1)) is not None)
    middle = (values[(len(values) - 1) // 2] + values[len(values) // 2]) // 2 if values else None
    return {MIN: values[0], MAX: values[-1], MED: middle, SM: sum(values) % 10}[tree[0]] if values else None


def seen_by_floors(tree):
    """Return the properties of a tree that each floor reads, in the order of the floors."""
    digits = [child for child in tree[1:] if isinstance(child, int)]
    children = [child for child in tree[1:] if not isinstance(child, int)]
    below = [digit for child in children for digit in child[1:] if isinstance(digit, int)]
    own = tree[0], value_of([tree[0], *digits], 1)
    kinds = frozenset(child[0] for child in children)
    return (), own[:1], own, (*own, kinds), (*own, kinds, min(below, default=None), max(below, default=None))


def most_frequent(keys, labels):
    """Return the most frequent label of each key, the smallest of several."""
    counts = {}
    for key, label in zip(keys, labels, strict=True):
        counts.setdefault(key, [0] * 10)[label] += 1
    return {key: int(np.argmax(count)) for key, count in counts.items()}


@pytest.mark.parametrize("length", [None, 50, 200])
def test_floors_and_rungs_equal_a_direct_computation(task, length):
    """At another length they are fitted on other training examples of that length."""
    test = task.split("test", length)
    if length is None:
        train = task.split("train")
        trees, labels = [nested(row) for row in train["tokens"][:]], train["target"][:]
    else:
        rows, stream = SMALL["rows"]["train"], task._stream("train", length)
        wanted = root_and_label(describe_rows(task.split("train")))
        [drawn] = matched(task._trees(length), 0, stream, rows, wanted, digests_of(test), lambda n: None)
        assert not set(drawn.digests()) & digests_of(test)
        trees, labels = [nested(row.tolist()) for row in np.split(drawn.values, drawn.starts[1:])], drawn.targets
    tables = [most_frequent(keys, labels) for keys in zip(*map(seen_by_floors, trees), strict=True)]
    right = []
    for tree in map(nested, test["tokens"][:]):
        of_rules = [table.get(key) for table, key in zip(tables, seen_by_floors(tree), strict=True)]
        right.append([guess == value_of(tree, 99) for guess in backed_off(of_rules)])
    names = "majority", "root_operator", "root_operator_and_digits", "kinds_of_children", "digits_of_children"
    floors = task.floors("test", length)
    assert floors == pytest.approx(dict(zip(names, np.mean(right, axis=0), strict=True)))
    assert list(floors) == list(names)
    for levels, name in enumerate(("one_level", "two_levels", "three_levels"), start=1):
        table = most_frequent([(tree[0], value_of(tree, levels)) for tree in trees], labels)
        by_root = most_frequent([tree[0] for tree in trees], labels)
        correct = [
            value_of(tree, levels) == value_of(tree, 99)
            if not deeper_than(tree, levels)
            else table.get((tree[0], value_of(tree, levels)), by_root[tree[0]]) == value_of(tree, 99)
            for tree in map(nested, test["tokens"][:])
        ]
        assert task.rungs("test", length)[name] == pytest.approx(np.mean(correct))


def backed_off(guesses):
    """Return guesses with the one before it for each that is missing."""
    found = []
    for guess in guesses:
        found.append(found[-1] if guess is None else guess)
    return found


def deeper_than(tree, levels):
    return not isinstance(tree, int) and (levels == 0 or any(deeper_than(child, levels - 1) for child in tree[1:]))


@pytest.mark.parametrize("levels", range(1, 6))
def test_an_evaluator_of_enough_levels_is_always_right(task, levels):
    train, test = (read_rows(task.split(name), 5) for name in ("train", "test"))
    right = guesses_of_levels(train, test, levels) == test[:, LABEL]
    shallow = test[:, DEPTH] <= levels + 1
    assert right[shallow].all()
    assert levels > 4 or (~right[~shallow]).any()


def test_members_of_minimal_pairs_have_the_values_that_a_direct_evaluation_gives(task):
    rows = task.minimal_pairs().rows
    values = [value_of(nested(row), 99) for row in rows["tokens"][:]]
    assert values == rows["target"][:] and all(np.array(values[::2]) != values[1::2])
    assert set(np.diff(np.array(rows["length"][:]).reshape(-1, 2)).ravel()) == {0}


def test_properties_that_train_lacks():
    """An unseen property is left out. An unseen root operator is predicted by the most frequent label."""

    def table(rows):
        return np.array([(label, root, 2, digits, 3, 0, kinds, 1, 2, digits) for label, root, digits, kinds in rows])

    train = table([(1, MIN, 4, 1), (1, MIN, 4, 1), (2, MIN, 5, 1), (7, MAX, 3, 2), (3, MIN, 4, 3)])
    rows = table([(1, MIN, 9, 1), (2, MIN, 5, 8), (7, MAX, NO_DIGIT, 1), (1, SM, 0, 1), (3, MIN, 4, 3)])
    correct = {name: right.tolist() for name, right in correct_rows(train, rows).items()}
    assert correct["root_operator"] == [True, False, True, True, False]
    assert correct["root_operator_and_digits"] == [True, True, True, True, False]
    assert correct["kinds_of_children"] == correct["digits_of_children"] == [True] * 5


@pytest.mark.slow
def test_floors_in_the_window_of_lra(cache):
    task = prepared(cache, window=[500, 2000], rows={"train": 20_000, "validation": 10, "test": 5_000})
    error = (0.25 / 5000) ** 0.5
    floors = task.floors("test")
    assert floors["majority"] == pytest.approx(0.17, abs=3 * error)
    assert floors["root_operator"] == pytest.approx(0.36, abs=3 * error)
    assert floors["root_operator_and_digits"] == pytest.approx(0.48, abs=3 * error)


def test_floors_are_computed_for_each_length(task, cache):
    assert prepared(cache, max_length=200).floors("test", 200) != task.floors("test", 200)  # another window
    assert task.floors("test", 200)["root_operator"] != task.floors("test")["root_operator"]
    assert set(task.floors("test", 200)) == set(task.floors("test"))


def tamper(dataset, row, **changes):
    columns = {name: dataset[name][:] for name in dataset.column_names}
    for name, value in changes.items():
        columns[name][row] = value
    tokens = pa.array(columns["tokens"], pa.list_(pa.uint8()))
    return datasets.Dataset(pa.table({**columns, "tokens": tokens}), fingerprint="tampered")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": 10}, "row 7 is not a valid example: its label is 10"),
        ({"tokens": [11, 1, 1], "length": 3}, "row 7 is not a valid example: a bracket is not closed"),
        ({"tokens": [11, 0, 1, 15], "length": 4}, "row 7 is not a valid example: it contains an unknown symbol"),
        ({"tokens": [11, 1, 1, 15], "length": 4, "target": 0}, "row 7 has 4 tokens, not between 20 and 100"),
        ({"length": 50_000}, "row 7 has a wrong length"),
    ],
)
def test_check_detects_an_invalid_example(cache, changes, message):
    task = prepared(cache)
    task._splits["test", 100] = tamper(task.split("test"), 7, **changes)
    with pytest.raises(UserError, match=rf"listops test: {message}"):
        task.check("test")


def test_check_detects_duplicates(cache):
    task = prepared(cache)
    test = task._splits["test", 100]
    first, from_train = test[0], task.split("train")[0]
    task._splits["test", 100] = tamper(test, 7, **first)
    with pytest.raises(UserError, match="1 rows are duplicates"):
        task.check("test")
    task._splits["test", 100] = tamper(test, 7, **from_train)
    with pytest.raises(UserError, match="1 rows are also in train"):
        task.check("test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": [500]}, r"task\.window=\[500\]"),
        ({"window": [0, 100]}, r"task\.window=\[0, 100\]"),
        ({"window": [100, 101]}, r"task\.window=\[100, 101\]"),
        ({"window": [500, 100]}, r"task\.window=\[500, 100\]"),
        ({"window": [100, 500], "max_length": 400}, r"task\.max_length=400"),
        ({"max_depth": 1}, r"task\.max_depth=1"),
        ({"max_arguments": 1}, r"task\.max_arguments=1"),
        ({"operator_probability": 1.0}, r"task\.operator_probability=1\.0"),
        ({"long_operator_probability": -0.1}, r"task\.long_operator_probability=-0\.1"),
        ({"rows": {"val": 5}}, r"task\.rows: there is no split val"),
        ({"rows": {"test": 0}}, r"task\.rows\.test=0"),
        ({"extrapolation_rows": 0}, r"task\.extrapolation_rows=0"),
        ({"seed": -1}, r"task\.seed=-1"),
    ],
)
def test_invalid_options_are_named(options, message):
    with pytest.raises(UserError, match=rf"^{message}"):
        ListOps(**options)


def test_fingerprint_depends_on_the_options():
    base = ListOps().fingerprint()
    assert base == ListOps(window=(500, 2000), rows={"train": 96_000}, source=None).fingerprint()
    changes: list[dict[str, Any]] = [
        {"window": [100, 500]},
        {"max_depth": 9},
        {"max_arguments": 9},
        {"operator_probability": 0.2},
        {"long_operator_probability": 0.4},
        {"rows": {"test": 100}},
        {"extrapolation_rows": 100},
        {"seed": 1},
    ]
    for change in changes:
        assert ListOps(**change).fingerprint() != base


def test_use_before_prepare_is_refused():
    with pytest.raises(RuntimeError, match="prepare"):
        ListOps().split("test")
    with pytest.raises(RuntimeError, match="prepare"):
        ListOps().provenance()


def test_provenance_of_generated_data(task):
    provenance = task.provenance()
    assert provenance.licence == "Apache-2.0" and provenance.partial == provenance.lossy == ""
    assert "1804.06028" in provenance.citation and "2011.04006" in provenance.citation
    assert provenance.checksums == contents(task)


@pytest.fixture
def official(shared_data, tmp_path, monkeypatch):
    """Create a folder of official data with 60, 30 and 30 examples of the original files."""
    folder = tmp_path / "listops-1000"
    folder.mkdir()
    for short, count in (("train", 60), ("val", 30), ("test", 30)):
        with gzip.open(shared_data / "listops" / f"lra_generator_basic_{short}.tsv.gz") as file:
            (folder / f"basic_{short}.tsv").write_bytes(b"".join(next(file) for _ in range(count + 1)))
    monkeypatch.setenv("LRA_BENCH_DATA", str(tmp_path))
    return folder


def test_official_files(official, cache):
    task = ListOps(source="official", extrapolation_rows=50)
    before = task.fingerprint()
    task.prepare(cache)
    assert [len(task.split(name)) for name in SPLITS] == [60, 30, 30]
    for name in SPLITS:
        task.check(name)
    provenance = task.provenance()
    assert provenance.partial == "60 of 96,000 train rows, 30 of 2,000 validation rows, 30 of 2,000 test rows"
    assert str(official) in provenance.source and "Apache-2.0" in provenance.licence
    assert len(task.split("test", 1000)) == 50
    task.check("test", 1000)
    assert ListOps(source=str(official), extrapolation_rows=50).fingerprint() == before
    table = official / "basic_test.tsv"
    table.write_bytes(b"".join(table.read_bytes().splitlines(keepends=True)[:-1]))
    assert ListOps(source="official", extrapolation_rows=50).fingerprint() != before


def test_data_folder_does_not_replace_generated_data(official, cache):
    task = prepared(cache)
    assert task.provenance().source.startswith("generated")


def test_rows_limits_examples_of_files_and_long_ones_are_refused(official, cache):
    task = ListOps(source=str(official), rows={"train": 20, "test": 10})
    task.prepare(cache)
    assert [len(task.split(name)) for name in SPLITS] == [20, 30, 10]
    with pytest.raises(UserError, match=r"more than task\.max_length=500"):
        ListOps(source=str(official), window=[100, 500]).prepare(cache)


def test_invalid_line_is_named(official, cache):
    table = official / "basic_val.tsv"
    lines = table.read_bytes().splitlines(keepends=True)
    table.write_bytes(b"".join([*lines[:3], lines[3].replace(b"[M", b"[Q", 1), *lines[4:]]))
    with pytest.raises(UserError, match=r"line 4 of .*basic_val\.tsv has the unknown symbol '\[Q"):
        ListOps(source="official").prepare(cache)
