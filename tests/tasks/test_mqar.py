"""The recall of Zoology: targets against a dictionary, statistics against the distribution of the authors' code."""

import numpy as np
import pytest

from lra_bench.contracts import NOT_SCORED, UserError
from lra_bench.data.cache import Cache
from lra_bench.data.examples import content_sha256, digests_of
from lra_bench.tasks.synthetic.rows import Block
from lra_bench.tasks.zoology.mqar import MultiQueryRecall
from tests.support.samples import assert_same_distribution

ROWS = {"train": 600, "validation": 100, "test": 300}
SPLITS = ("train", "validation", "test")
DRAWN = 10_000
CASES = {
    "pairs": {"length": 32, "pairs": 4, "symbols": 24},
    "odd number of symbols": {"length": 32, "pairs": 5, "symbols": 25, "power": 1.0},
    "ladder": {"length": 40, "pairs": [6, 2, 4], "symbols": 40},
    "passes": {"length": 48, "pairs": 4, "symbols": 30, "passes": 3},
    "fillers": {"length": 40, "pairs": 4, "symbols": 12, "fillers": True},
    "full": {"length": 32, "pairs": 8, "symbols": 18},
    "forgetting": {"length": 48, "pairs": 6, "symbols": 20, "variant": "forgetting", "updates": 3},
    "forgetting, fillers": {
        "length": 48,
        "pairs": [4, 6],
        "symbols": 20,
        "variant": "forgetting",
        "updates": 4,
        "fillers": True,
    },
    "compositional": {"length": 62, "pairs": [4, 9], "symbols": 40, "variant": "compositional"},
    "compositional, fillers": {
        "length": 48,
        "pairs": 4,
        "symbols": 18,
        "variant": "compositional",
        "fillers": True,
        "power": 0.5,
    },
}


@pytest.fixture(scope="module", params=CASES)
def task(request, tmp_path_factory):
    task = MultiQueryRecall(**CASES[request.param], rows=ROWS, extrapolation_rows=100)
    task.prepare(Cache(tmp_path_factory.mktemp("mqar")))
    return task


