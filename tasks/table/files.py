"""Read tables row by row: CSV, TSV, JSON Lines, Parquet, folders of ``datasets``, and the Hugging Face Hub."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.data.digest import settings_digest, sha256_of_file

if TYPE_CHECKING:
    import datasets

Row = Sequence[Any]
"""The cells of a row, in the order of the columns that were asked for."""

ALL = "all"
"""Name of the only part of a table without splits."""

ROWS_PER_BATCH = 256
LARGEST_CELL = 1 << 26
"""Largest accepted size of a cell of a CSV file in characters; a quote that is never closed would make one cell of the
rest of the file."""

_NAMES = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "eval"),
    "test": ("test", "testing"),
}
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_SUFFIXES = (*_DELIMITERS, ".jsonl", ".parquet")
_FORMATS = "a file .csv, .tsv, .jsonl or .parquet, a folder with such files named after splits, or one of save_to_disk"


@dataclass(frozen=True)
class Part:
    """One split of a table.

    Attributes:
        columns: Names of the columns.
        rows: Function that yields the rows with the given columns. Raises ``UserError`` if a row cannot be read.
        unlabelled: Label of rows without a label, None if there is none.
    """

    columns: Sequence[str]
    rows: Callable[[Sequence[str]], Iterator[Row]]
    unlabelled: Callable[[str], Any] = lambda column: None


@dataclass(frozen=True)
class Source:
    """A table.

    Attributes:
        option: The option that names the table with its value, for messages.
        name: Short name of the table.
        state: Digest that changes with the files.
        parts: Parts by split: train, validation and test as far as there are any, or ``ALL``.
        licence: Licence of the table.
        citation: Publication to cite.
    """

    option: str
    name: str
    state: str
    parts: Mapping[str, Part]
    licence: str = "not stated"
    citation: str = "none"


def open_path(path: str | None, delimiter: str | None, splits: Mapping[str, str], memory: Path) -> Source:
    """Open a file or folder.

    Args:
        path: The option ``task.path``.
        delimiter: Delimiter of CSV files, None for that of the suffix.
        splits: Names of the splits in a folder by the names that they have here; guessed by default.
        memory: Folder in which checksums are cached.

    Returns:
        The table.

    Raises:
        UserError: If there is no table, or it cannot be read.
    """
    if path in (None, "???"):
        raise UserError(f"task.path: names no table; set task.path=FILE to {_FORMATS}")
    root = Path(str(path)).expanduser()
    option = f"task.path={path}"
    if not root.exists():
        raise UserError(f"{option}: does not exist; set it to {_FORMATS}")
    with _unreadable(option):
        if root.is_dir() and any((root / name).is_file() for name in ("dataset_dict.json", "state.json")):
            return _saved(option, root, splits, memory)
        files = _files_by_split(root, splits, option)
        tables = {split: [_table(file, delimiter, option) for file in each] for split, each in files.items()}
        digests = {split: [sha256_of_file(file, memory) for file in each] for split, each in files.items()}
    parts = {split: _chained(each, option) for split, each in tables.items()}
    return Source(option, root.stem, settings_digest(digests, delimiter), parts)


def open_hub(
    name: str | None, config: str | None, revision: str | None, splits: Mapping[str, str], cache: Path
) -> Source:
    """Open a data set of the Hugging Face Hub, or a local folder, with ``datasets.load_dataset``.

    Args:
        name: Name of the repository, or path of a folder.
        config: Name of the configuration, None for the only one.
        revision: Revision of the repository.
        splits: As in ``open_path``.
        cache: Folder for the prepared tables; downloaded files are in the cache of huggingface_hub ($HF_HOME).

    Returns:
        The table.

    Raises:
        UserError: If it cannot be loaded.
    """
    if name in (None, "???"):
        raise UserError("task.name: names no data set; set task.name=OWNER/NAME, as on the Hugging Face Hub")
    option = f"task.name={name}"
    if os.environ.get("LRA_BENCH_OFFLINE") and not os.environ.get("HF_HUB_OFFLINE") and not Path(str(name)).exists():
        raise UserError(
            f"{option}: LRA_BENCH_OFFLINE disables network access; set HF_HUB_OFFLINE=1 instead to read a copy "
            "that was downloaded before, or task.name to a local folder"
        )
    import datasets

    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(str(name), config, revision=revision, cache_dir=str(cache))
    except Exception as error:  # load_dataset raises errors of many libraries
        raise UserError(
            f"{option}: cannot be loaded ({_first_line(error)}); check the name, task.config and the network, or set "
            "task.name to a local folder"
        ) from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    source = _of_datasets(option, re.sub(r"\W+", "-", str(name)).strip("-"), loaded, splits)
    about = next(iter(loaded.values())).info
    return replace(source, licence=about.license or "not stated", citation=about.citation.strip() or "none")


def _saved(option: str, root: Path, splits: Mapping[str, str], memory: Path) -> Source:
    """Open a folder of ``save_to_disk``."""
    import datasets

    source = _of_datasets(option, root.name, datasets.load_from_disk(str(root)), splits)
    files = sorted(path for path in root.rglob("*.arrow"))
    state = settings_digest([[str(file.relative_to(root)), sha256_of_file(file, memory)] for file in files], splits)
    return replace(source, state=state)


def _of_datasets(option: str, name: str, loaded: Any, splits: Mapping[str, str]) -> Source:
    import datasets

    if isinstance(loaded, datasets.Dataset):
        loaded = {ALL: loaded}
    chosen = _by_split(list(loaded), splits, option)
    parts = {split: _of_dataset(loaded[each[0]]) for split, each in chosen.items()}
    state = settings_digest([[split, loaded[each[0]]._fingerprint] for split, each in chosen.items()])
    return Source(option, name, state, parts)


def _of_dataset(dataset: datasets.Dataset) -> Part:
    from datasets import ClassLabel

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        for batch in dataset.select_columns(list(columns)).with_format(None).iter(ROWS_PER_BATCH):
            yield from zip(*(batch[column] for column in columns), strict=True)

    return Part(
        dataset.column_names, rows, lambda column: -1 if isinstance(dataset.features[column], ClassLabel) else None
    )


def _files_by_split(root: Path, splits: Mapping[str, str], option: str) -> dict[str, list[Path]]:
    files: dict[str, list[Path]] = {ALL: [root]} if root.is_file() else {}
    for file in sorted(root.iterdir()) if root.is_dir() else ():
        if file.suffix in _SUFFIXES and not file.name.startswith("."):
            files.setdefault(re.split(r"[-_.]", file.name)[0], []).append(file)
    if len(files) == 1 and not any(name in names for name in files for names in _NAMES.values()):
        files = {ALL: next(iter(files.values()))}
    if not files:
        raise UserError(f"{option}: contains no table; set it to {_FORMATS}")
    return {
        split: [file for name in names for file in files[name]]
        for split, names in _by_split(list(files), splits, option).items()
    }


def _by_split(names: Sequence[str], splits: Mapping[str, str], option: str) -> dict[str, list[str]]:
    """Return which of the names in a table are those of each split."""
    for split, name in splits.items():
        if split not in _NAMES or name not in names:
            wrong = f"there is no split {split}" if split not in _NAMES else f"{option} has no split {name}"
            raise UserError(f"task.splits: {wrong}; map {', '.join(_NAMES)} to some of {', '.join(names)}")
    if list(names) == [ALL]:
        return {ALL: [ALL]}
    guessed = {split: [name for name in names if name in known][:1] for split, known in _NAMES.items()}
    found = {split: [splits[split]] if split in splits else guessed[split] for split in _NAMES}
    if not found["train"]:
        raise UserError(
            f"{option}: has no split train, only {', '.join(names)}; name one with task.splits={{train: {names[0]}}}"
        )
    return {split: each for split, each in found.items() if each}


def _table(file: Path, delimiter: str | None, option: str) -> Part:
    """Open one file and read the names of its columns."""
    if file.suffix == ".parquet":
        import pyarrow.parquet

        return Part(pyarrow.parquet.read_schema(file).names, partial(_parquet_rows, file))
    if file.suffix == ".jsonl":
        first = next(iter(_json_lines(file)), None)
        return Part(list(first or ()), partial(_json_rows, file))
    if file.suffix not in _DELIMITERS:
        raise UserError(f"{option}: {file.name} is no table; set it to {_FORMATS}")
    delimiter = delimiter or _DELIMITERS[file.suffix]
    header = next(iter(_csv_lines(file, delimiter)), None)
    if not header:
        raise UserError(f"{option}: {file.name} is empty; set it to {_FORMATS}")
    _, columns = header
    if repeated := next((name for name in columns if columns.count(name) > 1), None):
        raise UserError(f"{option}: {file.name} has several columns {repeated!r}; rename all but one")
    others = [each for each in (",", ";", "\t", "|") if each != delimiter and each in columns[0]]
    if len(columns) == 1 and others:
        shown = others[0] if others[0] != "\t" else "\\t"
        raise UserError(
            f"{option}: {file.name} has a single column {columns[0]!r}, so its delimiter is not {delimiter!r}; set "
            f"task.delimiter='{shown}'"
        )
    return Part(columns, partial(_csv_rows, file, delimiter, columns))


def _chained(tables: Sequence[Part], option: str) -> Part:
    first = tables[0]

    def rows(columns: Sequence[str]) -> Iterator[Row]:
        with _unreadable(option):
            yield from chain.from_iterable(table.rows(columns) for table in tables)

    return Part(first.columns, rows)


def _csv_lines(file: Path, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not empty, and the number of its last line."""
    csv.field_size_limit(LARGEST_CELL)
    with file.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, delimiter=delimiter, strict=True)
        try:
            yield from ((reader.line_num, row) for row in reader if row)
        except csv.Error as error:
            raise ValueError(f"line {reader.line_num:,} of {file.name}: {error}") from error


