"""Official files, fetched once: over https, resumed where they broke off, whole and checked or not there at all."""

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
    """One official file and what it is called here.

    ``url`` is an https address or, with ``repository``, a path inside that data set of the Hugging Face Hub at
    ``revision`` ($HF_ENDPOINT names a mirror). ``file`` is its name in the folder of raw data. The size, if given, and
    the first of ``sha256`` and ``md5`` that is given decide whether it is whole.
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
        """Where the file is fetched from. Raises ``ValueError`` unless that is encrypted, or this machine."""
        address = self.url
        if self.repository is not None:
            if not self.revision:
                raise ValueError(f"{self.repository}: a file of the Hub needs a pinned revision")
            hub = os.environ.get("HF_ENDPOINT", "").rstrip("/") or "https://huggingface.co"
            address = f"{hub}/datasets/{self.repository}/resolve/{self.revision}/{quote(self.url)}"
        if not is_safe(address):
            raise ValueError(f"{address}: only https is fetched")
        return address

    @property
    def told(self) -> str:
        """The address for messages: the name of a mirror may hold a password."""
        return without_credentials(self.address)

    def fault(self, path: Path, memory: Path | None = None) -> str | None:
        """What is wrong with a copy of the file, or None; ``memory`` is where checksums are remembered."""
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
    """Files that are not there and could not be fetched for a ``reason``, given in a few words."""

    def __init__(self, remotes: Sequence[Remote], folder: Path, reason: str) -> None:
        names = " and ".join(remote.file for remote in remotes)
        wanted = " and ".join(
            f"{remote.told}{'' if remote.address.endswith(f'/{remote.file}') else f' (as {remote.file})'}"
            for remote in remotes
        )
        super().__init__(
            f"task.source: {names} cannot be fetched ({reason}); fetch {wanted} into {folder}, or name where the data "
            "lies with task.source=PATH"
        )
        self.reason = reason


def download(remote: Remote, folder: Path, memory: Path | None = None) -> Path:
    """The file in ``folder``, fetched unless it is there already; ``memory`` is where checksums are remembered.

    One process fetches, others wait for it. What arrived before a break stays in ``<file>.part`` and is continued.
    Raises ``UserError`` where the file there is another one, the network is off or out of reach, or what arrived has
    another checksum or more bytes than it may.
    """
    target = folder / remote.file
    if is_whole(remote, folder, memory):
        return target
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name, "").strip().lower() in ("1", "true", "yes", "on"):
            raise NotFetched([remote], folder, f"{name} keeps the network off")
    if not writes_cache():
        raise NotFetched([remote], folder, "a dry run fetches nothing")
    with _lock(target):
        if is_whole(remote, folder, memory):
            return target
        part = target.with_name(f"{target.name}.part")
        try:
            with _named_in_errors(folder):
                transfer(remote.address, part, remote.size_bytes, f"fetching {remote.file}")
        except TooLong as error:
            raise _thrown_away(remote, str(error)) from error
        except TransferError as error:
            raise NotFetched([remote], folder, str(error)) from error
        if fault := remote.fault(part):
            discard(part)
            raise _thrown_away(remote, fault)
        with _named_in_errors(folder):
            sync(part)
            part.replace(target)
            discard(part)
            sync(folder)
    return target


def _thrown_away(remote: Remote, fault: str) -> UserError:
    return UserError(f"task.source: what {remote.told} sent {fault} and was thrown away; try again")


def is_whole(remote: Remote, folder: Path, memory: Path | None = None) -> bool:
    """Whether the file is in ``folder``. Raises ``UserError`` where another one has its name."""
    target = folder / remote.file
    if not target.exists():
        return False
    if fault := remote.fault(target, memory):
        raise UserError(f"task.source: {target} {fault}; move it away, and the official file is fetched")
    return True


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    with _named_in_errors(target.parent):
        held = hold(target, f"fetching {target.name}")
    with held:
        yield


@contextmanager
def _named_in_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"LRA_BENCH_CACHE: {folder} {why(error)}; name another folder") from error
