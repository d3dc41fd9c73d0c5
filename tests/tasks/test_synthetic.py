"""Tasks drawn from a seed: each row against a plain reading of its tokens, floors and chance against closed forms."""

import itertools
from collections import Counter, defaultdict
from itertools import pairwise
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from lra_bench.contracts import NOT_SCORED, UserError
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.examples import content_sha256, digests_of
from lra_bench.models.backbone import SequenceModel
from lra_bench.tasks.copy import CopyTask
from lra_bench.tasks.needle import NeedleTask
from lra_bench.tasks.recall import RecallTask
from lra_bench.tasks.retrieval_synthetic import RetrievalSynthetic
from lra_bench.tasks.synthetic.drawing import BLANK, FIRST_COPIED, FIRST_KEY, FIRST_SYMBOL, MARK, SEPARATOR

ROWS = {"train": 900, "validation": 100, "test": 400}
SPLITS = ("train", "validation", "test")
MADE: dict[str, tuple[Any, dict[str, Any]]] = {
    "copy": (CopyTask, {"length": 24, "symbols": 5}),
    "copy of ten": (CopyTask, {"length": 31, "symbols": 8, "copied": 10}),
    "recall": (RecallTask, {"length": 32, "pairs": 4, "symbols": 12}),
    "recall, many queries": (RecallTask, {"length": 40, "pairs": 3, "symbols": 6, "queries": 8, "power": 1.0}),
    "recall, few queries": (RecallTask, {"length": 20, "pairs": 5, "symbols": 200, "queries": 2}),
    "needle": (NeedleTask, {"length": 30, "symbols": 7}),
    "needles": (NeedleTask, {"length": 30, "symbols": 40, "needles": 5}),
    "retrieval": (RetrievalSynthetic, {"length": 47, "keys": 5, "marks": 3}),
    "retrieval, unbalanced": (RetrievalSynthetic, {"length": 48, "keys": 5, "marks": 3, "balanced": False}),
}


def read_copy(task, row):
    """The symbols before the first blank, where the last of the blanks behind the separator stand."""
    end = row.index(SEPARATOR)
    symbols = [token - FIRST_COPIED for token in row[:end] if token != BLANK]
    assert row[len(symbols) :] == [BLANK] * (end - len(symbols)) + [SEPARATOR] + [BLANK] * len(symbols)
    assert len(symbols) == (task.copied or (len(row) - 1) // 2)
    return [NOT_SCORED] * (end + 1) + symbols


def read_recall(task, row):
    """A dictionary of the pairs, asked with every later key."""
    known = dict(zip(row[: 2 * task.pairs : 2], row[1 : 2 * task.pairs : 2], strict=True))
    assert len(known) == len(set(known.values())) == task.pairs
    asked = Counter(token for token in row[2 * task.pairs :] if token != BLANK)
    assert asked.total() == task.queries
    assert max(asked[key] for key in known) - min(asked[key] for key in known) <= 1
    later = [known[token] - FIRST_KEY - task.half if token != BLANK else NOT_SCORED for token in row[2 * task.pairs :]]
    return [NOT_SCORED] * (2 * task.pairs) + later


def read_needle(task, row):
    """The symbol behind the marker that the last place repeats."""
    *haystack, asked = row
    markers = range(1, task.needles + 1)
    assert [haystack.count(marker) for marker in markers] == [1] * task.needles and asked in markers
    behind = row[haystack.index(asked) + 1]
    return [NOT_SCORED] * len(haystack) + [behind - task.needles - 1]


def read_retrieval(task, documents):
    """Whether the one symbol that follows marks is the same in both documents."""
    keys = []
    for row in documents:
        behind = [after for token, after in pairwise(row) if token == MARK]
        assert len(behind) == task.marks and len(set(behind)) == 1
        keys.append(behind[0])
    first, second = map(sorted, documents)
    assert first == second or not task.balanced
    return int(keys[0] == keys[1])


READ = {"copy": read_copy, "recall": read_recall, "needle": read_needle, "retrieval_synthetic": read_retrieval}


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("synthetic"))


