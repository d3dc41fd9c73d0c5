"""Redact secrets and local paths from records."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

HIDDEN = "***"

NAMED_FOLDERS = ("LRA_BENCH_DATA", "LRA_BENCH_CACHE")
"""Environment variables that replace the paths of folders in records, so that readers can find their own copy."""

_SECRET_NAME = re.compile(
    r"(^|_)((API)?KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|PASSPHRASE|PASS|PAT|AUTH|DSN|CREDENTIALS?)(_|$)|_PWD$",
    re.IGNORECASE,
)

_SHORTEST_SECRET, _SHORTEST_IN_WORDS = 4, 8
"""Shorter values of such variables are not replaced; values below the second length only as whole words."""

_CREDENTIALS = re.compile(r"(?<=://)([^/\s\"':@]*:(?!\d*(/|$))[^\s\"']*@|[^/\s\"']+@)")
"""User name and password in a URL, up to the last ``@``; a password may contain ``/`` and ``@``."""


def without_credentials(text: str) -> str:
    """Return ``text`` with user names and passwords in URLs replaced by ``HIDDEN``."""
    return _CREDENTIALS.sub(f"{HIDDEN}@", text)


def shareable(value: Any) -> Any:
    """Return a copy of a JSON-like value with secrets and local paths in its strings replaced; keys are unchanged.

    Credentials in URLs and the values of environment variables with the name of a secret are replaced by ``HIDDEN``.
    Paths in the working folder become relative, paths in a folder of ``NAMED_FOLDERS`` begin with the variable, paths
    in the user's home begin with ``~``. Other paths are unchanged.
    """
    named_as_secret = {value for name, value in os.environ.items() if _SECRET_NAME.search(name)}
    patterns = [
        re.escape(value) if len(value) >= _SHORTEST_IN_WORDS else rf"(?<!\w){re.escape(value)}(?!\w)"
        for value in sorted(named_as_secret, key=len, reverse=True)
        if len(value) >= _SHORTEST_SECRET
    ]
    hidden = re.compile("|".join(patterns)) if patterns else None
    named = [(Path(os.environ[name]).absolute(), f"${name}") for name in NAMED_FOLDERS if os.environ.get(name)]
    folders = [(_prefix(Path.cwd()), "", ".")]
    with suppress(RuntimeError):  # the home folder is unknown
        named.append((Path.home(), "~"))
    folders += [(_prefix(folder), f"{name_shown}/", name_shown) for folder, name_shown in named]

    def clean(text: str) -> str:
        text = without_credentials(text)
        if hidden is not None:
            text = hidden.sub(HIDDEN, text)
        for prefix, inside, alone in folders:
            if prefix is not None:
                text = prefix.sub(lambda found: inside if found[1] else alone, text)  # noqa: B023
        return text

    def walk(entry: Any) -> Any:
        if isinstance(entry, str):
            return clean(entry)
        if isinstance(entry, Mapping):
            return {name: walk(inner) for name, inner in entry.items()}
        return [walk(inner) for inner in entry] if isinstance(entry, list | tuple) else entry

    return walk(value)


def _prefix(folder: Path) -> re.Pattern[str] | None:
    """Return a pattern that matches ``folder`` at the beginning of a path, with the following slash if any.

    None for the root folder.
    """
    if folder == Path(folder.anchor):
        return None
    return re.compile(rf"(?<![\w./~-]){re.escape(str(folder))}(?:(/)|(?![\w.-]))")
