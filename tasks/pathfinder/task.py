"""Pathfinder: are two marked ends those of one contour? Path-X is the same at 128 x 128 pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

from ..options import SPLITS, at_least, pixels_as, rows_asked_for
from .parameters import RESOLUTIONS, published

if TYPE_CHECKING:
    from pathlib import Path

    import datasets
    import pyarrow

    from lra_bench.data.cache import Advance

    from .files import PictureFiles
    from .floors import Features
    from .parameters import Parameters
    from .rows import Part

VERSION = 1  # of generator and reader
OFFICIAL_ROWS = {"train": 160_000, "validation": 20_000, "test": 20_000}
SQUARES = tuple(resolution**2 for resolution in RESOLUTIONS)
FITTED_ROWS = 10_000  # of train, on which the rules without a model are fitted
# Each split is a stretch of one stream of pictures, so far apart that no size of one changes another.
STRETCH = 1 << 40


class Pathfinder(Task):
    """Whether a dashed contour joins two discs, in pictures with another contour and distractors: two classes.

    Linsley et al. 2018, "Learning long-range spatial dependencies with horizontal gated recurrent units"; as in Tay et
    al. 2021, arXiv 2011.04006. ``resolution`` is 32, 64, 128 (Path-X) or 256, ``difficulty`` easy, intermediate or hard
    (contours of 6, 9 or 14 dashes). ``source``: ``generated`` (the default: what the original generator draws, from
    ``seed``), ``official`` (the folders pathfinder32 ... pathfinder256 of $LRA_BENCH_DATA, or the release that holds
    them), or the path of such a folder or of the archive. Released pictures are parted 80 : 10 : 10 by ``seed``, each
    split with both labels in the same shares. ``rows`` are drawn of each split, or read from its front.
    ``allow_partial`` admits a release that is not complete. ``input`` is ``tokens`` (256 intensities) or ``linear``
    (numbers from 0 to 1), which is another and easier task.

    Other lengths have ``extrapolation_rows``: ``canvas`` puts pictures at a random height of a black canvas as wide as
    they are, so that the pixel below stays as far away; ``resolution`` draws new ones by the published parameters of
    another resolution, in which dashes, gaps and contrasts differ too.
    Deviates from Long Range Arena: black pixels are not masked as if they were padding.
    """

    source_folders = (*(f"pathfinder{resolution}" for resolution in RESOLUTIONS), "lra_release")
    headline_floor = "marker_distance"
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
        self.input, self.rows = input, rows_asked_for(rows)
        self.extrapolation_rows, self.allow_partial, self.seed = extrapolation_rows, allow_partial, seed
        at_least(1, extrapolation_rows=extrapolation_rows)
        at_least(0, seed=seed)
        self.spec = TaskSpec(
            name="pathfinder" if resolution == 32 else f"pathfinder{resolution}",
            version="1",
            kind="classification",
            direction="either",
            **pixels_as(input),
            classes=2,
            train_length=resolution * resolution,
            grid=(resolution, resolution),
            chance=0.5,
        )
        self._own = self.spec.train_length, self.variants[0]
        self._cache: DataCache | None = None
        self._partial = ""
        self._splits: dict[tuple[str, int, str], datasets.Dataset] = {}

    def fingerprint(self) -> str:
        """A digest of the generator's settings, or of the released files, and of what is made of them."""
        from lra_bench.data.cache import Cache

        identity, rows = "", self._rows_to_draw()
        if self._released:
            cache = self._cache or Cache()
            identity, rows = self._locate(cache).identity(cache), self.rows
        made = (self.input, sorted(rows.items()), self.extrapolation_rows, self.seed)
        return settings_digest(VERSION, asdict(self.parameters), identity, *made)

    def prepare(self, cache: DataCache) -> None:
        """Draw the splits or read the released pictures, unless the cache holds them.

        Raises ``UserError`` where the labels of released pictures have nothing to do with them.
        """
        self._cache = cache
        self._splits.clear()
        if self._released:
            self._read(cache)
            return
        for name, rows in self._rows_to_draw().items():
            self._splits[name, *self._own] = self._drawn(name, self.parameters, rows)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Columns ``tokens`` (lists of uint8) or ``values`` (of float32), ``target``, ``length``, and what else is
        known of a picture; made now if ``length`` is a new one.
        """
        if name not in SPLITS:
            raise ValueError(f"{self.spec.name} has no split {name}")
        self._prepared()
        length, variant = self._resolved(length, variant)
        if (name, length, variant) not in self._splits:
            self._splits[name, length, variant] = self._lengthened(name, length, variant)
        return self._splits[name, length, variant]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """None, or why no picture has so many pixels."""
        length, variant = self._resolved(length, variant)
        width = self.resolution
        if variant == "canvas" and (length < width * width or length % width):
            return f"a canvas is {width} pixels wide and at least as high: a multiple of {width} from {width * width:,}"
        if variant == "resolution" and length not in SQUARES:
            squares = ", ".join(f"{square:,}" for square in SQUARES)
            return f"published parameters are those of pictures of {squares} pixels"
        return None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Accuracy of the commonest label of train (``majority``), and of the best threshold on the distance of the
        markers (``marker_distance``) and on the mean intensity (``brightness``), fitted on 10,000 rows of train that
        are made in the same way.
        """
        length, variant = self._resolved(length, variant)

        def make() -> dict[str, float]:
            from lra_bench.progress import bar

            from .floors import shortcut_accuracies

            # The black of a canvas tells nothing: its pictures are looked at as they are without it.
            place = self._own if variant == "canvas" else (length, variant)
            fitted, rows = min(FITTED_ROWS, len(self.split("train", *place))), len(self.split(split, length, variant))
            with bar(fitted + rows, f"floors of {self.spec.name}") as advance:
                train = self._features("train", place, fitted, advance)
                return shortcut_accuracies(train, self._features(split, place, rows, advance))

        key = settings_digest(self.fingerprint(), split, length, variant)
        return self._prepared().note(f"{self.spec.name}-floors", key, make)

    def check(self, split: str) -> None:
        """Raise ``UserError`` where intensities, balance or labels are off, or more pictures than a few occur twice."""
        from .checks import check_pictures

        others = {name: self.split(name) for name in SPLITS if name != split}
        check_pictures(self.split(split), f"{self.spec.name} {split}", self.parameters, others)

    def provenance(self) -> Provenance:
        """Source, terms and, for each split, the sha256 of its content, which holds the order of released pictures."""
        from lra_bench.data.examples import content_sha256

        source, licence = f"generated by lra-bench, generator version {VERSION}", "Apache-2.0"
        splits = {name: self.split(name) for name in SPLITS}
        lacks = [self._partial]
        if self._released:
            source, licence = f"files of {self._locate(self._prepared()).root}", "none stated (the generator's is MIT)"
            lacks += [f"only {rows:,} {name} rows" for name, rows in self.rows.items() if len(splits[name]) == rows]
        return Provenance(
            source,
            licence,
            "Linsley et al. 2018, Learning long-range spatial dependencies with horizontal gated recurrent units, "
            "NeurIPS 31; Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006",
            {name: content_sha256(split) for name, split in splits.items()},
            partial=", ".join(filter(None, lacks)),
        )

    @property
    def _released(self) -> bool:
        return self.source != "generated"

    def _rows_to_draw(self) -> dict[str, int]:
        return {**OFFICIAL_ROWS, **self.rows}

    def _drawn(self, name: str, parameters: Parameters, rows: int) -> datasets.Dataset:
        """The first pictures of a split as the generator draws it, at any resolution."""
        from .rows import drawn

        first = SPLITS.index(name) * STRETCH
        key = settings_digest(VERSION, asdict(parameters), self.seed, first, rows, self.input)
        what = f"drawing {self.spec.name} {name}"
        if parameters != self.parameters:
            what += f" at {parameters.resolution} x {parameters.resolution}"
        return self._stored(
            f"{name}-{parameters.resolution}", key, lambda: drawn(parameters, self.seed, first, rows), rows, what
        )

    def _lengthened(self, name: str, length: int, variant: str) -> datasets.Dataset:
        import numpy as np

        from .rows import on_canvas, read

        if reason := self.supports_length(length, variant):
            raise UserError(f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out")
        if variant == "resolution":
            return self._drawn(name, published(math.isqrt(length), self.difficulty), self.extrapolation_rows)
        own = self.split(name)
        rows = np.arange(min(self.extrapolation_rows, len(own)))
        seed = (self.seed, SPLITS.index(name), length)

        def make() -> Iterator[Part]:
            return on_canvas(read(own, self.parameters, rows), length // self.resolution, seed)

        key = settings_digest(self.fingerprint(), name, length)
        what = f"drawing {self.spec.name} {name} of length {length:,}"
        return self._stored(f"{name}-canvas-{length}", key, make, len(rows), what)

    def _read(self, cache: DataCache) -> None:
        """Read released pictures into the cache, hold their labels against them, and part the splits."""
        from lra_bench.data.splits import require_whole

        from .files import EMPTY_AT_MOST, OFFICIAL_PICTURES, parted
        from .rows import tables

        files = self._locate(cache)
        name = self.spec.name
        key = settings_digest(VERSION, asdict(self.parameters), files.identity(cache))

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            return tables(files.parts(files.listing()), False, advance)

        pictures = cache.dataset(f"{name}-released", key, make, OFFICIAL_PICTURES, f"reading {name}")
        lacks = f"{len(pictures):,} of {OFFICIAL_PICTURES:,} pictures"
        self._partial = lacks if len(pictures) < OFFICIAL_PICTURES - EMPTY_AT_MOST else ""
        require_whole(name, self._partial, self.allow_partial)
        for split, places in parted(pictures, self.seed).items():
            chosen = pictures.select(places[: self.rows.get(split)])
            self._splits[split, *self._own] = self._checked(split, chosen, key)

    def _checked(self, name: str, pictures: datasets.Dataset, key: str) -> datasets.Dataset:
        """A split of released pictures as models get it, once its labels were held against it."""
        from .checks import Agreement, agreement, check_agreement
        from .rows import read

        key = settings_digest(key, name, self.seed, len(pictures))
        found = self._prepared().note(
            f"{self.spec.name}-agreement", key, lambda: agreement(pictures, self.parameters)._asdict()
        )
        check_agreement(Agreement(*(int(found[count]) for count in Agreement._fields)), f"{self.spec.name} {name}")
        if self.input == "tokens":
            return pictures
        what = f"scaling {self.spec.name} {name}"
        return self._stored(name, key, lambda: read(pictures, self.parameters), len(pictures), what)

    def _stored(
        self, name: str, key: str, parts: Callable[[], Iterator[Part]], rows: int, what: str
    ) -> datasets.Dataset:
        from .rows import tables

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            return tables(parts(), self.input == "linear", advance)

        return self._prepared().dataset(f"{self.spec.name}-{name}", key, make, rows, what)

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
            return self._own
        return length, variant or self.variants[0]

    def _prepared(self) -> DataCache:
        if self._cache is None:
            raise RuntimeError(f"{self.spec.name}: prepare(cache) must run first")
        return self._cache