def prepared(cache, name, **options):
    kind, own = MADE[name]
    made = kind(**{**own, "rows": ROWS, "extrapolation_rows": 150, **options})
    made.prepare(cache)
    return made


@pytest.fixture(scope="module", params=MADE)
def task(request, cache):
    return prepared(cache, request.param)


def contents(task):
    return {name: content_sha256(task.split(name)) for name in SPLITS}


@pytest.mark.parametrize("ratio", [1, 2.5])
def test_every_target_is_what_a_plain_reading_says(task, ratio):
    length = round(task.spec.train_length * ratio)
    for split in SPLITS:
        rows = task.split(split, length)
        assert len(rows) == (ROWS[split] if ratio == 1 else 150)
        for tokens, target in zip(rows["tokens"][:], rows["target"][:], strict=True):
            assert target == READ[task.spec.name](task, tokens)
        assert set(rows["length"][:]) == {length}
        assert np.shape(rows["tokens"][:])[-1] == length
        assert np.min(rows["tokens"][:]) > 0 and np.max(rows["tokens"][:]) < task.spec.vocabulary_size
        scored = np.array(rows["target"][:])
        assert set(scored[scored != NOT_SCORED]) <= set(range(task.spec.classes))
        task.check(split, length)


def test_no_row_occurs_twice_in_any_split(task):
    digests = [digests_of(task.split(name)) for name in SPLITS]
    assert len(set().union(*digests)) == sum(ROWS.values())


def test_the_same_settings_make_the_same_rows(task, tmp_path):
    again = type(task)(length=task.spec.train_length, rows=ROWS, extrapolation_rows=150, **task.settings())
    again.prepare(Cache(tmp_path))
    assert contents(again) == contents(task) == dict(again.provenance().checksums)
    assert again.fingerprint() == task.fingerprint()


def test_another_seed_makes_other_rows(task, cache):
    other = type(task)(length=task.spec.train_length, rows=ROWS, seed=1, **task.settings())
    other.prepare(cache)
    assert other.fingerprint() != task.fingerprint()
    assert not digests_of(other.split("test")) & digests_of(task.split("test"))


def test_the_size_of_train_changes_no_test_row(task, cache):
    small = type(task)(length=task.spec.train_length, rows={**ROWS, "train": 100}, **task.settings())
    small.prepare(cache)
    assert contents(small)["test"] == contents(task)["test"]
    assert contents(small)["validation"] == contents(task)["validation"]
    assert small.split("train")["tokens"][:] == task.split("train")["tokens"][:100]


def test_a_task_of_that_length_has_the_rows_of_the_longer_bucket(task, cache):
    length = 2 * task.spec.train_length
    whole = type(task)(length=length, rows={**ROWS, "test": 150}, **task.settings())
    whole.prepare(cache)
    assert content_sha256(whole.split("test")) == content_sha256(task.split("test", length))


def test_the_training_length_is_the_split_itself(task):
    assert task.split("test", task.spec.train_length) is task.split("test")
    assert task.floors("test", task.spec.train_length) == task.floors("test")


def test_chance_is_what_blind_guessing_gets(task):
    spec = task.spec
    assert spec.chance == 1 / spec.classes
    targets = np.array(task.split("train")["target"][:])
    counts = np.bincount(targets[targets != NOT_SCORED], minlength=spec.classes)
    assert counts.min() > 0
    # Within five standard deviations of even, scored places of a row taken as one.
    assert np.abs(counts / counts.sum() - spec.chance).max() < 5 * (spec.chance / ROWS["train"]) ** 0.5


def test_the_headline_floor_is_there_and_no_floor_is_the_task(task):
    for length in (None, 2 * task.spec.train_length):
        floors = task.floors("test", length)
        assert task.headline_floor in floors and "majority" in floors
        assert all(0 <= floor < 0.9 for floor in floors.values())


def test_majority_is_the_commonest_target_of_train(task):
    train, test = (np.array(task.split(name)["target"][:]) for name in ("train", "test"))
    commonest = np.bincount(train[train != NOT_SCORED]).argmax()
    assert task.floors("test")["majority"] == pytest.approx((test[test != NOT_SCORED] == commonest).mean())


