"""How far one gets on ListOps without reading the tree, and how alike two splits are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .trees import ARITY, DEPTH, DIRECT_VALUE, LABEL, NO_DIGIT, ROOT

Table = NDArray[np.int64]  # (R, 5) from describe()


def shortcut_accuracies(train: Table, rows: Table) -> dict[str, float]:
    """Accuracy on ``rows`` of three rules fitted on ``train``.

    ``majority``: its commonest label. ``root_operator``: the commonest label for each root operator.
    ``root_operator_and_digits``: the commonest label for each root operator together with that operator's value over
    the digits directly under it; pairs that train lacks are guessed by the root operator alone.
    """
    root_only = _commonest_label(train[:, ROOT], train[:, LABEL], rows[:, ROOT])
    seen, asked = _root_and_digits(train), _root_and_digits(rows)
    root_and_digits = np.where(np.isin(asked, seen), _commonest_label(seen, train[:, LABEL], asked), root_only)
    majority = np.full(len(rows), np.bincount(train[:, LABEL]).argmax())
    guesses = {"majority": majority, "root_operator": root_only, "root_operator_and_digits": root_and_digits}
    return {rule: float((guess == rows[:, LABEL]).mean()) for rule, guess in guesses.items()}


def compare(train: Table, rows: Table) -> dict[str, float]:
    """Mean depth and root arity of ``rows`` and of ``train``, and the total variation between their joint
    distributions of root operator and label.
    """
    return {
        "mean_depth": float(rows[:, DEPTH].mean()),
        "train_mean_depth": float(train[:, DEPTH].mean()),
        "mean_root_arity": float(rows[:, ARITY].mean()),
        "train_mean_root_arity": float(train[:, ARITY].mean()),
        "total_variation_from_train": float(np.abs(root_and_label(rows) - root_and_label(train)).sum() / 2),
    }


def root_and_label(table: Table) -> NDArray[np.float64]:
    """Shares of each root operator (a lone digit included) and label, (5, 10)."""
    counts = np.zeros((5, 10))
    np.add.at(counts, (table[:, ROOT], table[:, LABEL]), 1)
    return counts / len(table)


def _root_and_digits(table: Table) -> NDArray[np.int64]:
    """One number for each pair of root operator and value of its own digits."""
    return table[:, ROOT] * (NO_DIGIT + 1) + table[:, DIRECT_VALUE]


def _commonest_label(keys: NDArray[np.int64], labels: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each key asked, the label that goes with it most often."""
    counts = np.zeros((int(max(keys.max(), asked.max())) + 1, 10), dtype=np.int64)
    np.add.at(counts, (keys, labels), 1)
    return counts.argmax(axis=1)[asked]
