"""Tables of a profile: speed, memory, growth and crossover lengths for every batch policy and mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lra_bench.contracts import UserError
from lra_bench.profiling.comparison.crossover import ALWAYS, CROSSES, NEVER
from lra_bench.profiling.comparison.run import Profile, uncertain
from lra_bench.profiling.types import MODES
from lra_bench.runtime.files import replacing, why
from lra_bench.runtime.safe_text import without_formulas

Row = Mapping[str, Any]
Rows = list[dict[str, Any]]

SHORT = {"out_of_memory": "OOM", "timeout": "timeout"}
"""Texts of statuses in cells."""
POLICIES = {"largest": "largest batch that fits", "fallback": "batch 1, if a larger batch does not fit"}
"""Titles of batch policies other than ``fixed``."""


def tables(profile: Profile) -> Iterator[tuple[str, Rows]]:
    """Yield title and rows of every table; titles of ratios name the baseline and its attention kernel."""
    for policy, size in dict.fromkeys(_group(row) for row in profile.rows):
        for mode in MODES:
            rows = [row for row in profile.rows if _group(row) == (policy, size) and row["mode"] == mode]
            if rows:
                title = f"{mode} · {POLICIES.get(policy) or f'batch {size}'}"
                yield from ((f"{title} · {name}", found) for name, found in _mode(profile, rows))


def frame(profiles: Sequence[Profile]) -> pd.DataFrame:
    """Return the rows of all profiles as one table."""
    rows = ((each, row) for each in profiles for row in each.rows)
    return pd.DataFrame(
        [{"task": own.task, "protocol": own.protocol, "hardware": own.hardware, **row} for own, row in rows]
    )


def write_csv(profiles: Sequence[Profile], path: Path) -> None:
    """Write the rows of all profiles as CSV, atomically. Raises ``UserError`` if the file cannot be written."""
    try:
        with replacing(path) as temporary:
            without_formulas(frame(profiles)).to_csv(temporary, index=False)
    except OSError as error:
        raise UserError(f"--output {path}: {why(error)}") from error


def _group(row: Row) -> tuple[str, int | None]:
    return row["batch_policy"], row["batch_size"] if row["batch_policy"] == "fixed" else None


def _mode(profile: Profile, rows: Sequence[Row]) -> Iterator[tuple[str, Rows]]:
    """Yield the tables of one mode and batch policy."""
    names = {}
    for key, name in profile.baselines.items():
        kernels = sorted({row[f"{key}_backend"] for row in rows if row[f"{key}_backend"]})
        names[key] = f"{name.partition(' (')[0]} ({'/'.join(kernels) or 'kernel unknown'})"
    main, *others = names
    largest = rows[0]["batch_policy"] == "largest"
    speed = "tokens" if largest else "steps"

    def over_lengths(cell: Callable[[Row], str]) -> Rows:
        """Return a row for every model and a column for every length; cells without a measurement show the reason."""
        table = {name: dict.fromkeys(map("{:,}".format, profile.lengths)) for name in (row["variant"] for row in rows)}
        for row in rows:
            status = row["status"]
            table[row["variant"]][f"{row['length']:,}"] = cell(row) if status == "ok" else SHORT.get(status, status)
        return [{"model": name, **cells} for name, cells in table.items()]

    def faster(row: Row, key: str) -> str:
        return _times(row[f"speed_ratio_{key}"]) + ("~" if uncertain(row, key) else "")

    def memory(row: Row) -> str:
        rows_in = f" (batch {row['batch_size']})" if largest else ""
        return f"{_number(row['peak_bytes'], 2**20)}{rows_in} {_times(row[f'memory_ratio_{main}'])}"

    speeds = over_lengths(lambda row: f"{_number(row[f'{speed}_per_second'])} {faster(row, main)}")
    yield f"{speed} per second, and speed relative to {names[main]}", speeds
    yield f"peak memory in MiB, and relative to {names[main]}", over_lengths(memory)
    if any(row.get("state_bytes") is not None for row in rows):
        state = over_lengths(lambda row: _number(row.get("state_bytes"), 1e3))
        yield "inference state in kB, one row in float32", state
    for key in others:

        def both(row: Row, key: str = key) -> str:
            return f"{faster(row, key)} {_times(row[f'memory_ratio_{key}'])}"

        yield f"speed and memory relative to {names[key]}", over_lengths(both)
    if profile.ceiling_flops_per_second:
        ceiling = f"{profile.ceiling_flops_per_second / 1e9:,.4g} GFLOP/s"
        used = over_lengths(lambda row: "–" if row["utilisation"] is None else f"{100 * row['utilisation']:.2g} %")
        yield f"utilisation of {ceiling}, the fastest matrix product measured on this machine", used
    wanted = {(row["variant"], row["mode"], row["batch_policy"]) for row in rows}
    summaries = [each for each in profile.summaries if (each["variant"], each["mode"], each["batch_policy"]) in wanted]
    has_state = any(each.get("state_exponent") is not None for each in summaries)
    quantities = ("time", "memory", "state") if has_state else ("time", "memory")
    growth = [
        {"model": each["variant"], **{f"{what} ∝ length^": _exponent(each, what) for what in quantities}}
        for each in summaries
    ]
    yield "growth over length, with 95 % confidence intervals", growth
    for key, name in names.items():
        # Geometric means of the ratios over lengths, and the lengths from which on the model costs less.
        ratios = [
            {
                "model": each["variant"],
                "speed": _times(each[f"speed_ratio_{key}"]),
                "memory": _times(each[f"memory_ratio_{key}"]),
                "faster": _crossing(each[f"time_crossing_{key}"]),
                "less memory": _crossing(each[f"memory_crossing_{key}"]),
            }
            for each in summaries
            if each["baseline"] != key
        ]
        yield f"all lengths relative to {name}", ratios


def _crossing(found: Row) -> str:
    if found["verdict"] == ALWAYS:
        return f"from ≤ {found['length']:,}"
    if found["verdict"] == CROSSES:
        between = f" (≈ {found['interpolated']:,.0f})" if found["interpolated"] else ""
        return f"from {found['length']:,}{between}"
    return f"never up to {found['longest']:,}" if found["verdict"] == NEVER else "–"


def _exponent(summary: Row, what: str) -> str | None:
    middle, low, high = (summary[f"{what}_{part}"] for part in ("exponent", "low", "high"))
    return None if None in (middle, low, high) else f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _number(value: float | None, unit: float = 1) -> str:
    """Format a number in a unit with three significant digits, larger ones as integers."""
    if value is None:
        return "–"
    return f"{value / unit:,.0f}" if value / unit >= 100 else f"{value / unit:.3g}"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{_number(ratio) if ratio >= 10 else f'{ratio:.2f}'}×"
