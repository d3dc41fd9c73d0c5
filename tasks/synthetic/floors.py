"""Floors (baselines without a model) of the synthetic tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import NOT_SCORED

from .rows import count_tokens

if TYPE_CHECKING:
    from .rows import Block

BAG_ROWS = 20_000

Rule = Callable[["Block"], "NDArray[Any]"]
"""Function that returns the expected accuracy (0 to 1) of a rule on each target of a block, in their shape.

Values at targets that are not scored are ignored.
"""


def commonest(blocks: Iterable[Block], classes: int) -> int:
    """Return the most frequent class among the targets."""
    counts = np.zeros(classes, dtype=np.int64)
    for block in blocks:
        counts += np.bincount(block.targets[block.targets != NOT_SCORED], minlength=classes)
    return int(counts.argmax())


SCORED = "scored"
"""Column with the number of scored targets."""


def correct_rows(rules: Mapping[str, Rule], blocks: Iterable[Block]) -> dict[str, NDArray[Any]]:
    """Return the expected number of correct targets of each rule for each example (R,), and the column ``SCORED``."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in (*rules, SCORED)}
    for block in blocks:
        counted = (block.targets != NOT_SCORED).reshape(len(block.targets), -1)
        parts[SCORED].append(counted.sum(axis=1))
        for name, rule in rules.items():
            correct = np.asarray(rule(block)).reshape(counted.shape)
            parts[name].append(np.where(counted, correct, 0).sum(axis=1))
    return {name: np.concatenate(columns) for name, columns in parts.items()}


def correct_targets(rules: Mapping[str, Rule], blocks: Iterable[Block]) -> dict[str, NDArray[Any]]:
    """Return the expected accuracy of each rule on each scored target, (T,), in the order of rows and positions."""
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in rules}
    for block in blocks:
        scored = block.targets != NOT_SCORED
        for name, rule in rules.items():
            parts[name].append(np.asarray(rule(block), dtype=np.float64)[scored])
    return {name: np.concatenate(values) for name, values in parts.items()}


def commonest_symbol(block: Block, first_symbol: int, symbols: int) -> NDArray[Any]:
    """Return the expected accuracy, on each target (R, N), of predicting the most frequent symbol of the example.

    Ties are broken randomly.
    """
    counts = count_tokens(block.tokens, first_symbol + symbols)[:, first_symbol:]
    most = counts == counts.max(axis=1, keepdims=True)
    return np.take_along_axis(most / most.sum(axis=1, keepdims=True), np.maximum(block.targets, 0), axis=1)


def one_of(shown: NDArray[Any], block: Block) -> NDArray[Any]:
    """Return the expected accuracy, on each target (R, N), of a random one of the classes ``shown`` (R, P)."""
    hits = np.zeros(block.targets.shape)
    for column in shown.T:
        hits += block.targets == column[:, None]
    return hits / shown.shape[1]


def bag_of_tokens(train: Iterable[Block], vocabulary: int) -> Rule:
    """Fit softmax regression on the token counts of two documents, and return it as a rule for targets (R,).

    It is fitted on the first 20,000 examples of train. The features are, for each token, the product of the deviations
    of both counts from their mean and the absolute difference of the counts; and whether the token with the largest
    deviation is the same.
    """
    from ..linear_probe import linear_probe

    counts, targets = [], []
    for block in train:
        counts.append(count_tokens(block.tokens, vocabulary))
        targets.append(block.targets)
        if sum(map(len, targets)) >= BAG_ROWS:
            break
    train_counts, labels = np.concatenate(counts)[:BAG_ROWS], np.concatenate(targets)[:BAG_ROWS]
    means = train_counts.mean(axis=(0, 1))
    probe = linear_probe(_comparison(train_counts, means), labels)

    def rule(block: Block) -> NDArray[Any]:
        guesses: NDArray[Any] = probe.predict(_comparison(count_tokens(block.tokens, vocabulary), means))
        return guesses == block.targets

    return rule


def _comparison(counts: NDArray[Any], means: NDArray[Any]) -> NDArray[Any]:
    """Return features (R, 2 V + 1) from the token counts (R, 2, V) of two documents and their means (V,)."""
    first, second = counts[:, 0] - means, counts[:, 1] - means
    same = first.argmax(axis=1) == second.argmax(axis=1)
    return np.concatenate([first * second, np.abs(first - second), same[:, None]], axis=1)