def test_copy_floor_by_hand(cache):
    task = prepared(cache, "copy")
    right = []
    for tokens in task.split("test")["tokens"][:]:
        right.append(max(Counter(tokens[:11]).values()) / 11)
    assert task.floors("test")["commonest_symbol"] == pytest.approx(np.mean(right))


def test_needle_floors_by_hand(cache):
    task = prepared(cache, "needles")
    commonest, behind = [], []
    for row in task.split("test")["tokens"][:]:
        counts = Counter(token for token in row if token > 5)
        most = [token for token, count in counts.items() if count == max(counts.values())]
        answer = row[row.index(row[-1]) + 1]
        commonest.append((answer in most) / len(most))
        shown = [row[row.index(marker) + 1] for marker in range(1, 6)]
        behind.append(shown.count(answer) / 5)
    assert task.floors("test")["commonest_symbol"] == pytest.approx(np.mean(commonest))
    assert task.floors("test")["symbol_behind_a_marker"] == pytest.approx(np.mean(behind))
    assert "symbol_behind_a_marker" not in prepared(cache, "needle").floors("test")


@pytest.mark.parametrize("name", ["recall", "recall, many queries", "recall, few queries"])
def test_a_value_shown_is_worth_one_in_pairs(cache, name):
    task = prepared(cache, name)
    assert task.floors("test")["value_shown"] == pytest.approx(1 / task.pairs)


def test_bags_know_nothing_of_balanced_retrieval(cache):
    task = prepared(cache, "retrieval")
    floors = task.floors("test")
    assert floors["bag_of_tokens"] == floors["majority"]
    assert {tuple(sorted(document)) for row in task.split("test")["tokens"][:] for document in row} == {
        tuple([MARK] * 3 + sorted(FIRST_SYMBOL + place % 5 for place in range(44)))
    }


def test_a_bag_finds_a_commoner_key_the_better_the_commoner_it_is(cache):
    floors = []
    for marks in (2, 8, 24):
        task = prepared(cache, "retrieval, unbalanced", length=96, marks=marks)
        rows = task.split("test")
        commonest = [
            [Counter(token for token in document if token != MARK).most_common(1)[0][0] for document in documents]
            for documents in rows["tokens"][:]
        ]
        guesses = [int(first == second) for first, second in commonest]
        by_hand = np.mean(np.array(guesses) == np.array(rows["target"][:]))
        floors.append(task.floors("test")["bag_of_tokens"])
        assert floors[-1] > by_hand - 0.04  # counts say more than which is the highest
    assert floors == sorted(floors) and floors[0] < 0.7 and floors[-1] > 0.97


def test_one_document_alone_knows_nothing_of_retrieval(cache):
    task = prepared(cache, "retrieval")
    table = np.zeros((5, 2))
    for (first, _), target in zip(task.split("train")["tokens"][:], task.split("train")["target"][:], strict=True):
        table[first[first.index(MARK) + 1] - FIRST_SYMBOL, target] += 1
    shares = table[:, 1] / table.sum(axis=1)
    assert np.abs(shares - 0.5).max() < 5 * (0.25 / table.sum(axis=1).min()) ** 0.5


def test_depth_is_uniform_and_says_where_the_needle_lies(cache):
    for name in ("needle", "needles"):
        split = prepared(cache, name).split("train")
        depths = np.array(split["depth"][:])
        places = [row.index(row[-1]) for row in split["tokens"][:]]
        assert np.allclose(depths, np.array(places) / 27)
        counts = np.bincount(places, minlength=28)
        assert len(counts) == 28 and np.abs(counts - 900 / 28).max() < 5 * (900 / 28) ** 0.5


def test_gaps_of_recall_follow_the_power_law(cache):
    task = prepared(cache, "recall", length=24, pairs=1, symbols=200, rows={**ROWS, "train": 6000}, power=0.01)
    targets = np.array(task.split("train")["target"][:])
    counts = np.bincount((targets != NOT_SCORED).argmax(axis=1) - 2, minlength=22)
    expected = np.arange(1, 23) ** -0.99
    expected *= 6000 / expected.sum()
    assert np.abs(counts - expected).max() < 5 * expected.max() ** 0.5
    assert ((counts - expected) ** 2 / expected).sum() < 60  # chi-squared, 21 degrees of freedom: p < 1e-5


