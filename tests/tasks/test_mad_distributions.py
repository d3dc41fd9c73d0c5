"""Statistics of the tasks of MAD, compared with samples from the distributions of the authors' code."""

import numpy as np
import pytest

from lra_bench.tasks.mad.compression import MadCompression
from lra_bench.tasks.mad.copy import MadCopy
from lra_bench.tasks.mad.fuzzy import MadFuzzyRecall
from lra_bench.tasks.mad.memorisation import MadMemorisation
from lra_bench.tasks.mad.recall import MadRecall
from tests.support.samples import assert_same_distribution
from tests.tasks.test_mad import pairs_of

DRAWN = 10_000


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


@pytest.mark.slow
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
