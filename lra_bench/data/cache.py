"""Prepared data on disk: Arrow folders, keyed, locked while they are built, never half-written."""

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
from typing import TYPE_CHECKING, Any

from lra_bench.errors import UserError
from lra_bench.progress import Advance as Advance
from lra_bench.progress import bar, say
from lra_bench.runtime.files import replacing, sync, why, writes_cache

from .digest import sha256_of_file
from .locks import hold

if TYPE_CHECKING:
    import datasets
    import pyarrow

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Entry:
    """One prepared data set in the cache; ``size_bytes`` counts its files on disk."""

    name: str
    key: str
    path: Path
    rows: int
    size_bytes: int
    description: str


class Cache:
    """Data sets under ``root``/data, one folder each: ``<name>-<key>``.

    ``root`` is $LRA_BENCH_CACHE, else the platform's cache folder. ``key`` digests everything that decides the
    content. A folder holds a manifest with size and sha256 of each file; it appears by one rename, so it is whole or
    absent. Raises ``UserError`` where the folder cannot be written.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = (root if root is not None else default_root()).expanduser().absolute()

    @property
    def digests(self) -> Path:
        """Where checksums of the user's own files are remembered."""
        return self.root / "digests"

    def path(self, name: str, key: str) -> Path:
        """The folder of one data set, whether it is there or not."""
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
        """The data set ``name``-``key``, memory-mapped; made by ``make(advance)`` if it is not there yet.

        What is made is a data set, or tables one after another, of which only one at a time need be in memory.

        ``total`` and ``description`` are for the progress display. One process builds, others wait for it. A folder
        with a missing or cut file is rebuilt, and stderr says so. Inside ``cache_read_only`` the data set is made in
        memory.
        """
        folder = self.path(name, key)
        if (found := _open(folder)) is not None:
            return found
        if not writes_cache():
            with bar(total, description) as advance:
                return _in_memory(make(advance))
        with self._lock(folder, description):
            if (found := _open(folder)) is not None:
                return found
            if folder.exists():
                say(f"{folder.name}: {_damage(folder) or 'cannot be read'}; it is rebuilt")
            with self._named_in_errors():
                _sweep(folder)
            with bar(total, description) as advance, self._aside(folder) as aside:
                made, whole = make(advance), aside / "whole"
                if isinstance(made, Iterator):
                    rows = self._write_tables(made, aside / "spool", whole, key)
                else:
                    rows = len(made)
                    with self._named_in_errors():
                        _save(made, whole)
                with self._named_in_errors():
                    _finish(whole, folder, {"name": name, "key": key, "description": description, "rows": rows})
            if (found := _open(folder)) is None:
                raise OSError(f"{folder}: {_damage(folder) or 'cannot be read'} right after it was written")
            return found

    def note(self, name: str, key: str, make: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Figures computed from data, remembered under ``name`` and ``key``; made by ``make()`` if unknown."""
        path = self.path(name, key).with_suffix(".json")
        try:
            return {str(entry): float(value) for entry, value in json.loads(path.read_text()).items()}
        except (OSError, ValueError, AttributeError, TypeError):
            pass  # unknown, or cut short: computed again
        figures = dict(make())
        if not writes_cache():
            return figures
        with self._named_in_errors(), replacing(path) as aside:
            aside.write_text(json.dumps(figures))
        return figures

    def verify(self, name: str, key: str) -> list[str]:
        """Files of a data set that are missing or lack the sha256 of its manifest; empty where all is well."""
        folder = self.path(name, key)
        manifest = _manifest(folder)
        if manifest is None:
            return [MANIFEST]
        return [
            file
            for file, known in manifest["files"].items()
            if not (folder / file).is_file() or sha256_of_file(folder / file) != known["sha256"]
        ]

    def entries(self) -> list[Entry]:
        """All data sets in the cache, by name."""
        found = []
        for path in sorted((self.root / "data").glob(f"*/{MANIFEST}")):
            manifest = _manifest(path.parent)
            if manifest is None or path.parent.name != f"{manifest['name']}-{manifest['key']}":
                continue  # damaged, or still being built
            size = sum(file["bytes"] for file in manifest["files"].values())
            about = manifest["name"], manifest["key"], path.parent, manifest["rows"], size, manifest["description"]
            found.append(Entry(*about))
        return found

    def remove(self, name: str, key: str) -> None:
        """Delete one data set; nothing happens where it is not there."""
        folder = self.path(name, key)
        if folder.exists():
            with self._lock(folder, f"removing {folder.name}"), self._named_in_errors():
                _sweep(folder)

    @contextmanager
    def _lock(self, folder: Path, description: str) -> Iterator[None]:
        with self._named_in_errors():
            held = hold(folder, description)
        with held:
            yield

    @contextmanager
    def _aside(self, folder: Path) -> Iterator[Path]:
        """A folder beside ``folder`` to build in, gone afterwards."""
        aside = folder.with_name(f"{folder.name}.building-{uuid.uuid4().hex[:8]}")
        with self._named_in_errors():
            aside.mkdir(parents=True)
        try:
            yield aside
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def _write_tables(self, tables: Iterator[pyarrow.Table], spool: Path, whole: Path, fingerprint: str) -> int:
        """Save tables as one data set, holding one of them at a time, and count their rows."""
        import datasets
        import pyarrow

        # Only writing names the cache in its errors: the tables may come from files of the user's.
        writer, rows = None, 0
        try:
            for table in tables:
                with self._named_in_errors():
                    writer = writer or pyarrow.ipc.new_stream(spool, table.schema)
                    writer.write_table(table)
                rows += len(table)
        finally:
            if writer is not None:
                with self._named_in_errors():
                    writer.close()
        if not rows:
            raise ValueError("there are no rows to write")
        # Saving all rows would map all of them into memory; the first alone gives the folder its layout.
        with self._named_in_errors():
            first = datasets.Dataset.from_file(str(spool)).data.slice(0, 1)
            _save(datasets.Dataset(first, fingerprint=fingerprint), whole)
            (data,) = whole.glob("*.arrow")
            spool.replace(data)
        return rows

    @contextmanager
    def _named_in_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"LRA_BENCH_CACHE={self.root}: {why(error)}; name another folder") from error


def default_root() -> Path:
    """$LRA_BENCH_CACHE, else the platform's cache folder."""
    named = os.environ.get("LRA_BENCH_CACHE")
    if named:
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("lra-bench"))


