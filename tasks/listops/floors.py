"""Floors (baselines without a model) of ListOps, and statistics that compare two splits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .trees import ARITY, DEPTH, DIRECT_VALUE, LABEL, NO_DIGIT, ROOT

Table = NDArray[np.int64]  # (R, 5) from describe()


def correct_rows(train: Table, rows: Table) -> dict[str, NDArray[np.bool_]]:
    """Return whether each of three rules fitted on ``train`` is right about each of ``rows``, (R,).

    ``majority``: the most frequent label. ``root_operator``: the most frequent label for each root operator.
    ``root_operator_and_digits``: the most frequent label for each pair of the root operator and its value over the
    digits directly below it; pairs that are not in train are predicted from the root operator only.
    """
    root_only = _most_frequent_label(train[:, ROOT], train[:, LABEL], rows[:, ROOT])
    train_pairs, pairs = _root_and_digits(train), _root_and_digits(rows)
    root_and_digits = np.where(
        np.isin(pairs, train_pairs), _most_frequent_label(train_pairs, train[:, LABEL], pairs), root_only
    )
    majority = np.full(len(rows), np.bincount(train[:, LABEL]).argmax())
    guesses = {"majority": majority, "root_operator": root_only, "root_operator_and_digits": root_and_digits}
    return {rule: guess == rows[:, LABEL] for rule, guess in guesses.items()}


def compare(train: Table, rows: Table) -> dict[str, float]:
    """Return statistics of ``rows`` and ``train``.

    Mean depth and root arity of both, and the total variation distance between their joint distributions of root
    operator and label.
    """
    return {
        "mean_depth": float(rows[:, DEPTH].mean()),
        "train_mean_depth": float(train[:, DEPTH].mean()),
        "mean_root_arity": float(rows[:, ARITY].mean()),
        "train_mean_root_arity": float(train[:, ARITY].mean()),
        "total_variation_from_train": float(np.abs(root_and_label(rows) - root_and_label(train)).sum() / 2),
    }


def root_and_label(table: Table) -> NDArray[np.float64]:
    """Return the joint distribution of root operator (or a single digit as the root) and label, (5, 10)."""
    counts = np.zeros((5, 10))
    np.add.at(counts, (table[:, ROOT], table[:, LABEL]), 1)
    return counts / len(table)


def _root_and_digits(table: Table) -> NDArray[np.int64]:
    """Return one number for each pair of root operator and value of the digits directly below it, (R,)."""
    return table[:, ROOT] * (NO_DIGIT + 1) + table[:, DIRECT_VALUE]


def _most_frequent_label(
    keys: NDArray[np.int64], labels: NDArray[np.int64], queries: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return, for each key in ``queries``, the most frequent label of that key in ``keys`` and ``labels``."""
    counts = np.zeros((int(max(keys.max(), queries.max())) + 1, 10), dtype=np.int64)
    np.add.at(counts, (keys, labels), 1)
    return counts.argmax(axis=1)[queries]
