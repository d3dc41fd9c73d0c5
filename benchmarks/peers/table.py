"""The table of results: one row per pair and length, and geometric means over the bidirectional pairs."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from lra_bench.profiling.comparison.ratios import median_interval

from .pair import Pair, Sizes

MEBIBYTE = 2**20
CONTENDERS = ("ours", "theirs", "floor")
"""The layer of lra-bench, the layer of the peer, and projections only."""
NUMBERS = [
    *[f"{contender}_{unit}" for unit in ("ms", "mib") for contender in CONTENDERS],
    "time_ratio", "time_ratio_low", "time_ratio_high", "memory_ratio",
]  # fmt: skip
SHOWN = {
    "pair": "pair",
    "length": "length",
    "ours_ms": "lra-bench (ms)",
    "theirs_ms": "peer (ms)",
    "floor_ms": "floor (ms)",
    "time": "time, peer/lra-bench",
    "ours_mib": "lra-bench (MiB)",
    "theirs_mib": "peer (MiB)",
    "floor_mib": "floor (MiB)",
    "memory_ratio": "memory, peer/lra-bench",
    "note": "note",
}


@dataclass(frozen=True)
class Row:
    """The results of a pair at one length: seconds of each block and peak bytes by contender, and a failure."""

    pair: Pair
    sizes: Sizes
    seconds: Mapping[str, Sequence[float]]
    peaks: Mapping[str, int | None]
    failure: str = ""

    def ratios(self) -> list[float]:
        """Return the ratios of times, peer over lra-bench, of neighbouring blocks."""
        own, peer = self.seconds.get("ours", ()), self.seconds.get("theirs", ())
        return [peer_seconds / own_seconds for own_seconds, peer_seconds in zip(own, peer, strict=False)]

    def as_dict(self) -> dict[str, object]:
        """Return the row by columns; unknown values are None."""
        ratios = self.ratios()
        mib = {contender: None if peak is None else peak / MEBIBYTE for contender, peak in self.peaks.items()}
        own, peer = mib.get("ours"), mib.get("theirs")
        return {
            "pair": self.pair.name,
            "package": self.pair.package,
            "version": self.pair.version,
            "key": self.pair.key,
            "causal": self.pair.causal,
            "length": self.sizes.length,
            **{
                f"{contender}_ms": 1e3 * statistics.median(self.seconds[contender])
                if self.seconds.get(contender)
                else None
                for contender in CONTENDERS
            },
            "time_ratio": statistics.median(ratios) if ratios else None,
            **dict(zip(("time_ratio_low", "time_ratio_high"), median_interval(ratios), strict=True)),
            **{f"{contender}_mib": mib.get(contender) for contender in CONTENDERS},
            "memory_ratio": peer / own if own and peer else None,
            "blocks": len(ratios),
            "failure": self.failure,
            "differs": self.pair.differs,
        }


def as_table(rows: Sequence[Row]) -> pd.DataFrame:
    """Return all rows as a data frame with numeric columns."""
    data = pd.DataFrame([row.as_dict() for row in rows])
    data[NUMBERS] = data[NUMBERS].apply(pd.to_numeric)
    return data


def as_text(data: pd.DataFrame) -> str:
    """Return the table as Markdown."""
    shown = data.copy()
    for name in NUMBERS:
        shown[name] = ["" if pd.isna(number) else _short(number) for number in data[name]]
    spread = " (" + shown["time_ratio_low"] + " to " + shown["time_ratio_high"] + ")"
    shown["time"] = (shown["time_ratio"] + spread).where(data["time_ratio"].notna(), "")
    shown["note"] = [failure or differs for failure, differs in zip(data["failure"], data["differs"], strict=True)]
    return str(shown[list(SHOWN)].rename(columns=SHOWN).to_markdown(index=False, disable_numparse=True))


def _short(number: float) -> str:
    """Format a number with three significant digits, or without decimals from 1000 on."""
    return f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"


def geometric_means(data: pd.DataFrame) -> list[str]:
    """Return one line per length: geometric means of both ratios over the bidirectional pairs that have them."""
    lines = []
    for length, group in data[~data["causal"]].groupby("length"):
        parts = [
            f"{quantity} {statistics.geometric_mean(known):.2f} ({len(known)} of {len(group)} pairs)"
            for quantity in ("time", "memory")
            if len(known := group[f"{quantity}_ratio"].dropna())
        ]
        lines.append(
            f"length {length}, bidirectional, geometric mean of peer/lra-bench: {', '.join(parts) or 'unknown'}"
        )
    return lines
