"""Tables of a profile: speed, memory, growth and crossover lengths for every batch policy and mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.profiling.comparison.crossover import ALWAYS, CROSSES, NEVER
from lra_bench.profiling.comparison.run import Profile, uncertain
from lra_bench.profiling.types import MODES
from lra_bench.runtime.files import replacing, why
from lra_bench.runtime.safe_text import without_formulas

if TYPE_CHECKING:
    import pandas as pd

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
                yield from _mode(profile, rows, f"{mode} · {POLICIES.get(policy) or f'batch {size}'}")


def frame(profiles: Sequence[Profile]) -> pd.DataFrame:
    """Return the rows of all profiles as one table."""
    import pandas as pd

    return pd.DataFrame(
        [
            {"task": one.task, "protocol": one.protocol, "hardware": one.hardware, **row}
            for one in profiles
            for row in one.rows
        ]
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


def _mode(profile: Profile, rows: Sequence[Row], title: str) -> Iterator[tuple[str, Rows]]:
    names = {key: f"{name.partition(' (')[0]} ({_backend(rows, key)})" for key, name in profile.baselines.items()}
    main, *others = names
    largest = rows[0]["batch_policy"] == "largest"
    speed = "tokens" if largest else "steps"

    def rate(row: Row) -> str:
        return f"{_significant(row[f'{speed}_per_second'])} {_faster(row, main)}"

    yield f"{title} · {speed} per second, and speed relative to {names[main]}", _over_lengths(profile, rows, rate)

    def memory(row: Row) -> str:
        rows_in = f" (batch {row['batch_size']})" if largest else ""
        return f"{_mebibytes(row['peak_bytes'])}{rows_in} {_times(row[f'memory_ratio_{main}'])}"

    yield f"{title} · peak memory in MiB, and relative to {names[main]}", _over_lengths(profile, rows, memory)
    if any(row.get("state_bytes") is not None for row in rows):
        yield (
            f"{title} · inference state in kB, one row in float32",
            _over_lengths(profile, rows, lambda row: _kilobytes(row.get("state_bytes"))),
        )
    for key in others:

        def both(row: Row, key: str = key) -> str:
            return f"{_faster(row, key)} {_times(row[f'memory_ratio_{key}'])}"

        yield f"{title} · speed and memory relative to {names[key]}", _over_lengths(profile, rows, both)
    if profile.ceiling_flops_per_second:
        ceiling = profile.ceiling_flops_per_second / 1e9
        yield (
            f"{title} · utilisation of {ceiling:,.4g} GFLOP/s, the fastest matrix product measured on this machine",
            _over_lengths(profile, rows, lambda row: _percent(row["utilisation"])),
        )
    summaries = list(_summaries(profile, rows))
    yield f"{title} · growth over length, with 95 % confidence intervals", _growth(summaries)
    for key, name in names.items():
        others_of = [each for each in summaries if each["baseline"] != key]
        yield f"{title} · all lengths relative to {name}", [_against(each, key) for each in others_of]


def _backend(rows: Sequence[Row], key: str) -> str:
    found = sorted({row[f"{key}_backend"] for row in rows if row[f"{key}_backend"]})
    return "/".join(found) or "kernel unknown"


def _over_lengths(profile: Profile, rows: Sequence[Row], cell: Callable[[Row], str]) -> Rows:
    """Return a row for every model and a column for every length; cells without a measurement show the reason."""
    table = []
    for name in dict.fromkeys(row["variant"] for row in rows):
        own = {row["length"]: row for row in rows if row["variant"] == name}
        cells = {
            f"{length:,}": None if length not in own else _missing_reason(own[length]) or cell(own[length])
            for length in profile.lengths
        }
        table.append({"model": name, **cells})
    return table


def _missing_reason(row: Row) -> str:
    return "" if row["status"] == "ok" else SHORT.get(row["status"], str(row["status"]))


def _summaries(profile: Profile, rows: Sequence[Row]) -> Iterator[Row]:
    wanted = {(row["variant"], row["mode"], row["batch_policy"]) for row in rows}
    return (each for each in profile.summaries if (each["variant"], each["mode"], each["batch_policy"]) in wanted)


def _growth(summaries: Sequence[Row]) -> Rows:
    has_state = any(each.get("state_exponent") is not None for each in summaries)
    quantities = ("time", "memory", "state") if has_state else ("time", "memory")
    return [
        {
            "model": each["variant"],
            **{
                f"{what} ∝ length^": _interval(*(each[f"{what}_{part}"] for part in ("exponent", "low", "high")))
                for what in quantities
            },
        }
        for each in summaries
    ]


def _against(summary: Row, key: str) -> dict[str, Any]:
    """Return the row of one model compared with a baseline.

    It contains geometric means of the ratios over lengths, and the lengths from which on the model costs less.
    """
    return {
        "model": summary["variant"],
        "speed": _times(summary[f"speed_ratio_{key}"]),
        "memory": _times(summary[f"memory_ratio_{key}"]),
        "faster": _crossing(summary[f"time_crossing_{key}"]),
        "less memory": _crossing(summary[f"memory_crossing_{key}"]),
    }


def _crossing(found: Row) -> str:
    if found["verdict"] == ALWAYS:
        return f"from ≤ {found['length']:,}"
    if found["verdict"] == CROSSES:
        between = f" (≈ {found['interpolated']:,.0f})" if found["interpolated"] else ""
        return f"from {found['length']:,}{between}"
    return f"never up to {found['longest']:,}" if found["verdict"] == NEVER else "–"


def _interval(middle: float | None, low: float | None, high: float | None) -> str | None:
    if middle is None or low is None or high is None:
        return None
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _faster(row: Row, key: str) -> str:
    return _times(row[f"speed_ratio_{key}"]) + ("~" if uncertain(row, key) else "")


def _significant(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{_significant(ratio) if ratio >= 10 else f'{ratio:.2f}'}×"


def _mebibytes(value: int | None) -> str:
    return "–" if value is None else _significant(value / 2**20)


def _kilobytes(value: int | None) -> str:
    return "–" if value is None else _significant(value / 1e3)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.2g} %"
