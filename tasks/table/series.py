"""Series of numbers: reading, standardisation, and floors (baselines without a model)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import UserError
from lra_bench.data.examples import Examples

from ..linear_probe import linear_probe

MOST_FEATURES = 4096


def to_series(cells: Sequence[Any], names: Sequence[str], where: str) -> list[NDArray[np.float32]] | None:
    """Return the series of a row, a list of one array (N, C), or None if a cell is empty.

    If the cells are numbers, each is a position: N columns, one channel. If they are lists, each is a channel.

    Args:
        cells: Numbers or lists of numbers; also as text, of which a list is JSON or numbers with spaces in between.
        names: Names of the columns, for messages.
        where: Beginning of messages.

    Returns:
        The series.

    Raises:
        UserError: If a cell contains something else, or the lists of a row differ in length.
    """
    found = [_numbers(cell, name, where) for cell, name in zip(cells, names, strict=True)]
    columns = [each for each in found if each is not None and each.size]
    if len(columns) < len(found):
        return None
    if all(each.ndim == 0 for each in columns):
        return [np.stack(columns)[:, None]]
    if len({each.shape for each in columns}) > 1:
        lengths = ", ".join(f"{name} {each.size}" for each, name in zip(columns, names, strict=True))
        raise UserError(f"{where} has series of different lengths ({lengths}); task.values needs equal ones")
    return [np.stack(columns, axis=1)]


def _numbers(cell: Any, name: str, where: str) -> NDArray[np.float32] | None:
    if cell is None or cell == "":
        return None
    try:
        if isinstance(cell, str):
            text = cell.strip()
            cell = json.loads(text) if text.startswith("[") else text.split() if len(text.split()) > 1 else text
        array = np.asarray(cell, dtype=np.float32)
        if array.ndim > 1 or not np.isfinite(array).all():
            raise ValueError
    except (ValueError, TypeError) as error:
        raise UserError(
            f"{where} contains {str(cell)[:40]!r} in the column {name}, neither a finite number nor a list of them; "
            "name other columns with task.values"
        ) from error
    return array


def scale(parts: Iterable[NDArray[np.float32]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and standard deviation of each channel, (C,), over all positions of series (N, C)."""
    count, total, squares = 0, np.float64(0), np.float64(0)
    for part in parts:
        numbers = part.astype(np.float64)
        count, total, squares = count + len(part), total + numbers.sum(axis=0), squares + (numbers**2).sum(axis=0)
    mean = np.atleast_1d(total / count)
    deviation = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return mean, np.where(deviation > 0, deviation, 1)


def correct_rows(train: Examples, rows: Examples) -> dict[str, NDArray[np.bool_]]:
    """Return whether each of three rules fitted on ``train`` is right about each of ``rows``, (R,).

    ``majority``: the most frequent label. ``linear_summary``: softmax regression on mean, deviation, minimum, maximum,
    first and last number of each channel. ``linear_values``: softmax regression on the first 4,096 numbers.
    """
    width = min(int(train.lengths.max()), max(1, MOST_FEATURES // train.values.shape[1]))
    guesses = {"majority": np.full(len(rows), np.bincount(train.targets).argmax())}
    for rule, features in (("linear_summary", _summaries), ("linear_values", lambda each: _padded(each, width))):
        guesses[rule] = linear_probe(features(train), train.targets).predict(features(rows))
    return {rule: guess == rows.targets for rule, guess in guesses.items()}


def _summaries(examples: Examples) -> NDArray[np.float32]:
    series = np.split(examples.values, np.cumsum(examples.lengths)[:-1])
    return np.array([np.concatenate([x.mean(0), x.std(0), x.min(0), x.max(0), x[0], x[-1]]) for x in series])


def _padded(examples: Examples, width: int) -> NDArray[np.float32]:
    features = np.zeros((len(examples), width, examples.values.shape[1]), np.float32)
    for place, x in zip(features, np.split(examples.values, np.cumsum(examples.lengths)[:-1]), strict=True):
        place[: len(x)] = x[:width]
    return features.reshape(len(examples), -1)
