"""Read CIFAR-10 from the authors' batches (folder or archive) or from parquet files as on the Hugging Face Hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import DataCache, UserError
from lra_bench.data.cache import Advance
from lra_bench.data.columns import numbers
from lra_bench.data.digest import settings_digest, sha256_of_file
from lra_bench.data.download import Remote
from lra_bench.data.examples import Examples
from lra_bench.data.splits import UNOFFICIAL

from .batches import BATCHES, TEST_BATCH, md5_of_batches, read_batches
from .pixels import CLASSES, SIDE, Part, grey, to_tokens
from .tables import coded_column, read_table

if TYPE_CHECKING:
    import datasets

ARCHIVE = "cifar-10-python.tar.gz"
ARCHIVE_ADDRESS = f"https://www.cs.toronto.edu/~kriz/{ARCHIVE}"
# As in keras.datasets.cifar10.
ARCHIVE_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
HUB = "uoft-cs/cifar10"
HUB_REVISION = "0b2714987fa478483af9968de7c934580d0bb9a2"
# Checksums shown by the Hub for this revision. The Hub is used because the authors' server is often not reachable.
REMOTES = (
    Remote(
        "plain_text/train-00000-of-00001.parquet",
        "train-00000-of-00001.parquet",
        sha256="8428b53a88a11ac374111006708df51469e315a22ac6d66470afd9c78d2ae883",
        size_bytes=119_705_255,
        repository=HUB,
        revision=HUB_REVISION,
    ),
    Remote(
        "plain_text/test-00000-of-00001.parquet",
        "test-00000-of-00001.parquet",
        sha256="841389e6f2d64f28bf17310e430aebac20ec3ba611a3c5e231dc93c645ce84de",
        size_bytes=23_940_850,
        repository=HUB,
        revision=HUB_REVISION,
    ),
)
OFFICIAL = "official"
OFFICIAL_PICTURES = {"train": 50_000, "test": 10_000}
MISSING = f"{ARCHIVE} (of {ARCHIVE_ADDRESS}), its folder cifar-10-batches-py, or train.parquet and test.parquet"


@dataclass(frozen=True)
class PictureFiles:
    """Files with CIFAR-10: batches in a folder, an archive of them, or parquet files of train, then of test."""

    form: Literal["batches", "archive", "tables"]
    root: Path
    paths: tuple[Path, ...]

    def state(self, memory: Path) -> str:
        """Return a digest that changes with the files; ``memory`` is the folder in which checksums are stored."""
        return settings_digest([[path.name, sha256_of_file(path, memory)] for path in self.paths])

    def identity(self, cache: DataCache) -> str:
        """Return ``official`` if all files have their official checksums, otherwise ``state``."""
        return OFFICIAL if self._are_official(cache) else self.state(cache.digests)

    def parts(self) -> Iterator[Part]:
        """Yield all pictures, in the order of the files."""
        if self.form != "tables":
            yield from read_batches(self.root)
            return
        for path in self.paths:
            yield from read_table(path, test=path.name.startswith("test"))

    def _are_official(self, cache: DataCache) -> bool:
        sums = [sha256_of_file(path, cache.digests) for path in self.paths]
        if self.form == "tables" or sums == [ARCHIVE_SHA256]:
            return sums in ([ARCHIVE_SHA256], [remote.sha256 for remote in REMOTES])

        def compare() -> dict[str, float]:
            return {"official": float(md5_of_batches(self.root) == BATCHES)}

        return bool(cache.note("image-batches", self.state(cache.digests), compare)["official"])


def find_pictures(path: Path) -> PictureFiles | None:
    """Return the pictures at ``path``, an archive or a folder in one of the known layouts, or None."""
    if path.is_file():
        return PictureFiles("archive", path, (path,))
    for folder in (path, path / "cifar-10-batches-py"):
        batches = tuple(folder / name for name in BATCHES if (folder / name).is_file())
        if len(batches) > 1 and batches[-1].name == TEST_BATCH:
            return PictureFiles("batches", folder, batches)
    if (path / ARCHIVE).is_file():
        return PictureFiles("archive", path / ARCHIVE, (path / ARCHIVE,))
    for folder in (path, path / "plain_text"):
        train, test = (tuple(sorted(folder.glob(f"{split}*.parquet"))) for split in ("train", "test"))
        if train and test and all(map(coded_column, train + test)):
            return PictureFiles("tables", folder, train + test)
    return None


def read_pictures(files: PictureFiles, advance: Advance) -> Examples:
    """Read all pictures as grey, train before test, in an order that does not depend on the file format.

    Classes alternate, so that the first pictures contain equally many of each class; within a class pictures are sorted
    by digest. The extra columns ``test`` and ``jpeg`` (0 or 1) state whether a picture belongs to the test split and
    whether it was stored as JPEG.

    Args:
        files: The files.
        advance: Called with the number of pictures read, for the progress bar.

    Returns:
        The pictures as tokens.

    Raises:
        UserError: If a file is damaged or contains something else, or a split is empty. The message names the file.
    """
    rows: list[tuple[bool, int, bytes, bool, bytes]] = []
    for part in files.parts():
        labelled = zip(to_tokens(grey(part.colours)), part.labels.tolist(), part.jpeg.tolist(), strict=True)
        for row, label, jpeg in labelled:
            content = row.tobytes()
            rows.append((part.test, label, hashlib.blake2b(content, digest_size=16).digest(), jpeg, content))
        advance(len(part.labels))
    rows.sort()
    test, labels = (np.array([row[place] for row in rows], dtype=np.int64) for place in (0, 1))
    for present, split in ((0 in test, "train"), (1 in test, "test")):
        if not present:
            raise UserError(f"task.source: {files.root} contains no {split} pictures")
    order = np.lexsort((labels, _rank_in_group(test * CLASSES + labels), test))
    return Examples(
        np.frombuffer(b"".join(rows[row][4] for row in order), dtype=np.uint8),
        np.full(len(rows), SIDE * SIDE, dtype=np.int64),
        labels[order],
        {"test": test[order], "jpeg": np.array([rows[row][3] for row in order], dtype=np.int64)},
    )


def missing_parts(pictures: datasets.Dataset, identity: str) -> tuple[str, str]:
    """Return descriptions of missing and of altered pictures; each is empty if the pictures are official.

    ``identity`` is that of the files the pictures were read from.
    """
    test = int(numbers(pictures, "test").sum())
    present = {"train": len(pictures) - test, "test": test}
    lossy = "coded as JPEG, which changes pixels" if numbers(pictures, "jpeg").any() else ""
    if present != OFFICIAL_PICTURES:
        counts = [f"{present[split]:,} of {total:,} {split} pictures" for split, total in OFFICIAL_PICTURES.items()]
        return " and ".join(counts), lossy
    return "" if lossy or identity == OFFICIAL else UNOFFICIAL, lossy


def _rank_in_group(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each element of the sorted array ``groups``, the number of earlier elements of the same group."""
    return np.arange(len(groups)) - np.searchsorted(groups, groups)
