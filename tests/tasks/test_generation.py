"""Tasks whose answer is generated: targets against a plain interpreter, greedy decoding, floors and parts of scores."""

from typing import Any

import numpy as np
import pytest
import torch

from lra_bench.contracts import NOT_SCORED, Batch, Output, UserError
from lra_bench.data.cache import Cache
from lra_bench.data.checks import check_split
from lra_bench.tasks.generation.addition import Addition
from lra_bench.tasks.generation.decoding import generated
from lra_bench.tasks.generation.rewriting import Reverse, Sort
from lra_bench.tasks.generation.tokens import BLANK, FIRST, SEPARATOR
from tests.support.model_cases import model
from tests.support.model_cases import task as spec_of

ROWS = {"rows": {"train": 300, "validation": 60, "test": 200}, "extrapolation_rows": 50}
CASES: dict[str, Any] = {
    "reverse": (Reverse, {"length": 21, "symbols": 5}),
    "reverse, even length": (Reverse, {"length": 20, "symbols": 3}),
    "sort": (Sort, {"length": 21, "symbols": 5}),
    "addition": (Addition, {"length": 21}),
    "addition, reversed": (Addition, {"length": 23, "reversed_sum": True}),
}


@pytest.fixture(params=CASES)
def task(request, tmp_path):
    kind, options = CASES[request.param]
    made = kind(**options, **ROWS)
    made.prepare(Cache(tmp_path))
    return made


def answer_to(task, source):
    """Return the classes of the answer to the symbols of a source, without the end."""
    if isinstance(task, Reverse):
        return source[::-1]
    if isinstance(task, Sort):
        return sorted(source)
    plus = source.index(10)
    one, other = (int("".join(map(str, digits))) for digits in (source[:plus], source[plus + 1 :]))
    assert 2 * plus + 1 == len(source)
    total = [int(digit) for digit in str(one + other).zfill(plus + 1)]
    return total[::-1] if task.reversed_sum else total


def separate(tokens):
    """Return the source of an example as symbols."""
    return [token - FIRST for token in tokens[: tokens.index(SEPARATOR)]]


@pytest.mark.parametrize("length", [None, 41])
def test_examples_equal_those_of_a_plain_interpreter(task, length):
    rows = task.split("test", length)
    for row in rows:
        source, end = separate(row["tokens"]), task.symbols
        answer = answer_to(task, source)
        blanks = [BLANK] * (rows[0]["length"] - len(source) - 1 - len(answer))
        assert (
            row["tokens"]
            == [FIRST + each for each in source] + [SEPARATOR] + [FIRST + each for each in answer] + blanks
        )
        scored = [*answer, end]
        after = [NOT_SCORED] * (len(row["tokens"]) - len(source) - len(scored))
        assert row["target"] == [NOT_SCORED] * len(source) + scored + after


