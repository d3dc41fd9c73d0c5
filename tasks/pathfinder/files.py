"""Read released Pathfinder pictures: PNG files and lists in plain text, in a folder or an archive."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lra_bench.contracts import DataCache, UserError
from lra_bench.data.archives import read_files
from lra_bench.data.columns import Integers, numbers
from lra_bench.data.digest import settings_digest, sha256_of_file, sha256_of_folder
from lra_bench.data.splits import hold_out
from lra_bench.progress import say

from .parameters import Parameters
from .rows import PIXELS_PER_PART, Part

if TYPE_CHECKING:
    import datasets

ARCHIVE = "lra_release.gz"
ARCHIVE_ADDRESS = f"https://storage.googleapis.com/long-range-arena/{ARCHIVE}"
OFFICIAL_PICTURES = 200_000
EMPTY_AT_MOST = 200  # number of empty files that are tolerated; one is known, in the easy set of 32
_SETS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
_LABEL, _MARGIN = 3, 9  # fields of a line; the first two are folder and name of the picture
_FIELDS = 11


class Listed(NamedTuple):
    """Entry of a picture in the lists: its index among all pictures, its label and margin."""

    number: int
    label: int
    margin: int


@dataclass(frozen=True)
class PictureFiles:
    """The released pictures of one set: its folder, or an archive that contains it."""

    root: Path
    parameters: Parameters

    def identity(self, cache: DataCache) -> str:
        """Return a digest of an archive, or of the lists and pictures of a folder.

        Raises ``UserError`` if the folder has no pictures.
        """
        if self.root.is_file():
            return sha256_of_file(self.root, cache.digests)
        if not (self.root / "imgs").is_dir():
            raise UserError(f"task.source: {self.root} has lists (metadata) but no pictures (imgs)")
        return settings_digest([sha256_of_folder(self.root / name, cache.digests) for name in ("metadata", "imgs")])

    def listing(self) -> dict[str, Listed]:
        """Return the listed pictures by file name, ordered by number of the list and line.

        Raises ``UserError`` if there are no lists or a line is invalid.
        """
        pattern = re.compile(rf"(?P<prefix>{self._prefix})metadata/(?P<number>\d+)\.npy")
        copies: dict[str, list[tuple[int, bytes]]] = {}
        for name, content in read_files(self.root, lambda name: pattern.fullmatch(name) is not None):
            if found := pattern.fullmatch(name):
                copies.setdefault(found["prefix"], []).append((int(found["number"]), content))
        if not copies:
            raise UserError(f"task.source: {self.root} has no lists (metadata/*.npy) of {describe(self.parameters)}")
        # The archive of Long Range Arena contains some sets twice; the labels of the deeper copy of 128 are wrong.
        prefix = min(copies, key=lambda prefix: (prefix.count("/"), prefix))
        if len(copies) > 1:
            say(f"task.source: {self.root} has {len(copies)} copies of {describe(self.parameters)}; using {prefix}")
        listed: dict[str, Listed] = {}
        for number, content in sorted(copies[prefix]):
            for name, label, margin in _lines(content, f"{self.root}: {prefix}metadata/{number}.npy"):
                listed.setdefault(f"{prefix}{name}", Listed(len(listed), label, margin))
        return listed

    def parts(self, listed: Mapping[str, Listed]) -> Iterator[Part]:
        """Yield the listed pictures in the order of the files, in parts; ``number`` is their index in the lists.

        Empty files are skipped, which is reported on stderr. Raises ``UserError`` if a file is damaged or has another
        size.
        """
        size = self.parameters.resolution
        rows_per_part = max(1, PIXELS_PER_PART // size**2)
        found: list[tuple[NDArray[np.uint8], Listed]] = []
        empty: list[str] = []
        count = 0
        for name, content in read_files(self.root, listed.__contains__):
            if not content:
                empty.append(name)
                continue
            found.append((_decoded(content, size, f"{self.root}: {name}"), listed[name]))
            count += 1
            if len(found) == rows_per_part:
                yield _part(found)
                found = []
        if found:
            yield _part(found)
        if empty:
            say(f"{self.root}: {len(empty):,} empty pictures are skipped (the first is {empty[0]})")
        if not count:
            raise UserError(f"task.source: {self.root} has none of the {len(listed):,} listed pictures")
        if missing := len(listed) - count - len(empty):
            say(f"{self.root}: {missing:,} listed pictures are missing")

    @property
    def _prefix(self) -> str:
        """Regular expression of the folders above the files of a set."""
        if self.root.is_dir():
            return ""
        return rf"(?:.*/)?pathfinder{self.parameters.resolution}/{_SETS[self.parameters.contour_length]}/"


def find_pictures(path: Path, parameters: Parameters) -> PictureFiles | None:
    """Return the set with these parameters at ``path``, or None.

    Any file is assumed to be an archive. A folder may contain the set, in one of the layouts of the release of Long
    Range Arena, or the archive.
    """
    if path.is_file():
        return PictureFiles(path, parameters)
    name, folder = _SETS[parameters.contour_length], f"pathfinder{parameters.resolution}"
    release = Path("lra_release")
    places = [path / place / name for place in (".", folder, release / folder, release / release / folder)]
    for place in (*places, *([path] if path.name == name else [])):
        if (place / "metadata").is_dir():
            return PictureFiles(place, parameters)
    if (path / ARCHIVE).is_file():
        return PictureFiles(path / ARCHIVE, parameters)
    return None


def parted(pictures: datasets.Dataset, seed: int) -> dict[str, Integers]:
    """Return the indices of the pictures of each split: of each label a tenth for test and a tenth for validation.

    Within a split the pictures are in the order of the lists. Raises ``UserError`` if there are too few.
    """
    order = np.argsort(numbers(pictures, "number"), kind="stable")
    targets, tenth = numbers(pictures, "target")[order], len(order) // 10
    if not tenth:
        raise UserError(f"task.source: there are only {len(order)} pictures, too few for three splits")
    rest, test = hold_out(targets, tenth, seed)
    train, validation = hold_out(targets[rest], tenth, seed)
    return {"train": order[rest[train]], "validation": order[rest[validation]], "test": order[test]}


def describe(parameters: Parameters) -> str:
    """Return the path of the folder of a set in the release."""
    return f"pathfinder{parameters.resolution}/{_SETS[parameters.contour_length]}"


def _lines(content: bytes, where: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, label and margin of each picture of a list."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"task.source: {where} is not text, unlike the released lists") from error
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != _FIELDS or fields[_LABEL] not in ("0", "1") or not fields[_MARGIN].isdecimal():
            raise UserError(
                f"task.source: {where}, line {number}: expected {_FIELDS} fields with the label (0 or 1) in the fourth"
            )
        folder = fields[0].replace("\\", "/").strip("/")  # backslashes in lists that were written on Windows
        yield f"{folder}/{fields[1]}", int(fields[_LABEL]), int(fields[_MARGIN])


def _decoded(content: bytes, size: int, where: str) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.size != (size, size) or picture.mode != "L":
                shape = f"{picture.width} x {picture.height}, mode {picture.mode}"
                raise UserError(f"task.source: {where} is not a grey picture of {size} x {size} pixels but {shape}")
            return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"task.source: {where} is damaged ({error})") from error


def _part(found: list[tuple[NDArray[np.uint8], Listed]]) -> Part:
    listed = np.array([entry for _, entry in found], dtype=np.int64)
    return Part(
        np.stack([pixels for pixels, _ in found]), listed[:, 1], {"number": listed[:, 0], "margin": listed[:, 2]}
    )
