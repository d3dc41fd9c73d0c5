"""The columns that a reader asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .formatting import Section


def with_columns(sections: Sequence[Section], wanted: Sequence[str]) -> list[Section]:
    """The sections with the wanted columns alone, in that order, after the name of the row.

    A column is named by its heading, or by the first or last words of it. Sections without any of the columns are left
    out. Raises ``UserError`` where no section has a column of that name.
    """
    known = {str(name) for section in sections for name in section.table.columns}
    for name in wanted:
        if sections and not _named(name, list(known)):
            raise UserError(f"--columns {name}: there is no such column{suggest(name, known)}")
    found = []
    for section in sections:
        headings = [str(name) for name in section.table.columns]
        columns = dict.fromkeys(each for name in wanted for each in _named(name, headings))
        if columns:
            heads = [name for name in section.heads if name in headings and name not in columns]
            names = [*heads, *columns]
            best = frozenset((place, name) for place, name in section.best if name in names)
            found.append(replace(section, table=section.table[names], best=best))
    return found


def _named(wanted: str, headings: Sequence[str]) -> list[str]:
    """The headings that are ``wanted``, else those that begin or end with its words."""
    if wanted in headings:
        return [wanted]
    return [name for name in headings if name.startswith(f"{wanted} ") or name.endswith(f" {wanted}")]
