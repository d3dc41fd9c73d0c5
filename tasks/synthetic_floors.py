"""How far rules get on synthetic rows that do not do the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import NOT_SCORED

from .synthetic_rows import count_tokens

if TYPE_CHECKING:
    from .synthetic import Rule
    from .synthetic_rows import Block


def commonest(blocks: Iterable[Block], classes: int) -> int:
    """The class that most targets name."""
    counts = np.zeros(classes, dtype=np.int64)
    for block in blocks:
        counts += np.bincount(block.targets[block.targets != NOT_SCORED], minlength=classes)
    return int(counts.argmax())


def mean_accuracy(rules: Mapping[str, Rule], blocks: Iterable[Block]) -> dict[str, float]:
    """How often each rule is expected to be right over all scored targets."""
    right = dict.fromkeys(rules, 0.0)
    scored = 0
    for block in blocks:
        counted = block.targets != NOT_SCORED
        scored += int(counted.sum())
        for name, rule in rules.items():
            right[name] += float(rule(block)[counted].sum())
    return {name: total / scored for name, total in right.items()}


def commonest_symbol(block: Block, first_symbol: int, symbols: int) -> NDArray[Any]:
    """How often each target (R, N) is the symbol that its own row holds most often, tied ones drawn by lot."""
    counts = count_tokens(block.tokens, first_symbol + symbols)[:, first_symbol:]
    most = counts == counts.max(axis=1, keepdims=True)
    return np.take_along_axis(most / most.sum(axis=1, keepdims=True), np.maximum(block.targets, 0), axis=1)


def one_of(shown: NDArray[Any], block: Block) -> NDArray[Any]:
    """How often each target (R, N) is one drawn by lot from those ``shown`` (R, P) in its row."""
    share = np.zeros(block.targets.shape)
    for column in shown.T:
        share += block.targets == column[:, None]
    return share / shown.shape[1]


def bag_of_tokens(train: Iterable[Block], vocabulary: int) -> Rule:
    """Train's commonest label (0 or 1) for how often two documents hold each token, as a rule for targets (R,).

    What train does not hold is guessed by its commonest label of all.
    """
    ones: Counter[bytes] = Counter()
    rows: Counter[bytes] = Counter()
    for block in train:
        for bag, target in zip(count_tokens(block.tokens, vocabulary), block.targets.tolist(), strict=True):
            rows[bag.tobytes()] += 1
            ones[bag.tobytes()] += target
    otherwise = 2 * ones.total() > rows.total()

    def guess(bag: bytes) -> bool:
        return 2 * ones[bag] > rows[bag] if bag in rows else otherwise

    def rule(block: Block) -> NDArray[Any]:
        bags = count_tokens(block.tokens, vocabulary)
        return np.array([guess(bag.tobytes()) for bag in bags]) == block.targets

    return rule
