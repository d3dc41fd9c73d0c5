"""Pathfinder as released: PNG files beside lists in plain text, in a folder or an archive."""

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
from lra_bench.data.digest import settings_digest, sha256_of_file
from lra_bench.data.splits import hold_out
from lra_bench.progress import say

from .parameters import Parameters
from .rows import PIXELS_PER_PART, Part

if TYPE_CHECKING:
    import datasets

ARCHIVE = "lra_release.gz"
ARCHIVE_ADDRESS = f"https://storage.googleapis.com/long-range-arena/{ARCHIVE}"
OFFICIAL_PICTURES = 200_000
EMPTY_AT_MOST = 200  # one is known to be empty, in the easy set of 32
_SETS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
_LABEL, _MARGIN = 3, 9  # fields of a line, which begins with folder and name of the picture
_FIELDS = 11


class Listed(NamedTuple):
    """What the lists say of a picture: its place among all of them, its label and margin."""

    number: int
    label: int
    margin: int


@dataclass(frozen=True)
class PictureFiles:
    """The released pictures of one set: its folder, or an archive that holds it."""

    root: Path
    parameters: Parameters

    def identity(self, cache: DataCache) -> str:
        """A digest of an archive, or of a folder's lists: pictures are too many to be read each time."""
        if self.root.is_file():
            return sha256_of_file(self.root, cache.digests)
        lists = sorted((self.root / "metadata").iterdir())
        return settings_digest([[path.name, sha256_of_file(path, cache.digests)] for path in lists if path.is_file()])

    def listing(self) -> dict[str, Listed]:
        """The listed pictures by the name under which they are found, in order: lists by their number, then lines.

        Raises ``UserError`` where there are no lists, or a line is none of them.
        """
        pattern = re.compile(rf"(?P<prefix>{self._prefix})metadata/(?P<number>\d+)\.npy")
        copies: dict[str, list[tuple[int, bytes]]] = {}
        for name, content in read_files(self.root, lambda name: pattern.fullmatch(name) is not None):
            if found := pattern.fullmatch(name):
                copies.setdefault(found["prefix"], []).append((int(found["number"]), content))
        if not copies:
            raise UserError(f"task.source: {self.root} holds no lists (metadata/*.npy) of {describe(self.parameters)}")
        # Long Range Arena's archive holds two copies of some sets; the labels of the deeper one of 128 are broken.
        prefix = min(copies, key=lambda prefix: (prefix.count("/"), prefix))
        if len(copies) > 1:
            say(f"task.source: {self.root} holds {len(copies)} copies of {describe(self.parameters)}; using {prefix}")
        listed: dict[str, Listed] = {}
        for number, content in sorted(copies[prefix]):
            for name, label, margin in _lines(content, f"{self.root}: {prefix}metadata/{number}.npy"):
                listed.setdefault(f"{prefix}{name}", Listed(len(listed), label, margin))
        return listed

    def parts(self, listed: Mapping[str, Listed]) -> Iterator[Part]:
        """The pictures that are listed, as they come, some at a time; ``number`` is their place in the lists.

        Empty files are dropped, and stderr says so. Raises ``UserError`` where one is damaged or of another size.
        """
        size = self.parameters.resolution
        at_once = max(1, PIXELS_PER_PART // size**2)
        found: list[tuple[NDArray[np.uint8], Listed]] = []
        empty: list[str] = []
        count = 0
        for name, content in read_files(self.root, listed.__contains__):
            if not content:
                empty.append(name)
                continue
            found.append((_decoded(content, size, f"{self.root}: {name}"), listed[name]))
            count += 1
            if len(found) == at_once:
                yield _part(found)
                found = []
        if found:
            yield _part(found)
        if empty:
            say(f"{self.root}: {len(empty):,} empty pictures are left out (the first is {empty[0]})")
        if missing := len(listed) - count - len(empty):
            say(f"{self.root}: {missing:,} pictures are listed but not there")

    @property
    def _prefix(self) -> str:
        """What stands before the names in a set, as a pattern."""
        if self.root.is_dir():
            return ""
        return rf"(?:.*/)?pathfinder{self.parameters.resolution}/{_SETS[self.parameters.contour_length]}/"


def find_pictures(path: Path, parameters: Parameters) -> PictureFiles | None:
    """The set of these parameters at ``path``: any file is taken for an archive; a folder may hold the set at the
    places of Long Range Arena's release, or an archive.
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
    """Places of the splits among released pictures: of each label a tenth for the test and a tenth for validation.

    Within a split pictures stand in the order of the lists, however they were read. Raises ``UserError`` where they are
    too few.
    """
    order = np.argsort(numbers(pictures, "number"), kind="stable")
    targets, tenth = numbers(pictures, "target")[order], len(order) // 10
    if not tenth:
        raise UserError(f"task.source: it holds {len(order)} pictures, too few for three splits")
    rest, test = hold_out(targets, tenth, seed)
    train, validation = hold_out(targets[rest], tenth, seed)
    return {"train": order[rest[train]], "validation": order[rest[validation]], "test": order[test]}


def describe(parameters: Parameters) -> str:
    """A set as its folders are called."""
    return f"pathfinder{parameters.resolution}/{_SETS[parameters.contour_length]}"


def _lines(content: bytes, where: str) -> Iterator[tuple[str, int, int]]:
    """Name, label and margin of each picture of a list."""
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"task.source: {where} is no text, as the released lists are") from error
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if len(fields) != _FIELDS or fields[_LABEL] not in ("0", "1") or not fields[_MARGIN].isdecimal():
            raise UserError(
                f"task.source: {where}, line {number}: expected {_FIELDS} fields with the label (0 or 1) in the fourth"
            )
        yield f"{fields[0]}/{fields[1]}", int(fields[_LABEL]), int(fields[_MARGIN])


def _decoded(content: bytes, size: int, where: str) -> NDArray[np.uint8]:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as picture:
            if picture.size != (size, size) or picture.mode != "L":
                shape = f"{picture.width} x {picture.height}, mode {picture.mode}"
                raise UserError(f"task.source: {where} is no grey picture of {size} x {size} pixels but {shape}")
            return np.asarray(picture)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"task.source: {where} is damaged ({error})") from error


def _part(found: list[tuple[NDArray[np.uint8], Listed]]) -> Part:
    told = np.array([listed for _, listed in found], dtype=np.int64)
    return Part(np.stack([pixels for pixels, _ in found]), told[:, 1], {"number": told[:, 0], "margin": told[:, 2]})