def _csv_rows(file: Path, delimiter: str, header: Sequence[str], columns: Sequence[str]) -> Iterator[Row]:
    places, lines = [header.index(name) for name in columns], _csv_lines(file, delimiter)
    next(lines)
    for number, row in lines:
        if len(row) != len(header):
            raise ValueError(
                f"line {number:,} of {file.name} has {len(row)} cells instead of {len(header)}; quote texts that "
                f"contain {delimiter!r}"
            )
        yield [row[place] for place in places]


def _json_lines(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"line {number:,} of {file.name} is no JSON ({error})") from error
            if not isinstance(row, dict):
                raise ValueError(f"line {number:,} of {file.name} is no JSON object")
            yield row


def _json_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    return ([row.get(name) for name in columns] for row in _json_lines(file))


def _parquet_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    import pyarrow.parquet

    # A group of rows is decoded column by column; without a buffer all of its pages would be read at once.
    with pyarrow.parquet.ParquetFile(file, pre_buffer=False) as table:
        for batch in table.iter_batches(ROWS_PER_BATCH, columns=list(columns)):
            yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


@contextmanager
def _unreadable(option: str) -> Iterator[None]:
    """Convert errors of reading inside the context to ``UserError``, with a message that begins with an option."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise UserError(f"{option}: is not UTF-8 ({error.reason}); convert it, such as with iconv") from error
    except (OSError, ValueError) as error:  # pyarrow's exceptions are of these types
        raise UserError(f"{option}: cannot be read ({_first_line(error)}); correct the file") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
