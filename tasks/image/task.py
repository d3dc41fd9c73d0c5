"""Image: classify grey pictures of 32 x 32 pixels or fewer, read as a sequence of pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import DataCache, Provenance, Task, TaskSpec, UserError
from lra_bench.data.digest import settings_digest

from ..options import SPLITS, at_least, checked_rows, pixel_input

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow
    from numpy.typing import NDArray

    from lra_bench.contracts import FloorRows
    from lra_bench.data.cache import Advance
    from lra_bench.data.columns import Integers
    from lra_bench.data.download import Remote

    from .files import PictureFiles
    from .floors import Features
    from .pixels import Pictures

READER_VERSION = 1
VALIDATION_SHARE = 10  # a tenth, as in Long Range Arena
ORIGINAL = 32  # height and width of the pictures of CIFAR-10
SMALLEST = 8


class Image(Task):
    """CIFAR-10 pictures in grey, read pixel by pixel: ten classes.

    An example has 1,024 tokens, the intensities (0 black to 255 white) of 32 x 32 pixels line by line, such as
    ``62 61 60 ... 98 97``, and the class of the picture, 0 (airplane) to 9 (truck). With a lower ``resolution`` all
    pictures are averaged by area, and an example is shorter: 256 tokens for 16 x 16 pixels.

    Other lengths of a split are made from its first ``extrapolation_rows`` pictures. ``canvas`` places each picture at
    a random height on a taller canvas of the same width, whose other lines are noise with the intensities of train; the
    distance in tokens to the pixel below stays the same. ``resolution`` resizes the original pictures to another
    square, averaged by area or bilinear, which changes this distance.

    Floors (baselines without a model): ``majority``; ``bag_of_pixels``, softmax regression on the histogram of
    intensities; ``linear_pixels``, softmax regression on the pixels; ``nearest_pictures``, the ten nearest training
    pictures.

    Source: Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny Images"; as in Tay et al. 2021, arXiv
    2011.04006. Deviates from Long Range Arena: validation is a random tenth of each class instead of the last tenth of
    train; black pixels are not masked as padding.

    Args:
        source: None or ``official`` (the folders cifar-10-batches-py, cifar10 or cifar10_jpeg_lossy of $LRA_BENCH_DATA,
            otherwise the Hugging Face Hub), or the path of the authors' archive, of its folder, or of a folder with
            train.parquet and test.parquet. Pictures are sorted, so that all sources give the same examples.
        resolution: Height and width in pixels: any integer from 8 to 32, which is that of the original pictures.
        input: ``tokens``, or ``linear`` for intensities as numbers, a different and easier task. They have mean 0 and
            standard deviation 1 at ``resolution=32``; averaged pictures are scaled alike and deviate less.
        rows: Number of examples by split, to use fewer than there are; always the same ones.
        extrapolation_rows: Number of examples of each split at other lengths.
        allow_partial: Whether to accept fewer pictures, JPEG copies, or pictures that differ from the official files.
        seed: Seed of the validation split and of canvases.

    Raises:
        UserError: If an option is out of range.
    """

    source_folders = ("cifar-10-batches-py", "cifar10", "cifar10_jpeg_lossy")
    variants = ("canvas", "resolution")

    def __init__(
        self,
        *,
        source: str | None = None,
        resolution: int = ORIGINAL,
        input: str = "tokens",
        rows: Mapping[str, int] | None = None,
        extrapolation_rows: int = 2000,
        allow_partial: bool = False,
        seed: int = 0,
    ) -> None:
        if not isinstance(resolution, int) or not SMALLEST <= resolution <= ORIGINAL:
            raise UserError(f"task.resolution={resolution}: must be an integer from {SMALLEST} to {ORIGINAL}")
        self.source, self.resolution, self.input, self.rows = source, resolution, input, checked_rows(rows)
        self.extrapolation_rows, self.allow_partial, self.seed = extrapolation_rows, allow_partial, seed
        at_least(1, extrapolation_rows=extrapolation_rows)
        at_least(0, seed=seed)
        self.spec = TaskSpec(
            name="image",
            version="1",
            kind="classification",
            direction="either",
            **pixel_input(input),
            classes=10,
            train_length=resolution * resolution,
            grid=(resolution, resolution),
            chance=0.1,
        )
        self._cache: DataCache | None = None
        self._identity, self._place = "", ""
        self._lacks: tuple[str, str] = "", ""
        self._originals: dict[str, datasets.Dataset] = {}
        self._splits: dict[tuple[str, int, str], datasets.Dataset] = {}
        self._noise: NDArray[np.uint8] | None = None

    def fingerprint(self) -> str:
        """Return a digest of the pictures and the options; without pictures, the official ones are assumed."""
        rows = sorted(self.rows.items())
        identity = self._identity or self._available_identity()
        averaged = () if self.resolution == ORIGINAL else (self.resolution,)
        return settings_digest(
            READER_VERSION, identity, self.input, rows, self.extrapolation_rows, self.seed, *averaged
        )

    def prepare(self, cache: DataCache) -> None:
        """Find or download the pictures, read them into the cache once, split them, and lower their resolution."""
        from lra_bench.data.splits import require_whole

        from .files import OFFICIAL_PICTURES, REMOTES, missing_parts, read_pictures

        files = self._locate(cache, REMOTES)
        identity = files.identity(cache)

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            yield read_pictures(files, advance).table(fixed=True)

        key = settings_digest(READER_VERSION, identity)
        pictures = cache.dataset("image-pictures", key, make, sum(OFFICIAL_PICTURES.values()), "reading CIFAR-10")
        lacks = missing_parts(pictures, identity)
        require_whole("image", " and ".join(filter(None, lacks)), self.allow_partial)
        self._cache, self._identity, self._place, self._lacks = cache, identity, str(files.root), lacks
        self._splits.clear()
        self._noise = None
        for name, places in self._split_indices(pictures).items():
            self._originals[name] = pictures.select(places)
            self._splits[name, self.spec.train_length, self.variants[0]] = self._as_input(name)

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        """Return a split with the columns ``tokens`` (uint8) or ``values`` (float32), ``target`` and ``length``.

        A split of another length is created if it is not in the cache. Raises ``UserError`` if the length is
        impossible, ``ValueError`` if there is no such split or variant.
        """
        if name not in SPLITS:
            raise ValueError(f"image has no split {name}")
        self._prepared()
        length, variant = self._resolved(length, variant)
        key = name, length, variant
        if key not in self._splits:
            self._splits[key] = self._at_length(name, length, variant)
        return self._splits[key]

    def supports_length(self, length: int, variant: str | None = None) -> str | None:
        """Return the reason why no picture of the variant has ``length`` pixels, or None if one has."""
        from .lengths import size_of

        size = size_of(*self._resolved(length, variant), self.resolution)
        return size if isinstance(size, str) else None

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> Mapping[str, float]:
        """Return the accuracies of the rules of ``floors.correct_rows``.

        They are fitted on all training pictures of the same variant and length. Larger pictures are averaged down to
        the number of pixels at the training length.
        """
        from ..floor_rows import means

        return means(self.floor_rows(split, length, variant))

    def floor_rows(
        self, split: str, length: int | None = None, variant: str | None = None
    ) -> Mapping[str, NDArray[Any]]:
        """Return whether each of these rules is right about each picture, (R,) by name."""
        from ..floor_rows import stored

        length, variant = self._resolved(length, variant)

        def make(advance: Advance) -> FloorRows:
            from .floors import correct_rows

            train = self._features("train", length, variant, advance)
            return correct_rows(train, self._features(split, length, variant, advance), advance)

        key = settings_digest(self.fingerprint(), split, length, variant)
        # Pictures of both splits are created, then three rules are fitted on those of train.
        total = 4 * len(self.split("train")) + len(self.split(split, length, variant))
        where = "" if length == self.spec.train_length else f" at length {length:,}, {variant}"
        return stored(self._prepared(), "image-floors", key, make, total, f"floors of image{where}")

    def check(self, split: str) -> None:
        """Raise ``UserError`` if intensities or class frequencies are wrong, or too many pictures are duplicates."""
        from .checks import check_pictures

        others = {name: self.split(name) for name in SPLITS if name != split}
        check_pictures(self.split(split), f"image {split}", self.spec.train_length, others)

    def provenance(self) -> Provenance:
        """Return source, licence, citation and, for each split, the sha256 of lengths, input and targets."""
        from lra_bench.data.examples import content_sha256

        self._prepared()
        splits = {name: self.split(name) for name in SPLITS}
        subsets = [
            f"only {len(splits[name]):,} {name} rows" for name in SPLITS if len(splits[name]) == self.rows.get(name)
        ]
        return Provenance(
            source=self._place,
            licence="none stated; the author asks for the citation",
            citation=(
                "Krizhevsky 2009, Learning Multiple Layers of Features from Tiny Images; "
                "Tay et al. 2021, Long Range Arena: A Benchmark for Efficient Transformers, arXiv 2011.04006"
            ),
            checksums={name: content_sha256(split) for name, split in splits.items()},
            partial=", ".join(filter(None, [self._lacks[0], *subsets])),
            lossy=self._lacks[1],
        )

    def _locate(self, cache: DataCache, remotes: Sequence[Remote]) -> PictureFiles:
        from lra_bench.data.sources import locate

        from .files import MISSING, find_pictures

        return locate("image", self.source, self.source_folders, find_pictures, remotes, cache, MISSING)

    def _available_identity(self) -> str:
        from lra_bench.data.cache import Cache

        from .files import OFFICIAL

        cache = Cache()
        try:
            files = self._locate(cache, ())
        except UserError:
            if self.source not in (None, "official"):
                raise
            return OFFICIAL
        return files.identity(cache)

    def _split_indices(self, pictures: datasets.Dataset) -> dict[str, Integers]:
        """Return the indices of the pictures of each split among all pictures."""
        import numpy as np

        from lra_bench.data.columns import numbers
        from lra_bench.data.splits import hold_out

        targets, test = numbers(pictures, "target"), numbers(pictures, "test") == 1
        train = np.flatnonzero(~test)
        if len(train) < VALIDATION_SHARE:
            raise UserError(
                f"task.source: {self._place} contains {len(train)} training pictures, too few to hold out a tenth"
            )
        kept, held_out = hold_out(targets[train], len(train) // VALIDATION_SHARE, self.seed)
        places = {"train": train[kept], "validation": train[held_out], "test": np.flatnonzero(test)}
        return {name: rows[: self.rows.get(name)] for name, rows in places.items()}

    def _as_input(self, name: str) -> datasets.Dataset:
        """Return the examples of a split at the training length, with the columns of the option ``input``."""
        pictures = self._originals[name]
        if self.input == "tokens" and self.resolution == ORIGINAL:
            return pictures.select_columns(["tokens", "target", "length"])

        from lra_bench.data.columns import numbers

        from .lengths import parts, resized
        from .pixels import to_pictures
        from .rows import rows_of, tables

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            originals = parts(to_pictures(rows_of(pictures)))
            averaged = (resized(part, self.resolution, self.resolution) for part in originals)
            return tables(averaged, numbers(pictures, "target"), self.input == "linear", advance)

        key = settings_digest(self.fingerprint(), name)
        description = f"{'normalising' if self.resolution == ORIGINAL else 'resizing'} image {name}"
        return self._prepared().dataset(f"image-{name}", key, make, len(pictures), description)

    def _at_length(self, name: str, length: int, variant: str) -> datasets.Dataset:
        """Return a split at another length from the cache, creating it if it is not there."""
        from .rows import tables

        if reason := self.supports_length(length, variant):
            raise UserError(f"measure.extrapolation_ratios: length {length:,} is not possible ({reason}); leave it out")
        parts, labels = self._pictures(name, length, variant, self.extrapolation_rows)

        def make(advance: Advance) -> Iterator[pyarrow.Table]:
            return tables(parts, labels, self.input == "linear", advance)

        key = settings_digest(self.fingerprint(), name)
        description = f"creating image {name} of length {length:,}, {variant}"
        return self._prepared().dataset(f"image-{name}-{variant}-{length}", key, make, len(labels), description)

    def _pictures(
        self, name: str, length: int, variant: str, rows: int | None
    ) -> tuple[Iterator[Pictures], NDArray[np.int64]]:
        """Return the first ``rows`` pictures of a split at a length, in parts, and their labels."""
        from lra_bench.data.columns import numbers

        from .lengths import lengthened, noise_of, parts
        from .pixels import to_pictures
        from .rows import rows_of

        labels = numbers(self._originals[name], "target")
        if length != self.spec.train_length and variant == "resolution":
            pictures = to_pictures(rows_of(self._originals[name]))
        else:
            pictures = to_pictures(rows_of(self.split(name)), self.resolution)
        if length == self.spec.train_length:
            return parts(pictures[:rows]), labels[:rows]
        if self._noise is None:
            self._noise = noise_of(to_pictures(rows_of(self.split("train")), self.resolution))
        seed = (self.seed, SPLITS.index(name), length)
        return lengthened(pictures[:rows], length, variant, self._noise, seed), labels[:rows]

    def _features(self, name: str, length: int, variant: str, advance: Advance) -> Features:
        from .floors import features

        rows = None if length == self.spec.train_length or name == "train" else self.extrapolation_rows
        return features(*self._pictures(name, length, variant, rows), advance, self.resolution)

    def _resolved(self, length: int | None, variant: str | None) -> tuple[int, str]:
        if variant not in (None, *self.variants):
            raise ValueError(f"image has no variant {variant}")
        trained = self.spec.train_length
        return length or trained, self.variants[0] if variant is None or length in (None, trained) else variant

    def _prepared(self) -> DataCache:
        if self._cache is None:
            raise RuntimeError("image: prepare(cache) must run first")
        return self._cache
