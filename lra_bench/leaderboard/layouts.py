"""The layouts of the leaderboard: data, sections, file name, title and note of each table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lra_bench.build import suggest
from lra_bench.contracts import UserError
from lra_bench.records.schema import Record

from .formatting import Section
from .overview import overview
from .published import load_published
from .published_table import published_sections
from .sections import long_sections, wide_sections
from .table import leaderboard

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Layout:
    """A kind of table.

    ``make`` builds the data from records, ``sections`` splits the data into titled tables of text, ``file`` is the file
    name without suffix, and ``note`` explains the table to its readers.
    """

    make: Callable[[Sequence[Record]], pd.DataFrame]
    sections: Callable[[pd.DataFrame], Iterable[Section]]
    file: str
    title: str
    note: str


LAYOUTS = {
    "long": Layout(
        leaderboard,
        long_sections,
        "leaderboard",
        "Leaderboard",
        "Score with its 95 % confidence interval: over seeds for two or more seeds, otherwise over test examples. Rows "
        "are ranked by score within a task and protocol. Ties: rows that share a letter are not significantly "
        "different; rows without a letter have too few seeds to be tested. The source names the reference board that a "
        "row belongs to; rows without one are your own. Speed and memory are those of the named hardware and sequence "
        "length. Comparable: protocol unmodified and body parameters within 10 % of the transformer's.",
    ),
    "wide": Layout(
        overview,
        wide_sections,
        "leaderboard_wide",
        "Leaderboard, one table per protocol",
        "Scores are means over seeds ± the wider half of their 95 % confidence interval, in percent or bits per "
        "character, with the number of seeds in parentheses; with one seed the interval is over test examples. Rows "
        "that share a letter on a task are not significantly different; rows without a letter have too few seeds to be "
        "tested. avg5 excludes Path-X; avg6_fail50 includes it and counts a failed Path-X as 50 %. Both averages are "
        "given only if every task was run. Speed and memory are those of a training step, relative to the transformer "
        "on the same hardware; published rows were not run here and have neither. The source names the reference board "
        "that a row belongs to; rows without one are your own. Long Range Arena scores depend on budget and "
        "pretraining (arXiv 2310.02980), and short-range dependencies explain much of them (arXiv 2501.14850): compare "
        "them with the floors (baselines without a model) and with the skill kept on longer inputs.",
    ),
    "published": Layout(
        lambda records: load_published(),
        published_sections,
        "published",
        "Published numbers",
        "Numbers as printed in their sources. They were obtained under different protocols and must not be ranked with "
        "measured rows. avg5 and avg6_fail50 are computed from the scores of each row; a printed average that differs "
        "is marked as a misprint.",
    ),
}


def find_layout(name: str) -> Layout:
    """Return the layout called ``name``. Raises ``UserError`` if there is none."""
    if name not in LAYOUTS:
        raise UserError(f"--layout {name}: unknown layout{suggest(name, set(LAYOUTS))}")
    return LAYOUTS[name]
