"""Plausible records for tests; their numbers follow simple formulas, so that tests can compute expected values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from lra_bench.measurements.length_curves import section
from lra_bench.measurements.minimal_pairs import PairPoint, PairScores
from lra_bench.measurements.points import Attempt, Extrapolation, ExtrapolationPoint
from lra_bench.measurements.pretraining import Pretraining
from lra_bench.measurements.rate_search import RateSearch, rate_search, trial
from lra_bench.measurements.slices import SlicePoint
from lra_bench.measurements.state import State, StatePoint
from lra_bench.profiling.sections import Growth, SpeedPoint
from lra_bench.records.key import CellKey
from lra_bench.records.schema import Record
from lra_bench.records.sections import Metric, ProfiledCosts
from lra_bench.statistics.intervals import wilson

# Body parameters, accuracy at the training length, its decrease per doubling of length, growth exponent, and seconds
# per token at 1k.
MODELS: dict[str, tuple[int, float, float, float, float]] = {
    "transformer": (50_000, 0.37, 0.06, 1.9, 2.0e-5),
    "local": (50_000, 0.36, 0.02, 1.05, 1.2e-5),
    "performer": (51_000, 0.34, 0.03, 1.0, 1.6e-5),
    "bag_of_tokens": (4_000, 0.19, 0.0, 1.0, 1.0e-6),
}
RATIOS = (0.5, 1.0, 2.0, 4.0, 8.0)
LENGTHS = (1024, 2048, 4096, 8192, 16384)
EXAMPLES = 2000


def make_record(
    model: str = "performer",
    task: str = "listops",
    seed: int = 0,
    *,
    hardware: str = "cpu-epyc-2t",
    protocol: str = "quick",
    hash: str = "0a1b2c3d",
    status: str = "ok",
    differences: dict[str, Any] | None = None,
    position: str | None = None,
    accuracy: float | None = None,
    speed_failures: dict[int, str] | None = None,
    **changes: Any,
) -> Record:
    """Return the record of a cell; with a status other than ``ok``, only sections before the failure are set."""
    body, level, decay, growth, cost = MODELS.get(model, (52_000, 0.33, 0.04, 1.2, 1.5e-5))
    level = level + 0.004 * ((seed * 7) % 5 - 2) if accuracy is None else accuracy
    finished = status == "ok"
    on_gpu = not hardware.startswith("cpu")
    fields: dict[str, Any] = {
        "status": status,
        "reason": "" if finished else f"{status} in the factory",
        "key": CellKey(task, model, hardware, protocol, hash, seed),
        "variant": {"label": model.replace("_", " ").title(), "differences": differences or {}, "position": position},
        "config": {"seed": seed, "task": {"_target_": "tasks.Fake"}, "train": {"steps": 500, "batch_size": 32}},
        "command": f"lra-bench bench task={task} model={model} protocol={protocol} seed={seed}",
        "started_at": "2026-11-20T09:00:00+00:00",
        "finished_at": f"2026-11-20T09:{5 + seed % 50:02d}:00+00:00",
        "wall_seconds": 301.5,
        "code": {"version": "0.1.0", "git_sha": "f" * 40, "git_dirty": False},
        "data": {
            "task": task,
            "version": "1",
            "fingerprint": "d1e2f3",
            "source": "generated",
            "licence": "Apache-2.0",
            "citation": "Nangia and Bowman 2018, arXiv 1804.06028",
            "checksums": {"test": "ab" * 32},
            "partial": "",
            "lossy": "",
            "rows": {"train": 96_000, "validation": 2000, "test": EXAMPLES},
        },
        "environment": {"hardware": make_machine(on_gpu), "software": {"torch": "2.13.0"}},
        "parameters": {
            "total": body + 3000,
            "body": body,
            "body_active": body,
            "embeddings": 1000,
            "positions": 1200,
            "head": 800,
        },
        "speed": make_speed(growth, cost, on_gpu, speed_failures or {}),
        "growth": {"train": make_growth(growth), "inference": make_growth(growth)},
        "profiled": make_costs(growth),
        "flops": {
            "per_token_forward": 1e6,
            "per_token_training": 3e6,
            "length": 500,
            "route": "meta",
            "uncounted": [],
            "ceiling_per_second": 1e11,
        },
        "energy": {"joules_per_step": None, "route": None},
        "capability": {"family": "linear", "growth": 1.0},
        "state": make_state(growth, body),
    }
    if finished:
        fields |= {
            "training": {
                "steps": 500,
                "best_step": 450,
                "train_seconds": 200.0,
                "evaluation_seconds": 20.0,
                "data_wait_share": 0.01,
                "tokens_per_second": 1 / (3 * cost),
                "padded_tokens_per_second": 1.3 / (3 * cost),
            },
            "metrics": {"validation": make_metric(level + 0.005), "test": make_metric(level)},
            "floors": {"majority": 0.171, "root_operator": 0.32, "root_operator_and_digits": 0.335},
            "slices": make_slices(level),
            "extrapolation": make_extrapolation(make_point(level, decay, ratio) for ratio in RATIOS),
        }
    return Record(**(fields | changes))


def make_machine(on_gpu: bool) -> dict[str, Any]:
    """Return the description of an idle machine."""
    own = {"processor": "AMD EPYC", "threads": 2, "processes": 1, "load_average_1_minute": 0.1}
    return own | ({"device": "cuda", "gpu": {"other_processes": 0}} if on_gpu else {"device": "cpu", "gpu": None})


def make_metric(accuracy: float, n: int = EXAMPLES) -> Metric:
    half_width = 1.96 * math.sqrt(accuracy * (1 - accuracy) / n)
    return {
        "accuracy": accuracy,
        "loss": 2.3 - accuracy,
        "n": n,
        "low": accuracy - half_width,
        "high": accuracy + half_width,
    }


SLICES = {"length": ("20–99", "100–500"), "operator": ("MIN", "MAX", "MED", "SM")}
"""Labels of the slices by slicing; targets are distributed evenly over them."""


def make_slices(level: float) -> list[SlicePoint]:
    """Return slices whose mean score is ``level``."""
    return [
        make_slice(slicing, label, level + 0.02 * (2 * number - len(labels) + 1), EXAMPLES // len(labels))
        for slicing, labels in SLICES.items()
        for number, label in enumerate(labels)
    ]


def make_slice(slicing: str, label: str, accuracy: float, n: int) -> SlicePoint:
    score = min(max(accuracy, 0.0), 1.0)
    floor = 0.31 if label in ("SM", "100–500") else 0.34
    low, high = wilson(score * n, n)
    return {
        "slicing": slicing,
        "label": label,
        "n": n,
        "score": score,
        "low": low,
        "high": high,
        "floor": floor,
        "floor_name": "root_operator",
        "floors": {"majority": 0.17, "root_operator": floor},
        "margins": {"root_operator": {"difference": score - floor, "low": low - floor, "high": high - floor}},
        "skill": (score - floor) / (1 - floor),
        "attempt": 1,
    }


def make_pairs(*scores: float, slicing: str = "level") -> PairScores:
    """Return scores on minimal pairs, 100 of each label 1, 2, …"""

    def point(label: str, score: float, n: int) -> PairPoint:
        low, high = wilson(score * n, n)
        return {"label": label, "n": n, "score": score, "low": low, "high": high, "chance": 0.01}

    points = [point(str(number), score, 100) for number, score in enumerate(scores, start=1)]
    mean = sum(scores) / len(scores)
    return {"slicing": slicing, "total": point("all", mean, 100 * len(scores)), "points": points, "attempt": 1}


def make_extrapolation(points: Iterable[ExtrapolationPoint]) -> Extrapolation:
    return section(500, points, [], [attempt_of(1)], True)


def attempt_of(number: int) -> Attempt:
    return {
        "attempt": number,
        "measured_at": "2026-11-20T09:05:00+00:00",
        "hardware": "cpu-epyc-2t",
        "machine": {"processor": "AMD EPYC"},
        "version": "0.1.0",
        "git_sha": "f" * 40,
    }


def make_point(level: float, decay: float, ratio: float, n: int = 1000, knob: str = "") -> ExtrapolationPoint:
    score = max(level - decay * abs(math.log2(ratio)), 0.1)
    floor = 0.32 - 0.01 * math.log2(ratio)
    half_width = 1.96 * math.sqrt(score * (1 - score) / n)
    return {
        "variant": "redrawn",
        "knob": knob,
        "ratio": ratio,
        "length": int(500 * ratio),
        "mean_tokens": 300.0 * ratio,
        "n": n,
        "score": score,
        "loss": 2.3 - score,
        "low": score - half_width,
        "high": score + half_width,
        "floor": floor,
        "floor_name": "root_operator",
        "floors": {"majority": 0.17, "root_operator": floor},
        "margins": {
            "root_operator": {
                "difference": score - floor,
                "low": score - half_width - floor,
                "high": score + half_width - floor,
            }
        },
        "drift": {"mean_root_arity": 5.5},
        "skill": (score - floor) / (1 - floor),
        "retention": None,
        "attempt": 1,
        "status": "ok",
        "reason": "",
    }


def make_growth(exponent: float) -> Growth:
    return {
        "time_exponent": exponent,
        "time_low": exponent - 0.05,
        "time_high": exponent + 0.05,
        "memory_exponent": exponent - 0.1,
        "memory_low": exponent - 0.2,
        "memory_high": exponent,
        "lengths": list(LENGTHS),
    }


def make_state(growth: float, body: int) -> State:
    """Return a state that grows with the length if the time of a step grows faster than linearly."""
    width = body // 10
    sizes = {length: width * (length if growth > 1.5 else 64) for length in (500, *LENGTHS)}
    points: list[StatePoint] = [{"length": length, "state_bytes": size} for length, size in sizes.items()]
    return {"train_length": 500, "points": points, "reason": ""}


def make_costs(exponent: float, ratio: float = 2.0) -> ProfiledCosts:
    """Return the costs of a system in a profile, whose step time grows with ``exponent``."""
    return {
        "relative_speed": ratio,
        "spread_of_relative_speed": 0.01,
        "relative_memory": 1 / ratio,
        "length": LENGTHS[-1],
        "kernel": "fused",
        "time_exponent": exponent,
        "time_low": exponent - 0.05,
        "time_high": exponent + 0.05,
        "growth_lengths": list(LENGTHS),
        "inference_seconds": 0.1 / ratio,
    }


def make_speed(growth: float, cost: float, on_gpu: bool, failures: dict[int, str]) -> list[SpeedPoint]:
    points: list[SpeedPoint] = []
    for mode, factor in (("train", 3.0), ("inference", 1.0)):
        for length in LENGTHS:
            status = failures.get(length, "ok")
            ok = status == "ok"
            seconds = factor * cost * 1024 * (length / 1024) ** growth
            peak = int(factor * 2e6 * (length / 1024) ** (growth - 0.1))
            points.append(
                {
                    "mode": mode,
                    "length": length,
                    "batch_size": 1,
                    "batch_policy": "fixed",
                    "status": status,
                    "reason": "" if ok else f"{status} in the factory",
                    "n": 20 if ok else 0,
                    "median_seconds": seconds if ok else None,
                    "p10_seconds": 0.95 * seconds if ok else None,
                    "p90_seconds": 1.1 * seconds if ok else None,
                    "tokens_per_second": length / seconds if ok else None,
                    "attention_backend": None,
                    "static_bytes": 800_000 if ok else None,
                    "activation_bytes": peak - 200_000 if ok else None,
                    "peak_allocated_bytes": peak if ok and on_gpu else None,
                    "peak_reserved_bytes": 2 * peak if ok and on_gpu else None,
                    "peak_resident_growth_bytes": peak if ok and not on_gpu else None,
                    "flops": int(factor * 1e6 * length) if ok else None,
                    "flops_per_second": factor * 1e6 * length / seconds if ok else None,
                    "utilisation": factor * 1e6 * length / seconds / 1e11 if ok else None,
                    "short_run": False,
                    "warmup_seconds": 2.0 if ok else None,
                    "compile": None,
                }
            )
    return points


RATES = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)


def make_pretraining(objective: str = "masked") -> Pretraining:
    """Return the section of a pretraining of 70 steps whose loss is below the floor."""
    return {
        "objective": objective,
        "loss": "cross-entropy",
        "probability": 0.15,
        "rows": 100,
        "steps": 70,
        "selected_step": 60,
        "seconds": 12.5,
        "evaluation_seconds": 1.0,
        "tokens_seen": 5000,
        "validation_loss": 1.5,
        "floor_loss": 2.0,
        "validation_accuracy": 0.5,
        "floor_accuracy": 0.2,
        "validations": [{"step": 60, "loss": 1.5, "accuracy": 0.5}],
        "final_weights_sha256": "0" * 64,
    }


def make_search(best: float = 3e-3, *, diverged: float | None = None, edge: bool = False) -> RateSearch:
    """Return a search whose losses grow with the distance to the rate ``best``; with ``edge`` it has an added rate."""
    rates = (*RATES, 9e-2) if edge else RATES
    found = [
        trial(
            lr,
            seed,
            "diverged" if lr == diverged else "ok",
            {
                "lowest_validation_loss": 1 + 10 * abs(lr - best) + (seed - 1000) / 10,
                "validation_score_at_lowest_loss": 0.4,
                "validation_skill_at_lowest_loss": 0.2 if lr < 1e-2 else 0.19,
            },
            60.0,
        )
        for lr in rates
        for seed in (1000, 1001)
    ]
    made = rate_search(RATES, (1000, 1001), 3.0, "the rule", 1e-3, found)
    return {**made, "hints": {"log_rate": {"hint": "max_lr=0.001", "ratio": 1.0, "absolute": True}}}


def make_curves(steps: int = 100, every: int = 25) -> pd.DataFrame:
    """Return training curves of ``steps`` steps, with a validation every ``every`` steps."""
    step = np.arange(1, steps + 1)
    evaluated = step % every == 0
    return pd.DataFrame(
        {
            "step": step,
            "train_loss": 2.3 * np.exp(-step / 200),
            "learning_rate": 1e-3 * step / steps,
            "gradient_norm": 1 / step,
            "tokens_seen": step * 1000,
            "validation_loss": np.where(evaluated, 2.3 * np.exp(-step / 250), np.nan),
            "validation_score": np.where(evaluated, 0.2 + step / 1000, np.nan),
        }
    )


def make_predictions(rows: int = 50) -> pd.DataFrame:
    """Return predictions at two lengths."""
    target = np.arange(2 * rows) % 10
    prediction = np.where(np.arange(2 * rows) % 3 == 0, target, (target + 1) % 10)
    return pd.DataFrame(
        {
            "length": np.repeat([500, 1000], rows),
            "row": np.tile(np.arange(rows), 2),
            "correct": prediction == target,
            "prediction": prediction,
            "target": target,
        }
    )
