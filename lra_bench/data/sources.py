"""Where a task's raw data is: named by the user, in the folder of official data, in the cache, or fetched."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lra_bench.errors import UserError

from .download import NotFetched, Remote, download, is_whole

if TYPE_CHECKING:
    from lra_bench.contracts import DataCache

Files = TypeVar("Files")


def locate(
    task: str,
    source: str | None,
    folders: Sequence[str],
    find: Callable[[Path], Files | None],
    remotes: Sequence[Remote],
    cache: DataCache,
    missing: str,
) -> Files:
    """What ``find`` makes of the first place that holds the raw data of ``task``.

    A ``source`` other than None and ``official`` is the user's path, a file or a folder, and the only place then.
    Otherwise the places are: ``folders`` below $LRA_BENCH_DATA, then itself; raw/``task`` in the cache; and that folder
    again once ``remotes`` have been fetched into it. ``find`` gets a path that exists and returns None where the data
    is not there. ``missing`` is what the data is, for the sentence that asks for it ("FILE, or the folder FOLDER").

    Raises ``UserError`` where the user's path lacks it, where it is nowhere and cannot be fetched, and where a file
    that would be fetched lies in the cache but is another one.
    """
    if source is not None and source != "official":
        return _given(source, folders, find, missing)
    if named := os.environ.get("LRA_BENCH_DATA"):
        root = Path(named).expanduser()
        if not root.is_dir():
            raise UserError(f"LRA_BENCH_DATA={named}: is no folder; name the folder of official data, or unset it")
        if (found := _first((*(root / name for name in folders), root), find)) is not None:
            return found
    raw = cache.root / "raw" / task
    for remote in remotes:
        is_whole(remote, raw, cache.digests)
    if (found := _first((raw,), find)) is not None:
        return found
    if not remotes:
        raise UserError(
            f"task.source: {task} needs {missing}; put it into {raw} or a folder of $LRA_BENCH_DATA "
            f"({' or '.join(folders)}), or name where it lies with task.source=PATH"
        )
    _fetch(remotes, raw, cache)
    if (found := _first((raw,), find)) is None:
        raise RuntimeError(f"{task}: its official files do not hold {missing}")
    return found


def _given(source: str, folders: Sequence[str], find: Callable[[Path], Files | None], missing: str) -> Files:
    root = Path(source).expanduser()
    if not root.exists():
        raise UserError(f"task.source={source}: is not there; name {missing}")
    if (found := _first((root, *(root / name for name in folders)), find)) is None:
        raise UserError(f"task.source={source}: does not hold {missing}")
    return found


def _first(places: Sequence[Path], find: Callable[[Path], Files | None]) -> Files | None:
    for place in places:
        if place.exists() and (found := find(place)) is not None:
            return found
    return None


def _fetch(remotes: Sequence[Remote], folder: Path, cache: DataCache) -> None:
    try:
        for remote in remotes:
            download(remote, folder, cache.digests)
    except NotFetched as error:
        absent = [remote for remote in remotes if not (folder / remote.file).exists()]
        raise NotFetched(absent, folder, error.reason) from error
