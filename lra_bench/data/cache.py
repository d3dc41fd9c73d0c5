"""Cache of prepared data on disk: Arrow folders, found by key, locked while they are built, written atomically."""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lra_bench.errors import UserError
from lra_bench.progress import Advance as Advance
from lra_bench.progress import bar, say
from lra_bench.runtime.files import expanded, home_unknown, read_whole, replacing, sync, why, writes_cache

from .digest import LARGEST_JSON, sha256_of_file
from .locks import hold

if TYPE_CHECKING:
    import datasets
    import pyarrow

MANIFEST = "manifest.json"
"""Name of the file in a data set's folder that contains its name, key, description, rows and checksums."""


@dataclass(frozen=True)
class Entry:
    """One prepared data set in the cache, as described by its manifest; ``size_bytes`` is the size of its files."""

    name: str
    key: str
    path: Path
    rows: int
    size_bytes: int
    description: str


class Cache:
    """Data sets in ``root``/data, one folder ``<name>-<key>`` per data set.

    ``root`` defaults to ``$LRA_BENCH_CACHE`` if set, otherwise to the platform's cache folder. ``key`` is a digest of
    everything that determines the content. A folder contains a manifest with the size and sha256 of each file, and is
    created by one atomic rename. Methods that write raise ``UserError`` if the folder cannot be written.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = expanded(root if root is not None else default_root(), "LRA_BENCH_CACHE").absolute()

    @property
    def digests(self) -> Path:
        """The folder that stores checksums of the user's files."""
        return self.root / "digests"

    def path(self, name: str, key: str) -> Path:
        """Return the path of the folder of a data set, whether it exists or not.

        Raises ``ValueError`` if ``name`` or ``key`` cannot be part of a file name.
        """
        for part in (name, key):
            if not re.fullmatch(r"[A-Za-z0-9_.=-]+", part):
                raise ValueError(f"{part!r} cannot be part of a file name")
        return self.root / "data" / f"{name}-{key}"

    def dataset(
        self,
        name: str,
        key: str,
        make: Callable[[Advance], datasets.Dataset | Iterator[pyarrow.Table]],
        total: int,
        description: str,
    ) -> datasets.Dataset:
        """Return the data set ``name``-``key``, building it if it is not in the cache.

        ``DataCache.dataset`` describes the arguments. One process builds the data set, others wait for it. A folder is
        rebuilt, with a message on stderr, if a file is missing or does not have the size in the manifest, or if Arrow
        cannot read it. Other damage that does not change sizes is found only by ``verify``, because checksums are not
        computed here. Inside ``cache_read_only`` the data set is built in memory. Raises ``UserError`` if the cache
        cannot be written.
        """
        folder = self.path(name, key)
        if (found := self._open(folder)) is not None:
            return found
        if not writes_cache():
            with bar(total, description) as advance:
                built = make(advance)
                if isinstance(built, Iterator):
                    import datasets
                    import pyarrow

                    built = datasets.Dataset(pyarrow.concat_tables(built))
                return built
        with self._root_in_errors():
            lock = hold(folder, description)
        with lock:
            if (found := self._open(folder)) is not None:
                return found
            if folder.exists():
                say(f"{folder.name}: {_damage(folder) or 'cannot be read'}; rebuilding it")
            with self._root_in_errors():
                _sweep(folder)
                temporary = TemporaryDirectory(
                    prefix=f"{folder.name}.building-", dir=folder.parent, ignore_cleanup_errors=True
                )
            with bar(total, description) as advance, temporary as scratch:
                built, destination = make(advance), Path(scratch, "complete")
                if isinstance(built, Iterator):
                    rows = self._write_tables(built, Path(scratch, "stream"), destination, key)
                else:
                    rows = len(built)
                    with self._root_in_errors():
                        _save(built, destination)
                with self._root_in_errors():
                    _finish(destination, folder, {"name": name, "key": key, "description": description, "rows": rows})
            if (found := self._open(folder)) is None:
                raise OSError(f"{folder}: {_damage(folder) or 'cannot be read'} right after it was written")
            return found

    def _open(self, folder: Path) -> datasets.Dataset | None:
        """Return the data set in a folder, memory-mapped, or None if it is missing or damaged."""
        with self._root_in_errors():
            if not folder.exists() or _damage(folder):
                return None
        import datasets

        try:
            opened = datasets.load_from_disk(str(folder))
        except Exception:  # Arrow raises various exceptions for unreadable files; the folder is rebuilt
            return None
        return opened if isinstance(opened, datasets.Dataset) else None

    def note(self, name: str, key: str, make: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Return the numbers stored as ``name``-``key``; compute and store them if there are none.

        ``DataCache.note`` describes the arguments. Inside ``cache_read_only`` the numbers are not stored. Raises
        ``UserError`` if the cache cannot be written.
        """
        folder = self.path(name, key)
        path = folder.with_name(f"{folder.name}.json")
        try:
            return {str(entry): float(value) for entry, value in json.loads(read_whole(path, LARGEST_JSON)).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            pass  # the file is missing or damaged: compute the numbers
        numbers = dict(make())
        if not writes_cache():
            return numbers
        with self._root_in_errors(), replacing(path) as temporary:
            temporary.write_text(json.dumps(numbers))
        return numbers

    def verify(self, name: str, key: str) -> list[str]:
        """Return the names of a data set's files that are missing or whose sha256 differs from the manifest.

        If the manifest is missing or damaged, only its name is returned.
        """
        folder = self.path(name, key)
        if (manifest := _manifest(folder)) is None:
            return [MANIFEST]
        return [
            file
            for file, known in manifest["files"].items()
            if not (folder / file).is_file() or sha256_of_file(folder / file) != known["sha256"]
        ]

    def entries(self) -> list[Entry]:
        """Return all complete data sets in the cache, sorted by the names of their folders."""
        found = []
        for path in sorted((self.root / "data").glob(f"*/{MANIFEST}")):
            manifest = _manifest(path.parent)
            if manifest is None or path.parent.name != f"{manifest['name']}-{manifest['key']}":
                continue  # the manifest is damaged, or the folder is a temporary one
            size = sum(file["bytes"] for file in manifest["files"].values())
            attributes = manifest["name"], manifest["key"], path.parent, manifest["rows"], size, manifest["description"]
            found.append(Entry(*attributes))
        return found

    def _write_tables(self, tables: Iterator[pyarrow.Table], stream: Path, destination: Path, fingerprint: str) -> int:
        """Save tables as one data set, keeping one at a time in memory, and return the number of rows.

        Args:
            tables: The tables.
            stream: Path of a temporary file for the rows, in Arrow's stream format.
            destination: Folder of the data set.
            fingerprint: Id of the data set for the library ``datasets``, by which it names caches of derived data.

        Returns:
            The number of rows.

        Raises:
            ValueError: If there are no rows.
        """
        import datasets
        import pyarrow

        # Only errors of writing are reported as errors of the cache: an error in ``tables`` is one of the user's files.
        writer, rows = None, 0
        try:
            for table in tables:
                with self._root_in_errors():
                    writer = writer or pyarrow.ipc.new_stream(stream, table.schema)
                    writer.write_table(table)
                rows += len(table)
        finally:
            if writer is not None:
                with self._root_in_errors():
                    writer.close()
        if not rows:
            raise ValueError("there are no rows to write")
        # save_to_disk would copy all rows. Save only the first one, to create the files of the folder, and replace its
        # data file, which has the same format, with the stream.
        with self._root_in_errors():
            first = datasets.Dataset.from_file(str(stream)).data.slice(0, 1)
            _save(datasets.Dataset(first, fingerprint=fingerprint), destination)
            (data,) = destination.glob("*.arrow")
            stream.replace(data)
        return rows

    @contextmanager
    def _root_in_errors(self) -> Iterator[None]:
        """Convert an ``OSError`` to ``UserError`` with a message that names the cache folder."""
        try:
            yield
        except OSError as error:
            raise UserError(
                f"LRA_BENCH_CACHE={self.root}: {why(error)}; set LRA_BENCH_CACHE to another folder"
            ) from error


def default_root() -> Path:
    """Return ``$LRA_BENCH_CACHE`` if set, otherwise the platform's cache folder.

    Raises ``UserError`` if it is in the home folder of a user that has none.
    """
    named = os.environ.get("LRA_BENCH_CACHE")
    if named:
        return Path(named)
    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("lra-bench"))
    except RuntimeError as error:
        raise home_unknown("LRA_BENCH_CACHE") from error


def _manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest in a folder, or None if it is missing or damaged."""
    try:
        manifest = json.loads(read_whole(folder / MANIFEST, LARGEST_JSON))
    except (OSError, ValueError, RecursionError):
        return None
    return manifest if _is_valid(manifest) else None


def _is_valid(manifest: Any) -> bool:
    """Return whether a manifest has all fields and only names files inside its folder."""
    if not isinstance(manifest, dict) or not isinstance(files := manifest.get("files"), dict):
        return False
    kinds = {"name": str, "key": str, "description": str, "rows": int}
    return all(isinstance(manifest.get(field), kind) for field, kind in kinds.items()) and all(
        isinstance(known, dict)
        and isinstance(known.get("bytes"), int)
        and isinstance(known.get("sha256"), str)
        and not Path(file).is_absolute()
        and ".." not in Path(file).parts
        for file, known in files.items()
    )


def _damage(folder: Path) -> str | None:
    """Return a description of a missing file or wrong file size in a folder, or None; checksums are not computed."""
    if (manifest := _manifest(folder)) is None:
        return f"{MANIFEST} is missing or damaged"
    for file, known in manifest["files"].items():
        path = folder / file
        if not path.is_file():
            return f"{file} is missing"
        if (size := path.stat().st_size) != known["bytes"]:
            return f"{file} has {size:,} bytes instead of {known['bytes']:,}"
    return None


def _save(dataset: datasets.Dataset, destination: Path) -> None:
    """Write a data set to a new folder."""
    with without_bars():
        dataset.save_to_disk(str(destination))


def _finish(complete: Path, folder: Path, attributes: dict[str, Any]) -> None:
    """Add the manifest to a complete folder, sync all files to disk, and rename the folder to ``folder``.

    Args:
        complete: Folder that contains all files of the data set.
        folder: Final path, which must not exist.
        attributes: Fields of the manifest: name, key, description and rows.
    """
    files = {
        str(path.relative_to(complete)): {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        for path in sorted(complete.rglob("*"))
        if path.is_file()
    }
    manifest = {"schema_version": 1, **attributes, "files": files}
    (complete / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (*complete.rglob("*"), complete):
        sync(path)
    complete.replace(folder)
    sync(folder.parent)


def _sweep(folder: Path) -> None:
    """Remove a data set, if it exists, and its temporary folders of killed processes; the caller holds the lock."""
    if folder.exists():
        # Rename first, so that no reader opens a folder of which some files are already removed.
        folder.replace(folder.with_name(f"{folder.name}.building-{uuid.uuid4().hex[:8]}"))
    for path in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def without_bars() -> Iterator[None]:
    """Hide the progress bars of ``datasets`` inside the context."""
    import datasets

    were_disabled = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()