def test_all_places_can_be_asked(cache):
    task = prepared(cache, "recall", length=20, pairs=3, symbols=40, queries=14)
    assert (np.array(task.split("test")["target"][:])[:, 6:] != NOT_SCORED).all()


def test_places_of_recall_are_drawn_one_after_the_other_among_those_that_are_free(cache):
    """Where few likely ones are left too: with power 8 the first of the eight places has a share of 3e-7."""
    rows = {**ROWS, "train": 6000}
    task = prepared(cache, "recall", length=10, pairs=1, symbols=2000, queries=6, rows=rows, power=8)
    asked = np.array(task.split("train")["target"][:])[:, 2:] != NOT_SCORED
    weights = np.arange(1.0, 9.0) ** 7
    expected: dict[frozenset[int], float] = defaultdict(float)
    for order in itertools.permutations(range(8), 6):
        taken = np.cumsum([0, *weights[list(order[:-1])]])
        expected[frozenset(order)] += float(np.prod(weights[list(order)] / (weights.sum() - taken)))
    found = Counter(frozenset(np.flatnonzero(row).tolist()) for row in asked)
    assert sum(expected.values()) == pytest.approx(1)
    likely = [places for places, share in expected.items() if share > 1e-3]
    assert len(likely) > 2
    for places in likely:
        mean = 6000 * expected[places]
        assert abs(found[places] - mean) < 5 * mean**0.5, (sorted(places), found[places], mean)


def test_queries_may_crowd_at_the_end_of_recall(cache):
    task = prepared(cache, "recall", length=128, pairs=2, symbols=8, queries=32, power=50)
    assert ((np.array(task.split("test")["target"][:]) != NOT_SCORED).sum(axis=1) == 32).all()


@pytest.mark.parametrize("causal", [False, True])
def test_both_directions_run(task, causal):
    rows = Rows(task.split("test"), task.spec)
    torch.manual_seed(0)
    model = SequenceModel(
        spec=task.spec,
        mixer={"_target_": "lra_bench.models.full.softmax_attention.SoftmaxAttention"},
        position={"_target_": "lra_bench.models.positions.sinusoidal.SinusoidalPosition"},
        depth=1,
        width=8,
        ff_width=8,
        causal=causal,
    ).eval()
    batch = rows.batch([0, 1, 2])
    assert batch.full
    logits = model(batch).logits
    shape = (3, task.spec.train_length, task.spec.classes) if task.spec.per_token else (3, 2)
    assert logits.shape == shape and torch.isfinite(logits).all()
    assert (batch.targets < task.spec.classes).all()


