"""Tables as people read them: figures rounded and spelled once, the same in every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lra_bench.records.values import plain

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Section:
    """A titled table of strings; ``best`` holds (row, column) places not told apart from the best of their column.

    ``remark`` is printed beneath. ``first_cost`` is the column from which a narrow terminal begins a second table.
    ``heads`` are columns that name the row, ``left`` those of words, which are aligned to the left.
    """

    title: str
    table: pd.DataFrame
    best: frozenset[tuple[int, str]] = frozenset()
    remark: str = ""
    first_cost: str = "parameters"
    heads: Sequence[str] = ("variant", "model")
    left: frozenset[str] = frozenset(("variant", "model"))


def parts(section: Section, widths: Mapping[str, float], limit: float) -> Iterator[pd.DataFrame]:
    """Cut the table into groups of columns, each narrower than ``limit``, that begin with the name of the row.

    From the second group on, rows that say nothing beside their name are left out.
    """
    table = section.table
    names = [str(name) for name in table.columns]
    if sum(widths[name] for name in names) < limit:
        yield table
        return
    for place, columns in enumerate(_column_groups(section, names, widths, limit)):
        rest = table[[name for name in columns if name not in section.heads]]
        yield table.loc[(rest != "").any(axis=1), columns] if place else table[columns]


def _column_groups(
    section: Section, names: Sequence[str], widths: Mapping[str, float], limit: float
) -> Iterator[list[str]]:
    head = next(name for name in section.heads if name in names)
    first_cost = names.index(section.first_cost) if section.first_cost in names else len(names)
    for theme in (names[:first_cost], names[first_cost:]):
        columns: list[str] = []
        for name in theme:
            if not columns and head not in theme:
                columns = [head]
            if len(columns) > 1 and sum(widths[each] for each in (*columns, name)) >= limit:
                yield columns
                columns = [head]
            columns.append(name)
        if columns:
            yield columns


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows as dicts of plain values, None where unknown."""
    import pandas as pd

    return [
        {str(name): None if pd.isna(value) else plain(value) for name, value in row.items()}
        for row in frame.to_dict("records")
    ]


def without_empty(rows: Sequence[dict[str, str]], always: Sequence[str]) -> pd.DataFrame:
    """Strings as a table; columns without a value are left out unless they are ``always`` there."""
    import pandas as pd

    table = pd.DataFrame(rows).fillna("")
    return table[[name for name in table.columns if name in always or table[name].any()]]


def score(value: float | None, metric: str | None) -> str:
    """A score in its metric's unit: a share in percent, bits as they are."""
    if value is None:
        return ""
    return f"{100 * value:.1f} %" if metric != "bits_per_character" else f"{value:.3f}"


def score_with_interval(row: Mapping[str, Any], metric: str | None) -> str:
    """``37.0 % [35.9, 38.1]``, the interval where there is one."""
    if row["score"] is None or row["low"] is None:
        return score(row["score"], metric)
    low, high = (score(row[end], metric).removesuffix(" %") for end in ("low", "high"))
    return f"{score(row['score'], metric)} [{low}, {high}]"


def score_with_half_width(value: float | None, low: float | None, high: float | None, metric: str | None) -> str:
    """``37.0 ± 1.1``, without a unit, the wider half where an interval is not symmetric."""
    number = score(value, metric).removesuffix(" %")
    if value is None or low is None or high is None:
        return number
    return f"{number} ± {score(max(value - low, high - value), metric).removesuffix(' %')}"


def difference(value: float | None, metric: str | None) -> str:
    """A difference of scores with its sign: points of percent, or bits."""
    if value is None:
        return ""
    return f"{100 * value:+.1f} points" if metric != "bits_per_character" else f"{value:+.3f} bits"


def count(value: float | None) -> str:
    """A whole number with separators."""
    return "" if value is None else f"{value:,.0f}"


def times(value: float | None) -> str:
    """A ratio as a factor: ``1.52×``."""
    return "" if value is None else f"{value:.2f}×"


def exponent(value: float) -> str:
    """An exponent of growth."""
    return f"{value:.2f}"


def percent(value: float) -> str:
    """A share in whole percent."""
    return f"{100 * value:.0f} %"


def megabytes(value: float | None) -> str:
    """Bytes as megabytes."""
    if value is None:
        return ""
    return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.2g} MB"


def at_length(value: int | None) -> str:
    """A length behind a heading or a status: ``@16k``."""
    if value is None:
        return ""
    return f"@{value // 1024}k" if value % 1024 == 0 else f"@{value}"


def spoken(name: str) -> str:
    """A name of a field as words."""
    return name.replace("_", " ")


def source(board: str | None) -> str:
    """Who measured a row: ``reference`` and the board's name, nothing for the user's own."""
    return f"reference {board}" if board else ""


def yes_or_no(value: bool | None) -> str:
    """Yes, no, or nothing where unknown."""
    return {True: "yes", False: "no", None: ""}[value]
