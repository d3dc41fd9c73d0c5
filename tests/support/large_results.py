"""The results folder of a large study: all systems, several tasks, seeds, failures, curves and long inputs."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lra_bench.figures.palette import PLACES, REFERENCE
from lra_bench.measurements.length_curves import section
from lra_bench.measurements.points import ExtrapolationPoint, PositionBin
from lra_bench.records.profiles import write_profile
from lra_bench.records.schema import Record
from lra_bench.records.sections import Metric
from tests.support.record_factory import EXAMPLES, RATIOS, attempt_of, make_growth, make_metric, make_record, make_speed

FLOOR_MODEL = "bag_of_tokens"
SYSTEMS = (REFERENCE, FLOOR_MODEL, *PLACES)
# Floor, score of an average model, and the change of score per unit of quality.
TASKS: dict[str, tuple[float, float, float]] = {
    "listops": (0.32, 0.37, 0.03), "text": (0.52, 0.63, 0.04), "retrieval": (0.51, 0.72, 0.08),
    "image": (0.12, 0.38, 0.06), "pathfinder": (0.50, 0.66, 0.09), "recall": (0.03, 0.45, 0.3),
    "enwik8": (4.1, 2.4, -0.3),
}  # fmt: skip
GROWTH = {"full": 1.9, "prior": 1.8, "heads": 1.85, "low_rank": 1.05, "compressed": 1.15, "routed": 1.2}
STEPS, EVALUATED_EVERY = 600, 25
KNOBS = ("position.scaling=yarn", "model.mixer.log_n=true")
LONGEST = 16384


def fill(
    root: Path,
    systems: Sequence[str] = SYSTEMS,
    tasks: Iterable[str] = tuple(TASKS),
    seeds: int = 1,
    protocols: Iterable[str] = ("quick",),
) -> int:
    """Write the records, curves and profiles of a study under ``root`` and return the number of records."""
    count = 0
    cells: dict[tuple[str, str, str], dict[str, Record]] = {}
    for record in study(systems, tasks, seeds, protocols):
        place = (record.key.task, record.key.protocol, record.key.hardware)
        cells.setdefault(place, {})[record.key.hash] = record
        path = root / "runs" / record.key.file("json")
        path.parent.mkdir(parents=True, exist_ok=True)
        if record.status == "ok":
            pq.write_table(_curves(record), path.with_suffix(".curves.parquet"))
            record.artifacts = {"curves": path.with_suffix(".curves.parquet").name}
        path.write_text(json.dumps(record.to_dict(), indent=1), encoding="utf-8")
        count += 1
    for (task, protocol, hardware), members in cells.items():
        write_profile(_profile(task, protocol, hardware, list(members.values())), root)
    return count


def _profile(task: str, protocol: str, hardware: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return a profile of all systems at the longest length, with the growth of their step benchmarks."""
    places = [{"variant": record.key.model, "hash": record.key.hash, "mode": "train"} for record in records]
    row = {
        "length": LONGEST, "batch_size": 1, "batch_policy": "fixed", "status": "ok", "default_backend": "fused",
        "speed_ratio_default": 2.0, "spread_of_speed_ratio_default": 0.01, "memory_ratio_default": 0.5,
    }  # fmt: skip
    fits = [{**record.growth["train"], "batch_policy": "fixed"} for record in records]
    return {
        "task": task, "protocol": protocol, "hardware": hardware, "ceiling_flops_per_second": 1e11,
        "rows": [place | row for place in places],
        "summaries": [place | fit for place, fit in zip(places, fits, strict=True)],
    }  # fmt: skip


def study(
    systems: Sequence[str], tasks: Iterable[str], seeds: int, protocols: Iterable[str] = ("quick",)
) -> Iterator[Record]:
    """Yield the records: about one in thirty is not ``ok``; full attention runs out of memory at the largest length."""
    for protocol in protocols:
        for task in tasks:
            for model in systems:
                for seed in range(seeds):
                    yield _record(protocol, task, model, seed)


def _record(protocol: str, task: str, model: str, seed: int) -> Record:
    family = "full" if model == REFERENCE else PLACES.get(model, ("control", 0))[0]
    status = "ok"
    if model not in (REFERENCE, FLOOR_MODEL) and _pseudo_random("ended", protocol, task, model, seed) < 1 / 30:
        status = ("diverged", "out_of_memory", "failed")[seed % 3]
    growth = GROWTH.get(family, 1.0) + 0.1 * _pseudo_random("growth", model)
    cost = 1e-6 if family == "control" else 2e-5 / (1 + 8 * (2 - growth) * _pseudo_random("speed", model))
    failures = {LONGEST: "out_of_memory"} if growth > 1.9 else {}
    score = _score(protocol, task, model, seed)
    changes: dict[str, Any] = {
        "config": _config(task, model),
        "capability": {"family": family, "growth": growth},
        "speed": make_speed(growth, cost, False, failures),
        "growth": {mode: make_growth(growth) for mode in ("train", "inference")},
    }
    if status == "ok":
        changes |= _measured(task, model, score)
    return make_record(
        model, task, seed, protocol=protocol, hash=f"{zlib.crc32((task + model).encode()):08x}", status=status,
        accuracy=min(score, 0.95), **changes,
    )  # fmt: skip


