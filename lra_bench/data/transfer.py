"""Download one file over http, resuming after interruptions."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

from lra_bench.progress import bar

if TYPE_CHECKING:
    import requests

CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0
PAUSE_SECONDS = 1.0
ATTEMPTS = 5
_CHUNK = 1 << 18
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_TRANSIENT = (408, 425, 429, 500, 502, 503, 504)


LARGEST_BYTES = 64 << 30
"""Largest accepted size of a file."""


class TransferError(Exception):
    """A download failed; the message states the reason in a few words."""


class TooLong(TransferError):
    """A host reported or sent more bytes than allowed; the partial file was deleted."""


def transfer(address: str, part: Path, size_bytes: int | None, description: str) -> None:
    """Download ``address`` to ``part``, resuming after its existing content, and return when the file is complete.

    Complete means that ``part`` has the size that the host reports or, if it reports none, that the host has ended the
    response. The content is not verified, and a file shorter than ``size_bytes`` is accepted: the caller must check
    size and checksum, as ``download`` does before it renames the file.

    An attempt ends when the connection fails or the host returns a transient error. The next attempt follows after a
    pause and resumes. The download fails after ``ATTEMPTS`` consecutive attempts of which none after the first received
    data. It fails immediately if there is no response to the first attempt, or if an error is not transient.

    Args:
        address: The URL.
        part: The partial file, which need not exist.
        size_bytes: Expected size of the file; None if unknown. A larger file is rejected with ``TooLong``, as is one
            larger than the size reported by the host or than ``LARGEST_BYTES``.
        description: Label of the progress bar.

    Raises:
        TransferError: If the download fails. The partial file is kept, so that a later call can resume; the subclass
            ``TooLong`` deletes it.
        OSError: If ``part`` cannot be written.
    """
    import requests
    from urllib3.exceptions import HTTPError

    reached, failures = False, 0
    with requests.Session() as session:
        session.hooks["response"].append(_refuse_unsafe)
        while True:
            before = _size(part)
            try:
                timeouts = CONNECT_SECONDS, READ_SECONDS
                with session.get(address, headers=_headers(part, before), stream=True, timeout=timeouts) as response:
                    reached = True
                    _check_status(response)
                    if _is_complete(response, before) or _write(response, part, before, size_bytes, description):
                        return
                reason = "the connection was interrupted"
            except (requests.RequestException, HTTPError) as error:
                reason = _describe(error)
            failures = 1 if _size(part) > before else failures + 1
            if not reached or failures >= ATTEMPTS:
                raise TransferError(reason)
            time.sleep(PAUSE_SECONDS * failures)


def discard(part: Path) -> None:
    """Remove a partial file and the file that stores its version (ETag or Last-Modified)."""
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def is_safe(address: str) -> bool:
    """Return whether an address uses https, or http to this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)


def _headers(part: Path, start: int) -> dict[str, str]:
    """Return the headers of a request for the content from byte ``start`` on."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "lra-bench"}
    if start:
        headers["Range"] = f"bytes={start}-"
        # If the host reported a version of the file, it resumes only if the version is unchanged, and otherwise sends
        # the entire file. Without a version there is no such file to read.
        with suppress(OSError):
            headers["If-Range"] = _version_file(part).read_text()
    return headers


def _refuse_unsafe(response: requests.Response, **_: object) -> None:
    """Raise ``TransferError`` if a response redirects to an address that is not safe; a hook of ``requests``."""
    if response.is_redirect and not is_safe(target := urljoin(response.url, response.headers["Location"])):
        response.close()
        raise TransferError(f"the host redirects to {target}, which is not encrypted")


def _check_status(response: requests.Response) -> None:
    """Raise ``requests.HTTPError`` for a transient status, ``TransferError`` for other statuses without content.

    Status 416 passes: the requested range begins at or after the end of the file.
    """
    import requests

    message = f"the host returned {response.status_code} {response.reason}"
    if response.status_code in _TRANSIENT:
        raise requests.HTTPError(message)
    if response.status_code not in (200, 206, 416):
        raise TransferError(message)


def _is_complete(response: requests.Response, start: int) -> bool:
    """Return whether the response states that the file has ``start`` bytes, so that none is missing."""
    return response.status_code == 416 and response.headers.get("Content-Range") == f"bytes */{start}"


def _write(response: requests.Response, part: Path, start: int, size_bytes: int | None, description: str) -> bool:
    """Write the content of a response to ``part`` and return whether the file is complete.

    If the response contains the entire file, ``part`` is overwritten. If it contains another range than requested,
    ``part`` is deleted, so that the next attempt begins at byte 0. Raises ``TooLong`` if the file is larger than
    allowed.
    """
    if response.status_code == 416:
        # The file ends before byte ``start``, so ``part`` is of another version; or the host does not report its size.
        discard(part)
        return False
    length = response.headers.get("Content-Length", "")
    reported = int(length) if length.isdecimal() else None
    end, total = reported, reported
    if response.status_code == 206:
        span = _span(response)
        if span is None or span[0] != start or (reported is not None and reported != span[1] - span[0] + 1):
            discard(part)
            return False
        end, total = span[1] + 1, span[2]
    else:
        start = 0
        _store_version(response, part)
    limit = min(size for size in (size_bytes, total, LARGEST_BYTES) if size is not None)
    if total is not None and total > limit:
        discard(part)
        raise TooLong(f"has {total:,} bytes instead of {limit:,}")
    if end is not None:
        limit = min(limit, end)
    received = start
    with (
        part.open("ab" if start else "wb") as file,
        bar(total or size_bytes or 0, description, start=start, unit="bytes") as advance,
    ):
        # Some hosts send a .gz file with Content-Encoding: gzip; decoding would decompress it.
        for chunk in response.raw.stream(_CHUNK, decode_content=False):
            received += len(chunk)
            if received > limit:
                discard(part)
                raise TooLong(f"has more than {limit:,} bytes")
            file.write(chunk)
            advance(len(chunk))
    # Without a reported size, the end of the response is the end of the file.
    expected = end if total is None else total
    return expected is None or received == expected


def _span(response: requests.Response) -> tuple[int, int, int | None] | None:
    """Parse Content-Range: first byte, last byte, and total size if reported; None if the header is invalid."""
    found = re.fullmatch(
        r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", response.headers.get("Content-Range", "")
    )
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    total = None if found[3] == "*" else int(found[3])
    return None if last < first or (total is not None and last >= total) else (first, last, total)


def _store_version(response: requests.Response, part: Path) -> None:
    tag = response.headers.get("ETag", "")
    version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    if version:
        _version_file(part).write_text(version)
    else:
        _version_file(part).unlink(missing_ok=True)


def _version_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _describe(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError):
        return str(error)
    request = getattr(error, "request", None)
    host = urlsplit(request.url).hostname if request is not None else "the host"
    if isinstance(error, requests.exceptions.SSLError):
        return f"the certificate of {host} is refused"
    if isinstance(error, requests.exceptions.ProxyError):
        return f"the proxy for {host} cannot be reached"
    if isinstance(error, requests.exceptions.Timeout):
        return f"{host} does not respond"
    if isinstance(error, requests.exceptions.ConnectionError):
        return f"{host} cannot be reached"
    return "the connection was interrupted"
