"""The rows of a table in the cache, their classes, and the split of each row."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import DataCache, UserError
from lra_bench.data.columns import Integers, ListColumn, numbers
from lra_bench.data.digest import settings_digest

from ..documents.bytes import joined, short_digest, to_tokens
from ..options import SPLITS
from .files import ALL, Part, Row, Source
from .series import to_series

if TYPE_CHECKING:
    import datasets
    import pyarrow

    from lra_bench.data.cache import Advance

READER_VERSION = 1  # to be incremented if the same files are read differently
ITEMS_PER_TABLE = 1 << 22
"""Number of bytes or numbers after which rows are written, which limits memory."""
MOST_CLASSES = 1000

_PARTS = (*SPLITS, ALL)
_ODD = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio; the high bits of a product depend on all lower ones


@dataclass(frozen=True)
class Columns:
    """Columns of a table: ``inputs`` with the texts (one or two), or with the numbers of a series; and ``label``."""

    inputs: Sequence[str]
    label: str
    series: bool

    def resolved(self, part: Part, option: str) -> Columns:
        """Return the columns with patterns of ``values``, such as ``t*``, replaced by the columns that match.

        Raises ``UserError`` if there is no such column.
        """
        columns = part.columns
        inputs = {
            name: fnmatch.filter(columns, name) if self.series else [each for each in columns if each == name]
            for name in self.inputs
        }
        missing = {"values" if self.series else "text": name for name, each in inputs.items() if not each}
        for option_name, name in {**missing, **({} if self.label in columns else {"label": self.label})}.items():
            raise UserError(
                f"task.{option_name}={name}: {option} has no such column; choose from {', '.join(columns[:20])}"
            )
        return Columns([name for each in inputs.values() for name in each], self.label, self.series)


@dataclass(frozen=True)
class Content:
    """All rows of a table.

    Attributes:
        source: The table.
        rows: The rows that have input and label, with the columns ``tokens`` (bytes + 1 of complete texts) or
            ``values``, ``label``, ``digest`` (of the input), ``part``, the index of the split of the table, ``number``,
            that of the row in its split from 1 on, and ``left_out``, the number of other rows until the next one.
        pairs: Whether a row contains two texts.
        seed: Seed of the splits that the table lacks.
    """

    source: Source
    rows: datasets.Dataset
    pairs: bool
    seed: int

    @cached_property
    def inputs(self) -> ListColumn:
        """The texts or series."""
        return ListColumn(self.rows, "tokens" if "tokens" in self.rows.column_names else "values", self.pairs)

    @cached_property
    def lengths(self) -> Integers:
        """Length of each row, (R,): bytes of its longer text, or positions of its series."""
        lengths = self.inputs.lengths
        return lengths if lengths.ndim == 1 else lengths.max(axis=1)

    @cached_property
    def classes(self) -> list[str]:
        """The labels, sorted: as numbers if all are integers."""
        import pyarrow.compute

        labels = pyarrow.compute.unique(self.rows.data.column("label")).to_pylist()
        whole = all(label.removeprefix("-").isdecimal() for label in labels)
        return sorted(labels, key=int if whole else None)

    @cached_property
    def targets(self) -> Integers:
        """Index of the class of each row, (R,)."""
        import pyarrow
        import pyarrow.compute

        labels = self.rows.data.column("label")
        return pyarrow.compute.index_in(labels, pyarrow.array(self.classes, labels.type)).to_numpy().astype(np.int64)

    @cached_property
    def left_out(self) -> int:
        """Number of rows of the table without input or label."""
        first = np.unique(numbers(self.rows, "part"), return_index=True)[1]
        return int(numbers(self.rows, "left_out").sum() + (numbers(self.rows, "number")[first] - 1).sum())

    @cached_property
    def places(self) -> dict[str, Integers]:
        """Indices of the rows of each split.

        A row of a table without splits is in a split that depends on its input and ``seed`` only, so that equal inputs
        are in the same split.
        """
        parts, given = numbers(self.rows, "part"), self.source.parts
        found = {name: np.flatnonzero(parts == _PARTS.index(name)) for name in _PARTS}
        if "test" not in given and "validation" in given:
            found["test"], found["validation"] = found["validation"], found["test"]
        pool = found["train"] if "train" in given else found[ALL]
        factor = np.uint64((2 * self.seed + 1) * _ODD % (1 << 64))
        tenths = (numbers(self.rows, "digest").astype(np.uint64)[pool] * factor >> np.uint64(32)) % np.uint64(10)
        for tenth, name in enumerate(("test", "validation")):
            if not len(found[name]):
                drawn = tenths == tenth
                found[name], pool, tenths = pool[drawn], pool[~drawn], tenths[~drawn]
        return {"train": pool, "validation": found["validation"], "test": found["test"]}

    @cached_property
    def described(self) -> str:
        """Description of the splits."""
        made = [name for name in SPLITS[1:] if name not in self.source.parts]
        if made == ["test"]:
            return "test is the split validation, and validation a tenth of train, drawn by a hash of the input"
        return f"{' and '.join(made)} a tenth of the rows each, drawn by a hash of the input" if made else ""

    @cached_property
    def digest(self) -> str:
        """Digest of inputs, labels and splits, independent of the format of the files."""
        found = hashlib.sha256(settings_digest(self.classes, self.seed).encode())
        for name in SPLITS:
            for column in (numbers(self.rows, "digest"), self.targets):
                found.update(column[self.places[name]].astype("<i8").tobytes())
        return found.hexdigest()[:16]

    def check(self, allow_partial: bool) -> None:
        """Raise ``UserError`` if inputs or labels are missing, or a split lacks a class."""
        option, label = self.source.option, "task.label"
        if self.left_out and not allow_partial:
            raise UserError(
                f"{option}: {self.left_out:,} of {len(self.rows) + self.left_out:,} rows have no input or no label, "
                f"the first is {self._first_left_out()}; complete them, or set task.allow_partial=true to leave them "
                "out (records state this)"
            )
        if len(self.classes) > MOST_CLASSES:
            raise UserError(
                f"{label}: the column has {len(self.classes):,} different values, more than {MOST_CLASSES:,}; name a "
                "column of classes"
            )
        if len(self.classes) < 2:
            raise UserError(f"{label}: all rows have the label {self.classes[0]!r}; a classification needs two classes")
        for name, rows in self.places.items():
            if len(missing := np.setdiff1d(np.arange(len(self.classes)), self.targets[rows])):
                remedy = (
                    "add such rows" if name in self.source.parts else "set task.seed to another number, add such rows"
                )
                raise UserError(
                    f"{label}: no row of the split {name} ({len(rows):,} rows) has the class "
                    f"{self.classes[missing[0]]!r}; {remedy} or remove the class"
                )

    def _first_left_out(self) -> str:
        parts, given, after = (numbers(self.rows, name) for name in ("part", "number", "left_out"))
        before = np.flatnonzero((np.diff(parts, prepend=-1) != 0) & (given > 1))
        index = min([*before[:1], *np.flatnonzero(after)[:1]])
        number = 1 if index in before else given[index] + 1
        return f"row {number:,}{'' if ALL in self.source.parts else f' of {_PARTS[parts[index]]}'}"


def read(source: Source, columns: Columns, seed: int, name: str, cache: DataCache) -> Content:
    """Read a table into the cache, unless it is there.

    Args:
        source: The table.
        columns: The columns to read.
        seed: Seed of the splits that the table lacks.
        name: Name of the task.
        cache: The cache.

    Returns:
        The rows.

    Raises:
        UserError: If a column is missing, or a row cannot be read.
    """
    chosen = {part: columns.resolved(table, source.option) for part, table in source.parts.items()}
    inputs = next(iter(chosen.values())).inputs

    def make(advance: Advance) -> Iterator[pyarrow.Table]:
        for part, own in chosen.items():
            yield from _tables(source, part, own, advance)

    key = settings_digest(READER_VERSION, source.state, list(chosen), inputs, columns.label, columns.series)
    try:
        rows = cache.dataset(f"{name}-rows", key, make, 0, f"reading {source.name}")
    except ValueError as error:
        raise UserError(f"{source.option}: contains no row with input and label; add some") from error
    return Content(source, rows, len(inputs) == 2 and not columns.series, seed)


def _tables(source: Source, part: str, columns: Columns, advance: Advance) -> Iterator[pyarrow.Table]:
    """Yield the rows of a part, as many at a time as have ``ITEMS_PER_TABLE`` bytes or numbers."""
    table = source.parts[part]
    unlabelled = table.unlabelled(columns.label)
    inputs: list[list[NDArray[Any]]] = []
    about: list[list[Any]] = []  # label, digest, part, number, left_out
    items = 0
    for number, row in enumerate(table.rows([*columns.inputs, columns.label]), 1):
        where = f"{source.option}: row {number:,}{'' if part == ALL else f' of {part}'}"
        found = _input(row[:-1], columns, where)
        label = "" if row[-1] == unlabelled else _label(row[-1], where)
        if found is None or not label:
            if about:
                about[-1][-1] += 1
            continue
        if items > ITEMS_PER_TABLE:
            yield _written(inputs, about)
            advance(len(inputs))
            inputs, about, items = [], [], 0
        content = b"".join(len(each).to_bytes(8, "little") + each.tobytes() for each in found)
        inputs.append(found)
        about.append([label, short_digest(content), _PARTS.index(part), number, 0])
        items += sum(each.size for each in found)
    if inputs:
        yield _written(inputs, about)
        advance(len(inputs))


def _input(cells: Row, columns: Columns, where: str) -> list[NDArray[Any]] | None:
    """Return the texts or the series of a row, None if it lacks one."""
    if columns.series:
        return to_series(cells, columns.inputs, where)
    if any(cell is None or not str(cell).strip() for cell in cells):
        return None
    for name, cell in zip(columns.inputs, cells, strict=True):
        if not isinstance(cell, str):
            raise UserError(f"{where} of the column {name} is {type(cell).__name__}, not text; name another task.text")
    return [to_tokens(cell.encode(errors="replace")) for cell in cells]


def _label(cell: Any, where: str) -> str:
    """Return a label as text; empty if it is missing."""
    if isinstance(cell, float):
        if cell != cell:
            return ""
        if not cell.is_integer():
            raise UserError(f"{where} has the label {cell:g}; task.label must name a column of words or integers")
        cell = int(cell)
    if cell is not None and not isinstance(cell, str | int):
        raise UserError(
            f"{where} has a label of type {type(cell).__name__}; task.label must name a column of words or integers"
        )
    return "" if cell is None else str(cell).strip()


def _written(inputs: list[list[NDArray[Any]]], about: list[list[Any]]) -> pyarrow.Table:
    import pyarrow

    labels, *columns = zip(*about, strict=True)
    extra = dict(zip(("digest", "part", "number", "left_out"), map(np.array, columns), strict=True))
    examples = joined(inputs, np.zeros(len(inputs), np.int64))
    return replace(examples, extra=extra).table().append_column("label", pyarrow.array(labels, pyarrow.string()))
