"""What a check of the machine, of records or of published numbers reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``ok`` is None if it states a fact without a verdict."""

    what: str
    found: str
    ok: bool | None = None
