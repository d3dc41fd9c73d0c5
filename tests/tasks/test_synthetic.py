"""Tests of the synthetic tasks: targets against a simple interpreter, floors and chance against closed forms."""

import itertools
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from lra_bench.contracts import NOT_SCORED, Capability, UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.examples import content_sha256, digests_of
from lra_bench.models.backbone import SequenceModel
from lra_bench.options.backbone import BackboneOptions
from lra_bench.tasks.copy import CopyTask
from lra_bench.tasks.needle import NeedleTask
from lra_bench.tasks.recall import RecallTask
from lra_bench.tasks.retrieval_synthetic import RetrievalSynthetic
from lra_bench.tasks.selective_copy import SelectiveCopyTask
from lra_bench.tasks.synthetic.drawing import (
    BLANK,
    FIRST_COPIED,
    FIRST_ELEMENT,
    FIRST_KEY,
    FIRST_SYMBOL,
    MARK,
    SEPARATOR,
)
from lra_bench.tasks.synthetic.groups import multiplication_table
from lra_bench.tasks.synthetic.groups import order as group_order
from lra_bench.tasks.word_problem import WordProblemTask

ROWS = {"train": 900, "validation": 100, "test": 400}
SPLITS = ("train", "validation", "test")
VARIANTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "copy": (CopyTask, {"length": 24, "symbols": 5}),
    "copy of ten": (CopyTask, {"length": 31, "symbols": 8, "copied": 10}),
    "recall": (RecallTask, {"length": 32, "pairs": 4, "symbols": 12}),
    "recall, many queries": (RecallTask, {"length": 40, "pairs": 3, "symbols": 6, "queries": 8, "power": 1.0}),
    "recall, few queries": (RecallTask, {"length": 20, "pairs": 5, "symbols": 200, "queries": 2}),
    "recall, ladder": (RecallTask, {"length": 40, "pairs": [5, 1, 3], "symbols": 12, "queries": 9, "power": 1.0}),
    "recall, ladder of one query": (RecallTask, {"length": 32, "pairs": [2, 4], "symbols": 16}),
    "selective copy": (SelectiveCopyTask, {"length": 24, "symbols": 5, "copied": 4}),
    "selective copy without blanks": (SelectiveCopyTask, {"length": 19, "symbols": 6, "copied": 9}),
    "s3": (WordProblemTask, {"group": "s3", "length": 30}),
    "a5": (WordProblemTask, {"group": "a5", "length": 16, "shortest": 5, "scored_from": 7}),
    "needle": (NeedleTask, {"length": 30, "symbols": 7}),
    "needles": (NeedleTask, {"length": 30, "symbols": 40, "needles": 5}),
    "retrieval": (RetrievalSynthetic, {"length": 47, "keys": 5, "marks": 3}),
    "retrieval, unbalanced": (RetrievalSynthetic, {"length": 48, "keys": 5, "marks": 3, "balanced": False}),
}


