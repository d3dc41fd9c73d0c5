"""Minimal pairs: what differs within a pair, which rules are right about pairs, and the scores of models."""

import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.contracts import NOT_SCORED, Output
from lra_bench.data.cache import Cache
from lra_bench.data.examples import digests_of
from lra_bench.measurements.minimal_pairs import MinimalPairs
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.statistics.intervals import wilson
from lra_bench.tasks.copy import CopyTask
from lra_bench.tasks.listops import ListOps
from lra_bench.tasks.listops.floors import correct_rows, guesses_of_levels
from lra_bench.tasks.listops.levels import read_rows
from lra_bench.tasks.listops.trees import DEPTH, IDS, LABEL
from lra_bench.tasks.needle import NeedleTask
from lra_bench.tasks.recall import RecallTask
from lra_bench.tasks.retrieval_synthetic import RetrievalSynthetic
from lra_bench.tasks.selective_copy import SelectiveCopyTask
from lra_bench.tasks.word_problem import WordProblemTask
from tests.support.measuring import section

CPU = resolve(HardwareOptions(device="cpu", precision="fp32", threads=1))
ROWS = {"train": 3000, "validation": 100, "test": 400}
TASKS = {
    "listops": (ListOps, {"window": [10, 80], "max_arguments": 5, "operator_probability": 0.35}),
    "copy": (CopyTask, {"length": 24, "symbols": 5}),
    "copy of five": (CopyTask, {"length": 24, "copied": 5}),
    "selective_copy": (SelectiveCopyTask, {"length": 40, "copied": 4}),
    "recall": (RecallTask, {"length": 40, "pairs": 4, "symbols": 12, "queries": 9, "power": 1.0}),
    "recall, some keys": (RecallTask, {"length": 40, "pairs": 4, "symbols": 12, "queries": 2}),
    "recall_ladder": (RecallTask, {"length": 64, "pairs": [2, 4, 8], "symbols": 16, "queries": 12, "power": 1.0}),
    "needle": (NeedleTask, {"length": 40, "needles": 2}),
    "parity": (WordProblemTask, {"length": 20}),
    "s3": (WordProblemTask, {"group": "s3", "length": 20, "scored_from": 12}),
}
LEVELS = range(1, 6)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    made = {}

    def make(name):
        if name not in made:
            kind, options = TASKS[name]
            made[name] = kind(rows=ROWS, **options)
            made[name].prepare(Cache(tmp_path_factory.mktemp("data")))
        return made[name]

    return make


def members(task):
    """Return the tokens and the targets of the pairs, as two lists of rows (2, …) each."""
    pairs = task.minimal_pairs()
    columns = (pairs.rows[name][:] for name in ("tokens", "target"))
    return pairs, *(list(zip(column[::2], column[1::2], strict=True)) for column in columns)


@pytest.mark.parametrize("name", TASKS)
def test_members_differ_in_one_token_and_in_the_answer(name, prepared):
    task = prepared(name)
    pairs, tokens, targets = members(task)
    assert 400 <= len(tokens) <= 500 and len(pairs.labels.label_of) == len(tokens)
    for both, answers, label in zip(tokens, targets, pairs.labels.label_of, strict=True):
        one, two = (np.array(member) for member in both)
        (changed,) = np.flatnonzero(one != two)
        if name == "listops":
            assert answers[0] != answers[1]
            opened = sum((token > 10) - 2 * (token == IDS["]"]) for token in one[:changed])
            assert pairs.labels.labels[label] == str(opened) and max(one[changed], two[changed]) <= 10
        else:
            scored = np.array(answers) != NOT_SCORED
            assert (scored[0] == scored[1]).all() and (np.array(answers)[0] != np.array(answers)[1])[scored[0]].all()
            first, _, last = pairs.labels.labels[label].partition("–")
            assert int(first) <= np.flatnonzero(scored[0])[0] - changed <= int(last or first)


@pytest.mark.parametrize("name", TASKS)
def test_labels_are_computed_from_the_tokens_and_no_member_is_in_a_split(name, prepared):
    task = prepared(name)
    pairs = task.minimal_pairs()
    own = digests_of(pairs.rows)
    assert len(own) == len(pairs.rows)
    assert not own & set().union(*(digests_of(task.split(split)) for split in ROWS))
    if name == "listops":
        table = read_rows(pairs.rows, 1)
        assert (table[:, LABEL] == pairs.rows["target"][:]).all()
        return
    tokens, targets = np.array(pairs.rows["tokens"][:]), np.array(pairs.rows["target"][:])
    (block,) = task.blocks("test")
    expected, valid = task._read_as("test")(type(block)(tokens, np.repeat(block.targets[:1], len(tokens), axis=0)))
    scored = targets != NOT_SCORED
    assert valid.all() and (targets == expected.targets)[scored].all()
    # All other targets are equal within a pair.
    differ = expected.targets[::2] != expected.targets[1::2]
    assert (differ == scored[::2]).all()


def test_pairs_depend_only_on_the_settings_of_the_data(prepared, tmp_path):
    for name in ("listops", "recall"):
        kind, options = TASKS[name]
        again, other = (kind(rows=ROWS, seed=seed, **options) for seed in (0, 1))
        for task in (again, other):
            task.prepare(Cache(tmp_path / str(task.seed)))
        tokens = prepared(name).minimal_pairs().rows["tokens"][:]
        assert again.minimal_pairs().rows["tokens"][:] == tokens
        assert not digests_of(other.minimal_pairs().rows) & digests_of(prepared(name).minimal_pairs().rows)
    assert RetrievalSynthetic(length=80).minimal_pairs() is None


