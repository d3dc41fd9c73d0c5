"""Read IMDB reviews from the authors' folder or archive, or from tables as on the Hugging Face Hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from lra_bench.contracts import UserError
from lra_bench.data.archives import check_is_data, read_files
from lra_bench.data.cache import Advance
from lra_bench.data.digest import settings_digest, sha256_of_file, state_of_folder
from lra_bench.data.download import Remote
from lra_bench.data.examples import Examples

from ..documents.bytes import is_utf8, short_digest, to_tokens

if TYPE_CHECKING:
    import pyarrow

FILE_SPLITS = ("train", "test")
LABELS = {"neg": 0, "pos": 1}
HUB = "stanfordnlp/imdb"
HUB_REVISION = "e6281661ce1c48d982bc483cf8a173c1bbeb5d31"
# The checksums that public projects pin for this revision.
REMOTES = (
    Remote(
        "plain_text/train-00000-of-00001.parquet",
        "train-00000-of-00001.parquet",
        sha256="db47d16b5c297cc0dd625e519c81319c24c9149e70e8496de5475f6fa928342c",
        size_bytes=20_979_968,
        repository=HUB,
        revision=HUB_REVISION,
    ),
    Remote(
        "plain_text/test-00000-of-00001.parquet",
        "test-00000-of-00001.parquet",
        sha256="b52e26e2f872d282ffac460bf9770b25ac6f102cda0e6ca7158df98c94e8b3da",
        size_bytes=20_470_363,
        repository=HUB,
        revision=HUB_REVISION,
    ),
)
MISSING = "the folder aclImdb, aclImdb_v1.tar.gz, or train.parquet and test.parquet (or .csv, .jsonl, save_to_disk)"

_ARCHIVES = ("aclImdb_v1.tar.gz", "aclImdb_v1.tar")
# Files of one split: of the Hub, exported from it, and of save_to_disk of Hugging Face's datasets.
_TABLES = (
    *("{}.parquet", "plain_text/{}-*-of-*.parquet", "{}-*-of-*.parquet", "data/{}-*-of-*.parquet"),
    *("{}/data-*-of-*.arrow", "{}.csv", "{}.jsonl"),
)
_SHARD = re.compile(r"-(\d+)-of-(\d+)\.")
_REVIEW = re.compile(r"[^/.][^/]*\.txt")  # not the ._ files of macOS

_REPORTED = 1000

Review = tuple[int, bytes, str]  # label, text, location for messages


@dataclass(frozen=True)
class ReviewSource:
    """Files with labelled reviews of both splits.

    Attributes:
        place: Description of the location, for messages.
        state: Function that returns a digest that changes with the files, given the folder in which checksums are
            stored.
        reviews: Function that yields every review of a split in the order of the files. Raises ``UserError`` at the
            first review that cannot be read.
    """

    place: str
    state: Callable[[Path], str]
    reviews: Callable[[str], Iterator[Review]]


def find_reviews(path: Path) -> ReviewSource | None:
    """Return the reviews at ``path``, an archive or a folder in one of the known layouts, or None."""
    if path.is_file():
        return _archive(path)
    for root in (path, path / "aclImdb"):
        if all((root / split / label).is_dir() for split in FILE_SPLITS for label in LABELS):
            return ReviewSource(f"files of {root}", partial(_state_of_folder, root), partial(_in_folder, root))
    for name in _ARCHIVES:
        if (path / name).is_file():
            return _archive(path / name)
    for pattern in _TABLES:
        tables = {split: sorted(path.glob(pattern.format(split))) for split in FILE_SPLITS}
        if all(tables.values()):
            for files in tables.values():
                _check_shards(files)
            place = f"{tables['train'][0].suffix[1:]} files of {tables['train'][0].parent}"
            return ReviewSource(place, partial(_state_of_tables, tables), partial(_in_tables, tables))
    return None


def _archive(path: Path) -> ReviewSource:
    return ReviewSource(str(path), lambda memory: sha256_of_file(path, memory), partial(_in_archive, path))


def _state_of_folder(root: Path, memory: Path) -> str:
    return settings_digest([state_of_folder(root / split / label) for split in FILE_SPLITS for label in LABELS])


def _state_of_tables(tables: Mapping[str, Sequence[Path]], memory: Path) -> str:
    return settings_digest([sha256_of_file(path, memory) for split in FILE_SPLITS for path in tables[split]])


def _check_shards(files: Sequence[Path]) -> None:
    """Raise ``UserError`` if a shard is missing, given the names of the others, such as train-00000-of-00002."""
    names = {path.name for path in files}
    for path in files:
        if shard := _SHARD.search(path.name):
            for number in range(int(shard[2])):
                name = f"{path.name[: shard.start(1)]}{number:0{len(shard[1])}d}{path.name[shard.end(1) :]}"
                if name not in names:
                    raise UserError(f"task.source: {path.parent} does not contain {name}, only other shards of it")


def _in_folder(root: Path, split: str) -> Iterator[Review]:
    """Yield the reviews of a folder with one file per review in train/neg, train/pos, test/neg and test/pos."""
    for name, label in LABELS.items():
        folder = root / split / name
        for file, text in read_files(folder, lambda file: _REVIEW.fullmatch(file) is not None):
            yield label, text, str(folder / file)


def _in_archive(path: Path, split: str) -> Iterator[Review]:
    """Yield the reviews of a tar (plain or compressed) or zip archive of such a folder."""

    def place_of(name: str) -> tuple[str, str] | None:
        *_, within, label, file = ("", "", *name.split("/"))
        return (within, label) if label in LABELS and _REVIEW.fullmatch(file) else None

    for name, text in read_files(path, lambda name: (place_of(name) or ("",))[0] == split):
        yield LABELS[name.split("/")[-2]], text, f"{name} in {path}"


def _in_tables(tables: Mapping[str, Sequence[Path]], split: str) -> Iterator[Review]:
    """Yield the reviews of tables with the columns ``text`` and ``label`` (0 negative, 1 positive)."""
    import pyarrow

    for path in tables[split]:
        check_is_data(path)
        row = 0
        try:
            for batch in _batches(path):
                if missing := {"text", "label"} - set(batch.schema.names):
                    raise UserError(f"task.source: {path} has no column {min(missing)}")
                for text, label in zip(batch["text"].to_pylist(), batch["label"].to_pylist(), strict=True):
                    row += 1
                    if type(label) is not int or label not in (0, 1):
                        raise UserError(f"task.source: row {row} of {path} has the label {label!r} instead of 0 or 1")
                    if not isinstance(text, str | bytes):
                        raise UserError(f"task.source: row {row} of {path} is not text")
                    yield label, text.encode() if isinstance(text, str) else text, f"row {row} of {path}"
        except (pyarrow.ArrowException, OSError) as error:
            fault = str(error).strip().partition("\n")[0]
            raise UserError(f"task.source: {path} cannot be read after row {row} ({fault})") from error


def _batches(path: Path) -> Iterable[pyarrow.RecordBatch]:
    """Return the rows of a table, a file of Parquet, CSV, JSON Lines or the Arrow stream format, in batches."""
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet

    if path.suffix == ".parquet":
        return pyarrow.parquet.ParquetFile(path).iter_batches(1024, columns=["text", "label"])
    if path.suffix == ".arrow":
        return pyarrow.ipc.open_stream(path)
    block_size = 1 << 26  # no row may be longer
    if path.suffix == ".jsonl":
        return pyarrow.json.read_json(path, pyarrow.json.ReadOptions(block_size=block_size)).to_batches(1024)
    return pyarrow.csv.read_csv(
        path,
        pyarrow.csv.ReadOptions(block_size=block_size),
        pyarrow.csv.ParseOptions(newlines_in_values=True),
        pyarrow.csv.ConvertOptions(column_types={"text": pyarrow.string()}),
    ).to_batches(1024)


def read_reviews(source: ReviewSource, split: str, advance: Advance) -> Examples:
    """Read all reviews of a split, sorted by label and text, so that they do not depend on the file format.

    White space around a review is removed, as in Long Range Arena, whose input (``imdb_reviews`` of TensorFlow
    Datasets) is stripped; markup such as ``<br />`` is kept. The extra column ``digest`` is a digest of the text.

    Args:
        source: The files.
        split: ``train`` or ``test``.
        advance: Called with the number of reviews read, for the progress bar.

    Returns:
        The reviews as token ids.

    Raises:
        UserError: If a review is empty or not UTF-8, or there are none. The message names the review.
    """
    rows: list[tuple[int, bytes]] = []
    for label, text, where in source.reviews(split):
        stripped = text.strip()
        if not stripped:
            raise UserError(f"task.source: {where} is empty")
        if not is_utf8(stripped):
            raise UserError(f"task.source: {where} is not UTF-8")
        rows.append((label, stripped))
        if len(rows) % _REPORTED == 0:
            advance(_REPORTED)
    if not rows:
        raise UserError(f"task.source: {source.place} contains no {split} reviews")
    rows.sort()
    return Examples(
        to_tokens(b"".join(text for _, text in rows)),
        np.array([len(text) for _, text in rows], dtype=np.int64),
        np.array([label for label, _ in rows], dtype=np.int64),
        {"digest": np.array([short_digest(text) for _, text in rows], dtype=np.int64)},
    )