def read_copy(task, row):
    """Return the expected targets: the symbols before the first blank, at the last positions."""
    end = row.index(SEPARATOR)
    symbols = [token - FIRST_COPIED for token in row[:end] if token != BLANK]
    assert row[len(symbols) :] == [BLANK] * (end - len(symbols)) + [SEPARATOR] + [BLANK] * len(symbols)
    assert len(symbols) == (task.copied or (len(row) - 1) // 2)
    return [NOT_SCORED] * (end + 1) + symbols


def read_recall(task, row):
    """Return the expected targets by looking up every later key in a dictionary of the pairs."""
    shown = sum(token >= FIRST_KEY + task.half for token in row)
    assert shown in task.choices
    pairs = dict(zip(row[: 2 * shown : 2], row[1 : 2 * shown : 2], strict=True))
    assert len(pairs) == len(set(pairs.values())) == shown
    queries = Counter(token for token in row[2 * shown :] if token != BLANK)
    assert queries.total() == (task.queries or shown)
    assert max(queries[key] for key in pairs) - min(queries[key] for key in pairs) <= 1
    later = [pairs[token] - FIRST_KEY - task.half if token != BLANK else NOT_SCORED for token in row[2 * shown :]]
    return [NOT_SCORED] * (2 * shown) + later


def read_selective_copy(task, row):
    """Return the expected targets: the tokens before the separator that are not blanks."""
    end = row.index(SEPARATOR)
    symbols = [token - FIRST_COPIED for token in row[:end] if token != BLANK]
    assert len(symbols) == task.copied and row[end + 1 :] == [BLANK] * task.copied
    return [NOT_SCORED] * (end + 1) + symbols


def read_words(task, row, split, scored):
    """Return the expected targets: products of permutations of which ``scored`` are scored, at the start in train."""
    family, letters = task.group[0], int(task.group[1])  # z2 is s2
    elements = [p for p in itertools.permutations(range(letters)) if family != "a" or is_even(p)]
    state, products = tuple(range(letters)), []
    for token in row:
        factor = elements[token - FIRST_ELEMENT]
        state = tuple(state[image] for image in factor)
        products.append(elements.index(state))
    if split == "train":
        assert task.shortest <= scored <= len(row)
        return products[:scored] + [NOT_SCORED] * (len(row) - scored)
    first = min(task.scored_from, len(row) - 1)
    return [NOT_SCORED] * first + products[first:]


def is_even(permutation):
    """Return whether a permutation is even, by its number of cycles."""
    left, cycles = set(permutation), 0
    while left:
        place = next(iter(left))
        cycles += 1
        while place in left:
            left.remove(place)
            place = permutation[place]
    return (len(permutation) - cycles) % 2 == 0


def read_needle(task, row):
    """Return the expected targets: at the last position, the symbol after the marker that is repeated there."""
    *haystack, queried = row
    markers = range(1, task.needles + 1)
    assert [haystack.count(marker) for marker in markers] == [1] * task.needles and queried in markers
    answer = row[haystack.index(queried) + 1]
    return [NOT_SCORED] * len(haystack) + [answer - task.needles - 1]


def read_retrieval(task, documents):
    """Return the expected label: whether the symbol after the marks is the same in both documents."""
    keys = []
    for row in documents:
        after_marks = [after for token, after in pairwise(row) if token == MARK]
        assert len(after_marks) == task.marks and len(set(after_marks)) == 1
        keys.append(after_marks[0])
    first, second = map(sorted, documents)
    assert first == second or not task.balanced
    return int(keys[0] == keys[1])


READ = {
    "copy": read_copy,
    "selective_copy": read_selective_copy,
    "recall": read_recall,
    "recall_ladder": read_recall,
    "needle": read_needle,
    "retrieval_synthetic": read_retrieval,
}


def expected_targets(task, tokens, split, target):
    if isinstance(task, WordProblemTask):
        return read_words(task, tokens, split, sum(each != NOT_SCORED for each in target))
    return READ[task.spec.name](task, tokens)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("synthetic"))


def prepared(cache, name, **options):
    kind, defaults = VARIANTS[name]
    task = kind(**{**defaults, "rows": ROWS, "extrapolation_rows": 150, **options})
    task.prepare(cache)
    return task


@pytest.fixture(scope="module", params=VARIANTS)
def task(request, cache):
    return prepared(cache, request.param)


def contents(task):
    return {name: content_sha256(task.split(name)) for name in SPLITS}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("ratio", [1, 2.5])
def test_targets_equal_those_of_a_simple_interpreter(task, ratio):
    length = round(task.spec.train_length * ratio)
    for split in SPLITS:
        rows = task.split(split, length)
        assert len(rows) == (ROWS[split] if ratio == 1 else 150)
        for tokens, target in zip(rows["tokens"][:], rows["target"][:], strict=True):
            assert target == expected_targets(task, tokens, split, target)
        assert set(rows["length"][:]) == {length}
        assert np.shape(rows["tokens"][:])[-1] == length
        assert np.min(rows["tokens"][:]) > 0 and np.max(rows["tokens"][:]) < task.spec.vocabulary_size
        scored = np.array(rows["target"][:])
        assert set(scored[scored != NOT_SCORED]) <= set(range(task.spec.classes))
        task.check(split, length)


def test_no_example_occurs_twice_in_any_split(task):
    digests = [digests_of(task.split(name)) for name in SPLITS]
    assert len(set().union(*digests)) == sum(ROWS.values())


def test_same_settings_generate_same_examples(task, tmp_path):
    again = type(task)(length=task.spec.train_length, rows=ROWS, extrapolation_rows=150, **task.settings())
    again.prepare(Cache(tmp_path))
    assert contents(again) == contents(task) == dict(again.provenance().checksums)
    assert again.fingerprint() == task.fingerprint()


def test_another_seed_generates_other_examples(task, cache):
    other = type(task)(length=task.spec.train_length, rows=ROWS, seed=1, **task.settings())
    other.prepare(cache)
    assert other.fingerprint() != task.fingerprint()
    assert not digests_of(other.split("test")) & digests_of(task.split("test"))


def test_size_of_train_does_not_affect_other_splits(task, cache):
    small = type(task)(length=task.spec.train_length, rows={**ROWS, "train": 100}, **task.settings())
    small.prepare(cache)
    assert contents(small)["test"] == contents(task)["test"]
    assert contents(small)["validation"] == contents(task)["validation"]
    assert small.split("train")["tokens"][:] == task.split("train")["tokens"][:100]


