"""Cells of tables, with the shown text and the sort value, and badges for the status of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lra_bench.records.schema import STATUSES

from .formatting import AT_FLOOR, BITS, at_length, number, readable

RETENTION = "4x"
"""Length ratio at which tables of all tasks report the share of the skill that is kept."""

SHORT = {"out_of_memory": "oom"}
"""Abbreviations of statuses in badges."""
UNRESTRICTED = "not restricted at"
ENDED = ("diverged", "out_of_memory", "timeout")
"""Statuses that are a result of the model: Path-X counts as failed if all its seeds ended with one of them."""


@dataclass(frozen=True)
class Badge:
    """A short label of a status.

    ``help`` is its tooltip, ``tone`` selects its colour. ``where`` follows the label in tables of text: the tasks that
    have the badge, empty if all do.
    """

    text: str
    help: str
    tone: Literal["ended", "open", "note"]
    where: str = ""


class Badges(tuple[Badge, ...]):
    """The badges of a row; as text ``oom 1/3, no 4x (listops)``."""

    def __str__(self) -> str:
        return ", ".join(badge.text + badge.where for badge in self)


@dataclass(frozen=True)
class Whisker:
    """An interval on an axis shared by all rows of a table: positions from 0 to 100, None if unknown."""

    place: float
    low: float | None
    high: float | None
    floor: float | None


@dataclass(frozen=True)
class Cell:
    """One cell of a table.

    ``value`` is the unrounded value to sort by, None if the cell has none. ``unit`` is appended to the text in tables
    of text; the page shows it in the tooltip of the column instead. ``best`` cells are bold. ``at_floor`` marks a score
    that is not better than the floor; it is grey and followed by ``AT_FLOOR``.
    """

    text: str = ""
    value: float | str | None = None
    unit: str = ""
    spread: str = ""
    tail: str = ""
    best: bool = False
    at_floor: bool = False
    badges: Sequence[Badge] = ()
    whisker: Whisker | None = None

    def __bool__(self) -> bool:
        return bool(self.text or self.badges or self.whisker)

    def plain(self, unit: bool = True) -> str:
        """Return the cell as one line of text: ``37.0 ± 1.1 (5)``, or its badges."""
        mark = AT_FLOOR if self.at_floor else ""
        parts = (self.text + (self.unit if unit else ""), self.spread, self.tail, mark)
        return ", ".join(badge.text for badge in self.badges) or " ".join(filter(None, parts))

    def brief(self) -> str:
        """Return the number, marked if it is at the floor, or the badges."""
        return self.plain() if self.badges else self.text + (AT_FLOOR if self.at_floor else "")


EMPTY = Cell()


def figure(value: Any, spell: Callable[[Any], str], tail: str = "") -> Cell:
    """Return a cell with a number formatted by ``spell``, empty if the number is unknown."""
    return EMPTY if value is None else Cell(spell(value), value, tail=tail)


def word(value: str | None) -> Cell:
    """Return a cell with a text that is also its sort value."""
    return Cell(value, value) if value else EMPTY


def share(value: float | None, metric: str | None, tail: str = "") -> Cell:
    """Return a cell with a score of ``metric`` and a separate unit."""
    if value is None:
        return EMPTY
    return Cell(number(value, metric), value, unit="" if metric == BITS else " %", tail=tail)


def scored(value: float | None, low: float | None, high: float | None, metric: str | None) -> Cell:
    """Return a cell with a score and the wider half of its interval, without a unit."""
    if value is None:
        return EMPTY
    half = "" if low is None or high is None else f"± {number(max(value - low, high - value), metric)}"
    return Cell(number(value, metric), value, spread=half)


def badges(entry: Mapping[str, Any]) -> Badges:
    """Return the badges of one row of the long table.

    They are the statuses of seeds that are not ok (``diverged 1/3``), the lengths at which the step benchmark failed
    (``oom@8k``), ``no 4x`` if there is no score at ``RETENTION``, and ``not restricted at 64`` if the rows, of at most
    64 tokens, are shorter than any at which the mechanism restricts attention.
    """
    total, found = sum(entry["statuses"].values()), list[Badge]()
    for status, count in entry["statuses"].items():
        if status != "ok":
            share, seeds = (f" {count}/{total}", f"{count} of {total} seeds: ") if total > 1 else ("", "")
            tone: Literal["ended", "open"] = "ended" if status in ENDED else "open"
            found.append(Badge(SHORT.get(status, status) + share, seeds + STATUSES.get(status, status), tone))
    for limit in filter(None, (entry["train_limit"], entry["inference_limit"])):
        at = at_length(limit.length)
        help = f"the step benchmark failed at {at[1:]} tokens ({readable(limit.status)})"
        found.append(Badge(SHORT.get(limit.status, limit.status) + at, help, "note"))
    if entry.get(f"status_{RETENTION}") not in (None, "ok"):
        times = RETENTION.removesuffix("x")
        found.append(Badge(f"no {RETENTION}", f"no score at {times} times the training length", "note"))
    if length := entry.get("unrestricted_at"):
        help = f"the mechanism restricts no row of at most {length} tokens: full attention is measured"
        found.append(Badge(f"{UNRESTRICTED} {length}", help, "note"))
    return Badges(dict.fromkeys(found))


def badges_of_all(statuses: Mapping[str, Badges | None]) -> Badges:
    """Return the badges of a variant from those of each task, each once, with its tasks unless all have it."""
    tasks: dict[Badge, list[str]] = {}
    for task, of_task in statuses.items():
        for badge in of_task or ():
            tasks.setdefault(badge, []).append(task)
    found = list[Badge]()
    for badge, labels in tasks.items():
        where = ", ".join(labels) if len(labels) < 3 else f"{len(labels)} tasks"
        own = replace(badge, help=f"{badge.help}: {', '.join(labels)}")
        found.append(own if len(labels) == len(statuses) else replace(own, where=f" ({where})"))
    return Badges(found)