@pytest.fixture(scope="module")
def listops(prepared):
    """Return the levels of the pairs, (P,), and properties of train, test and pairs to level five."""
    task = prepared("listops")
    pairs = task.minimal_pairs()
    assert list(pairs.labels.labels) == [str(level) for level in LEVELS]
    tables = (read_rows(rows, max(LEVELS)) for rows in (task.split("train"), task.split("test"), pairs.rows))
    return 1 + pairs.labels.label_of, *tables


@pytest.mark.parametrize("levels", LEVELS)
def test_an_evaluator_is_right_about_no_pair_beyond_its_levels(levels, listops):
    level_of, train, test, pairs = listops
    right = (guesses_of_levels(train, pairs, levels) == pairs[:, LABEL]).reshape(-1, 2).all(axis=1)
    assert not right[level_of > levels].any()
    complete = (pairs[:, DEPTH] <= levels + 1)[::2]
    assert right[complete].all()
    assert right[level_of <= levels].mean() > 0.5 if levels > 1 else right[level_of == 1].any()
    shallow = test[:, DEPTH] <= levels + 1
    assert (guesses_of_levels(train, test, levels) == test[:, LABEL])[shallow].all()


def test_floors_are_right_about_no_pair_beyond_the_levels_that_they_read(listops):
    level_of, train, _, pairs = listops
    reads = {"majority": 0, "root_operator": 0, "root_operator_and_digits": 1, "kinds_of_children": 1}
    for name, correct in correct_rows(train, pairs).items():
        right = correct.reshape(-1, 2).all(axis=1)
        assert not right[level_of > reads.get(name, 2)].any()
        assert not reads.get(name, 2) or right.any()


class Fixed(nn.Module):
    """A model that predicts the given class of each target, by the index of the row."""

    def __init__(self, predictions, classes):
        super().__init__()
        self.predictions, self.classes = torch.as_tensor(predictions), classes

    def forward(self, batch, memory=None):
        chosen = self.predictions[batch.extra["row"]]
        if chosen.dim() > 1:
            chosen = nn.functional.pad(chosen, (0, batch.width - chosen.shape[1]))
        return Output(nn.functional.one_hot(chosen.clamp(min=0), self.classes).float())


@pytest.mark.parametrize("name", ["listops", "recall", "s3"])
def test_a_pair_is_right_if_all_its_targets_are(name, prepared):
    task = prepared(name)
    pairs = task.minimal_pairs()
    targets = np.array(pairs.rows["target"][:]).reshape(len(pairs.rows), -1)
    count = len(targets) // 2
    random = np.random.default_rng(0)
    wrong = random.random(count) < 0.4
    predictions = targets.copy()
    for pair in np.flatnonzero(wrong):  # one wrong target of one member
        row = 2 * pair + random.integers(2)
        place = random.choice(np.flatnonzero(targets[row] != NOT_SCORED))
        predictions[row, place] = (predictions[row, place] + 1) % task.spec.classes
    model = Fixed(predictions if task.spec.per_token else predictions[:, 0], task.spec.classes)
    found = section(MinimalPairs, task, model, hardware=CPU, batch_size=64, attempt=3)
    assert found["attempt"] == 3 and found["slicing"] == pairs.slicing
    assert found["total"]["score"] == pytest.approx(1 - wrong.mean()) and found["total"]["n"] == count
    chance = task.spec.chance ** (targets != NOT_SCORED).sum(axis=1).reshape(-1, 2).sum(axis=1)
    assert [point["label"] for point in found["points"]] == list(pairs.labels.labels)
    for number, point in enumerate(found["points"]):
        own = pairs.labels.label_of == number
        right = int((~wrong[own]).sum())
        assert (point["n"], point["score"]) == (own.sum(), pytest.approx(right / own.sum()))
        assert (point["low"], point["high"]) == wilson(right, int(own.sum()))
        assert point["chance"] == pytest.approx(chance[own].mean())


def test_a_rule_that_does_not_read_the_changed_element_scores_zero(prepared):
    """A model that answers both members alike, right about one of them, is right about no pair."""
    for name in ("listops", "needle"):
        task = prepared(name)
        targets = np.array(task.minimal_pairs().rows["target"][:]).reshape(1000, -1)
        predictions = np.repeat(targets[::2], 2, axis=0)
        model = Fixed(predictions if task.spec.per_token else predictions[:, 0], task.spec.classes)
        assert section(MinimalPairs, task, model, hardware=CPU, batch_size=64)["total"]["score"] == 0


@pytest.mark.parametrize(
    "task",
    [
        RetrievalSynthetic(length=80, rows=ROWS),
        RecallTask(length=40, pairs=4, symbols=8, rows=ROWS),  # no other value
        WordProblemTask(length=20, scored_from=0, rows=ROWS),  # every element has a target itself
        pytest.param(
            ListOps(window=[2, 5], rows={"train": 380, "validation": 10, "test": 10}, max_arguments=2),
            marks=pytest.mark.slow,  # all 400 trees are in the splits
        ),
    ],
    ids=["no changes", "no other value", "no later target", "no other tree"],
)
def test_a_task_without_pairs_has_no_section(task, tmp_path):
    task.prepare(Cache(tmp_path))
    assert section(MinimalPairs, task, nn.Identity(), hardware=CPU, batch_size=8) is None
