"""The tasks of MAD: targets against plain readers, statistics against the distributions of the authors' code."""

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
from tests.support.samples import assert_same_distribution

ROWS = {"train": 600, "validation": 100, "test": 300}
SPLITS = ("train", "validation", "test")
DRAWN = 10_000
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


def repetitions(keys, valid):
    """Return how many keys of each row were shown before, and how many different ones there are, (R,) each."""
    same = (keys[:, :, None] == keys[:, None]) & valid[:, :, None] & valid[:, None]
    before = np.tril(same, -1).any(axis=2)
    return before.sum(axis=1), (valid & ~before).sum(axis=1)


@pytest.mark.parametrize("noise", [0.0, 0.2, 0.8])
def test_pairs_are_distributed_as_in_the_code_of_mad(noise):
    keys, values, noise_symbols, pairs = 8, 8, 16 if noise else 0, 24
    symbols = keys + values + noise_symbols
    task = MadRecall(length=2 * pairs, symbols=symbols, noise=noise, noise_symbols=noise_symbols)
    found = task.draw(3, 0, DRAWN, 2 * pairs).tokens.astype(int).reshape(DRAWN, pairs, 2) - 1
    random = np.random.default_rng(0)
    kept = random.integers(pairs, size=DRAWN)
    is_noise = (random.random((DRAWN, pairs)) < noise) & (np.arange(pairs) != kept[:, None])
    is_noise[:, -1] = False
    expected = random.integers(keys, size=(DRAWN, pairs))
    shown = ((expected[:, :-1, None] == np.arange(keys)) & ~is_noise[:, :-1, None]).any(axis=1)
    expected[:, -1] = np.where(shown, random.random(shown.shape), -1).argmax(axis=1)
    some = shown.any(axis=1)
    is_noise, expected = is_noise[some], expected[some]
    found_noise = found[..., 0] >= keys + values
    assert (found_noise == (found[..., 1] >= keys + values)).all()
    one, other = repetitions(found[..., 0], ~found_noise), repetitions(expected, ~is_noise)
    for statistic, expected_statistic in zip(one, other, strict=True):
        assert_same_distribution(statistic, expected_statistic)
    assert_same_distribution(found_noise.sum(axis=1), is_noise.sum(axis=1))
    first = (found[..., 0] == found[:, -1:, 0]).argmax(axis=1)
    assert_same_distribution(first, ((expected == expected[:, -1:]) & ~is_noise).argmax(axis=1))
    first_values = found[np.arange(DRAWN), found_noise.argmin(axis=1), 1]
    assert_same_distribution(first_values, random.integers(keys, keys + values, size=DRAWN))
    if noise:
        assert_same_distribution(found_noise.argmax(axis=1), is_noise.argmax(axis=1))
        assert_same_distribution(found[found_noise], random.integers(keys + values, symbols, size=20_000))


def fuzzy_example(random, length, task, shortest):
    """Return the pairs of an example, sampled as in the code of MAD; None if the last one was not shown before."""

    def motif(size, symbols):
        return tuple(random.permutation(symbols)[:size])

    key_sizes, longest = range(shortest, task.key_symbols + 1), task.key_symbols + task.value_symbols
    probe = motif(random.choice(key_sizes), task.keys), motif(random.integers(1, task.value_symbols + 1), task.values)
    size = len(probe[0]) + len(probe[1])
    place, used, pairs, value_of, shown = random.integers(length - 2 * size), 0, [], {}, False
    while used < length - size - longest:
        key = probe[0] if used >= place and not shown else motif(random.choice(key_sizes), task.keys)
        if key == probe[0]:
            value_of[key], shown = probe[1], True
        elif key not in value_of:
            value_of[key] = motif(random.integers(1, task.value_symbols + 1), task.values)
        pairs.append((key, value_of[key]))
        used += len(key) + len(value_of[key])
    return [*pairs, probe] if shown else None


@pytest.mark.parametrize("split", ["train", "test"])
def test_motifs_are_distributed_as_in_the_code_of_mad(split):
    length, rows = 64, 4_000
    task = MadFuzzyRecall(length=length, symbols=9)
    shortest = 1 if split == "train" else 3
    found = [
        [(key, tuple(symbol - task.keys for symbol in value)) for _, key, value in pairs_of(task, row)]
        for row in (task.draw_in(split, 3, 0, rows, length).tokens.astype(int) - 1).tolist()
    ]
    random = np.random.default_rng(0)
    drawn = (fuzzy_example(random, length, task, shortest) for _ in range(rows))
    expected = [pairs for pairs in drawn if pairs is not None]
    assert len(expected) > 0.9 * rows
    statistics = {
        "number of pairs": len,
        "number of tokens": lambda pairs: sum(len(key) + len(value) for key, value in pairs),
        "different keys": lambda pairs: len({key for key, _ in pairs}),
        "size of the first key": lambda pairs: len(pairs[0][0]),
        "size of the first value": lambda pairs: len(pairs[0][1]),
        "size of the last key": lambda pairs: len(pairs[-1][0]),
        "first pair with the last key": lambda pairs: [key for key, _ in pairs].index(pairs[-1][0]),
        "first symbol": lambda pairs: pairs[0][0][0],
        "last symbol": lambda pairs: pairs[-1][1][-1],
        "step of the last value": lambda pairs: pairs[-1][1][-1] - pairs[-1][1][0],
    }
    for statistic in statistics.values():
        assert_same_distribution([statistic(pairs) for pairs in found], [statistic(pairs) for pairs in expected])
    sizes = {len(key) for pairs in found for key, _ in pairs}
    assert sizes == ({1, 2, 3} if split == "train" else {3})


def test_places_of_symbols_are_distributed_as_in_the_code_of_mad():
    length, copied = 64, 8
    task = MadCopy(length=length, symbols=16, copied=copied)
    block = task.draw(3, 0, DRAWN, length)
    found = np.nonzero(block.tokens <= 14)[1].reshape(DRAWN, copied)
    random = np.random.default_rng(0)
    blanks = length - 2 * copied - 1
    expected = np.array(
        [
            np.flatnonzero(np.insert(np.arange(copied), random.integers(copied, size=blanks), -1) >= 0)
            for _ in range(DRAWN)
        ]
    )
    for number in range(copied):
        assert_same_distribution(found[:, number], expected[:, number])
    assert_same_distribution(np.diff(found, axis=1).max(axis=1), np.diff(expected, axis=1).max(axis=1))
    assert_same_distribution(block.tokens[block.tokens <= 14], random.integers(1, 15, size=50_000))
    (distance,) = task.properties(block).values()
    assert distance.tolist() == (np.arange(length - copied, length) - found).ravel().tolist()


def test_symbols_and_keys_are_uniform():
    random = np.random.default_rng(0)
    compressed = MadCompression(length=32, symbols=16).draw(3, 0, 3_000, 32).tokens[:, :-1]
    assert_same_distribution(compressed, random.integers(1, 16, size=compressed.size))
    keys = MadMemorisation(length=32, symbols=64).draw(3, 0, 3_000, 32).tokens[:, ::2]
    assert_same_distribution(keys, random.integers(1, 32, size=keys.size))
    independent = random.integers(31, size=(3_000, 2))
    assert_same_distribution(keys[:, 0].astype(int) - keys[:, 1], independent[:, 0] - independent[:, 1])


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
