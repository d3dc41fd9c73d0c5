"""What rows of all tables share: their identity, and cells of one kind."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.leaderboard.cells import score, score_with_half_width, yes_or_no

from .cells import Cell, Value

if TYPE_CHECKING:
    import pandas as pd

OF_VARIANT = ["protocol", "section", "variant", "modified", "hardware"]


class Places:
    """Where the details of a row stand, which are numbered as the rows of the long layout; families and colours."""

    def __init__(self, board: pd.DataFrame, families: Mapping[str, str], looks: Mapping[str, str]) -> None:
        self._families, self._looks = families, looks
        self._of_variant: dict[tuple[Any, ...], list[int]] = {}
        for place, key in enumerate(board[OF_VARIANT].itertuples(index=False, name=None) if len(board) else []):
            self._of_variant.setdefault(key, []).append(place)

    def of_variant(self, row: Mapping[str, Any]) -> Sequence[int]:
        """The places of a variant's tasks on one machine."""
        return self._of_variant.get(tuple(row[name] for name in OF_VARIANT), ())

    def family(self, model: str | None) -> str:
        """The family of a model; empty for what is none."""
        return self._families.get(model or "", "")

    def look(self, model: str | None) -> str:
        """The class of a model's colour; empty for what is none."""
        return self._looks.get(model or "", "")


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
    }


def digest(parts: Iterable[Any]) -> str:
    """Eight letters that stay the same as long as ``parts`` do, so that links keep their meaning."""
    return f"{zlib.crc32('|'.join(map(str, parts)).encode()):08x}"


def number(value: Value, shown: str, tail: str = "") -> Cell:
    """A figure and how it is spelled; empty where unknown."""
    return Cell(shown, value, tail=tail) if value is not None else Cell()


def text(value: str | None) -> Cell:
    """A word, which sorts as it reads."""
    return Cell(value, value) if value else Cell()


def comparable(value: bool | None) -> Cell:
    """Yes, no or unknown."""
    return number(None if value is None else int(value), yes_or_no(value))


def scored(value: float | None, low: float | None, high: float | None, metric: str | None) -> Cell:
    """A score beside the wider half of its interval, without a unit."""
    if value is None:
        return Cell()
    _, sign, half = score_with_half_width(value, low, high, metric).partition(" ± ")
    return Cell(score(value, metric).removesuffix(" %"), value, f"± {half}" if sign else "")