def queries_of(task, row, target):
    """Yield (key, value, distance from the value) of each query of an example, found by a dictionary."""
    symbols, kinds = [token - 1 for token in row], 3 if task.variant == "compositional" else 2
    pairs = sum(each != NOT_SCORED for each in target)
    context = kinds * (pairs * task.passes + task.updates)
    shown = [tuple(symbols[place : place + kinds]) for place in range(0, context, kinds)]
    places = {pair[:-1]: (pair[-1], kinds * number + kinds - 1) for number, pair in enumerate(shown)}
    assert len(places) == pairs and len({pair[-1] for pair in shown[:pairs]}) == pairs
    limits = [1, *(part * (task.symbols // kinds) for part in range(1, kinds)), task.symbols]
    for pair in shown:
        assert all(limits[part] <= symbol < limits[part + 1] for part, symbol in enumerate(pair))
    between = set(range(context, len(symbols)))
    for place, answer in enumerate(target):
        if answer != NOT_SCORED:
            key = tuple(symbols[place - kinds + 2 : place + 1])
            value, source = places[key]
            assert (place - kinds + 2 - context) % kinds == 0 and answer == value
            between -= set(range(place - kinds + 2, place + 1))
            yield key, value, place - source
    assert task.fillers or all(symbols[place] == 0 for place in between)
    assert len(between) == len(symbols) - context - (kinds - 1) * pairs


@pytest.mark.parametrize("ratio", [1, 2])
def test_targets_equal_those_of_a_dictionary(task, ratio):
    length = ratio * task.spec.train_length
    for split in SPLITS:
        rows = task.split(split, length)
        for row, target in zip(rows["tokens"][:], rows["target"][:], strict=True):
            queries = list(queries_of(task, row, target))
            assert len({key for key, _, _ in queries}) == len(queries) and len(queries) in task.choices
        assert np.min(rows["tokens"][:]) > 0 and np.max(rows["tokens"][:]) < task.spec.vocabulary_size
        task.check(split, length)


def test_examples_are_distinct_and_a_function_of_the_settings(task, tmp_path):
    digests = [digests_of(task.split(name)) for name in SPLITS]
    assert len(set().union(*digests)) == sum(ROWS.values())
    options = {"length": task.spec.train_length, "rows": ROWS, **task.settings()}
    again, other = MultiQueryRecall(**options), MultiQueryRecall(**options, seed=1)
    for made in (again, other):
        made.prepare(Cache(tmp_path))
    assert content_sha256(again.split("train")) == content_sha256(task.split("train"))
    assert other.fingerprint() != again.fingerprint() and not digests_of(other.split("test")) & digests[2]


def test_floors_and_slices_equal_those_of_a_loop(task):
    right, scored, properties, majority = 0.0, 0, [], []
    train = np.array(task.split("train")["target"][:])
    commonest = np.bincount(train[train != NOT_SCORED]).argmax()
    kinds = 3 if task.variant == "compositional" else 2
    for row, target in zip(task.split("test")["tokens"][:], task.split("test")["target"][:], strict=True):
        queries = list(queries_of(task, row, target))
        values = row[kinds - 1 : kinds * (len(queries) * task.passes + task.updates) : kinds]
        right += sum(values.count(value + 1) / len(values) for _, value, _ in queries)
        scored += len(queries)
        properties += [(len(queries), distance) for _, _, distance in queries]
        majority += [value == commonest for _, value, _ in queries]
    assert task.floors("test")["value_shown"] == pytest.approx(right / scored)
    assert task.floors("test")["majority"] == pytest.approx(np.mean(majority))
    (block,) = task.blocks("test")
    found = task.properties(block)
    assert list(zip(found["pairs"].tolist(), found["distance"].tolist(), strict=True)) == properties
    assert set(task.slices("test")) == {"pairs", "distance"}
    assert task.spec.chance == pytest.approx(1 / (task.symbols - task.first_value))


def _power(gaps, power):
    weights = np.arange(1, gaps + 1) ** (power - 1.0)
    return weights / weights.sum()


def found_gaps(block, context, kinds):
    """Return the gaps of the queries by the order of the pairs, (R, P)."""
    rows, places = np.nonzero(block.targets != NOT_SCORED)
    places = (places - context - kinds + 2).reshape(len(block.tokens), -1) // kinds
    values = block.targets[rows, np.nonzero(block.targets != NOT_SCORED)[1]].reshape(places.shape)
    shown = block.tokens[:, kinds - 1 : context : kinds].astype(int) - 1
    order = (shown[:, : places.shape[1], None] == values[:, None]).argmax(axis=2)
    return np.take_along_axis(places, order, axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(("length", "pairs", "power"), [(64, 4, 0.01), (64, 8, 0.01), (48, 6, 1.0), (32, 8, 0.5)])
def test_gaps_keys_and_values_are_distributed_as_in_the_code_of_zoology(length, pairs, power):
    symbols = 64
    task = MultiQueryRecall(length=length, pairs=pairs, symbols=symbols, power=power)
    block = task.draw(3, 0, DRAWN, length)
    found = found_gaps(block, 2 * pairs, 2)
    random, gaps = np.random.default_rng(0), (length - 2 * pairs) // 2
    weights = _power(gaps, power)
    expected = np.array([random.choice(gaps, pairs, replace=False, p=weights) for _ in range(DRAWN)])
    for pair in range(pairs):
        assert_same_distribution(found[:, pair], expected[:, pair])
    assert_same_distribution(found.max(axis=1), expected.max(axis=1))
    keys = np.array([random.choice(np.arange(1, symbols // 2), pairs, replace=False) for _ in range(DRAWN)])
    values = np.array([random.choice(np.arange(symbols // 2, symbols), pairs, replace=False) for _ in range(DRAWN)])
    shown = block.tokens[:, : 2 * pairs].astype(int) - 1
    for pair in (0, pairs - 1):
        assert_same_distribution(shown[:, 2 * pair], keys[:, pair])
        assert_same_distribution(shown[:, 2 * pair + 1], values[:, pair])
    assert_same_distribution(shown[:, 0] - shown[:, 2], keys[:, 0] - keys[:, 1])


def test_gaps_that_are_not_in_the_order_of_the_pairs_would_be_noticed():
    block = MultiQueryRecall(length=64, pairs=4, symbols=64).draw(3, 0, DRAWN, 64)
    found = found_gaps(block, 8, 2)
    with pytest.raises(AssertionError):
        assert_same_distribution(found[:, 0], found[:, 1])


def test_fillers_are_uniform_over_all_symbols():
    task = MultiQueryRecall(length=64, pairs=4, symbols=16, fillers=True)
    block = task.draw(3, 0, DRAWN, 64)
    at = (block.targets == NOT_SCORED) & (np.arange(64) >= 8)
    symbols = block.tokens[at].astype(int) - 1
    assert_same_distribution(symbols, np.random.default_rng(0).integers(16, size=len(symbols)))


def test_updates_are_distributed_as_in_the_code_of_zoology():
    pairs, updates, symbols = 6, 3, 40
    task = MultiQueryRecall(length=64, pairs=pairs, symbols=symbols, variant="forgetting", updates=updates)
    block = task.draw(3, 0, DRAWN, 64)
    shown = (block.tokens.astype(int) - 1)[:, : 2 * (pairs + updates)].reshape(DRAWN, -1, 2)
    which = (shown[:, pairs:, None, 0] == shown[:, None, :pairs, 0]).argmax(axis=2)
    random = np.random.default_rng(0)
    expected = np.array([random.choice(pairs, updates, replace=False) for _ in range(DRAWN)])
    for number in range(updates):
        assert_same_distribution(which[:, number], expected[:, number])
    assert_same_distribution(which[:, 0] * pairs + which[:, 1], expected[:, 0] * pairs + expected[:, 1])
    old = np.take_along_axis(shown[:, :pairs, 1], which, axis=1)
    values = np.arange(symbols // 2, symbols)
    replaced = random.choice(values, DRAWN)
    again = random.choice(values[1:], DRAWN) - 1
    again = np.where(again >= replaced, again + 1, again)
    assert_same_distribution(shown[:, pairs, 1] - old[:, 0], again - replaced)


def test_grids_are_distributed_as_in_the_code_of_zoology():
    pairs, length = 9, 80
    task = MultiQueryRecall(length=length, pairs=pairs, symbols=60, variant="compositional")
    block = task.draw(3, 0, DRAWN, length)
    random, gaps = np.random.default_rng(0), (length - 3 * pairs) // 3
    expected = np.array([random.choice(gaps, pairs, replace=False, p=_power(gaps, 0.01)) for _ in range(DRAWN)])
    found = found_gaps(block, 3 * pairs, 3)
    for pair in (0, 1, pairs - 1):
        assert_same_distribution(found[:, pair], expected[:, pair])
    shown = (block.tokens.astype(int) - 1)[:, : 3 * pairs].reshape(DRAWN, pairs, 3)
    orders = random.permuted(np.tile(np.arange(pairs), (DRAWN, 1)), axis=1)
    for part, cells in enumerate((orders // 3, orders % 3)):
        same, expected_same = shown[:, 1:, part] == shown[:, :1, part], cells[:, 1:] == cells[:, :1]
        assert_same_distribution(same.argmax(axis=1), expected_same.argmax(axis=1))
        assert (same.sum(axis=1) == 2).all()


@pytest.mark.parametrize(("place", "other"), [(1, 3), (0, 2), (0, 1), (1, 0)])
def test_examples_with_another_symbol_among_the_pairs_are_not_valid(task, place, other):
    drawn = task.draw(5, 0, 20, task.spec.train_length)
    expected, valid = task.read(drawn)
    assert valid.all() and (expected.targets == drawn.targets).all()
    tokens = drawn.tokens.copy()
    if task.variant == "compositional":
        place, other = 2, 5
    tokens[:, place] = tokens[:, other]
    assert not task.read(Block(tokens, drawn.targets))[1].any()


def test_an_update_with_the_same_value_and_a_second_query_are_not_valid():
    task = MultiQueryRecall(length=40, pairs=3, symbols=20, variant="forgetting", updates=1)
    drawn = task.draw(5, 0, 20, 40)
    tokens = drawn.tokens.copy()
    first = (tokens[:, [0, 2, 4]] == tokens[:, [6]]).argmax(axis=1)
    tokens[:, 7] = tokens[np.arange(20), 2 * first + 1]
    assert not task.read(Block(tokens, drawn.targets))[1].any()
    twice = drawn.tokens.copy()
    for row in twice:
        row[8 + 2 * np.flatnonzero(row[8::2] == 1)[0]] = row[0]
    assert not task.read(Block(twice, drawn.targets))[1].any()


@pytest.mark.parametrize("name", ["pairs", "forgetting", "compositional", "fillers"])
def test_minimal_pairs_differ_in_one_value_and_one_answer(name, tmp_path):
    task = MultiQueryRecall(**CASES[name], rows=ROWS)
    task.prepare(Cache(tmp_path))
    pairs = task.minimal_pairs()
    tokens, targets = np.array(pairs.rows["tokens"][:]), np.array(pairs.rows["target"][:])
    assert len(tokens) == 1000
    assert ((tokens[::2] != tokens[1::2]).sum(axis=1) == 1).all()
    assert ((targets[::2] != targets[1::2]).sum(axis=1) == 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "mixed"}, "task.variant=mixed: is unknown; choose forgetting, compositional or null"),
        ({"pairs": []}, r"task.pairs=\[\]: must be a whole number or a list"),
        ({"pairs": [2, 2]}, r"task.pairs=\[2, 2\]: must be a whole number or a list of different"),
        ({"pairs": 0}, "task.pairs=0: must be at least 1"),
        ({"pairs": 8, "symbols": 16}, "task.pairs=8: needs more symbols; set task.symbols to 18 or more"),
        ({"updates": 2}, "task.updates=2: must be at least 1 with task.variant=forgetting, otherwise 0"),
        ({"variant": "forgetting"}, "task.updates=0: must be at least 1"),
        ({"variant": "forgetting", "updates": 5}, "task.updates=5: is above the number of keys; raise task.pairs"),
        ({"variant": "compositional", "passes": 2}, "task.passes=2: needs task.variant=null"),
        ({"variant": "compositional", "pairs": 5}, "task.pairs=5: must be squares"),
        ({"power": 0}, "task.power=0: must be above 0"),
        ({"length": 63}, "task.length=63: an example needs an even number of tokens"),
        ({"length": 14}, "task.length=14: pairs and queries need at least 16 tokens"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        MultiQueryRecall(**options)
