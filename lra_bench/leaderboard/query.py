"""Records as tidy tables for notebooks: every column documented, nothing rounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lra_bench.records.schema import Record

from .runs import headline_floor, missing_data

if TYPE_CHECKING:
    import pandas as pd

IDENTITY: Mapping[str, str] = {
    "task": "task",
    "task_version": "version of the task; other versions do not compare",
    "protocol": "protocol",
    "modified": "keys of the protocol that the user changed, with commas; empty where none",
    "data_lacks": "what the data lacks against the whole task, empty where nothing",
    "model": "model",
    "variant": "model and what differs from its file",
    "hardware": "hardware that ran it; of a reference board followed by @ and the board's name",
    "reference": "the reference board that the row belongs to, empty for your own",
    "hash": "what decides the numbers of a cell",
    "seed": "seed",
}

RUNS: Mapping[str, str] = {
    **IDENTITY,
    "status": "how the run ended; scores are there where it is ok",
    "reason": "why it ended so",
    "finished_at": "when it ended, ISO 8601",
    "metric": "accuracy (a share) or bits_per_character",
    "score": "score on the test split",
    "low": "lower end of its 95 % interval over examples",
    "high": "upper end",
    "examples": "scored targets",
    "loss": "mean loss on the test split, nats",
    "validation_score": "score on the validation split",
    "floor_name": "the rule without a model that stands beside the score",
    "floor": "its score",
    "parameters_total": "trainable numbers",
    "parameters_body": "without embeddings, position tables and head",
    "parameters_body_active": "of these, those that one token uses",
    "train_seconds": "seconds of training steps",
    "training_tokens_per_second": "real tokens per second of the training run",
    "wall_seconds": "seconds of the whole cell",
    "flops_per_token_forward": "floating point operations per token, forward",
    "joules_per_step": "energy of a training step",
    "train_time_exponent": "a of time ~ length^a, training step",
    "inference_time_exponent": "the same, inference",
    "train_memory_exponent": "a of peak memory ~ length^a, training step",
    "inference_memory_exponent": "the same, inference",
    "family": "family of the system",
    "path": "the JSON of the record",
}

LENGTHS: Mapping[str, str] = {
    **IDENTITY,
    "length_variant": "how rows of that length were made",
    "knob": "an option of the model that was set for this evaluation alone, empty for none",
    "ratio": "length over the training length",
    "length": "longest row, tokens",
    "status": "ok, or why there is no score",
    "reason": "the same in words",
    "metric": "accuracy (a share) or bits_per_character",
    "score": "score on rows of that length",
    "low": "lower end of its 95 % interval over examples",
    "high": "upper end",
    "n": "scored targets",
    "floor_name": "the rule without a model that stands beside it",
    "floor": "its score on the same rows",
    "skill": "score above the floor as a share of what is left above it",
}

SPEED: Mapping[str, str] = {
    **IDENTITY,
    "mode": "train or inference",
    "length": "tokens in a row",
    "batch_size": "rows in a step",
    "status": "ok, or why there is no time",
    "reason": "the same in words",
    "n": "steps timed",
    "median_seconds": "median time of a step",
    "p10_seconds": "its 10th percentile",
    "p90_seconds": "its 90th percentile",
    "tokens_per_second": "tokens per second of a step",
    "peak_allocated_bytes": "peak of allocated memory, GPU",
    "peak_resident_growth_bytes": "growth of resident memory, CPU",
}


def tidy(records: Iterable[Record], table: str = "runs") -> pd.DataFrame:
    """``records`` as one of ``TABLES``, whose columns are documented there; unknown values are missing."""
    import pandas as pd

    columns, rows = TABLES[table]
    frame = pd.DataFrame([row for record in records for row in rows(record)], columns=list(columns))
    return frame.infer_objects()


def _identity(record: Record) -> dict[str, Any]:
    key = record.key
    return {
        "task": key.task,
        "task_version": record.data["version"] if record.data else None,
        "protocol": key.protocol,
        "modified": ", ".join(record.protocol_modified),
        "data_lacks": missing_data(record),
        "model": key.model,
        "variant": record.variant_name,
        "hardware": record.machine,
        "reference": record.reference,
        "hash": key.hash,
        "seed": key.seed,
    }


def _run(record: Record) -> Iterator[dict[str, Any]]:
    test: Mapping[str, Any] = record.metrics.get("test") or {}
    training, parameters = record.training or {}, record.parameters
    floor_name, floor = headline_floor(record)
    yield {
        **_identity(record),
        **{name: getattr(record, name) for name in ("status", "reason", "finished_at", "metric", "wall_seconds")},
        **{name: test.get(name) for name in ("low", "high", "loss")},
        "score": record.score(),
        "examples": test.get("n"),
        "validation_score": record.score("validation"),
        "floor_name": floor_name,
        "floor": floor,
        **{f"parameters_{name}": parameters and dict(parameters)[name] for name in ("total", "body", "body_active")},
        "train_seconds": training.get("train_seconds"),
        "training_tokens_per_second": training.get("tokens_per_second"),
        "flops_per_token_forward": record.flops["per_token_forward"] if record.flops else None,
        "joules_per_step": record.energy["joules_per_step"] if record.energy else None,
        **{
            f"{mode}_{name}": dict(record.growth[mode])[name] if mode in record.growth else None
            for mode in ("train", "inference")
            for name in ("time_exponent", "memory_exponent")
        },
        "family": (record.capability or {}).get("family"),
        "path": str(record.path) if record.path else None,
    }


def _lengths(record: Record) -> Iterator[dict[str, Any]]:
    for point in record.extrapolation["points"] if record.extrapolation else []:
        yield {
            "knob": "",
            "metric": record.metric,
            **point,
            **_identity(record),
            "length_variant": point["variant"],
        }


def _speed(record: Record) -> Iterator[dict[str, Any]]:
    for point in record.speed:
        yield {**point, **_identity(record)}


TABLES: Mapping[str, tuple[Mapping[str, str], Callable[[Record], Iterator[dict[str, Any]]]]] = {
    "runs": (RUNS, _run),
    "lengths": (LENGTHS, _lengths),
    "speed": (SPEED, _speed),
}
"""Each table with what its columns mean and how a record becomes its rows."""
