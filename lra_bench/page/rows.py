"""What rows of all tables share: their identity, and cells of one kind."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.formatting import score, score_with_half_width, source, yes_or_no

from .table_cells import Cell

if TYPE_CHECKING:
    import pandas as pd

OF_VARIANT = ["protocol", "section", "variant", "modified", "hardware"]


class Places:
    """Where the details of a row stand, which are numbered as the rows of the long layout; families and colours."""

    def __init__(self, board: pd.DataFrame, families: Mapping[str, str], looks: Mapping[str, str]) -> None:
        self._families, self._looks = families, looks
        self._of_variant: dict[tuple[Any, ...], list[tuple[str, int]]] = {}
        for place, row in enumerate(board.to_dict("records")):
            self._of_variant.setdefault(_variant(row), []).append((row["task"], place))

    def of_variant(self, row: Mapping[str, Any], labels: Sequence[str]) -> Sequence[int]:
        """The places of a variant's tasks on one machine, in the order of the tasks' columns."""
        order = [label.split(" ")[0] for label in labels]
        return [place for _, place in sorted(self._of_variant[_variant(row)], key=lambda each: order.index(each[0]))]

    def family(self, model: str | None) -> str:
        """The family of a model; empty for what is none."""
        return self._families.get(model or "", "")

    def look(self, model: str | None) -> str:
        """The class of a model's colour; empty for what is none."""
        return self._looks.get(model or "", "")


def _variant(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in OF_VARIANT)


def identity(row: Mapping[str, Any], family: str, look: str, parts: Iterable[Any]) -> dict[str, Any]:
    """What names a row of the wide or the long layout; ``parts`` tell it from all others of the page."""
    return {
        "id": digest(parts),
        "kind": row.get("kind", "measured"),
        "name": row["variant"],
        "small": row.get("citation") or row["modified"] or "",
        "family": family,
        "look": look,
        "hardware": row["hardware"] or "",
        "source": source(row.get("reference")),
    }


def digest(parts: Iterable[Any]) -> str:
    """Eight letters that stay the same as long as ``parts`` do, so that links keep their meaning."""
    return f"{zlib.crc32('|'.join(map(str, parts)).encode()):08x}"


def figure(value: Any, spell: Callable[[Any], str], tail: str = "") -> Cell:
    """A figure, spelled; empty where unknown."""
    return Cell(spell(value), value, tail=tail) if value is not None else Cell()


def text(value: str | None) -> Cell:
    """A word, which sorts as it reads."""
    return Cell(value, value) if value else Cell()


def comparable(value: bool | None) -> Cell:
    """Yes, no or unknown."""
    return Cell() if value is None else Cell(yes_or_no(value), int(value))


def scored(value: float | None, low: float | None, high: float | None, metric: str | None) -> Cell:
    """A score beside the wider half of its interval, without a unit."""
    if value is None:
        return Cell()
    _, sign, half = score_with_half_width(value, low, high, metric).partition(" ± ")
    return Cell(score(value, metric).removesuffix(" %"), value, f"± {half}" if sign else "")
