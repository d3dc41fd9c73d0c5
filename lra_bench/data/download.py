"""Download official files once: over https, resumed after interruptions, verified, and renamed atomically."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin, urlsplit

from lra_bench.errors import UserError
from lra_bench.progress import bar
from lra_bench.runtime.files import sync, why, writes_cache
from lra_bench.runtime.redaction import without_credentials

from .digest import sha256_of_file
from .locks import hold

if TYPE_CHECKING:
    import requests

OFFLINE_VARIABLES = ("LRA_BENCH_OFFLINE", "HF_HUB_OFFLINE")
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
PAUSE_SECONDS = 1.0
ATTEMPTS = 5
LARGEST_BYTES = 64 << 30
"""Largest accepted size of a file."""

_CHUNK = 1 << 14  # bytes that an interruption loses at most
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class Remote:
    """One official file and its local name.

    A copy is valid if it has the size and the checksum, if given.

    Attributes:
        url: The https address or, with ``repository``, the path inside that repository.
        file: Name of the file in the folder of raw data.
        sha256: Expected sha256 in hexadecimal.
        size_bytes: Expected size.
        repository: Data set of the Hugging Face Hub; ``$HF_ENDPOINT`` selects a mirror.
        revision: Revision of the repository; required with ``repository``.
    """

    url: str
    file: str
    sha256: str | None = None
    size_bytes: int | None = None
    repository: str | None = None
    revision: str | None = None

    @property
    def address(self) -> str:
        """The address of the file. Raises ``UserError`` unless it uses https or is on this machine."""
        address = self.url
        if self.repository is not None:
            if not self.revision:
                raise ValueError(f"{self.repository}: a file of the Hub needs a pinned revision")
            hub = os.environ.get("HF_ENDPOINT", "").strip().rstrip("/") or "https://huggingface.co"
            if not is_safe(hub):
                shown = without_credentials(f"://{hub}").removeprefix("://")
                raise UserError(f"HF_ENDPOINT={shown}: only https is supported; set it to an address with https://")
            address = f"{hub}/datasets/{self.repository}/resolve/{self.revision}/{quote(self.url)}"
        if not is_safe(address):
            raise UserError(f"{without_credentials(address)}: only https is supported")
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
        if self.sha256 is not None and (found := sha256_of_file(path, memory)) != self.sha256:
            return f"has sha256 {found} instead of {self.sha256}"
        return None


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

    One process downloads, others wait for it. A partial download is stored in ``<file>.part``. It is resumed after an
    interruption, also by a later call, if a checksum is given, which reveals that the file has changed in between.
    The download fails after ``ATTEMPTS`` consecutive attempts of which none after the first received data, and
    immediately if there is no response to the first attempt, or if an error is not transient.

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
    try:
        with hold(target, f"downloading {target.name}"):
            if is_whole(remote, folder, memory):
                return target
            part = target.with_name(f"{target.name}.part")
            _fetch(remote, part)
            if fault := remote.fault(part):
                raise _deleted(remote, part, fault)
            sync(part)
            part.replace(target)
            sync(folder)
    except OSError as error:
        raise UserError(f"LRA_BENCH_CACHE: {folder} {why(error)}; set LRA_BENCH_CACHE to another folder") from error
    return target


def _deleted(remote: Remote, part: Path, fault: str) -> UserError:
    part.unlink()
    return UserError(f"task.source: the file from {remote.redacted_address} {fault} and was deleted; try again")


def is_whole(remote: Remote, folder: Path, memory: Path | None = None) -> bool:
    """Return whether ``folder`` contains a valid copy. Raises ``UserError`` if a different file has its name."""
    target = folder / remote.file
    if not target.exists():
        return False
    if fault := remote.fault(target, memory):
        raise UserError(f"task.source: {target} {fault}; move it away to download the official file")
    return True


def _fetch(remote: Remote, part: Path) -> None:
    """Download a file to ``part``, resuming after its existing content, and return when it is complete."""
    import requests

    if remote.sha256 is None:
        part.unlink(missing_ok=True)
    address, reached, failures = remote.address, False, 0
    with requests.Session() as session:
        session.hooks["response"].append(lambda response, **_: _refuse_unsafe(response, remote, part))
        while True:
            start = part.stat().st_size if part.exists() else 0
            headers = {"Accept-Encoding": "identity", "User-Agent": "lra-bench"}
            if start:
                headers["Range"] = f"bytes={start}-"
            try:
                timeouts = CONNECT_SECONDS, READ_SECONDS
                with session.get(address, headers=headers, stream=True, timeout=timeouts) as response:
                    reached, status = True, response.status_code
                    reason = f"the host returned {status} {response.reason}"
                    if status in (200, 206, 416):
                        if _receive(response, remote, part, start):
                            return
                        reason = "the connection was interrupted"
                    elif status not in _TRANSIENT:
                        raise NotFetched([remote], part.parent, reason)
            except requests.RequestException as error:
                reason = _describe(error, address)
            failures = 1 if part.exists() and part.stat().st_size > start else failures + 1
            if not reached or failures >= ATTEMPTS:
                raise NotFetched([remote], part.parent, reason)
            time.sleep(PAUSE_SECONDS * failures)


def _receive(response: requests.Response, remote: Remote, part: Path, start: int) -> bool:
    """Append the content of a response to ``part`` and return whether the file is complete.

    If the response contains the entire file, ``part`` is overwritten. If it contains another range than requested,
    ``part`` is deleted, so that the next attempt begins at byte 0. Raises ``UserError`` if the file is too large.
    """
    span = response.headers.get("Content-Range", "")
    if response.status_code == 416 and span == f"bytes */{start}":
        return True
    if response.status_code == 416 or (response.status_code == 206 and not span.startswith(f"bytes {start}-")):
        part.unlink(missing_ok=True)
        return False
    received = start if response.status_code == 206 else 0
    length, limit = response.headers.get("Content-Length", ""), remote.size_bytes or LARGEST_BYTES
    total = received + int(length) if length.isdecimal() else None
    if total is not None and total > limit:
        part.touch()
        raise _deleted(remote, part, f"has {total:,} bytes instead of {limit:,}")
    limit = limit if total is None else total
    # Some hosts send a .gz file with Content-Encoding: gzip, and requests would decompress it.
    response.raw.headers.pop("Content-Encoding", None)
    with (
        part.open("ab" if received else "wb") as file,
        bar(limit if total or remote.size_bytes else 0, f"downloading {remote.file}", received, "bytes") as advance,
    ):
        for chunk in response.iter_content(_CHUNK):
            received += len(chunk)
            if received > limit:
                raise _deleted(remote, part, f"has more than {limit:,} bytes")
            file.write(chunk)
            advance(len(chunk))
    return total is None or received == total


def is_safe(address: str) -> bool:
    """Return whether an address uses https, or http to this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)


def _refuse_unsafe(response: requests.Response, remote: Remote, part: Path) -> None:
    """Raise ``NotFetched`` if a response redirects to an address that is not safe."""
    if response.is_redirect and not is_safe(target := urljoin(response.url, response.headers["Location"])):
        response.close()
        raise NotFetched([remote], part.parent, f"the host redirects to {target}, which is not encrypted")


def _describe(error: requests.RequestException, address: str) -> str:
    import requests
    from requests.utils import get_environ_proxies, select_proxy

    asked = error.request.url if error.request is not None else None
    host = urlsplit(str(asked or address)).hostname
    proxy = select_proxy(address, get_environ_proxies(address))
    through = f" through the proxy {without_credentials(proxy)}" if proxy else ""
    if isinstance(error, requests.exceptions.SSLError):
        return f"the certificate of {host} is refused"
    if isinstance(error, requests.exceptions.Timeout):
        return f"{host} does not respond{through}"
    if isinstance(error, requests.ConnectionError | requests.exceptions.InvalidSchema | requests.exceptions.InvalidURL):
        return f"{host} cannot be reached{through}"
    return "the connection was interrupted"
