"""Tests of compiled ListOps against Python, and of generated trees against their exact distribution and LRA's files."""

import sys

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from lra_bench.data.cache import Cache
from lra_bench.data.compiled import compiled
from lra_bench.data.examples import Examples, join
from lra_bench.tasks.listops.files import find_files, read_examples
from lra_bench.tasks.listops.generation import chunks, draw_chunk
from lra_bench.tasks.listops.lengths import Trees, length_distribution
from lra_bench.tasks.listops.trees import (
    ARITY,
    DEPTH,
    DIRECT_VALUE,
    FAULTS,
    IDS,
    LABEL,
    LONE_DIGIT,
    NO_DIGIT,
    OPERATORS,
    ROOT,
    SYMBOLS,
    describe,
)
from tests.oracles.listops import depth, evaluate, parse, trees, write

LRA = Trees(window=(500, 2000), max_depth=10, max_arguments=10, operator_probability=0.25)
ROWS = 20_224


def encode(symbols):
    return np.array([IDS[symbol] for symbol in symbols], dtype=np.uint8)


def describe_one(tokens):
    return describe(np.asarray(tokens, np.uint8), np.array([0]), np.array([len(tokens)]))[0]


@pytest.fixture(scope="module")
def generated():
    """Generate 20,224 examples in LRA's window, and return them with their table."""
    stream = chunks(LRA, seed=0, stream=0)
    examples = join([next(stream)[0] for _ in range(ROWS // 256)])
    stream.close()
    return examples, describe(examples.values, examples.starts, examples.lengths)


@pytest.fixture(scope="module")
def original(shared_data):
    """Return 3,000 examples of LRA's generator, with their table."""
    files = find_files(str(shared_data), ("listops",), Cache())
    examples = join([part for path in files.values() for part in read_examples(path, 10**6, 2000, lambda n: None)])
    assert len(examples) == 3000
    return examples, describe(examples.values, examples.starts, examples.lengths)


@pytest.mark.slow
@given(st.lists(trees, min_size=1, max_size=5))
@settings(max_examples=200, deadline=None)
def test_describe_equals_plain_python(tree_list):
    rows = [encode(write(tree)) for tree in tree_list]
    lengths = np.array([len(row) for row in rows])
    table = describe(np.concatenate(rows), np.cumsum(lengths) - lengths, lengths)
    for tree, line in zip(tree_list, table, strict=True):
        assert line[LABEL] == evaluate(tree)
        assert line[DEPTH] == depth(tree)
        if isinstance(tree, int):
            assert line[ROOT] == LONE_DIGIT
            continue
        operator, children = tree
        digits = [child for child in children if isinstance(child, int)]
        assert OPERATORS[line[ROOT]] == operator and line[ARITY] == len(children)
        assert line[DIRECT_VALUE] == (evaluate((operator, digits)) if digits else NO_DIGIT)


@pytest.mark.slow
@given(trees)
@settings(max_examples=200, deadline=None)
def test_tokens_round_trip_to_the_tree(tree):
    tokens = encode(write(tree))
    assert parse([SYMBOLS[token - 1] for token in tokens]) == tree
    assert 0 not in tokens and len(SYMBOLS) == 15 == tokens.max(initial=15)


@pytest.mark.parametrize(
    ("tokens", "fault"),
    [
        ([], "empty"),
        (encode(["[MIN", "1", "2"]), "not closed"),
        (encode(["[MIN", "[MAX", "1", "]"]), "not closed"),
        (encode(["[MIN", "]"]), "no arguments"),
        (encode(["[MIN", "1", "]", "]"]), "continues"),
        (encode(["[MIN", "1", "]", "3"]), "continues"),
        (encode(["1", "2"]), "continues"),
        (encode(["]", "1"]), "not opened"),
        ([IDS["[MIN"], 0, IDS["]"]], "unknown symbol"),
        ([IDS["[MIN"], 16, IDS["]"]], "unknown symbol"),
        ([0], "unknown symbol"),
    ],
)
def test_sequences_that_are_not_trees_have_a_named_fault(tokens, fault):
    assert fault in FAULTS[int(describe_one(tokens)[LABEL])]


@given(st.lists(st.integers(0, 17), max_size=12))
@settings(max_examples=300, deadline=None)
def test_any_tokens_have_a_value_or_a_fault(tokens):
    label = int(describe_one(tokens)[LABEL])
    try:
        expected = evaluate(parse([dict(enumerate(SYMBOLS, start=1))[token] for token in tokens]))
    except (AssertionError, IndexError, KeyError, ValueError):
        assert label < 0
    else:
        assert label == expected


def test_labels_of_generated_trees_equal_plain_python(generated):
    examples, _ = generated
    for row in range(0, len(examples), 101):
        start = examples.starts[row]
        tokens = examples.values[start : start + examples.lengths[row]]
        tree = parse([SYMBOLS[token - 1] for token in tokens])
        assert evaluate(tree) == examples.targets[row]
        assert depth(tree) <= 10


def test_generated_trees_obey_the_limits():
    limits = Trees(window=(10, 60), max_depth=3, max_arguments=4, operator_probability=0.6)
    examples, _ = draw_chunk(limits, seed=1, stream=0, chunk=0, rows=2000)
    table = describe(examples.values, examples.starts, examples.lengths)
    assert (table[:, LABEL] == examples.targets).all()
    assert examples.lengths.min() == 11 and examples.lengths.max() <= 59
    assert set(table[:, DEPTH]) <= {2, 3} and set(table[:, ARITY]) == {2, 3, 4}


def exact_quantiles(probability, quantiles):
    return np.searchsorted(probability.cumsum() / probability.sum(), quantiles)


def in_window(trees):
    probability = length_distribution(trees.window[1], trees.max_depth, trees.max_arguments, trees.operator_probability)
    probability[: trees.window[0] + 1] = 0
    return probability


def decile_errors(probability, count):
    """Return the standard error of each sample decile: sqrt(q (1 - q) / n) divided by the density at the decile."""
    quantiles = np.arange(1, 10) / 10
    density = probability / probability.sum()
    deciles = exact_quantiles(probability, quantiles)
    local_density = np.array([density[max(d - 10, 0) : d + 11].mean() for d in deciles])
    return np.sqrt(quantiles * (1 - quantiles) / count) / local_density


def test_length_distribution_of_small_trees_equals_direct_computation():
    # Depth 2: an operator over k digits, k = 2 ... 4, so lengths 4, 5 and 6 with probability 1/3 each.
    np.testing.assert_allclose(length_distribution(8, 2, 4, 0.25), [0, 0, 0, 0, 1 / 3, 1 / 3, 1 / 3, 0], atol=1e-9)
    # Depth 3, two arguments: each is a digit (3/4) or an operator over two digits (length 4).
    expected = np.zeros(12)
    expected[[4, 7, 10]] = 9 / 16, 6 / 16, 1 / 16
    np.testing.assert_allclose(length_distribution(12, 3, 2, 0.25), expected, atol=1e-9)


def test_acceptance_equals_that_of_the_original():
    # In the original, the root is a single digit with probability 3/4.
    assert LRA.acceptance() / 4 == pytest.approx(0.083, abs=0.001)
    assert Trees((100, 500), 10, 10, 0.25).acceptance() / 4 == pytest.approx(0.049, abs=0.001)
    assert Trees((4000, 8000), 10, 10, 0.25).acceptance() / 4 == pytest.approx(0.0004, abs=0.0001)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "limits",
    [
        Trees((1, 300), 10, 10, 0.25),
        Trees((100, 500), 10, 10, 0.25),
        LRA,
        Trees((800, 4000), 10, 10, 0.25),
        Trees((3, 60), 4, 5, 0.5),
    ],
)
def test_lengths_follow_the_exact_distribution(limits):
    lengths = np.concatenate([draw_chunk(limits, 0, 0, chunk)[0].lengths for chunk in range(80)])
    probability = in_window(limits)
    borders = np.unique(exact_quantiles(probability, np.arange(1, 40) / 40))
    observed = np.bincount(np.searchsorted(borders, lengths), minlength=len(borders) + 1)
    bins = np.searchsorted(borders, np.arange(len(probability)))
    expected = np.bincount(bins, weights=probability, minlength=len(borders) + 1) / probability.sum() * len(lengths)
    assert stats.chisquare(observed[expected > 0], expected[expected > 0]).pvalue > 1e-4


# Length deciles of the original's distribution in LRA's window, computed exactly; the next test compares its files.
DECILES = [577, 658, 747, 845, 954, 1078, 1225, 1406, 1643]


def test_length_deciles_are_exact(generated):
    probability = in_window(LRA)
    assert exact_quantiles(probability, np.arange(1, 10) / 10).tolist() == DECILES
    deciles = np.quantile(generated[0].lengths, np.arange(1, 10) / 10)
    assert (np.abs(deciles - DECILES) < 4 * decile_errors(probability, ROWS)).all()


def test_lengths_are_distributed_as_in_the_original(generated, original):
    lengths, original_lengths = generated[0].lengths, original[0].lengths
    assert stats.ks_2samp(lengths, original_lengths).pvalue > 1e-3
    deciles = np.quantile(original_lengths, np.arange(1, 10) / 10)
    assert (np.abs(deciles - DECILES) < 4 * decile_errors(in_window(LRA), len(original_lengths))).all()


def homogeneity_p_value(first, second):
    """Return the p-value of the hypothesis that two samples of small integers have the same distribution."""
    size = max(first.max(), second.max()) + 1
    table = np.array([np.bincount(sample, minlength=size) for sample in (first, second)])
    return stats.chi2_contingency(table[:, table.sum(axis=0) > 0]).pvalue


def test_labels_roots_and_arities_are_distributed_as_in_the_original(generated, original):
    for column in (LABEL, ROOT, ARITY):
        assert homogeneity_p_value(generated[1][:, column], original[1][:, column]) > 1e-3
    pairs = [table[:, ROOT] * 10 + table[:, LABEL] for _, table in (generated, original)]
    assert homogeneity_p_value(*pairs) > 1e-3


def test_label_frequencies(generated):
    shares = np.bincount(generated[1][:, LABEL], minlength=10) / ROWS
    assert shares.argsort()[-2:].tolist() in ([0, 9], [9, 0])
    np.testing.assert_allclose(shares[[0, 9]], [0.170, 0.170], atol=4 * (0.17 * 0.83 / ROWS) ** 0.5)


def test_token_frequencies(generated):
    # Tokens of one tree are dependent, so standard errors are computed over examples.
    examples, _ = generated
    places = np.repeat(np.arange(ROWS), examples.lengths) * 16 + examples.values
    counts = np.bincount(places, minlength=ROWS * 16).reshape(ROWS, 16)
    frequencies = dict.fromkeys(SYMBOLS[:10], 0.0715) | dict.fromkeys(SYMBOLS[10:14], 0.0355)
    for symbol, frequency in (frequencies | {"]": 0.142}).items():
        excess = counts[:, IDS[symbol]] - frequency * examples.lengths
        error = excess.std() * ROWS**0.5
        rounding = 0.0005 * examples.lengths.sum()  # the expected values have three or four digits
        assert abs(excess.sum()) < 4 * error + rounding


def test_root_arity_is_size_biased(generated):
    shares = np.bincount(generated[1][:, ARITY], minlength=11)[2:] / ROWS
    assert (np.diff(shares) > 0).all()
    assert shares[0] == pytest.approx(0.0445, abs=4 * (0.0445 / ROWS) ** 0.5)
    assert shares[-1] == pytest.approx(0.162, abs=4 * (0.162 / ROWS) ** 0.5)


def test_almost_every_tree_reaches_the_full_depth(generated):
    assert (generated[1][:, DEPTH] == 10).mean() > 0.999


def test_chunks_are_reproducible_and_distinct():
    first, roots = draw_chunk(LRA, seed=3, stream=1, chunk=5)
    again, _ = draw_chunk(LRA, seed=3, stream=1, chunk=5)
    assert (first.values == again.values).all() and (first.targets == again.targets).all()
    assert (roots == describe(first.values, first.starts, first.lengths)[:, ROOT]).all()
    digests = set(first.digests())
    for seed, stream, chunk in [(4, 1, 5), (3, 2, 5), (3, 1, 6)]:
        assert not digests & set(draw_chunk(LRA, seed, stream, chunk)[0].digests())


def test_examples_of_a_seed_do_not_change():
    # If this changes, the generator has a new version: increment GENERATOR_VERSION.
    examples, _ = draw_chunk(Trees((5, 30), 10, 10, 0.25), seed=0, stream=0, chunk=0, rows=3)
    rows = [
        " ".join(SYMBOLS[token - 1] for token in examples.values[start : start + length])
        for start, length in zip(examples.starts, examples.lengths, strict=True)
    ]
    assert rows == [
        "[MAX 4 4 4 1 9 9 ]",
        "[SM 7 5 4 9 5 7 8 9 7 [MAX 2 0 6 [MIN 4 [MAX 1 8 4 ] 1 5 5 ] 6 2 ] ]",
        "[MED 1 [MIN 9 1 9 ] [MIN 2 8 7 ] 8 ]",
    ]


@pytest.mark.parametrize("workers", [1, 3])
def test_content_does_not_depend_on_the_number_of_workers(monkeypatch, workers):
    monkeypatch.setattr("os.cpu_count", lambda: workers)
    stream = chunks(Trees((20, 100), 10, 10, 0.25), seed=0, stream=0)
    parallel = join([next(stream)[0] for _ in range(7)])
    stream.close()
    sequential = join([draw_chunk(Trees((20, 100), 10, 10, 0.25), 0, 0, chunk)[0] for chunk in range(7)])
    assert (parallel.values == sequential.values).all() and (parallel.lengths == sequential.lengths).all()


def test_select_returns_complete_examples():
    examples = Examples(np.arange(9, dtype=np.uint8), np.array([2, 3, 4]), np.array([7, 8, 9]))
    selected = examples.select(np.array([2, 0]))
    assert selected.values.tolist() == [5, 6, 7, 8, 0, 1]
    assert selected.lengths.tolist() == [4, 2] and selected.targets.tolist() == [9, 7]
    assert len(examples.select(np.array([], dtype=np.int64))) == 0


def test_compiled_works_without_a_writable_cache_folder(monkeypatch):
    real = numba.njit

    def unwritable(*args, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", unwritable)

    @compiled
    def double(x):
        return 2 * x

    assert double(21) == 42 and "numba" in sys.modules