def test_split_at_another_length_equals_a_task_of_that_length(task, cache):
    length = 2 * task.spec.train_length
    longer = type(task)(length=length, rows={**ROWS, "test": 150}, **task.settings())
    longer.prepare(cache)
    assert content_sha256(longer.split("test")) == content_sha256(task.split("test", length))


def test_number_of_rows_can_depend_on_the_length(cache):
    task = prepared(cache, "needle", extrapolation_rows={"24": 150, 32: 5, "20": 60})
    found = {length: task.split("test", length).num_rows for length in (16, 20, 22, 24, 26, 32, 40)}
    assert found == {16: 60, 20: 60, 22: 150, 24: 150, 26: 5, 32: 5, 40: 5}
    rows: Any = {20: 60, 24: 150, 32: 5}  # of a configuration, whose keys can be numbers
    same = NeedleTask(length=30, symbols=7, rows=ROWS, extrapolation_rows=rows)
    assert task.fingerprint() == same.fingerprint() != prepared(cache, "needle", extrapolation_rows=60).fingerprint()


def test_split_at_the_training_length_is_the_split_itself(task):
    assert task.split("test", task.spec.train_length) is task.split("test")
    assert task.floors("test", task.spec.train_length) == task.floors("test")


def test_targets_are_uniform_and_chance_is_one_over_classes(task):
    spec = task.spec
    assert spec.chance == 1 / spec.classes
    targets = np.array(task.split("train")["target"][:])
    counts = np.bincount(targets[targets != NOT_SCORED], minlength=spec.classes)
    assert counts.min() > 0
    # Within five standard deviations of uniform; all scored positions of an example count as one observation.
    assert np.abs(counts / counts.sum() - spec.chance).max() < 5 * (spec.chance / ROWS["train"]) ** 0.5


def test_floors_do_not_solve_the_task(task):
    for length in (None, 2 * task.spec.train_length):
        floors = task.floors("test", length)
        assert "majority" in floors
        assert all(0 <= floor < 0.9 for floor in floors.values())


def test_majority_is_the_most_frequent_target_of_train(task):
    train, test = (np.array(task.split(name)["target"][:]) for name in ("train", "test"))
    majority = np.bincount(train[train != NOT_SCORED]).argmax()
    assert task.floors("test")["majority"] == pytest.approx((test[test != NOT_SCORED] == majority).mean())


def test_copy_floor_equals_direct_computation(cache):
    task = prepared(cache, "copy")
    right = []
    for tokens in task.split("test")["tokens"][:]:
        right.append(max(Counter(tokens[:11]).values()) / 11)
    assert task.floors("test")["commonest_symbol"] == pytest.approx(np.mean(right))


def test_needle_floors_equal_direct_computation(cache):
    task = prepared(cache, "needles")
    commonest, after_marker = [], []
    for row in task.split("test")["tokens"][:]:
        counts = Counter(token for token in row if token > 5)
        most = [token for token, count in counts.items() if count == max(counts.values())]
        answer = row[row.index(row[-1]) + 1]
        commonest.append((answer in most) / len(most))
        shown = [row[row.index(marker) + 1] for marker in range(1, 6)]
        after_marker.append(shown.count(answer) / 5)
    assert task.floors("test")["commonest_symbol"] == pytest.approx(np.mean(commonest))
    assert task.floors("test")["symbol_behind_a_marker"] == pytest.approx(np.mean(after_marker))
    assert "symbol_behind_a_marker" not in prepared(cache, "needle").floors("test")


@pytest.mark.parametrize("name", ["recall", "recall, many queries", "recall, few queries"])
def test_recall_floor_is_one_over_pairs(cache, name):
    task = prepared(cache, name)
    assert task.floors("test")["value_shown"] == pytest.approx(1 / task.pairs)


@pytest.mark.parametrize("name", ["recall, ladder", "recall, ladder of one query"])
def test_recall_ladder_has_each_number_of_pairs_equally_often_and_its_floor(cache, name):
    task = prepared(cache, name)
    for split in SPLITS:
        tokens = np.array(task.split(split)["tokens"][:])
        pairs = (tokens >= FIRST_KEY + task.half).sum(axis=1)
        counts = np.array([(pairs == choice).sum() for choice in task.choices])
        mean = len(tokens) / len(counts)
        assert counts.sum() == len(tokens) and np.abs(counts - mean).max() < 5 * mean**0.5
        queries = (np.array(task.split(split)["target"][:]) != NOT_SCORED).sum(axis=1)
        assert (queries == (pairs if task.queries is None else task.queries)).all()
        assert task.floor_rows(split)["value_shown"] == pytest.approx(queries / pairs)