def _manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return manifest if _is_sound(manifest) else None


def _is_sound(manifest: Any) -> bool:
    """Whether a manifest has the fields of one, and files that lie in its own folder."""
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
    """What is wrong with a folder at first sight (sizes, not checksums), or None."""
    manifest = _manifest(folder)
    if manifest is None:
        return f"{MANIFEST} is missing or damaged"
    for file, known in manifest["files"].items():
        path = folder / file
        if not path.is_file():
            return f"{file} is missing"
        if (size := path.stat().st_size) != known["bytes"]:
            return f"{file} has {size:,} bytes instead of {known['bytes']:,}"
    return None


def _open(folder: Path) -> datasets.Dataset | None:
    if not folder.exists() or _damage(folder):
        return None
    import datasets

    try:
        opened = datasets.load_from_disk(str(folder))
    except Exception:  # whatever Arrow says of a file that it cannot read, the folder is rebuilt
        return None
    if not isinstance(opened, datasets.Dataset):
        return None
    return opened


def _in_memory(made: datasets.Dataset | Iterator[pyarrow.Table]) -> datasets.Dataset:
    import datasets
    import pyarrow

    return datasets.Dataset(pyarrow.concat_tables(made)) if isinstance(made, Iterator) else made


def _save(dataset: datasets.Dataset, aside: Path) -> None:
    with _without_bars():
        dataset.save_to_disk(str(aside))


def _finish(aside: Path, folder: Path, about: dict[str, Any]) -> None:
    """Add the manifest to what was saved aside, force it to disk, then rename it into place."""
    files = {
        str(path.relative_to(aside)): {"bytes": path.stat().st_size, "sha256": sha256_of_file(path)}
        for path in sorted(aside.rglob("*"))
        if path.is_file()
    }
    manifest = {"schema_version": 1, **about, "files": files}
    (aside / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (*aside.rglob("*"), aside):
        sync(path)
    aside.replace(folder)
    sync(folder.parent)


def _sweep(folder: Path) -> None:
    """Remove a folder, and what killed builders left beside it; the lock is held."""
    for path in folder.parent.glob(f"{folder.name}.building-*"):
        shutil.rmtree(path, ignore_errors=True)
    if folder.exists():
        # Renamed first: a reader must never meet a folder with half its files.
        aside = folder.with_name(f"{folder.name}.building-{uuid.uuid4().hex[:8]}")
        folder.replace(aside)
        shutil.rmtree(aside)


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the bars of ``datasets`` off the screen; ours is there already."""
    import datasets

    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not silent:
            datasets.enable_progress_bars()
