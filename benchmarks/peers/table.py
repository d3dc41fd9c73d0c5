"""What was found, as a table: a row for each pair and length, and geometric means over the bidirectional pairs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from lra_bench.profiling.comparison.ratios import median_interval

from .pair import Pair, Sizes

MEBIBYTE = 2**20
WHOSE = ("ours", "theirs", "floor")
NUMBERS = [
    *[f"{whose}_{unit}" for unit in ("ms", "mib") for whose in WHOSE],
    "time_ratio", "time_ratio_low", "time_ratio_high", "memory_ratio",
]  # fmt: skip
SHOWN = {
    "pair": "pair",
    "length": "length",
    "ours_ms": "ours (ms)",
    "theirs_ms": "peer (ms)",
    "floor_ms": "floor (ms)",
    "time": "time, peer/ours",
    "ours_mib": "ours (MiB)",
    "theirs_mib": "peer (MiB)",
    "floor_mib": "floor (MiB)",
    "memory_ratio": "memory, peer/ours",
    "note": "note",
}


@dataclass(frozen=True)
class Row:
    """A pair at one length: seconds of each block and peak bytes of ours, theirs and the floor, or what failed."""

    pair: Pair
    sizes: Sizes
    seconds: Mapping[str, Sequence[float]]
    peaks: Mapping[str, int | None]
    failure: str = ""

    def ratios(self) -> list[float]:
        """Their time over ours, of neighbouring blocks."""
        ours, theirs = self.seconds.get("ours", ()), self.seconds.get("theirs", ())
        return [their / our for our, their in zip(ours, theirs, strict=False)]

    def as_dict(self) -> dict[str, object]:
        """The row by columns; what is not known is None."""
        ratios = self.ratios()
        mib = {whose: None if peak is None else peak / MEBIBYTE for whose, peak in self.peaks.items()}
        ours, theirs = mib.get("ours"), mib.get("theirs")
        return {
            "pair": self.pair.name,
            "package": self.pair.package,
            "version": self.pair.version,
            "key": self.pair.key,
            "causal": self.pair.causal,
            "length": self.sizes.length,
            **{
                f"{whose}_ms": 1e3 * statistics.median(self.seconds[whose]) if self.seconds.get(whose) else None
                for whose in WHOSE
            },
            "time_ratio": statistics.median(ratios) if ratios else None,
            **dict(zip(("time_ratio_low", "time_ratio_high"), median_interval(ratios), strict=True)),
            **{f"{whose}_mib": mib.get(whose) for whose in WHOSE},
            "memory_ratio": theirs / ours if ours and theirs else None,
            "blocks": len(ratios),
            "failure": self.failure,
            "differs": self.pair.differs,
        }


def as_table(rows: Sequence[Row]) -> pd.DataFrame:
    """All rows, numbers as numbers."""
    data = pd.DataFrame([row.as_dict() for row in rows])
    data[NUMBERS] = data[NUMBERS].apply(pd.to_numeric)
    return data


def as_text(data: pd.DataFrame) -> str:
    """The table for readers, in Markdown."""
    shown = data.copy()
    for name in NUMBERS:
        shown[name] = ["" if pd.isna(number) else _short(number) for number in data[name]]
    spread = " (" + shown["time_ratio_low"] + " to " + shown["time_ratio_high"] + ")"
    shown["time"] = (shown["time_ratio"] + spread).where(data["time_ratio"].notna(), "")
    shown["note"] = [failure or differs for failure, differs in zip(data["failure"], data["differs"], strict=True)]
    return str(shown[list(SHOWN)].rename(columns=SHOWN).to_markdown(index=False, disable_numparse=True))


def _short(number: float) -> str:
    """Three digits, or all before the point."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def geometric_means(data: pd.DataFrame) -> list[str]:
    """A line for each length: the geometric means of both ratios over the bidirectional pairs that have them."""
    lines = []
    for length, group in data[~data["causal"]].groupby("length"):
        parts = [
            f"{what} {statistics.geometric_mean(known):.2f} ({len(known)} of {len(group)} pairs)"
            for what in ("time", "memory")
            if len(known := group[f"{what}_ratio"].dropna())
        ]
        lines.append(f"length {length}, bidirectional, geometric mean of peer/ours: {', '.join(parts) or 'unknown'}")
    return lines