def test_selective_copy_uses_all_positions_equally_often(cache):
    task = prepared(cache, "selective copy", rows={**ROWS, "train": 6000})
    tokens = np.array(task.split("train")["tokens"][:])
    separator = 24 - 4 - 1
    counts = (tokens[:, :separator] != BLANK).sum(axis=0)
    assert np.abs(counts - 6000 * 4 / separator).max() < 5 * (6000 * 4 / separator) ** 0.5
    together = (tokens[:, 0] != BLANK) & (tokens[:, 1] != BLANK)
    mean = 6000 * 4 * 3 / (separator * (separator - 1))
    assert abs(together.sum() - mean) < 5 * mean**0.5


def test_selective_copy_floor_equals_direct_computation(cache):
    task = prepared(cache, "selective copy")
    right = [max(Counter(t for t in row if t > SEPARATOR).values()) / 4 for row in task.split("test")["tokens"][:]]
    assert task.floors("test")["commonest_symbol"] == pytest.approx(np.mean(right))


GROUPS = {  # order, and number of elements of each order
    "z2": (2, {1: 1, 2: 1}),
    "z5": (5, {1: 1, 5: 4}),
    "z2*z2": (4, {1: 1, 2: 3}),
    "d4": (8, {1: 1, 2: 5, 4: 2}),
    "q8": (8, {1: 1, 2: 1, 4: 6}),
    "z3*s3": (18, {1: 1, 2: 3, 3: 8, 6: 6}),
    "s3": (6, {1: 1, 2: 3, 3: 2}),
    "a4": (12, {1: 1, 2: 3, 3: 8}),
    "s4": (24, {1: 1, 2: 9, 3: 8, 4: 6}),
    "a5": (60, {1: 1, 2: 15, 3: 20, 5: 24}),
    "s5": (120, {1: 1, 2: 25, 3: 20, 4: 30, 5: 24, 6: 20}),
}


@pytest.mark.parametrize("group", GROUPS)
def test_multiplication_tables_are_groups_with_identity_zero(group):
    size, orders = GROUPS[group]
    table = multiplication_table(group)
    everything = np.arange(size)
    assert table.shape == (size, size) and group_order(group) == size
    assert (table[0] == everything).all() and (table[:, 0] == everything).all()
    assert (np.sort(table, axis=0) == everything[:, None]).all() and (np.sort(table, axis=1) == everything).all()
    assert (table[table] == table[:, table]).all()  # associative
    assert (table == table.T).all() == group.startswith(("z2", "z5"))
    powers = itertools.accumulate(range(size), lambda power, _: table[power, everything], initial=everything)
    assert Counter((np.array(list(powers)) == 0).argmax(axis=0) + 1) == orders
    assert (multiplication_table(table.tolist()) == table).all()


def test_permutations_are_multiplied_from_the_right_in_lexicographic_order():
    for name, letters, even in (("s3", 3, False), ("a5", 5, True)):
        elements = [e for e in itertools.permutations(range(letters)) if not even or is_even(e)]
        expected = [[elements.index(tuple(a[image] for image in b)) for b in elements] for a in elements]
        assert multiplication_table(name).tolist() == expected


@pytest.mark.parametrize("group", ["z5", "q8", "z2*z2", [[0, 1, 2], [1, 2, 0], [2, 0, 1]]])
def test_word_problems_of_any_group(cache, group):
    task = WordProblemTask(group=group, length=12, rows=ROWS, extrapolation_rows=150)
    task.prepare(cache)
    size = group_order(group)
    assert (task.spec.classes, task.spec.vocabulary_size, task.spec.chance) == (size, size + 1, 1 / size)
    assert task.spec.name == (group.replace("*", "_") if isinstance(group, str) else "group_3")
    for split in SPLITS:
        task.check(split, 12)
    rows = task.split("test", 30)
    table, state = multiplication_table(group), 0
    for element in np.array(rows["tokens"][0]) - FIRST_ELEMENT:
        state = table[state, element]
    assert rows["target"][0][-1] == state


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("z1", "task.group=z1: is not a known group; choose z2, z3"),
        ("z2*b3", r"task.group=z2\*b3: is not a known group"),
        ("s7", "task.group: s7 has 5,040 elements; choose a group of 2 to 720"),
        ("z999*z999", r"task.group: z999\*z999 has 518,400 elements"),
        ([[0]], "the table has 1 elements"),
        ([[0, 1], [1]], "row 1 of the table must be a list of 2 elements"),
        ([[0, 1], [1, 2]], "not closed: the product of 1 and 1 is 2; use the elements 0 to 1"),
        ([[0, 0], [0, 0]], "has no identity"),
        ([[1, 0], [0, 1]], "identity of the table is 1; renumber"),
        ([[0, 1, 2], [1, 0, 1], [2, 1, 0]], r"not associative: \(1·1\)·2 is not 1·\(1·2\)"),
        ([[0, 1], [1, 1]], "element 1 of the table has no inverse"),
    ],
)
def test_tables_that_are_no_groups_are_refused(group, message):
    with pytest.raises(UserError, match=message):
        WordProblemTask(group=group)


