"""The tables there are: how each is made from records, cut into sections, named and explained."""

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
    """A kind of table: ``make`` gives its data, ``sections`` its readable parts, ``note`` says what they mean."""

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
        "Score with its 95 % interval, over seeds where there are two or more, else over examples. Rows are ranked by "
        "score within a task and protocol; rows that share a letter under ties were not told apart, rows without one "
        "have too few seeds for a claim. Rows with a source are of a reference board that the project measured; the "
        "others are your own. Speed and memory belong to the named hardware and length. Comparable: "
        "protocol unmodified and within 10 % of the transformer's body parameters.",
    ),
    "wide": Layout(
        overview,
        wide_sections,
        "leaderboard_wide",
        "Leaderboard, one table per protocol",
        "Scores are means with the wider half of their 95 % interval and the number of seeds, in percent or bits; with "
        "one seed the interval is over examples. Letters: rows that share one were not told apart, rows without one "
        "have too few seeds for a claim. avg5 leaves Path-X out, avg6_fail50 counts a Path-X that failed as 50 %; both "
        "stand only where every task was run. Speed and memory are those of a training step relative to the "
        "transformer on the same hardware; published rows were not run here and have none. Rows with a source are of a "
        "reference board that the project measured; the others are your own. Long Range Arena's scores "
        "depend on budget and pretraining (arXiv 2310.02980), and short-range dependencies explain much of them (arXiv "
        "2501.14850): read them beside the floors and what is kept on longer inputs.",
    ),
    "published": Layout(
        lambda records: load_published(),
        published_sections,
        "published",
        "Published numbers",
        "Numbers of others, as they printed them, under rules of their own: not to be ranked with measured rows. "
        "Averages are computed from the row; a printed one that differs is called a misprint.",
    ),
}


def find_layout(name: str) -> Layout:
    """The layout of a name; ``UserError`` where there is none."""
    if name not in LAYOUTS:
        raise UserError(f"--layout {name}: there is no such layout{suggest(name, set(LAYOUTS))}")
    return LAYOUTS[name]
