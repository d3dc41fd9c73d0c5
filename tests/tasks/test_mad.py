"""The tasks of MAD: targets against plain readers, floors against loops."""

import numpy as np
import pytest

from lra_bench.contracts import NOT_SCORED, UserError
from lra_bench.data.cache import Cache
from lra_bench.data.examples import content_sha256, digests_of
from lra_bench.tasks.mad.compression import MadCompression
from lra_bench.tasks.mad.copy import MadCopy
from lra_bench.tasks.mad.fuzzy import MadFuzzyRecall
from lra_bench.tasks.mad.memorisation import MadMemorisation
from lra_bench.tasks.mad.recall import MadRecall
from lra_bench.tasks.synthetic.rows import Block

ROWS = {"train": 600, "validation": 100, "test": 300}
SPLITS = ("train", "validation", "test")
CASES = {
    "recall": (MadRecall, {"length": 48}),
    "recall of many keys": (MadRecall, {"length": 30, "symbols": 41}),
    "noisy": (MadRecall, {"length": 48, "symbols": 32, "noise": 0.2, "noise_symbols": 16}),
    "mostly noise": (MadRecall, {"length": 20, "symbols": 9, "noise": 0.9, "noise_symbols": 3}),
    "fuzzy": (MadFuzzyRecall, {"length": 64, "symbols": 9}),
    "fuzzy, other sizes": (MadFuzzyRecall, {"length": 41, "symbols": 12, "key_symbols": 2, "value_symbols": 1}),
    "copy": (MadCopy, {"length": 40, "symbols": 7, "copied": 6}),
    "copy without blanks": (MadCopy, {"length": 17, "symbols": 9, "copied": 8}),
    "compression": (MadCompression, {"length": 24, "symbols": 9}),
    "memorisation": (MadMemorisation, {"length": 16, "symbols": 30}),
}


@pytest.fixture(scope="module", params=CASES)
def task(request, tmp_path_factory):
    kind, options = CASES[request.param]
    task = kind(**options, rows=ROWS, extrapolation_rows=100)
    task.prepare(Cache(tmp_path_factory.mktemp("mad")))
    return task


def read_recall(task, symbols):
    """Return the targets of the test, by a dictionary of the values."""
    value_of, targets = {}, [NOT_SCORED] * len(symbols)
    for place in range(0, len(symbols), 2):
        key, value = symbols[place : place + 2]
        if key >= task.keys + task.values:
            assert value >= task.keys + task.values and task.noise > 0
            continue
        assert key < task.keys <= value < task.keys + task.values
        if key in value_of:
            assert value_of[key] == value
            targets[place] = value
        value_of[key] = value
    assert targets[-2] != NOT_SCORED
    return targets


def pairs_of(task, symbols):
    """Yield (place of the value, key, value) of each pair of a fuzzy example, by the kinds of its symbols."""
    filler = task.symbols - 1
    place = next(place for place, symbol in enumerate(symbols) if symbol != filler)
    while place < len(symbols):
        middle = next(at for at in range(place, len(symbols)) if symbols[at] >= task.keys)
        end = next((at for at in range(middle, len(symbols)) if symbols[at] < task.keys), len(symbols))
        yield middle, tuple(symbols[place:middle]), tuple(symbols[middle:end])
        place = end


def read_fuzzy(task, symbols):
    """Return the targets of the test, by a dictionary of the values."""
    value_of, targets = {}, [NOT_SCORED] * len(symbols)
    for middle, key, value in pairs_of(task, symbols):
        assert 1 <= len(set(key)) == len(key) <= task.key_symbols
        assert 1 <= len(set(value)) == len(value) <= task.value_symbols
        if key in value_of:
            assert value_of[key] == value
            targets[middle - 1 : middle - 1 + len(value)] = value
        value_of[key] = value
    assert targets[-2] != NOT_SCORED
    return targets


def read_copy(task, symbols):
    """Return the targets: the symbols before the marker, of which the last is adjacent to it."""
    blank, marker = task.symbols - 2, task.symbols - 1
    end = symbols.index(marker)
    copied = [symbol for symbol in symbols[:end] if symbol != blank]
    assert len(copied) == task.copied and symbols[end - 1] != blank
    assert symbols[end + 1 :] == [blank] * task.copied
    return [NOT_SCORED] * (end + 1) + copied


