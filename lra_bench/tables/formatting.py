"""Rounding and formatting of values for readers, the same in every output format."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lra_bench.records.values import plain
from lra_bench.statistics.paired import SMALLEST_P

if TYPE_CHECKING:
    import pandas as pd

AT_FLOOR = "°"
"""Mark of a score that is not shown to exceed the floor."""
OWN = "*"
"""Mark of the user's rows among those of reference boards, in a terminal."""
BITS = "bits_per_character"


@dataclass(frozen=True)
class Section:
    """A titled table of strings.

    Attributes:
        title: The title.
        table: The cells under their headings.
        best: The (row, column) cells in bold.
        at_floor: The cells of scores that are not better than the floor.
        remark: Text below the table.
        heads: The columns that name a row.
        left: The text columns, which are left-aligned.
        optional: Whether columns that do not fit a terminal are left out; otherwise the table is split.
    """

    title: str
    table: pd.DataFrame
    best: frozenset[tuple[int, str]] = frozenset()
    at_floor: frozenset[tuple[int, str]] = frozenset()
    remark: str = ""
    heads: Sequence[str] = ("variant", "model")
    left: frozenset[str] = frozenset(("variant", "model"))
    optional: bool = False


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows as dicts, with None for missing values; numpy scalars are converted, typed values are kept."""
    # ``DataFrame.to_dict`` takes ten times as long for tables of thousands of columns.
    names, known = [str(name) for name in frame.columns], frame.notna().to_numpy()
    values = frame.astype(object).to_numpy()
    return [
        {
            name: (value if isinstance(value, tuple | Mapping) else plain(value)) if there else None
            for name, value, there in zip(names, row, present, strict=True)
        }
        for row, present in zip(values, known, strict=True)
    ]


def first_known(rows: Iterable[Mapping[str, Any]], name: str) -> Any:
    """Return the first value of a column that is neither missing nor empty, otherwise None."""
    return next((row[name] for row in rows if row[name]), None)


def without_empty(rows: Sequence[dict[str, str]], always: Sequence[str]) -> pd.DataFrame:
    """Return the rows as a table of strings, without empty columns except those in ``always``."""
    import pandas as pd

    table = pd.DataFrame(rows).fillna("")
    return table[[name for name in table.columns if name in always or table[name].any()]]


def terminal_width() -> int:
    """Return the width of the current terminal in characters, 100 if unknown."""
    return shutil.get_terminal_size((100, 24)).columns


def number(value: float, metric: str | None) -> str:
    """Format a score without its unit: accuracy in percent, bits per character unchanged."""
    return f"{value:.3f}" if metric == BITS else f"{100 * value:.1f}"


def score(value: float | None, metric: str | None) -> str:
    """Format a score with its unit, ``%`` or none for bits per character; empty if it is unknown."""
    return "" if value is None else number(value, metric) + ("" if metric == BITS else " %")


def difference(
    value: float | None, metric: str | None, unit: bool = True, low: float | None = None, high: float | None = None
) -> str:
    """Format a difference of scores with its sign, in percentage points or bits, followed by its interval if known."""
    if value is None:
        return ""
    text, name = (f"{value:+.3f}", "bits") if metric == BITS else (f"{100 * value:+.1f}", "points")
    text = f"{text} {name}" if unit else text
    if low is None or high is None:
        return text
    return f"{text} [{difference(low, metric, False)}, {difference(high, metric, False)}]"


def fitting(widths: Mapping[str, float], room: float, head: str | None = None) -> list[list[str]]:
    """Divide columns into groups whose widths together do not exceed ``room``; later groups repeat the column ``head``.

    A group has at least one further column.
    """
    groups: list[list[str]] = [[]]
    for name in widths:
        if len(groups[-1]) > (head is not None) and sum(widths[each] for each in (*groups[-1], name)) > room:
            groups.append([] if head is None else [head])
        if name not in groups[-1]:
            groups[-1].append(name)
    return groups


def p_value(value: float) -> str:
    """Format a p-value with two digits; values below ``SMALLEST_P`` as a bound."""
    return f"p {value:.2g}" if value >= SMALLEST_P else f"p < {SMALLEST_P:.0e}"


def percent(value: float) -> str:
    """Format a fraction in whole percent."""
    return f"{100 * value:.0f} %"


def megabytes(value: float) -> str:
    """Format bytes as megabytes (10^6 bytes)."""
    return f"{value / 1e6:,.0f} MB" if value >= 1e7 else f"{value / 1e6:.2g} MB"


def kilobytes(value: float) -> str:
    """Format bytes as kilobytes (10^3 bytes)."""
    return f"{value / 1e3:,.0f} kB" if value >= 1e4 else f"{value / 1e3:.2g} kB"


def at_length(value: int | None) -> str:
    """Format a length as a suffix of a heading or a status: ``@16k``."""
    if value is None:
        return ""
    return f"@{value // 1024}k" if value % 1024 == 0 else f"@{value}"


def shared_length(lengths: Iterable[int | None]) -> str:
    """Return ``at_length`` of the length that all known ones equal, empty if they differ."""
    known = {length for length in lengths if length is not None}
    return at_length(known.pop()) if len(known) == 1 else ""


def readable(name: str) -> str:
    """Return the name of a field with spaces instead of underscores."""
    return name.replace("_", " ")


def short_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return short headings of tasks by label: without what the data lacks, unless two would be the same."""
    return unless_shared({label: readable(re.sub(r" \(.*", " (part)", label)) for label in labels})


def unless_shared(names: Mapping[str, str]) -> dict[str, str]:
    """Return short names of labels, without those that several labels share."""
    return {label: name if [*names.values()].count(name) == 1 else label for label, name in names.items()}
