"""Results of checks of the machine, of records and of published numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        what: What was checked.
        found: The result as text.
        ok: Whether the check passed; None for information without a verdict.
    """

    what: str
    found: str
    ok: bool | None = None
