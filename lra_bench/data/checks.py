"""Check the examples of a split against the specification of the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lra_bench.contracts import NOT_SCORED, TaskSpec, UserError

from .columns import ListColumn, is_list, numbers

if TYPE_CHECKING:
    import datasets
    from numpy.typing import NDArray

_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def check_split(dataset: datasets.Dataset, spec: TaskSpec, split: str) -> None:
    """Raise ``UserError``, which names column and row, if the examples of a split do not match the specification.

    Token ids must be integers below the size of the vocabulary, values finite numbers, targets integers below the
    number of classes, and lengths from 1 to the training length (from 1 on in language modelling).

    Args:
        dataset: The split, at the training length.
        spec: The specification.
        split: Name of the split, for messages.
    """
    inputs, limits = "values", (-_LARGEST_FLOAT, _LARGEST_FLOAT)
    if spec.vocabulary_size is not None:
        inputs, limits = "tokens", (0, spec.vocabulary_size - 1)
    columns: dict[str, tuple[float, float]] = {inputs: limits}
    if spec.kind != "language_modeling":
        columns["target"] = 0, spec.classes - 1
    for name, (low, high) in columns.items():
        where = f"task={spec.name}: the column {name} of {split}"
        _check_type(dataset, name, where)
        _check_range(dataset, name, spec, (low, high), where)
    lengths = ListColumn(dataset, inputs, documents=spec.kind == "matching").lengths
    if spec.kind != "language_modeling" and is_list(dataset, "target") != spec.per_token:
        expected = "one number per token" if spec.per_token else "one number per row"
        raise UserError(f"task={spec.name}: the column target of {split} must contain {expected}; {_REMEDY}")
    if spec.kind in ("tagging", "generation"):
        for row in np.flatnonzero(ListColumn(dataset, "target").lengths != lengths)[:1]:
            raise UserError(
                f"task={spec.name}: the column target of {split} has not as many numbers as {inputs} in row {row}; "
                f"{_REMEDY}"
            )
    lengths = lengths.reshape(len(lengths), -1)
    longest = np.inf if spec.kind == "language_modeling" else spec.train_length
    for row in np.flatnonzero((lengths < 1).any(axis=1) | (lengths > longest).any(axis=1))[:1]:
        raise UserError(
            f"task={spec.name}: row {row} of {split} has {lengths[row].max():,} {inputs} instead of 1 to "
            f"{spec.train_length:,} (train_length); {_REMEDY}"
        )


_REMEDY = "correct the data that the task returns"


def _check_type(dataset: datasets.Dataset, name: str, where: str) -> None:
    """Raise ``UserError`` if a column is missing, has missing numbers, or other types than numbers."""
    from pyarrow import types

    if name not in dataset.column_names:
        raise UserError(f"{where} is missing (there are {', '.join(dataset.column_names)}); {_REMEDY}")
    kind = dataset.data.schema.field(name).type
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    if not (types.is_integer(kind) or (name == "values" and types.is_floating(kind))):
        raise UserError(f"{where} contains {kind} instead of numbers from row 0 on; {_REMEDY}")
    for row, value in enumerate(dataset[name] if _has_missing(dataset, name) else ()):
        if _lacks(value):
            raise UserError(f"{where} has a missing number in row {row}; {_REMEDY}")


def _has_missing(dataset: datasets.Dataset, name: str) -> bool:
    for chunk in dataset.data.column(name).chunks:
        while chunk.null_count == 0 and hasattr(chunk, "flatten") and hasattr(chunk.type, "value_type"):
            chunk = chunk.flatten()
        if chunk.null_count:
            return True
    return False


def _lacks(value: Any) -> bool:
    return any(map(_lacks, value)) if isinstance(value, list) else value is None


def _check_range(dataset: datasets.Dataset, name: str, spec: TaskSpec, limits: tuple[float, float], where: str) -> None:
    """Raise ``UserError`` if a token, value or scored target is outside ``limits``, both inclusive, or not a number."""
    low, high = limits

    def outside(values: NDArray[Any]) -> NDArray[Any]:
        if name == "target" and spec.per_token:
            values = values[values != NOT_SCORED]
        fits = not values.size or (low <= values.min() and values.max() <= high)
        return values[:0] if fits else values[~((values >= low) & (values <= high))]

    lists = is_list(dataset, name) and ListColumn(dataset, name, documents=spec.kind == "matching" and name != "target")
    if not any(outside(chunk).size for chunk in (lists.values if lists else [numbers(dataset, name)])):
        return
    for row, value in enumerate(dataset.with_format(None)[name]):  # a chunk may contain rows that were not selected
        parts = value if lists and lists.lengths.ndim == 2 else [value]
        if (wrong := outside(np.concatenate([np.ravel(part) for part in parts]))).size:
            expected = "a finite number" if name == "values" else f"{low} to {high}"
            raise UserError(f"{where} contains {wrong.flat[0]} in row {row} instead of {expected}; {_REMEDY}")