def read_compression(task, symbols):
    """Return all symbols, of which only the last is the marker."""
    assert symbols[-1] == task.symbols - 1 == max(symbols) and symbols.count(symbols[-1]) == 1
    return symbols


def read_memorisation(task, symbols):
    """Return the values of the keys at the markers, by the map of the first examples of train."""
    known = {}
    for row, target in zip(task.split("train")["tokens"][:], task.split("train")["target"][:], strict=True):
        for place in range(0, len(row), 2):
            assert known.setdefault(row[place] - 1, target[place + 1]) == target[place + 1]
    assert len(set(known.values())) == len(known) == task.keys
    assert symbols[1::2] == [task.symbols - 1] * (len(symbols) // 2)
    return [NOT_SCORED if place % 2 == 0 else known[symbols[place - 1]] for place in range(len(symbols))]


READ = {
    MadRecall: read_recall,
    MadFuzzyRecall: read_fuzzy,
    MadCopy: read_copy,
    MadCompression: read_compression,
    MadMemorisation: read_memorisation,
}


@pytest.mark.parametrize("ratio", [1, 2])
def test_targets_equal_those_of_a_plain_reader(task, ratio):
    length = ratio * task.spec.train_length
    few = 20 if isinstance(task, MadMemorisation) else None
    for split in SPLITS:
        rows = task.split(split, length)
        for tokens, target in zip(rows["tokens"][:few], rows["target"][:few], strict=True):
            symbols = [token - 1 for token in tokens]
            expected = READ[type(task)](task, symbols)
            if split == "train" and isinstance(task, MadRecall | MadFuzzyRecall):
                expected = [*symbols[1:], NOT_SCORED]
            assert target == expected and len(tokens) == length
        assert np.min(rows["tokens"][:]) > 0 and np.max(rows["tokens"][:]) < task.spec.vocabulary_size
        task.check(split, length)


def test_examples_are_distinct_and_a_function_of_the_settings(task, tmp_path):
    digests = [digests_of(task.split(name)) for name in SPLITS]
    assert len(set().union(*digests)) == sum(ROWS.values())
    options = {"length": task.spec.train_length, "rows": ROWS, **task.settings()}
    again, other = type(task)(**options), type(task)(**options, seed=1)
    for made in (again, other):
        made.prepare(Cache(tmp_path))
    for split in SPLITS:
        assert content_sha256(again.split(split)) == content_sha256(task.split(split))
    assert other.fingerprint() != again.fingerprint() and not digests_of(other.split("test")) & digests[2]


def earlier(task, symbols, place):
    """Return the symbols of values up to a place."""
    return [symbol for symbol in symbols[: place + 1] if task.keys <= symbol < task.keys + task.values]


def guesses(task, symbols, place):
    """Return, by name of a floor, the classes of which it predicts a random one."""
    if isinstance(task, MadRecall | MadFuzzyRecall):
        shown = earlier(task, symbols, place)
        most = max(map(shown.count, shown))
        return {"value_shown": shown, "commonest_value": [value for value in set(shown) if shown.count(value) == most]}
    if isinstance(task, MadMemorisation):
        return {"map_prior": list(range(task.keys, 2 * task.keys))}
    if isinstance(task, MadCompression) and place == len(symbols) - 1:
        return {"commonest_symbol": symbols[-1:]}
    drawn = [symbol for symbol in symbols if symbol < task.symbols - (2 if isinstance(task, MadCopy) else 1)]
    most = max(map(drawn.count, drawn))
    return {"commonest_symbol": [symbol for symbol in set(drawn) if drawn.count(symbol) == most]}


def test_floors_equal_those_of_a_loop(task):
    targets = [
        target
        for row in task.split("train")["tokens"][: 5 if isinstance(task, MadMemorisation) else None]
        for target in READ[type(task)](task, [token - 1 for token in row])
        if target != NOT_SCORED
    ]
    right, found = {}, task.floors("test")
    rows = task.split("test")
    for tokens, target in zip(rows["tokens"][:], rows["target"][:], strict=True):
        symbols = [token - 1 for token in tokens]
        for place in (place for place, value in enumerate(target) if value != NOT_SCORED):
            for name, classes in guesses(task, symbols, place).items():
                right.setdefault(name, []).append(classes.count(target[place]) / len(classes))
    if not isinstance(task, MadMemorisation):  # five rows are too few to know its most frequent target
        majority = np.bincount(targets).argmax()
        scored = np.array(rows["target"][:])
        assert found["majority"] == pytest.approx((scored[scored != NOT_SCORED] == majority).mean())
        assert {name: np.mean(values) for name, values in right.items()} == pytest.approx(
            {name: value for name, value in found.items() if name != "majority"}
        )
    else:
        assert found["map_prior"] == pytest.approx(1 / task.keys) and found["majority"] < 2 / task.keys


def test_another_symbol_makes_an_example_invalid_or_changes_its_targets(task):
    drawn = task.draw(5, 0, 30, task.spec.train_length)
    expected, valid = task.read(drawn)
    assert valid.all() and (expected.targets == drawn.targets).all()
    for place in (0, -1):
        tokens = drawn.tokens.copy()
        tokens[:, place] = 1 + (tokens[:, place] % task.symbols)
        found, valid = task.read(Block(tokens, drawn.targets))
        assert (~valid | (found.targets != drawn.targets).any(axis=1) | (place == 0)).all()
    tokens = drawn.tokens.copy()
    tokens[:, -2] = task.spec.vocabulary_size
    assert not task.read(Block(tokens, drawn.targets))[1].any()


def test_the_map_is_a_function_of_symbols_and_seed_only():
    maps = [
        MadMemorisation(length=length, symbols=64, seed=seed)._value_of.tolist()
        for length in (16, 32)
        for seed in (0, 1)
    ]
    assert maps[0] == maps[2] != maps[1] == maps[3]
    assert sorted(maps[0]) != maps[0] and len(set(maps[0])) == 31 and set(maps[0]) <= set(range(31, 63))


def test_slices_and_minimal_pairs(task):
    expected = set() if isinstance(task, MadFuzzyRecall | MadMemorisation) else {"distance"}
    assert set(task.slices("test")) == expected
    pairs = task.minimal_pairs()
    assert (pairs is not None) == isinstance(task, MadCopy)
    if pairs is not None:
        tokens, targets = np.array(pairs.rows["tokens"][:]), np.array(pairs.rows["target"][:])
        assert ((tokens[::2] != tokens[1::2]).sum(axis=1) == 1).all()
        assert ((targets[::2] != targets[1::2]).sum(axis=1) == 1).all()


def test_names_depend_on_noise():
    assert MadRecall(length=20).spec.name == "mad_recall"
    assert MadRecall(length=20, symbols=32, noise_symbols=16).spec.name == "mad_noisy"


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (MadRecall, {"noise": 1}, "task.noise=1: must be below 1"),
        (MadRecall, {"noise": 0.2}, "task.noise=0.2: needs noise symbols; set task.noise_symbols to 1 or more"),
        (MadRecall, {"symbols": 17, "noise_symbols": 16}, "task.symbols=17: is too small; set it to 18 or more"),
        (MadRecall, {"length": 7}, "task.length=7: an example needs an even number of tokens, at least 4"),
        (MadFuzzyRecall, {"symbols": 6}, "task.symbols=6: is too small; set it to 7 or more"),
        (MadFuzzyRecall, {"length": 12}, "task.length=12: an example needs at least 13 tokens"),
        (MadCopy, {"length": 32}, "task.length=32: an example needs at least 33 tokens"),
        (MadCopy, {"symbols": 3}, "task.symbols=3: must be at least 4"),
        (MadCompression, {"length": 1}, "task.length=1: an example needs at least 2 tokens"),
        (MadMemorisation, {"length": 31}, "task.length=31: an example needs an even number of tokens"),
    ],
)
def test_impossible_options_are_refused(kind, options, message):
    with pytest.raises(UserError, match=message):
        kind(**options)
