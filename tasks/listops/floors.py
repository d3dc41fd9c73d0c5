"""Floors (baselines without a model) of ListOps, and statistics that compare two splits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .levels import FIRST_VALUE, HIGHEST, KINDS, LOWEST
from .trees import ARITY, DEPTH, DIRECT_VALUE, LABEL, ROOT

RUNGS = {"one_level": 1, "two_levels": 2, "three_levels": 3}
"""Number of levels that each rung evaluates."""

Table = NDArray[np.int64]  # (R, 9 + levels) from read_levels()


def correct_rows(train: Table, rows: Table) -> dict[str, NDArray[np.bool_]]:
    """Return whether each of five rules fitted on ``train`` is right about each of ``rows``, (R,).

    Each predicts the label that is most frequent in train among the trees with the same properties, or the prediction
    of the rule before it if there is no such tree:

    - ``majority``: no property;
    - ``root_operator``;
    - ``root_operator_and_digits``: the root operator and its value over the digits directly below it;
    - ``kinds_of_children``: these and the set of the operators directly below the root;
    - ``digits_of_children``: these and the smallest and the largest digit directly below these operators.
    """
    properties: dict[str, list[int]] = {
        "majority": [],
        "root_operator": [ROOT],
        "root_operator_and_digits": [ROOT, DIRECT_VALUE],
        "kinds_of_children": [ROOT, DIRECT_VALUE, KINDS],
        "digits_of_children": [ROOT, DIRECT_VALUE, KINDS, LOWEST, HIGHEST],
    }
    guesses, correct = np.zeros(len(rows), dtype=np.int64), {}
    for rule, columns in properties.items():
        guesses = _most_frequent_label(train, rows, columns, guesses)
        correct[rule] = guesses == rows[:, LABEL]
    return correct


def guesses_of_levels(train: Table, rows: Table, levels: int) -> Table:
    """Return the labels (R,) that an evaluator predicts which reads the digits on the first ``levels`` levels only.

    If a tree has no deeper level, its value is predicted. Otherwise what lies deeper is left out of the tree, and the
    label is predicted that is most frequent in train among the trees with the same root operator whose value without
    deeper levels is the same.
    """
    value = FIRST_VALUE + levels - 1
    root_only = _most_frequent_label(train, rows, [ROOT], np.zeros(len(rows), dtype=np.int64))
    guesses = _most_frequent_label(train, rows, [ROOT, value], root_only)
    return np.where(rows[:, DEPTH] <= levels + 1, rows[:, value], guesses)


def rung_rows(train: Table, rows: Table) -> dict[str, NDArray[np.bool_]]:
    """Return whether the evaluator of each of ``RUNGS`` is right about each of ``rows``, (R,)."""
    return {name: guesses_of_levels(train, rows, levels) == rows[:, LABEL] for name, levels in RUNGS.items()}


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


def _most_frequent_label(train: Table, rows: Table, columns: Sequence[int], otherwise: Table) -> Table:
    """Return the most frequent label in train of the trees that equal each of ``rows`` in ``columns``, (R,).

    Rows without an equal tree get ``otherwise``.
    """
    keys = np.zeros(len(train) + len(rows), dtype=np.int64)
    for column in columns:
        values = np.concatenate([train[:, column], rows[:, column]])
        keys = keys * (values.max() + 1) + values
    distinct, number = np.unique(keys, return_inverse=True)
    counts = np.zeros((len(distinct), 10), dtype=np.int64)
    np.add.at(counts, (number[: len(train)], train[:, LABEL]), 1)
    own = number[len(train) :]
    return np.where(counts[own].any(axis=1), counts.argmax(axis=1)[own], otherwise)