def test_parity_is_that_of_the_ones_read_so_far(cache):
    task = WordProblemTask(group="z2", length=20, rows=ROWS, extrapolation_rows=150)
    task.prepare(cache)
    assert task.spec.name == "parity" and task.spec.direction == "causal"
    for split, length in itertools.product(SPLITS, (20, 50)):
        rows = task.split(split, length)
        ones = np.cumsum(np.array(rows["tokens"][:]) == FIRST_ELEMENT + 1, axis=1) % 2
        targets = np.array(rows["target"][:])
        scored = targets != NOT_SCORED
        assert (targets[scored] == ones[scored]).all()
        if split == "train":
            counts = np.bincount(scored.sum(axis=1), minlength=length + 1)[3:]
            mean = len(rows) / len(counts)
            assert counts.sum() == len(rows) and np.abs(counts - mean).max() < 5 * mean**0.5
        else:
            assert (np.flatnonzero(scored.any(axis=0)) >= (19 if length == 20 else 20)).all()
            assert (scored.sum(axis=1) == (1 if length == 20 else 30)).all()
        task.check(split, length)


@pytest.mark.parametrize(("length", "scored"), [(30, 1), (20, 1), (75, 45)])
def test_word_problems_are_scored_only_beyond_the_training_length(cache, length, scored):
    task = prepared(cache, "s3")
    rows = task.split("test", length)
    targets = np.array(rows["target"][:])
    assert ((targets != NOT_SCORED).sum(axis=1) == scored).all() and (targets[:, -scored:] != NOT_SCORED).all()
    last = (np.array(rows["tokens"][:]) - FIRST_ELEMENT == targets)[:, -scored:]
    assert task.floors("test", length)["last_element"] == pytest.approx(last.mean())
    assert task.floor_rows("test", length)["last_element"] == pytest.approx(last.sum(axis=1))


def test_abelian_quotient_is_the_accuracy_of_guessing_within_the_known_coset(cache):
    task = prepared(cache, "s3")
    for length in (30, 60):
        rows = task.split("test", length)
        targets = np.array(rows["target"][:])
        odd = np.array([1, 2, 5])  # transpositions in the lexicographic order of the permutations
        signs = np.isin(np.array(rows["tokens"][:]) - FIRST_ELEMENT, odd).cumsum(axis=1) % 2
        scored = targets != NOT_SCORED
        assert np.array_equal(np.isin(targets[scored], odd), signs[scored] == 1)
        assert task.floors("test", length)["abelian_quotient"] == pytest.approx(1 / 3)
    assert "abelian_quotient" not in WordProblemTask(group="z2").shortcuts(40)


