"""Find a task's raw data: a path from the user, the folder of official data, the cache, or a download."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from lra_bench.errors import UserError
from lra_bench.runtime.files import expanded

from .archives import refuse_broken_link
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
    """Find the raw data of a task and return the result of ``find`` for the first location that contains it.

    If ``source`` is a path, it is the only location (and ``folders`` in it). Otherwise the locations are, in this
    order: ``folders`` in ``$LRA_BENCH_DATA``, ``$LRA_BENCH_DATA``, and ``raw/<task>`` in the cache, before and after
    ``remotes`` are downloaded into it.

    Args:
        task: Name of the task.
        source: ``task.source``: path of a file or folder; None or ``official`` for the official data.
        folders: Accepted folder names.
        find: Receives an existing path and returns the data, or None if the path does not contain it.
        remotes: Files to download; empty if the data must be provided by the user.
        cache: The cache.
        missing: Description of the data for error messages, such as "FILE, or the folder FOLDER".

    Returns:
        The result of ``find``.

    Raises:
        UserError: If the user's path does not contain the data, if the data is not found and cannot be downloaded, or
            if the cache contains a different file with the name of a file to download.
    """
    if source is not None and source != "official":
        root = expanded(source, "task.source")
        if not root.exists():
            raise UserError(f"task.source={source}: does not exist; set it to {missing}")
        if (found := _find_first((root, *(root / name for name in folders)), find)) is not None:
            return found
        for link in sorted(root.iterdir()) if root.is_dir() else ():
            refuse_broken_link(link)
        raise UserError(f"task.source={source}: does not contain {missing}")
    if value := os.environ.get("LRA_BENCH_DATA"):
        root = expanded(value, "LRA_BENCH_DATA")
        if not root.is_dir():
            raise UserError(
                f"LRA_BENCH_DATA={value}: is not a folder; set it to the folder of official data or unset it"
            )
        if (found := _find_first((*(root / name for name in folders), root), find)) is not None:
            return found
    raw = cache.root / "raw" / task
    for remote in remotes:
        is_whole(remote, raw, cache.digests)
    if (found := _find_first((raw,), find)) is not None:
        return found
    if not remotes:
        raise UserError(
            f"task.source: {task} needs {missing}; put the data into {raw} or a folder of $LRA_BENCH_DATA "
            f"({' or '.join(folders)}), or set task.source=PATH to its location"
        )
    try:
        for remote in remotes:
            download(remote, raw, cache.digests)
    except NotFetched as error:
        absent = [remote for remote in remotes if not (raw / remote.file).exists()]
        raise NotFetched(absent, raw, error.reason) from error
    if (found := _find_first((raw,), find)) is None:
        raise RuntimeError(f"{task}: its official files do not contain {missing}")
    return found


def _find_first(places: Sequence[Path], find: Callable[[Path], Files | None]) -> Files | None:
    for place in places:
        if place.exists() and (found := find(place)) is not None:
            return found
    return None
