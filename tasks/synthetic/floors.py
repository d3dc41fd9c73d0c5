"""How far rules get on synthetic rows that do not do the task."""

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
"""How right a rule is on each target of a block: 0 to 1, of the targets' shape; what is not scored does not count."""


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
    """Softmax regression on what two documents' token counts have in common, as a rule for targets (R,).

    Fitted on the first 20,000 rows of train. Features are, per token, the product of both counts' deviations from
    their means and the absolute difference of the counts, and whether the commonest token is the same.
    """
    from ..linear_probe import fit

    counts, targets = [], []
    for block in train:
        counts.append(count_tokens(block.tokens, vocabulary))
        targets.append(block.targets)
        if sum(map(len, targets)) >= BAG_ROWS:
            break
    known, labels = np.concatenate(counts)[:BAG_ROWS], np.concatenate(targets)[:BAG_ROWS]
    means = known.mean(axis=(0, 1))
    probe = fit(_in_common(known, means), labels, 2)

    def rule(block: Block) -> NDArray[Any]:
        return probe.predict(_in_common(count_tokens(block.tokens, vocabulary), means)) == block.targets

    return rule


def _in_common(counts: NDArray[Any], means: NDArray[Any]) -> NDArray[Any]:
    """Features (R, 2 V + 1) of the counts (R, 2, V) of two documents, of which ``means`` (V,) are the means."""
    first, second = counts[:, 0] - means, counts[:, 1] - means
    same = first.argmax(axis=1) == second.argmax(axis=1)
    return np.concatenate([first * second, np.abs(first - second), same[:, None]], axis=1)
