"""Slices of the tasks, compared with loops over the tokens, and floors of single targets."""

import numpy as np
import pytest

from lra_bench.contracts import NOT_SCORED
from lra_bench.data.cache import Cache
from lra_bench.tasks.copy import CopyTask
from lra_bench.tasks.listops import ListOps
from lra_bench.tasks.needle import NeedleTask
from lra_bench.tasks.recall import RecallTask
from lra_bench.tasks.retrieval_synthetic import RetrievalSynthetic
from lra_bench.tasks.synthetic.drawing import FIRST_COPIED, FIRST_KEY
from lra_bench.tasks.synthetic.rows import Block

ROWS = {"train": 300, "validation": 50, "test": 200}
DIGITS, FIRST_OPERATOR, CLOSE = range(1, 11), 11, 15
TASKS = {
    "listops": (ListOps, {"window": [10, 120], "max_depth": 6}),
    "copy": (CopyTask, {"length": 24, "symbols": 5}),
    "copy of ten": (CopyTask, {"length": 31, "copied": 10}),
    "recall": (RecallTask, {"length": 48, "pairs": 4, "symbols": 12, "power": 0.5}),
    "recall, repeated queries": (RecallTask, {"length": 40, "pairs": 3, "symbols": 6, "queries": 8, "power": 1.0}),
    "needle": (NeedleTask, {"length": 60}),
    "needles": (NeedleTask, {"length": 60, "needles": 4, "symbols": 40}),
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    cache, made = Cache(tmp_path_factory.mktemp("data")), {}

    def make(name):
        if name not in made:
            kind, options = TASKS[name]
            made[name] = kind(rows=ROWS, **options)
            made[name].prepare(cache)
        return made[name]

    return make


def of_tree(row):
    depth, deepest = 1, 1
    for token in row:
        if FIRST_OPERATOR <= token < CLOSE:
            depth += 1
            deepest = max(deepest, depth)
        elif token == CLOSE:
            depth -= 1
    operators = "MIN", "MAX", "MED", "SM"
    root, every = operators[row[0] - FIRST_OPERATOR], [token - FIRST_OPERATOR for token in row]
    sums = "at the root" if root == "SM" else "below the root" if operators.index("SM") in every else "none"
    return {"length": len(row), "depth": deepest, "operator": root, "modular_sums": sums}


def of_copies(row, targets):
    symbols = [token - FIRST_COPIED for token in row[: sum(target != NOT_SCORED for target in targets)]]
    scored = [place for place, target in enumerate(targets) if target != NOT_SCORED]
    for source, place in enumerate(scored):
        assert symbols[source] == targets[place]
        yield {"distance": place - source}


def of_recalls(row, targets, half):
    values = [place for place, token in enumerate(row) if token >= FIRST_KEY + half]
    for place, target in enumerate(targets):
        if target != NOT_SCORED:
            source = next(value for value in values if row[value - 1] == row[place])
            assert row[source] - FIRST_KEY - half == target
            yield {"pairs": len(values), "distance": place - source}


def of_needles(row):
    yield {"distance": len(row) - 1 - (row.index(row[-1]) + 1)}


def expected(name, task):
    for example in task.split("test"):
        row, targets = list(example["tokens"]), example["target"]
        if name == "listops":
            yield of_tree(row)
        elif name.startswith("copy"):
            yield from of_copies(row, targets)
        elif name.startswith("recall"):
            yield from of_recalls(row, targets, task.half)
        else:
            yield from of_needles(row)


def is_in(value, label):
    first, _, last = label.replace(",", "").partition("–")
    return value == label if isinstance(value, str) else int(first) <= value <= int(last or first)


@pytest.mark.parametrize("name", TASKS)
def test_labels_equal_those_of_a_loop_over_the_tokens(name, prepared):
    task = prepared(name)
    found, properties = task.slices("test"), list(expected(name, task))
    assert set(found) == set(properties[0])
    for slicing, (labels, index) in found.items():
        assert len(index) == len(properties) and len(set(labels)) == len(labels)
        for own, number in zip(properties, index, strict=True):
            assert is_in(own[slicing], labels[number]), (slicing, own, labels[number])
            assert sum(is_in(own[slicing], label) for label in labels) == 1
        if slicing not in ("operator", "modular_sums"):
            assert [*labels] == sorted(labels, key=lambda label: int(label.replace(",", "").split("–")[0]))
    if name in ("listops", "recall", "needle"):
        assert len(found["length" if name == "listops" else "distance"].labels) == 4


def test_recall_reads_the_number_of_pairs_of_each_example_from_its_tokens():
    task = RecallTask(length=12, pairs=3, symbols=8)
    key, value, blank = FIRST_KEY, FIRST_KEY + task.half, 1
    two = [key, value + 3, key + 1, value, blank, key + 1, blank, key, blank, blank, blank, blank]
    three = [key + 2, value, key, value + 2, key + 3, value + 1, key, blank, blank, blank, key + 2, key + 3]
    targets = np.full((2, 12), NOT_SCORED)
    targets[0, [5, 7]], targets[1, [6, 10, 11]] = [0, 3], [2, 0, 1]
    found = task.properties(Block(np.array([two, three], dtype=np.int32), targets))
    assert found["pairs"].tolist() == [2, 2, 3, 3, 3]
    assert found["distance"].tolist() == [2, 6, 3, 9, 6]


def test_a_single_digit_is_a_slice_of_its_own(tmp_path, monkeypatch):
    task = ListOps(rows=ROWS, window=[10, 40])
    task.prepare(Cache(tmp_path))
    table = task._table("test").copy()
    table[0, 1] = 4  # root operator of a single digit
    monkeypatch.setattr(task, "_table", lambda split, length=None: table)
    labels, index = task.slices("test")["operator"]
    assert list(labels) == ["MIN", "MAX", "MED", "SM", "digit"] and np.flatnonzero(index == 4).tolist() == [0]


@pytest.mark.parametrize("name", TASKS)
def test_floors_of_targets_sum_to_the_floors_of_rows(name, prepared):
    task = prepared(name)
    rows, targets = task.floor_rows("test"), task.floor_targets("test")
    assert list(rows) == list(targets)
    scored = [np.sum(np.array(target) != NOT_SCORED) for target in task.split("test")["target"]]
    starts = np.cumsum(scored) - scored
    for rule, accuracy in targets.items():
        assert len(accuracy) == sum(scored)
        np.testing.assert_allclose(np.add.reduceat(accuracy.astype(float), starts), rows[rule])


def test_documents_have_no_slices(tmp_path):
    task = RetrievalSynthetic(length=72, marks=2, rows=ROWS)
    task.prepare(Cache(tmp_path))
    assert task.slices("test") == {}