def test_a_causal_model_has_seen_what_it_needs(task):
    """Cut behind the scored place, a row still says its target."""
    if not task.spec.per_token:
        return
    for tokens, targets in zip(task.split("test")["tokens"][:50], task.split("test")["target"][:50], strict=True):
        for place in (number for number, target in enumerate(targets) if target != NOT_SCORED):
            seen, target = tokens[: place + 1], targets[place]
            if task.spec.name == "copy":
                answer = seen[place - len(tokens) + (task.copied or (len(tokens) - 1) // 2)] - FIRST_COPIED
            elif task.spec.name == "recall":
                answer = seen[seen.index(seen[-1]) + 1] - FIRST_KEY - task.half
            else:
                answer = seen[seen.index(seen[-1]) + 1] - task.needles - 1
            assert answer == target


def tampered(task, split, column, change):
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


@pytest.mark.parametrize("name", MADE)
def test_check_finds_what_is_wrong(cache, name):
    task = prepared(cache, name)
    tampered(task, "test", "tokens", swap)
    with pytest.raises(UserError, match=r"test: row 7 (is no example of the task|has a wrong target)"):
        task.check("test")
    task = prepared(cache, name)
    tampered(task, "test", "target", relabel)
    with pytest.raises(UserError, match="test: row 7 has a wrong target"):
        task.check("test")
    task = prepared(cache, name)
    tampered(task, "test", "length", lambda lengths: lengths.__setitem__(3, 5))
    with pytest.raises(UserError, match="not all rows state their length"):
        task.check("test")
    task = prepared(cache, name)
    task._splits["test", task.spec.train_length] = task.split("test").select([0, 1, 2, 1])
    with pytest.raises(UserError, match="test: 1 rows repeat others"):
        task.check("test")
    task._splits["test", task.spec.train_length] = task.split("train").select([0, 1])
    with pytest.raises(UserError, match="test: 2 rows occur in train too"):
        task.check("test")


def test_check_finds_a_wrong_depth(cache):
    task = prepared(cache, "needle")
    tampered(task, "test", "depth", lambda depths: depths.__setitem__(7, -1.0))
    with pytest.raises(UserError, match="row 7 has a wrong depth"):
        task.check("test")


def test_prepared_data_is_found_again(task, cache, monkeypatch):
    def never(*_):
        raise AssertionError("drawn again")

    monkeypatch.setattr(type(task), "draw", never)
    again = type(task)(length=task.spec.train_length, rows=ROWS, extrapolation_rows=150, **task.settings())
    again.prepare(cache)
    assert contents(again) == contents(task)


def test_too_few_different_rows_are_an_error_and_not_an_endless_search(cache):
    with pytest.raises(UserError, match=r"task\.rows: there are hardly more than 16 different rows and 400 are"):
        prepared(cache, "copy", length=9, symbols=2)
    exact = prepared(cache, "copy", length=9, symbols=3, rows={"train": 20, "validation": 30, "test": 20})
    assert len(set().union(*(digests_of(exact.split(name)) for name in SPLITS))) == 70  # of 81


def test_lengths_that_cannot_be(cache):
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
        (CopyTask, {"length": 2}, r"task\.length=2: a row takes 3 tokens"),
        (CopyTask, {"symbols": 1}, r"task\.symbols=1: must be at least 2"),
        (CopyTask, {"copied": 0}, r"task\.copied=0: must be at least 1"),
        (CopyTask, {"rows": {"dev": 5}}, r"task\.rows: no split is called dev"),
        (CopyTask, {"rows": {"train": 0}}, r"task\.rows\.train=0: must be at least 1"),
        (CopyTask, {"extrapolation_rows": 0}, r"task\.extrapolation_rows=0: must be at least 1"),
        (CopyTask, {"seed": -1}, r"task\.seed=-1: must be at least 0"),
        (RecallTask, {"symbols": 31}, r"task\.symbols=31: half of them are keys"),
        (RecallTask, {"pairs": 17}, r"task\.pairs=17: needs as many keys; set task\.symbols=34"),
        (RecallTask, {"queries": 0}, r"task\.queries=0: must be at least 1"),
        (RecallTask, {"power": 0.0}, r"task\.power=0\.0: must be above 0"),
        (RecallTask, {"length": 10}, r"task\.length=10: pairs and queries take 12 tokens"),
        (NeedleTask, {"needles": 0}, r"task\.needles=0: must be at least 1"),
        (NeedleTask, {"length": 11, "needles": 4}, r"task\.length=11: a row takes 12 tokens"),
        (RetrievalSynthetic, {"keys": 1}, r"task\.keys=1: must be at least 2"),
        (RetrievalSynthetic, {"length": 15, "balanced": False}, r"task\.length=15: a document takes 16 tokens"),
        (RetrievalSynthetic, {"length": 60}, r"task\.length=60: a document takes 72 tokens"),
    ],
)
def test_impossible_options_name_themselves(kind, options, message):
    with pytest.raises(UserError, match=message):
        kind(**options)


def test_large_vocabularies_fit(cache):
    task = prepared(cache, "recall", length=24, symbols=70_000, pairs=4)
    for tokens, target in zip(task.split("test")["tokens"][:], task.split("test")["target"][:], strict=True):
        assert target == read_recall(task, tokens)
    assert np.max(task.split("test")["tokens"][:]) > 2**16
