"""Records as a table: one row per run, every figure in a column of its own, nothing rounded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra_bench.records.curves import skill
from lra_bench.records.points import ExtrapolationPoint
from lra_bench.records.schema import Record
from lra_bench.records.sections import SpeedPoint

if TYPE_CHECKING:
    import pandas as pd

MODES = ("train", "inference")
SPEED_FIELDS = ("tokens_per_second", "peak_allocated_bytes", "peak_resident_growth_bytes")


def runs(records: Iterable[Record]) -> pd.DataFrame:
    """One row per record. Scores stay in the unit of their metric, times in seconds, memory in bytes.

    Speed columns belong to rows of ``speed_length`` tokens: of the lengths that the most records of the same task,
    protocol and hardware measured, the longest. So figures beside each other belong to one length.
    """
    import pandas as pd

    records = list(records)
    return pd.DataFrame([_row(record, speed) for record, speed in zip(records, speed_columns(records), strict=True)])


def speed_columns(records: Sequence[Record]) -> Iterator[dict[str, Any]]:
    """The speed columns of ``runs``, for each record: its figures at the length that it shares with the others."""
    lengths = {group: _common_length(members) for group, members in _by_machine(records).items()}
    for record in records:
        length = lengths[_machine(record)]
        yield {"speed_length": length, **_speed_at(record, length)}


def ratio_name(ratio: float, variant: str | None = None) -> str:
    """A length ratio as columns name it: ``2x``, and ``2x_filler`` in another variant than the task's first."""
    return f"{ratio:g}x" + (f"_{variant}" if variant else "")


def length_points(record: Record) -> dict[str, ExtrapolationPoint]:
    """The points on other lengths by their ``ratio_name``, with nothing set for evaluation alone."""
    points = [p for p in record.extrapolation["points"] if not p["knob"]] if record.extrapolation else []
    first = points[0]["variant"] if points else None
    return {
        ratio_name(point["ratio"], None if point["variant"] == first else point["variant"]): point for point in points
    }


def _row(record: Record, speed: Mapping[str, Any]) -> dict[str, Any]:
    key, parameters, training = record.key, record.parameters, record.training or {}
    test: Mapping[str, Any] = record.metrics.get("test") or {}
    return {
        "task": key.task,
        "task_version": record.data["version"] if record.data else None,
        "data_lacks": missing_data(record),
        "model": key.model,
        "variant": record.variant_name,
        "hardware": record.machine,
        "reference": record.reference,
        "protocol": key.protocol,
        "modified": ", ".join(record.protocol_modified),
        "hash": key.hash,
        "seed": key.seed,
        "reason": record.reason,
        "attempt": record.attempt,
        "finished_at": record.finished_at,
        "wall_seconds": record.wall_seconds,
        **score_columns(record),
        "loss": test.get("loss"),
        "validation_score": record.score("validation"),
        "parameters_body": parameters["body"] if parameters else None,
        "parameters_body_active": parameters["body_active"] if parameters else None,
        "parameters_total": parameters["total"] if parameters else None,
        "train_seconds": training.get("train_seconds"),
        "training_tokens_per_second": training.get("tokens_per_second"),
        "flops_per_token_forward": record.flops["per_token_forward"] if record.flops else None,
        "joules_per_step": record.energy["joules_per_step"] if record.energy else None,
        **speed,
        **{
            f"{mode}_time_exponent": record.growth[mode]["time_exponent"] if mode in record.growth else None
            for mode in MODES
        },
        **{f"floor_{name}": value for name, value in record.floors.items() if name != "name"},  # another column
        **_length_columns(record),
    }


def score_columns(record: Record) -> dict[str, Any]:
    """How a run ended, its score on the test split with its interval, and the floor beside it, as ``runs`` has them."""
    test: Mapping[str, Any] = record.metrics.get("test") or {}
    floor_name, floor = headline_floor(record)
    score = record.score()
    return {
        "status": record.status,
        "metric": record.metric,
        "score": score,
        "low": test.get("low"),
        "high": test.get("high"),
        "examples": test.get("n"),
        "floor": floor,
        "floor_name": floor_name,
        "skill": skill(score, floor, record.higher_is_better),
    }


def missing_data(record: Record) -> str:
    """What the record's data lacks against the task's whole data; empty where nothing."""
    return "; ".join(filter(None, (record.data["partial"], record.data["lossy"]))) if record.data else ""


def headline_floor(record: Record) -> tuple[str | None, float | None]:
    """The floor that its task puts beside the score, else the strongest one; name and value, None where unknown."""
    for point in record.extrapolation["points"] if record.extrapolation else []:
        name = point["floor_name"]
        if name is not None and record.floors.get(name) is not None:
            return name, record.floors[name]
    best = record.best_floor()
    return best if best is not None else (None, None)


def _speed_at(record: Record, length: int | None) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for mode in MODES:
        points = [point for point in record.speed if point["mode"] == mode]
        at: Mapping[str, Any] = next((point for point in points if point["length"] == length), {})
        columns |= {f"{mode}_{name}": at.get(name) for name in SPEED_FIELDS}
        columns[f"{mode}_batch_size"] = at.get("batch_size")
        columns[f"{mode}_limit"] = _limit(points)
    return columns


def _limit(points: Sequence[SpeedPoint]) -> str | None:
    """Where the step benchmark ended before its longest length: ``out_of_memory at 8192``."""
    failed = [point for point in points if point["status"] != "ok"]
    if not failed:
        return None
    first = min(failed, key=lambda point: point["length"])
    return f"{first['status']} at {first['length']}"


def _length_columns(record: Record) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for name, point in length_points(record).items():
        columns |= {f"{what}_{name}": point[what] for what in ("score", "floor", "skill")}
        columns[f"status_{name}"] = point["status"]
    plain = [curve for curve in record.extrapolation["summary"] if not curve["knob"]] if record.extrapolation else []
    for number, curve in enumerate(plain):
        tail = f"_{curve['variant']}" if number else ""
        columns |= {f"{what}{tail}": curve[what] for what in ("area", "effective_ratio")}
    return columns


def _machine(record: Record) -> tuple[str, str, str]:
    return record.key.task, record.key.protocol, record.machine


def _by_machine(records: Sequence[Record]) -> dict[tuple[str, str, str], list[Record]]:
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        groups.setdefault(_machine(record), []).append(record)
    return groups


def _common_length(records: Sequence[Record]) -> int | None:
    counts: dict[int, int] = {}
    for record in records:
        for point in record.speed:
            if point["status"] == "ok":
                counts[point["length"]] = counts.get(point["length"], 0) + 1
    return max(counts, key=lambda length: (counts[length], length), default=None)