@pytest.mark.parametrize("name", ["copy", "recall, ladder", "selective copy", "s3", "needles", "retrieval, unbalanced"])
def test_training_examples_of_every_length_share_no_row_with_the_test(cache, name):
    task = prepared(cache, name, extrapolation_rows=300)
    trained = task.spec.train_length
    for length in (trained * 3 // 4, trained, 2 * trained, 4 * trained):
        if task.supports_length(length) is None:
            train, test = (digests_of(task.split(split, length)) for split in ("train", "test"))
            assert train and test and not train & test


def test_rules_need_no_two_labels_in_train(cache):
    floors = prepared(cache, "retrieval, unbalanced", rows={**ROWS, "train": 1}).floors("test")
    assert floors["bag_of_tokens"] == floors["majority"]


def test_rules_are_fitted_on_training_examples_of_each_length(cache):
    task = prepared(cache, "retrieval, unbalanced", extrapolation_rows=2000)
    for length in (24, 96):
        alone = prepared(cache, "retrieval, unbalanced", length=length, rows=dict.fromkeys(ROWS, 2000))
        assert task.floors("test", length) == alone.floors("test")


def test_word_problems_refuse_systems_without_a_causal_form(cache):
    spec = prepared(cache, "s3").spec
    system = Capability("low_rank", "", causal="none")
    assert system.refuses_direction(spec, None, "linformer") == "linformer has no exact causal form, which s3 needs"


def test_token_counts_are_uninformative_in_balanced_retrieval(cache):
    task = prepared(cache, "retrieval")
    floors = task.floors("test")
    assert floors["bag_of_tokens"] == floors["majority"]
    assert {tuple(sorted(document)) for row in task.split("test")["tokens"][:] for document in row} == {
        tuple([MARK] * 3 + sorted(FIRST_SYMBOL + place % 5 for place in range(44)))
    }


def test_unbalanced_retrieval_floor_increases_with_the_frequency_of_the_key(cache):
    floors = []
    for marks in (2, 8, 24):
        task = prepared(cache, "retrieval, unbalanced", length=96, marks=marks)
        rows = task.split("test")
        commonest = [
            [Counter(token for token in document if token != MARK).most_common(1)[0][0] for document in documents]
            for documents in rows["tokens"][:]
        ]
        guesses = [int(first == second) for first, second in commonest]
        expected = np.mean(np.array(guesses) == np.array(rows["target"][:]))
        floors.append(task.floors("test")["bag_of_tokens"])
        assert floors[-1] > expected - 0.04  # all counts contain more information than the largest one
    assert floors == sorted(floors) and floors[0] < 0.7 and floors[-1] > 0.97


def test_one_document_is_uninformative_in_retrieval(cache):
    task = prepared(cache, "retrieval")
    table = np.zeros((5, 2))
    for (first, _), target in zip(task.split("train")["tokens"][:], task.split("train")["target"][:], strict=True):
        table[first[first.index(MARK) + 1] - FIRST_SYMBOL, target] += 1
    label_means = table[:, 1] / table.sum(axis=1)
    assert np.abs(label_means - 0.5).max() < 5 * (0.25 / table.sum(axis=1).min()) ** 0.5


def test_depth_is_uniform_and_is_the_position_of_the_needle(cache):
    for name in ("needle", "needles"):
        split = prepared(cache, name).split("train")
        depths = np.array(split["depth"][:])
        places = [row.index(row[-1]) for row in split["tokens"][:]]
        assert np.allclose(depths, np.array(places) / 27)
        counts = np.bincount(places, minlength=28)
        assert len(counts) == 28 and np.abs(counts - 900 / 28).max() < 5 * (900 / 28) ** 0.5


def test_recall_distances_follow_the_power_law(cache):
    task = prepared(cache, "recall", length=24, pairs=1, symbols=200, rows={**ROWS, "train": 6000}, power=0.01)
    targets = np.array(task.split("train")["target"][:])
    counts = np.bincount((targets != NOT_SCORED).argmax(axis=1) - 2, minlength=22)
    expected = np.arange(1, 23) ** -0.99
    expected *= 6000 / expected.sum()
    assert np.abs(counts - expected).max() < 5 * expected.max() ** 0.5
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi-squared, 21 degrees of freedom: p < 1e-5


def test_recall_queries_can_fill_all_positions(cache):
    task = prepared(cache, "recall", length=20, pairs=3, symbols=40, queries=14)
    assert (np.array(task.split("test")["target"][:])[:, 6:] != NOT_SCORED).all()


def test_recall_positions_are_sampled_without_replacement(cache):
    """Compare with the exact distribution: with power 8 the first of eight positions has a probability of 3e-7."""
    rows = {**ROWS, "train": 6000}
    task = prepared(cache, "recall", length=10, pairs=1, symbols=2000, queries=6, rows=rows, power=8)
    queried = np.array(task.split("train")["target"][:])[:, 2:] != NOT_SCORED
    weights = np.arange(1.0, 9.0) ** 7
    expected: dict[frozenset[int], float] = defaultdict(float)
    for order in itertools.permutations(range(8), 6):
        taken = np.cumsum([0, *weights[list(order[:-1])]])
        expected[frozenset(order)] += float(np.prod(weights[list(order)] / (weights.sum() - taken)))
    found = Counter(frozenset(np.flatnonzero(row).tolist()) for row in queried)
    assert sum(expected.values()) == pytest.approx(1)
    likely = [places for places, share in expected.items() if share > 1e-3]
    assert len(likely) > 2
    for places in likely:
        mean = 6000 * expected[places]
        assert abs(found[places] - mean) < 5 * mean**0.5, (sorted(places), found[places], mean)


def test_recall_queries_can_be_concentrated_at_the_end(cache):
    task = prepared(cache, "recall", length=128, pairs=2, symbols=8, queries=32, power=50)
    assert ((np.array(task.split("test")["target"][:]) != NOT_SCORED).sum(axis=1) == 32).all()


@pytest.mark.parametrize("causal", [False, True])
def test_bidirectional_and_causal_models_run(task, causal):
    rows = Rows(task.split("test"), task.spec)
    torch.manual_seed(0)
    model = SequenceModel(
        spec=task.spec,
        mixer={"_target_": "lra_bench.models.full.softmax_attention.SoftmaxAttention"},
        position={"_target_": "lra_bench.models.positions.sinusoidal.SinusoidalPosition"},
        options=BackboneOptions(depth=1, width=8, ff_width=8, causal=causal),
    ).eval()
    batch = rows.batch([0, 1, 2])
    assert batch.full
    logits = model(batch).logits
    shape = (3, task.spec.train_length, task.spec.classes) if task.spec.per_token else (3, 2)
    assert logits.shape == shape and torch.isfinite(logits).all()
    assert (batch.targets < task.spec.classes).all()


def test_targets_depend_only_on_earlier_tokens(task):
    """Compute each target from the tokens up to its position."""
    if not task.spec.per_token:
        return
    for tokens, targets in zip(task.split("test")["tokens"][:50], task.split("test")["target"][:50], strict=True):
        for place in (number for number, target in enumerate(targets) if target != NOT_SCORED):
            prefix, target = tokens[: place + 1], targets[place]
            if task.spec.name == "copy":
                answer = prefix[place - len(tokens) + (task.copied or (len(tokens) - 1) // 2)] - FIRST_COPIED
            elif task.spec.name == "selective_copy":
                number = place - len(tokens) + task.copied
                answer = [token for token in prefix if token > SEPARATOR][number] - FIRST_COPIED
            elif isinstance(task, WordProblemTask):
                answer = read_words(task, prefix, "train", len(prefix))[-1]
            elif isinstance(task, RecallTask):
                answer = prefix[prefix.index(prefix[-1]) + 1] - FIRST_KEY - task.half
            else:
                answer = prefix[prefix.index(prefix[-1]) + 1] - task.needles - 1
            assert answer == target


def tamper(task, split, column, change):
    rows = task.split(split).to_dict()
    change(rows[column])
    task._splits[split, task.spec.train_length] = datasets.Dataset.from_dict(rows, task.split(split).features)


def swap(tokens):
    row = tokens[7]
    (row if isinstance(row[0], int) else row[1]).reverse()


def relabel(targets):
    if isinstance(targets[7], int):
        targets[7] = 1 - targets[7]
        return
    place = max(number for number, target in enumerate(targets[7]) if target != NOT_SCORED)
    targets[7][place] = (targets[7][place] + 1) % 3


@pytest.mark.parametrize("name", VARIANTS)
def test_check_detects_invalid_examples(cache, name):
    task = prepared(cache, name)
    tamper(task, "test", "tokens", swap)
    with pytest.raises(UserError, match=r"test: row 7 (is not a valid example|has a wrong target)"):
        task.check("test")
    task = prepared(cache, name)
    tamper(task, "test", "target", relabel)
    with pytest.raises(UserError, match="test: row 7 has a wrong target"):
        task.check("test")
    task = prepared(cache, name)
    tamper(task, "test", "length", lambda lengths: lengths.__setitem__(3, 5))
    with pytest.raises(UserError, match="the column length is not"):
        task.check("test")
    task = prepared(cache, name)
    task._splits["test", task.spec.train_length] = task.split("test").select([0, 1, 2, 1])
    with pytest.raises(UserError, match="test: 1 rows are duplicates"):
        task.check("test")
    task._splits["test", task.spec.train_length] = task.split("validation").select([0, 1])
    with pytest.raises(UserError, match="test: 2 rows are also in validation"):
        task.check("test")


def test_check_detects_a_wrong_depth(cache):
    task = prepared(cache, "needle")
    tamper(task, "test", "depth", lambda depths: depths.__setitem__(7, -1.0))
    with pytest.raises(UserError, match="row 7 has a wrong depth"):
        task.check("test")


def test_prepared_data_is_not_generated_again(task, cache, monkeypatch):
    def never(*_):
        raise AssertionError("examples were generated again")

    monkeypatch.setattr(type(task), "draw", never)
    again = type(task)(length=task.spec.train_length, rows=ROWS, extrapolation_rows=150, **task.settings())
    again.prepare(cache)
    assert contents(again) == contents(task)


def test_too_few_different_examples_raise_an_error(cache):
    with pytest.raises(UserError, match=r"task\.rows: only 16 different examples were found, 400 are needed"):
        prepared(cache, "copy", length=9, symbols=2)
    exact = prepared(cache, "copy", length=9, symbols=3, rows={"train": 20, "validation": 30, "test": 20})
    assert len(set().union(*(digests_of(exact.split(name)) for name in SPLITS))) == 70  # of 81


def test_impossible_lengths_are_refused(cache):
    assert CopyTask(length=64).supports_length(3) is None and "3 tokens" in CopyTask(length=64).supports_length(2)
    assert "21 tokens" in CopyTask(copied=10).supports_length(20)
    assert RecallTask().supports_length(12) is None and "12 tokens" in RecallTask().supports_length(11)
    assert NeedleTask(needles=4).supports_length(12) is None and "12" in NeedleTask(needles=4).supports_length(11)
    retrieval = RetrievalSynthetic(keys=4, marks=3)
    assert retrieval.supports_length(15) is None and "15 tokens" in retrieval.supports_length(14)
    with pytest.raises(UserError, match=r"measure\.extrapolation_ratios: length 5 is not possible"):
        prepared(cache, "recall").split("test", 5)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (CopyTask, {"length": 2}, r"task\.length=2: an example needs at least 3 tokens"),
        (CopyTask, {"symbols": 1}, r"task\.symbols=1: must be at least 2"),
        (CopyTask, {"copied": 0}, r"task\.copied=0: must be at least 1"),
        (CopyTask, {"rows": {"dev": 5}}, r"task\.rows: there is no split dev"),
        (CopyTask, {"rows": {"train": 0}}, r"task\.rows\.train=0: must be at least 1"),
        (CopyTask, {"extrapolation_rows": 0}, r"task\.extrapolation_rows=0: must be at least 1"),
        (CopyTask, {"extrapolation_rows": {"64": 0}}, r"task\.extrapolation_rows\.64=0: must be at least 1"),
        (CopyTask, {"extrapolation_rows": {"long": 9}}, r"task\.extrapolation_rows: long is not a length in tokens"),
        (CopyTask, {"extrapolation_rows": {}}, r"task\.extrapolation_rows: names no length"),
        (CopyTask, {"seed": -1}, r"task\.seed=-1: must be at least 0"),
        (RecallTask, {"symbols": 31}, r"task\.symbols=31: half of them are keys"),
        (RecallTask, {"pairs": 17}, r"task\.pairs=17: needs 17 keys; set task\.symbols to 34"),
        (RecallTask, {"queries": 0}, r"task\.queries=0: must be at least 1"),
        (RecallTask, {"power": 0.0}, r"task\.power=0\.0: must be above 0"),
        (RecallTask, {"length": 10}, r"task\.length=10: pairs and queries need at least 12 tokens"),
        (RecallTask, {"pairs": []}, r"task\.pairs=\[\]: name each number of pairs once, and at least one"),
        (RecallTask, {"pairs": [4, 2, 4]}, r"task\.pairs=\[2, 4, 4\]: name each number of pairs once"),
        (RecallTask, {"pairs": "abc"}, r"task\.pairs=abc: must be a whole number or a list of whole numbers"),
        (RecallTask, {"pairs": [1, "two"]}, r"task\.pairs=\[1, 'two'\]: must be a whole number or a list"),
        (RecallTask, {"pairs": [0, 2]}, r"task\.pairs=0: must be at least 1"),
        (RecallTask, {"pairs": [2, 17]}, r"task\.pairs=17: needs 17 keys; set task\.symbols to 34"),
        (RecallTask, {"pairs": [2, 16], "length": 47}, r"task\.length=47: pairs and queries need at least 48 tokens"),
        (SelectiveCopyTask, {"symbols": 1}, r"task\.symbols=1: must be at least 2"),
        (SelectiveCopyTask, {"copied": 0}, r"task\.copied=0: must be at least 1"),
        (SelectiveCopyTask, {"length": 16}, r"task\.length=16: an example needs at least 17 tokens"),
        (WordProblemTask, {"group": "x3"}, r"task\.group=x3: is not a known group; choose z2, z3"),
        (WordProblemTask, {"shortest": 0}, r"task\.shortest=0: must be at least 1"),
        (WordProblemTask, {"scored_from": -1}, r"task\.scored_from=-1: must be at least 0"),
        (WordProblemTask, {"length": 2}, r"task\.length=2: an example needs at least 3 tokens"),
        (NeedleTask, {"needles": 0}, r"task\.needles=0: must be at least 1"),
        (NeedleTask, {"length": 11, "needles": 4}, r"task\.length=11: an example needs at least 12 tokens"),
        (RetrievalSynthetic, {"keys": 1}, r"task\.keys=1: must be at least 2"),
        (
            RetrievalSynthetic,
            {"length": 15, "balanced": False},
            r"task\.length=15: a document needs at least 16 tokens",
        ),
        (RetrievalSynthetic, {"length": 60}, r"task\.length=60: a document needs at least 72 tokens"),
    ],
)
def test_invalid_options_are_named(kind, options, message):
    with pytest.raises(UserError, match=message):
        kind(**options)


def test_large_vocabularies_are_supported(cache):
    task = prepared(cache, "recall", length=24, symbols=70_000, pairs=4)
    for tokens, target in zip(task.split("test")["tokens"][:], task.split("test")["target"][:], strict=True):
        assert target == read_recall(task, tokens)
    assert np.max(task.split("test")["tokens"][:]) > 2**16
