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
    """A download failed; the message says why in a few words."""


class TooLong(TransferError):
    """A host sent more bytes than allowed; the partial file was deleted."""


def transfer(address: str, part: Path, size_bytes: int | None, description: str) -> None:
    """Download ``address`` to ``part``, resuming after its existing content, and return when the file is complete.

    An interrupted connection is resumed, up to ``ATTEMPTS`` times in a row without new data. If the host cannot be
    reached at the first attempt, there is no second one.

    Args:
        address: The URL.
        part: The partial file.
        size_bytes: Known size of the file; None if unknown. More than that, than the size reported by the host or than
            ``LARGEST_BYTES`` is not accepted.
        description: Label of the progress bar.

    Raises:
        TransferError: If the download fails. The partial file is kept, except for ``TooLong``.
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
    """Remove a partial file and the file with its version."""
    part.unlink(missing_ok=True)
    _version_file(part).unlink(missing_ok=True)


def is_safe(address: str) -> bool:
    """Return whether an address uses https or is on this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)


def _headers(part: Path, start: int) -> dict[str, str]:
    """Return request headers for the content from byte ``start`` on."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "lra-bench"}
    if start:
        headers["Range"] = f"bytes={start}-"
        with suppress(OSError):  # hosts that report a version resume only if it is unchanged
            headers["If-Range"] = _version_file(part).read_text()
    return headers


def _refuse_unsafe(response: requests.Response, **_: object) -> None:
    """Raise ``TransferError`` on a redirect to an address without encryption."""
    if response.is_redirect and not is_safe(target := urljoin(response.url, response.headers["Location"])):
        response.close()
        raise TransferError(f"the host redirects to {target}, which is not encrypted")


def _check_status(response: requests.Response) -> None:
    import requests

    message = f"the host returned {response.status_code} {response.reason}"
    if response.status_code in _TRANSIENT:
        raise requests.HTTPError(message)
    if response.status_code not in (200, 206, 416):
        raise TransferError(message)


def _is_complete(response: requests.Response, start: int) -> bool:
    """Return whether the response says that the file ends at byte ``start``."""
    return response.status_code == 416 and response.headers.get("Content-Range") == f"bytes */{start}"


def _write(response: requests.Response, part: Path, start: int, size_bytes: int | None, description: str) -> bool:
    """Write the content of a response to ``part`` and return whether the file is complete."""
    if response.status_code == 416:
        discard(part)  # longer than the file, so it belongs to another version
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