def _pseudo_random(*parts: Any) -> float:
    """Return a pseudo-random number from 0 to 1 that is a function of ``parts``."""
    return zlib.crc32(repr(parts).encode()) / 2**32


def _score(protocol: str, task: str, model: str, seed: int) -> float:
    floor, middle, weight = TASKS[task]
    if model == FLOOR_MODEL:
        return floor + 0.2 * (middle - floor)
    quality = 2 * _pseudo_random("quality", model) - 1 + 0.5 * (2 * _pseudo_random("quality", model, task) - 1)
    noise_of_seed = 0.15 * (2 * _pseudo_random("scatter", protocol, task, model, seed) - 1)
    score = middle + weight * (quality + noise_of_seed + (0.3 if protocol != "quick" else 0.0))
    return score if task == "enwik8" else min(max(score, 0.01), 0.98)


def _measured(task: str, model: str, score: float) -> dict[str, Any]:
    """Return scores, floors and extrapolation in the metric of the task."""
    floor = TASKS[task][0]
    knobs = KNOBS if _pseudo_random("knobs", model) < 0.15 else ()
    points = [_point(task, model, score, ratio, "") for ratio in RATIOS]
    points += [_point(task, model, score, ratio, knob) for knob in knobs for ratio in RATIOS if ratio > 1]
    if task == "enwik8":
        return {
            "metrics": {"validation": _bits(score + 0.01), "test": _bits(score)},
            "floors": {"unigram": floor},
            "slices": [],
            "extrapolation": section(500, points, list(_bins(score)), [attempt_of(1)], False),
        }
    return {
        "metrics": {"validation": make_metric(score), "test": make_metric(score)},
        "floors": {"majority": 0.8 * floor, "rule": floor},
        "extrapolation": section(500, points, [], [attempt_of(1)], True),
    }


def _point(task: str, model: str, score: float, ratio: float, knob: str) -> ExtrapolationPoint:
    floor, _, _ = TASKS[task]
    retention = 1 / (1 + (0.2 if knob else 0.6) * _pseudo_random("kept", model) * abs(math.log2(ratio)))
    score_at_length = floor + (score - floor) * retention
    half_width = (
        0.01 if task == "enwik8" else 1.96 * math.sqrt(max(score_at_length * (1 - score_at_length), 0.01) / 1000)
    )
    failed = ratio == RATIOS[-1] and not knob and _pseudo_random("long", model) < 0.1
    known = {
        "score": score_at_length,
        "loss": 1.0,
        "low": score_at_length - half_width,
        "high": score_at_length + half_width,
    }
    point: Any = {
        "variant": "redrawn", "knob": knob, "ratio": ratio, "length": int(500 * ratio), "mean_tokens": 300.0 * ratio,
        "n": 1000, **(dict.fromkeys(known) if failed else known), "floor": floor, "floor_name": "rule",
        "floors": {"rule": floor}, "margins": {}, "drift": {"mean_root_arity": 5.5}, "skill": None, "retention": None,
        "attempt": 1,
        "status": "out_of_memory" if failed else "ok", "reason": "",
    }  # fmt: skip
    made: ExtrapolationPoint = point
    return made


def _bits(bits: float) -> Metric:
    return {
        "bits_per_character": bits,
        "loss": bits * math.log(2),
        "n": EXAMPLES,
        "low": bits - 0.01,
        "high": bits + 0.01,
    }


def _bins(bits: float) -> Iterator[PositionBin]:
    for ratio in (1.0, 2.0, 4.0):
        lasts = [*(2**power for power in range(9)), 500, 1000, 2000]
        for first, last in zip([0, *lasts], lasts, strict=False):
            if last <= 500 * ratio:
                yield {
                    "knob": "", "ratio": ratio, "length": int(500 * ratio), "first": first + 1, "last": last,
                    "n": 100 * last, "bits_per_character": bits + 2 * last**-0.5 + 0.02 * ratio * (last > 500),
                }  # fmt: skip


def _curves(record: Record) -> pa.Table:
    """Return training curves that end at the record's score, with one row per step."""
    score = record.score()
    assert score is not None
    step, noise, start = _steps()
    progress = start + (1 - start) * (1 - np.exp(-step / 150)) + 0.02 * noise
    evaluated = step % EVALUATED_EVERY == 0
    floor = TASKS[record.key.task][0]
    columns = {
        "step": step, "train_loss": 2.3 * np.exp(-step / 200) + 0.1 * noise, "learning_rate": 1e-3 * step / STEPS,
        "gradient_norm": np.abs(noise), "tokens_seen": step * 1000,
        "validation_loss": np.where(evaluated, 2.3 * np.exp(-step / 250), np.nan),
        "validation_score": np.where(evaluated, floor + (score - floor) * progress, np.nan),
    }  # fmt: skip
    return pa.table({name: pa.array(values, from_pandas=True) for name, values in columns.items()})


@cache
def _steps() -> tuple[Any, Any, float]:
    return np.arange(1, STEPS + 1), np.random.default_rng(0).normal(size=STEPS), 0.1


def _config(task: str, model: str) -> dict[str, Any]:
    """Return a configuration of realistic size."""
    options = {f"option_{number}": 0.5 * number for number in range(12)}
    parts = ("task", "model", "backbone", "position", "train", "measure", "hardware", "protocol")
    return {"seed": 0, **{part: {"_target_": f"{task}.{model}", **options} for part in parts}}
