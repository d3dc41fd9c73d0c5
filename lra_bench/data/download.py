"""Download official files once: over https, resumed after interruptions, verified, and renamed atomically."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from lra_bench.errors import UserError
from lra_bench.runtime.files import sync, why, writes_cache
from lra_bench.runtime.redaction import without_credentials

from .digest import sha256_of_file
from .locks import hold
from .transfer import TooLong, TransferError, discard, is_safe, transfer

OFFLINE_VARIABLES = ("LRA_BENCH_OFFLINE", "HF_HUB_OFFLINE")


@dataclass(frozen=True)
class Remote:
    """One official file and its local name.

    A copy is valid if it has the size, if given, and the first given checksum of ``sha256`` and ``md5``.

    Attributes:
        url: The https address or, with ``repository``, the path inside that repository.
        file: Name of the file in the folder of raw data.
        sha256: Expected sha256 in hexadecimal.
        md5: Expected MD5 in hexadecimal.
        size_bytes: Expected size.
        repository: Data set of the Hugging Face Hub; ``$HF_ENDPOINT`` selects a mirror.
        revision: Revision of the repository; required with ``repository``.
    """

    url: str
    file: str
    sha256: str | None = None
    md5: str | None = None
    size_bytes: int | None = None
    repository: str | None = None
    revision: str | None = None

    @property
    def address(self) -> str:
        """The address of the file. Raises ``ValueError`` unless it uses https or is on this machine."""
        address = self.url
        if self.repository is not None:
            if not self.revision:
                raise ValueError(f"{self.repository}: a file of the Hub needs a pinned revision")
            hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
            address = f"{hub}/datasets/{self.repository}/resolve/{self.revision}/{quote(self.url)}"
        if not is_safe(address):
            raise ValueError(f"{address}: only https is supported")
        return address

    @property
    def redacted_address(self) -> str:
        """The address for messages, without credentials, because the address of a mirror may contain a password."""
        return without_credentials(self.address)

    def fault(self, path: Path, memory: Path | None = None) -> str | None:
        """Return how a copy differs in size or checksum, or None if it is valid.

        ``memory`` is the folder in which checksums are cached.
        """
        if self.size_bytes is not None and (size := path.stat().st_size) != self.size_bytes:
            return f"has {size:,} bytes instead of {self.size_bytes:,}"
        if self.sha256 is not None:
            kind, found, wanted = "sha256", sha256_of_file(path, memory), self.sha256
        elif self.md5 is not None:
            with path.open("rb") as file:
                kind, found, wanted = "md5", hashlib.file_digest(file, "md5").hexdigest(), self.md5
        else:
            return None
        return None if found == wanted else f"has {kind} {found} instead of {wanted}"


class NotFetched(UserError):
    """Missing files could not be downloaded; ``reason`` says why in a few words."""

    def __init__(self, remotes: Sequence[Remote], folder: Path, reason: str) -> None:
        names = " and ".join(remote.file for remote in remotes)
        wanted = " and ".join(
            f"{remote.redacted_address}{'' if remote.address.endswith(f'/{remote.file}') else f' (as {remote.file})'}"
            for remote in remotes
        )
        super().__init__(
            f"task.source: {names} cannot be downloaded ({reason}); download {wanted} into {folder}, or set "
            "task.source=PATH to the data"
        )
        self.reason = reason


def download(remote: Remote, folder: Path, memory: Path | None = None) -> Path:
    """Download a file into ``folder`` unless a valid copy exists, and return its path.

    One process downloads, others wait for it. A partial download is stored in ``<file>.part`` and resumed later.

    Args:
        remote: The file.
        folder: Folder of raw data.
        memory: Folder in which checksums are cached.

    Returns:
        The path of the file.

    Raises:
        NotFetched: If the file cannot be downloaded, network access is disabled, or inside ``cache_read_only``.
        UserError: If a different file of that name exists, the folder cannot be written, or the downloaded file has a
            wrong checksum or is too large.
    """
    target = folder / remote.file
    if is_whole(remote, folder, memory):
        return target
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on"):
            raise NotFetched([remote], folder, f"{name} disables network access")
    if not writes_cache():
        raise NotFetched([remote], folder, "a dry run does not download files")
    with _lock(target):
        if is_whole(remote, folder, memory):
            return target
        part = target.with_name(f"{target.name}.part")
        try:
            with _folder_in_errors(folder):
                transfer(remote.address, part, remote.size_bytes, f"downloading {remote.file}")
        except TooLong as error:
            raise _invalid_download(remote, str(error)) from error
        except TransferError as error:
            raise NotFetched([remote], folder, str(error)) from error
        if fault := remote.fault(part):
            discard(part)
            raise _invalid_download(remote, fault)
        with _folder_in_errors(folder):
            sync(part)
            part.replace(target)
            discard(part)
            sync(folder)
    return target


def _invalid_download(remote: Remote, fault: str) -> UserError:
    return UserError(f"task.source: the file from {remote.redacted_address} {fault} and was deleted; try again")


def is_whole(remote: Remote, folder: Path, memory: Path | None = None) -> bool:
    """Return whether ``folder`` contains a valid copy. Raises ``UserError`` if a different file has its name."""
    target = folder / remote.file
    if not target.exists():
        return False
    if fault := remote.fault(target, memory):
        raise UserError(f"task.source: {target} {fault}; move it away to download the official file")
    return True


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    with _folder_in_errors(target.parent):
        held = hold(target, f"downloading {target.name}")
    with held:
        yield


@contextmanager
def _folder_in_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"LRA_BENCH_CACHE: {folder} {why(error)}; set LRA_BENCH_CACHE to another folder") from error
