"""One file over the network into one on disk, continued where it broke off."""

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
_PASSING = (408, 425, 429, 500, 502, 503, 504)


LARGEST_BYTES = 64 << 30
"""The most that is taken from a host where the size of a file is neither known nor told."""


class TransferError(Exception):
    """Why a file did not arrive, in a few words."""


class TooLong(TransferError):
    """What a host sends is longer than it may be, and was thrown away."""


def transfer(address: str, part: Path, size_bytes: int | None, description: str) -> None:
    """Bring what lies at ``address`` into ``part``, from where that ends, and return when all has arrived.

    A connection that breaks is taken up again as long as something arrives; a host that cannot be reached at all is
    not tried twice. No more is taken than ``size_bytes``, where that is known, than the host tells, and than
    ``LARGEST_BYTES``. Raises ``TransferError``; what has arrived by then stays, unless it is a ``TooLong``. Raises
    ``OSError`` where ``part`` cannot be written.
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
                with session.get(address, headers=_wishes(part, before), stream=True, timeout=timeouts) as response:
                    reached = True
                    _refuse_other_than_content(response)
                    if _is_all(response, before) or _store(response, part, before, size_bytes, description):
                        return
                fault = "the connection broke off"
            except (requests.RequestException, HTTPError) as error:
                fault = _in_words(error)
            failures = 1 if _size(part) > before else failures + 1
            if not reached or failures >= ATTEMPTS:
                raise TransferError(fault)
            time.sleep(PAUSE_SECONDS * failures)


def discard(part: Path) -> None:
    """Remove what has arrived, and the note of its version."""
    part.unlink(missing_ok=True)
    _version(part).unlink(missing_ok=True)


def is_safe(address: str) -> bool:
    """Whether an address is encrypted or lies on this machine."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _THIS_MACHINE)


def _wishes(part: Path, start: int) -> dict[str, str]:
    """Headers that ask for everything from byte ``start`` on."""
    headers = {"Accept-Encoding": "identity", "User-Agent": "lra-bench"}
    if start:
        headers["Range"] = f"bytes={start}-"
        with suppress(OSError):  # a host that names versions continues only the same one
            headers["If-Range"] = _version(part).read_text()
    return headers


def _refuse_unsafe(response: requests.Response, **_: object) -> None:
    """Follow no redirection to an address that is not encrypted."""
    if response.is_redirect and not is_safe(onward := urljoin(response.url, response.headers["Location"])):
        response.close()
        raise TransferError(f"the host hands on to {onward}, which is not encrypted")


def _refuse_other_than_content(response: requests.Response) -> None:
    import requests

    told = f"the host answers {response.status_code} {response.reason}"
    if response.status_code in _PASSING:
        raise requests.HTTPError(told)
    if response.status_code not in (200, 206, 416):
        raise TransferError(told)


def _is_all(response: requests.Response, start: int) -> bool:
    """Whether there is nothing after byte ``start``."""
    return response.status_code == 416 and response.headers.get("Content-Range") == f"bytes */{start}"


def _store(response: requests.Response, part: Path, start: int, size_bytes: int | None, description: str) -> bool:
    """Write what arrives; whether it is all there is."""
    if response.status_code == 416:
        discard(part)  # longer than the file, so of another version
        return False
    length = response.headers.get("Content-Length", "")
    told = int(length) if length.isdecimal() else None
    end, total = told, told
    if response.status_code == 206:
        span = _span(response)
        if span is None or span[0] != start or (told is not None and told != span[1] - span[0] + 1):
            discard(part)
            return False
        end, total = span[1] + 1, span[2]
    else:
        start = 0
        _note_version(response, part)
    most = min(size for size in (size_bytes, total, LARGEST_BYTES) if size is not None)
    if total is not None and total > most:
        discard(part)
        raise TooLong(f"has {total:,} bytes instead of {most:,}")
    if end is not None:
        most = min(most, end)
    have = start
    with (
        part.open("ab" if start else "wb") as file,
        bar(total or size_bytes or 0, description, start=start, unit="bytes") as advance,
    ):
        # Bytes as they are sent: some hosts label a .gz as encoded, and it would arrive unpacked.
        for chunk in response.raw.stream(_CHUNK, decode_content=False):
            have += len(chunk)
            if have > most:
                discard(part)
                raise TooLong(f"has more than {most:,} bytes")
            file.write(chunk)
            advance(len(chunk))
    whole = end if total is None else total
    return whole is None or have == whole


def _span(response: requests.Response) -> tuple[int, int, int | None] | None:
    """First and last byte of a part and the size of the whole, if that is told; None where they make no sense."""
    found = re.fullmatch(
        r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)", response.headers.get("Content-Range", "")
    )
    if found is None:
        return None
    first, last = int(found[1]), int(found[2])
    total = None if found[3] == "*" else int(found[3])
    return None if last < first or (total is not None and last >= total) else (first, last, total)


def _note_version(response: requests.Response, part: Path) -> None:
    tag = response.headers.get("ETag", "")
    version = tag if tag.startswith('"') else response.headers.get("Last-Modified")
    if version:
        _version(part).write_text(version)
    else:
        _version(part).unlink(missing_ok=True)


def _version(part: Path) -> Path:
    return part.with_name(f"{part.name}.version")


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _in_words(error: Exception) -> str:
    import requests

    if isinstance(error, requests.HTTPError):
        return str(error)
    request = getattr(error, "request", None)
    host = urlsplit(request.url).hostname if request is not None else "the host"
    if isinstance(error, requests.exceptions.SSLError):
        return f"the certificate of {host} is refused"
    if isinstance(error, requests.exceptions.ProxyError):
        return f"the proxy on the way to {host} cannot be reached"
    if isinstance(error, requests.exceptions.Timeout):
        return f"{host} does not answer"
    if isinstance(error, requests.exceptions.ConnectionError):
        return f"{host} cannot be reached"
    return "the connection broke off"