def test_sources_have_all_lengths_from_half_the_longest_on(task):
    for length in (None, 41):
        sizes = {len(separate(row["tokens"])) for row in task.split("train", length)}
        longest = task.longest(length or task.spec.train_length)
        expected = range((longest + 1) // 2, longest + 1)
        assert sizes == ({2 * n + 1 for n in expected} if isinstance(task, Addition) else set(expected))


def test_splits_pass_their_checks_and_damaged_ones_do_not(task, monkeypatch):
    for split in ("train", "validation", "test"):
        check_split(task.split(split), task.spec, split)
        task.check(split)
    block = next(iter(task.blocks("test")))
    for change in (lambda x: x + 1, lambda x: x * 0 + SEPARATOR, lambda x: x * 0 + BLANK):
        tokens = np.array(block.tokens)
        tokens[0, 0] = change(tokens[0, 0])
        found, valid = task.read(type(block)(tokens, block.targets))
        assert not valid[0] or (found.targets[0] != block.targets[0]).any()
        assert valid[1:].all() and (found.targets[1:] == block.targets[1:]).all()


class Solver(torch.nn.Module):
    """Answer correctly as long as the symbols that it has generated are; ``spoiled`` examples have a wrong symbol."""

    def __init__(self, task, spoiled=()):
        super().__init__()
        self.task, self.spoiled, self.weight = task, spoiled, torch.nn.Parameter(torch.zeros(1))

    def forward(self, batch, memory=None):
        logits = torch.zeros(*batch.tokens.shape, self.task.spec.classes)
        for row, tokens in enumerate(batch.tokens.tolist()):
            source = separate(tokens)
            answer, start = [*answer_to(self.task, source), self.task.symbols], len(source)
            for place, symbol in enumerate(answer):
                shown = [token - FIRST for token in tokens[start + 1 : start + 1 + place]]
                right = shown == answer[:place] and not (tuple(source) in self.spoiled and place == 1)
                logits[row, start + place, symbol if right else (symbol + 1) % self.task.spec.classes] = 1
        return Output(logits)


def test_score_is_the_share_of_answers_that_are_entirely_correct(task):
    rows = task.split("test")
    task.decoded = 120
    spoiled = {tuple(separate(row["tokens"])) for row in rows.select(range(0, 120, 4))}
    score = task.score(Solver(task, spoiled).eval(), batch_size=50)
    assert (score.score, score.n) == (0.75, 120)
    assert score.parts["generated"]["answers"] == 0.75 and 0.75 < score.parts["generated"]["symbols"] < 1
    counts = score.trials["length"]
    assert sum(counts.values()) == 120
    assert sum(score.parts["length"][label] * n for label, n in counts.items()) == pytest.approx(90)
    longer = task.score(Solver(task).eval(), length=41)
    assert longer.score == 1 and longer.parts == {"generated": {"answers": 1, "symbols": 1}}


def test_generated_symbols_are_those_of_one_prefix_at_a_time(task):
    network = model(task.spec, "transformer", "rope", causal=True)
    rows = next(iter(task.blocks("test"))).select(list(range(12)))
    scored = rows.targets != NOT_SCORED
    found = generated(network, rows.tokens, rows.targets, batch_size=5)
    assert (found[~scored] == -1).all()
    for tokens, expected, mask in zip(rows.tokens, found, scored, strict=True):
        read = tokens[: list(tokens).index(SEPARATOR) + 1].tolist()
        for place in np.flatnonzero(mask):
            batch = Batch(torch.tensor([len(read)]), torch.zeros(1, len(read), dtype=torch.long), torch.tensor([read]))
            best = int(network(batch).logits[0, -1].argmax())
            assert best == expected[place]
            read.append(FIRST + best if best < task.symbols else BLANK)


def test_floors_are_shares_of_answers_on_test_and_accuracies_elsewhere(task):
    test, validation = task.floors("test"), task.floors("validation")
    assert set(test) == set(validation) and "majority" in test
    rule = next(name for name in test if name != "majority")
    right, symbols = [], []
    for split, into in (("test", right), ("validation", symbols)):
        for row in task.split(split):
            source = separate(row["tokens"])
            answer = [*answer_to(task, source), task.symbols]
            guess = [*(source if rule == "source" else without_carries(task, source)), task.symbols]
            matches = [one == other for one, other in zip(guess, answer, strict=True)]
            into.extend([all(matches)] if split == "test" else matches)
    assert test[rule] == pytest.approx(np.mean(right)) and validation[rule] == pytest.approx(np.mean(symbols))
    assert task.floors("test", 41)[rule] <= 1
    assert task.floor_rows("test") == {} == task.slices("test")


def without_carries(task, source):
    plus = source.index(10)
    digits = [0, *((a + b) % 10 for a, b in zip(source[:plus], source[plus + 1 :], strict=True))]
    return digits[::-1] if task.reversed_sum else digits


def test_only_specifications_of_generation_have_a_separator():
    for kind, separator in (("generation", None), ("tagging", 2)):
        with pytest.raises(ValueError, match="set separator if and only if kind is generation"):
            spec_of(kind, "causal", separator=separator)


@pytest.mark.parametrize("kind", [Reverse, Sort, Addition])
def test_impossible_options_are_rejected(kind):
    with pytest.raises(UserError, match=r"task\.length=4: "):
        kind(length=4)
    with pytest.raises(UserError, match=r"task\.decoded=0"):
        kind(decoded=0)
