"""Pathfinder: classify whether two marked ends belong to the same contour. Path-X is the task at 128 x 128 pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

from ..options import SPLITS, at_least, checked_rows, pixel_input
from .parameters import RESOLUTIONS, published

if TYPE_CHECKING:
    from pathlib import Path

    import datasets
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.contracts import FloorRows
    from lra_bench.data.cache import Advance

    from .files import PictureFiles
    from .floors import Features
    from .parameters import Parameters
    from .rows import Part

VERSION = 1  # of the generator and of the reader
OFFICIAL_ROWS = {"train": 160_000, "validation": 20_000, "test": 20_000}
SQUARES = tuple(resolution**2 for resolution in RESOLUTIONS)
FITTED_ROWS = 10_000  # number of training examples on which the floors are fitted
# Distance between the splits in the stream of pictures, so large that the size of one does not affect another.
STRETCH = 1 << 40


class Pathfinder(Task):
    """Whether a dashed contour joins two discs in a picture with distractors: two classes.

    A picture contains two long dashed contours, shorter distractors, and two discs. A sketch of a picture with the
    label 1, in which o is a disc::

        o - - .        - -
              ` - - o      `
          - -          - - '

    The label is 1 if the discs are on the two ends of one contour, 0 if they are on ends of different contours. An
    example is the sequence of the pixels (0 black to 255 white), line by line.

    Other lengths of a split have ``extrapolation_rows`` examples. ``canvas`` places pictures at a random height on a
    black canvas of the same width, which keeps the distance in tokens to the pixel below. ``resolution`` draws new
    pictures with the published parameters of another resolution, in which dashes, gaps and contrasts also differ.

    Floors (baselines without a model): ``majority``; ``marker_distance``, a threshold on the distance of the discs;
    ``brightness``, a threshold on the mean intensity; ``marker_orientation``, boosted trees on the distance of the
    discs and on orientation and curvature of the contours at them.

    Source: Linsley et al. 2018, "Learning long-range spatial dependencies with horizontal gated recurrent units"; as in
    Tay et al. 2021, arXiv 2011.04006. Deviates from Long Range Arena: black pixels are not masked as padding.

    Args:
        resolution: Height and width in pixels: 32, 64, 128 (Path-X) or 256.
        difficulty: ``easy``, ``intermediate`` or ``hard``: contours of 6, 9 or 14 dashes.
        source: ``generated`` (pictures as drawn by the original generator, from ``seed``), ``official`` (the folders
            pathfinder32 ... pathfinder256 of $LRA_BENCH_DATA, or the release that contains them), or the path of such a
            folder or of the archive. Released pictures are split 80 : 10 : 10 by ``seed``, stratified by label.
        input: ``tokens`` (256 intensities), or ``linear`` for numbers from 0 to 1, a different and easier task.
        rows: Number of examples by split, generated or taken from the start of the split.
        extrapolation_rows: Number of examples of each split at other lengths.
        allow_partial: Whether to accept an incomplete release.
        seed: Seed of the pictures, of canvases and of the splits of a release.

    Raises:
        UserError: If an option is out of range.
    """

    source_folders = (*(f"pathfinder{resolution}" for resolution in RESOLUTIONS), "lra_release")
    variants = ("canvas", "resolution")

    def __init__(
        self,
        *,
        resolution: int = 32,
        difficulty: str = "hard",
        source: str | None = "generated",
        input: str = "tokens",
        rows: Mapping[str, int] | None = None,
        extrapolation_rows: int = 2000,
        allow_partial: bool = False,
        seed: int = 0,
    ) -> None:
        self.parameters = published(resolution, difficulty)
        self.resolution, self.difficulty, self.source = resolution, difficulty, source or "generated"
        self.input, self.rows = input, checked_rows(rows)
        self.extrapolation_rows, self.allow_partial, self.seed = extrapolation_rows, allow_partial, seed
        at_least(1, extrapolation_rows=extrapolation_rows)
        at_least(0, seed=seed)
        self.spec = TaskSpec(
            name="pathfinder" if resolution == 32 else f"pathfinder{resolution}",
            version="1",
            kind="classification",
            direction="either",
            **pixel_input(input),
            classes=2,
            train_length=resolution * resolution,
            grid=(resolution, resolution),
            chance=0.5,
        )
        self._training_form = self.spec.train_length, self.variants[0]
        self._cache: DataCache | None = None
        self._partial = self._identity = ""
        self._splits: dict[tuple[str, int, str], datasets.Dataset] = {}

    def fingerprint(self) -> str:
        """Return a digest of the generator's settings, or of the released files, and of the options."""
        from lra_bench.data.cache import Cache

        identity, rows = "", self._rows_to_draw()
        if self._released:
            cache = self._cache or Cache()
            identity, rows = self._identity or self._locate(cache).identity(cache), self.rows
        made = (self.input, sorted(rows.items()), self.extrapolation_rows, self.seed)
        return settings_digest(VERSION, asdict(self.parameters), identity, *made)

    def prepare(self, cache: DataCache) -> None:
        """Draw the splits, or read the released pictures, if they are not in the cache.

        Raises ``UserError`` if the labels of released pictures do not agree with the pictures.
        """
        self._cache, self._identity = cache, ""
        self._splits.clear()
        if self._released:
            self._read(cache)
            return
        for name, rows in self._rows_to_draw().items():
            self._splits[name, *self._training_form] = self._drawn(name, self.parameters, rows)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split with the columns ``tokens`` (uint8) or ``values`` (float32), ``target``, ``length``, metadata.

        A split of another length is created if it is not in the cache. Raises ``UserError`` if the length is
        impossible, ``ValueError`` if there is no such split or variant.
        """
        if name not in SPLITS:
            raise ValueError(f"{self.spec.name} has no split {name}")
        self._prepared()
        length, variant = self._resolved(length, variant)
        if (name, length, variant) not in self._splits:
            self._splits[name, length, variant] = self._at_length(name, length, variant)
        return self._splits[name, length, variant]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return the reason why no picture of the variant has ``length`` pixels, or None if one has."""
        length, variant = self._resolved(length, variant)
        width = self.resolution
        if variant == "canvas" and (length < width * width or length % width):
            return (
                f"a canvas is {width} pixels wide and at least as high: "
                f"a multiple of {width}, at least {width * width:,}"
            )
        if variant == "resolution" and length not in SQUARES:
            squares = ", ".join(f"{square:,}" for square in SQUARES)
            return f"there are published parameters only for pictures of {squares} pixels"
        return None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the accuracies of the rules of ``floors.correct_rows``.

        They are fitted on 10,000 training examples of the same variant and length.
        """
        from ..floor_rows import means

        return means(self.floor_rows(split, length, variant))

    def floor_rows(
        self, split: str, length: int | None = None, variant: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return whether each of these rules is right about each picture, (R,) by name."""
        from ..floor_rows import stored

        length, variant = self._resolved(length, variant)
        # The black canvas contains no information: the floors are computed on the pictures without it.
        place = self._training_form if variant == "canvas" else (length, variant)
        fitted, rows = min(FITTED_ROWS, len(self.split("train", *place))), len(self.split(split, length, variant))

        def make(advance: Advance) -> FloorRows:
            from .floors import correct_rows

            train = self._features("train", place, fitted, advance)
            return correct_rows(train, self._features(split, place, rows, advance))

        name, key = self.spec.name, settings_digest(self.fingerprint(), split, length, variant)
        return stored(self._prepared(), f"{name}-floors", key, make, fitted + rows, f"floors of {name}")

    def check(self, split: str) -> None:
        """Raise ``UserError`` if intensities or labels are wrong, or too many pictures are duplicates."""
        from .checks import check_pictures

        others = {name: self.split(name) for name in SPLITS if name != split}
        check_pictures(self.split(split), f"{self.spec.name} {split}", self.parameters, others)

    def provenance(self) -> Provenance:
        """Return source, licence, citation and the sha256 of each split, which depends on the order of the pictures."""
        from lra_bench.data.examples import content_sha256
        from lra_bench.data.splits import UNVERIFIED

        source, licence = f"generated by lra-bench, generator version {VERSION}", "Apache-2.0"
        splits = {name: self.split(name) for name in SPLITS}
        missing = [self._partial]
        if self._released:
            unverified = "" if self._partial else f" ({UNVERIFIED})"
            source = f"files of {self._locate(self._prepared()).root}{unverified}"
            licence = "none stated (the generator's is MIT)"
            missing += [f"only {rows:,} {name} rows" for name, rows in self.rows.items() if len(splits[name]) == rows]
        return Provenance(
            source,
            licence,
            "Linsley et al. 2018, Learning long-range spatial dependencies with horizontal gated recurrent units, "
            "NeurIPS 31; Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006",
            {name: content_sha256(split) for name, split in splits.items()},
            partial=", ".join(filter(None, missing)),
        )

    @property
    def _released(self) -> bool:
        return self.source != "generated"

    def _rows_to_draw(self) -> dict[str, int]:
        return {**OFFICIAL_ROWS, **self.rows}

    def _drawn(self, name: str, parameters: Parameters, rows: int) -> datasets.Dataset:
        """Return the first pictures of a split from the cache, drawing them if they are not there."""
        from .rows import drawn

        first = SPLITS.index(name) * STRETCH
        key = settings_digest(VERSION, asdict(parameters), self.seed, first, rows, self.input)
        description = f"drawing {self.spec.name} {name}"
        if parameters != self.parameters:
            description += f" at {parameters.resolution} x {parameters.resolution}"
        return self._stored(
            f"{name}-{parameters.resolution}", key, lambda: drawn(parameters, self.seed, first, rows), rows, description
        )

    def _at_length(self, name: str, length: int, variant: str) -> datasets.Dataset:
        """Return a split at another length from the cache, creating it if it is not there."""
        import numpy as np

        from .rows import on_canvas, read

        if reason := self.supports_length(length, variant):
            raise UserError(f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out")
        if variant == "resolution":
            return self._drawn(name, published(math.isqrt(length), self.difficulty), self.extrapolation_rows)
        originals = self.split(name)
        rows = np.arange(min(self.extrapolation_rows, len(originals)))
        seed = (self.seed, SPLITS.index(name), length)

        def make() -> Iterator[Part]:
            return on_canvas(read(originals, self.parameters, rows), length // self.resolution, seed)

        key = settings_digest(self.fingerprint(), name, length)
        description = f"drawing {self.spec.name} {name} of length {length:,}"
        return self._stored(f"{name}-canvas-{length}", key, make, len(rows), description)

    def _read(self, cache: DataCache) -> None:
        """Read released pictures into the cache, split them, and check their labels."""
        from lra_bench.data.splits import require_whole

        from .files import EMPTY_AT_MOST, OFFICIAL_PICTURES, parted
        from .rows import tables

        files = self._locate(cache)
        name = self.spec.name
        self._identity = files.identity(cache)
        key = settings_digest(VERSION, asdict(self.parameters), self._identity)

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            return tables(files.parts(files.listing()), False, advance)

        pictures = cache.dataset(f"{name}-released", key, make, OFFICIAL_PICTURES, f"reading {name}")
        missing = f"{len(pictures):,} of {OFFICIAL_PICTURES:,} pictures"
        self._partial = missing if len(pictures) < OFFICIAL_PICTURES - EMPTY_AT_MOST else ""
        require_whole(name, self._partial, self.allow_partial)
        for split, places in parted(pictures, self.seed).items():
            selected = pictures.select(places[: self.rows.get(split)])
            self._splits[split, *self._training_form] = self._checked(split, selected, key)

    def _checked(self, name: str, pictures: datasets.Dataset, key: str) -> datasets.Dataset:
        """Check the labels of a split of released pictures, and return it with the columns of the option ``input``."""
        from .checks import Agreement, agreement, check_agreement
        from .rows import read

        key = settings_digest(key, name, self.seed, len(pictures))
        found = self._prepared().note(
            f"{self.spec.name}-agreement", key, lambda: agreement(pictures, self.parameters)._asdict()
        )
        check_agreement(Agreement(*(int(found[count]) for count in Agreement._fields)), f"{self.spec.name} {name}")
        if self.input == "tokens":
            return pictures
        description = f"scaling {self.spec.name} {name}"
        return self._stored(name, key, lambda: read(pictures, self.parameters), len(pictures), description)

    def _stored(
        self, name: str, key: str, parts: Callable[[], Iterator[Part]], rows: int, description: str
    ) -> datasets.Dataset:
        """Return a data set from the cache, creating it from the pictures of ``parts`` if it is not there."""
        from .rows import tables

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            return tables(parts(), self.input == "linear", advance)

        return self._prepared().dataset(f"{self.spec.name}-{name}", key, make, rows, description)

    def _features(self, name: str, place: tuple[int, str], rows: int, advance: Advance) -> Features:
        import numpy as np

        from .floors import features
        from .rows import read

        pictures, parameters = self.split(name, *place), published(math.isqrt(place[0]), self.difficulty)
        return features(read(pictures, parameters, np.arange(rows)), parameters, advance)

    def _locate(self, cache: DataCache) -> PictureFiles:
        from lra_bench.data.sources import locate

        from .files import ARCHIVE, ARCHIVE_ADDRESS, describe, find_pictures

        folders = (f"pathfinder{self.resolution}", "lra_release")
        missing = f"{ARCHIVE} (of {ARCHIVE_ADDRESS}), or its folder {describe(self.parameters)}"

        def find(path: Path) -> PictureFiles | None:
            return find_pictures(path, self.parameters)

        return locate(self.spec.name, self.source, folders, find, (), cache, missing)

    def _resolved(self, length: int | None, variant: str | None) -> tuple[int, str]:
        if variant not in (None, *self.variants):
            raise ValueError(f"{self.spec.name} has no variant {variant}")
        if length in (None, self.spec.train_length):
            return self._training_form
        return length, variant or self.variants[0]

    def _prepared(self) -> DataCache:
        if self._cache is None:
            raise RuntimeError(f"{self.spec.name}: prepare(cache) must run first")
        return self._cache
