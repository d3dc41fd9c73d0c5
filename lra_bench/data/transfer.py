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


class TransferError(Exception):
    """Why a file did not arrive, in a few words."""


def transfer(address: str, part: Path, size_bytes: int | None, description: str) -> None:
    """Bring what lies at ``address`` into ``part``, from where that ends, and return when all has arrived.

    A connection that breaks is taken up again as long as something arrives; a host that cannot be reached at all is
    not tried twice. ``size_bytes`` is for the progress display where the host does not tell. Raises
    ``TransferError``; what has arrived by then stays. Raises ``OSError`` where ``part`` cannot be written.
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
    if response.status_code == 416 or (response.status_code == 206 and _first_byte(response) != start):
        discard(part)  # longer than the file, so of another version
        return False
    if response.status_code == 200:
        start = 0
        _note_version(response, part)
    length = response.headers.get("Content-Length", "")
    total = start + int(length) if length.isdigit() else None
    with (
        part.open("ab" if start else "wb") as file,
        bar(total or size_bytes or 0, description, start=start, unit="bytes") as advance,
    ):
        # Bytes as they are sent: some hosts label a .gz as encoded, and it would arrive unpacked.
        for chunk in response.raw.stream(_CHUNK, decode_content=False):
            file.write(chunk)
            advance(len(chunk))
    return total is None or _size(part) == total


def _first_byte(response: requests.Response) -> int | None:
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(found[1]) if found else None


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
