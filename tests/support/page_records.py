"""About sixty records of a small study: tracks, tasks, machines, seeds, failures, and curves on disk."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

from lra_bench.records import store
from lra_bench.records.schema import Record
from tests.support.record_factory import make_extrapolation, make_growth, make_point, make_record, make_speed

# Family, body parameters, accuracy on the first task, its decrease per doubling of length, growth exponent, and seconds
# per token at 1k.
SYSTEMS: dict[str, tuple[str, int, float, float, float, float]] = {
    "transformer": ("full", 50_304, 0.372, 0.060, 1.82, 2.0e-5),
    "local": ("sparse", 50_304, 0.361, 0.018, 1.05, 1.2e-5),
    "longformer": ("sparse", 52_480, 0.379, 0.022, 1.11, 1.9e-5),
    "performer": ("linear", 51_200, 0.344, 0.031, 1.02, 1.6e-5),
    "luna": ("compressed", 61_440, 0.366, 0.027, 1.04, 1.8e-5),
    "reformer": ("routed", 48_128, 0.352, 0.034, 1.21, 3.1e-5),
    "fnet": ("attention_free", 25_088, 0.331, 0.048, 1.08, 0.7e-5),
    "bag_of_tokens": ("control", 4_096, 0.190, 0.0, 1.00, 0.1e-5),
}
HARDER = {"listops": 0.0, "text": 0.26, "image": 0.04}
CPU, GPU = "cpu-epyc-2t", "h200-bf16"


def data_of(text: str) -> dict[str, Any]:
    """Return the data of a page."""
    packed = re.search(r'<script type="application/octet-stream" id="data">(.*?)</script>', text, re.DOTALL)[1]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def table_of(text: str, protocol: str, task: str = "") -> dict[str, Any]:
    """Return the table of a task of a protocol, by default that of all systems and tasks."""
    [board] = [each for each in data_of(text)["protocols"] if each["id"] == protocol]
    return next(each for each in board["tasks"] if each["title"] == task) if task else board["systems"]


def study(root: Path) -> list[Record]:
    """Write the records with their training curves under ``root`` and load them."""
    records = [
        _run(model, task, seed, status="failed" if (model, task) == ("fnet", "image") else "ok")
        for model in SYSTEMS for task in HARDER for seed in range(2)
    ]  # fmt: skip
    records += [_run(model, "listops", seed, hardware=GPU) for model in ("transformer", "local") for seed in range(2)]
    records += [_run(model, "listops", seed=2) for model in ("transformer", "local", "longformer")]
    records += [
        _run("local", "text", 2, status="diverged"),
        _run("luna", "image", 2, status="out_of_memory"),
        _run("performer", "listops", 0, hash="ffff0000", differences={"model.mixer.features": 64}, position="rope"),
        _run("transformer", "listops", 0, hash="eeee0000", protocol_modified=["train.steps", "train.lr"]),
        *(_run(model, "listops", 0, protocol="quick") for model in ("transformer", "performer", "bag_of_tokens")),
        _run("transformer", "enwik8", 0, metrics=_bits(1.61), floors={"bigram": 3.9}, extrapolation=None),
        _run("local", "enwik8", 0, metrics=_bits(1.68), floors={"bigram": 3.9}, extrapolation=None),
    ]
    with patch("lra_bench.runtime.files.sync"):  # fsync of a hundred small files is slow on a busy disk
        for record in records:
            store.write(record, root, _curve(record) if record.status == "ok" else None)
    return store.load_all(root)


def _run(
    model: str,
    task: str,
    seed: int,
    *,
    hardware: str = CPU,
    protocol: str = "small",
    status: str = "ok",
    hash: str = "0a1b2c3d",
    differences: dict[str, Any] | None = None,
    position: str | None = None,
    **changes: Any,
) -> Record:
    family, body, level, decay, growth, cost = SYSTEMS[model]
    level += HARDER.get(task, 0.0) + 0.006 * math.sin(7 * seed + len(model))
    on_gpu = hardware == GPU
    speed_failures = {16384: "out_of_memory"} if model == "transformer" and not on_gpu else {}
    identity = {"differences": differences, "position": position, "hash": hash, "accuracy": level}
    record = make_record(model, task, seed, hardware=hardware, protocol=protocol, status=status, **identity)
    assert record.parameters is not None
    record.parameters |= {"body": body, "body_active": body, "total": body + 3000}
    record.speed = make_speed(growth, cost / 40 if on_gpu else cost, on_gpu, speed_failures)
    record.growth = {"train": make_growth(growth), "inference": make_growth(growth)}
    record.capability = {"family": family, "paper": f"A paper on {model}", "arxiv": "2011.04006", "causal": "exact"}
    if status == "ok":
        points = [make_point(level, decay, ratio) for ratio in (0.5, 1.0, 2.0, 4.0, 8.0)]
        for point in points:
            point["floor"] += HARDER.get(task, 0.0)
        record.extrapolation = make_extrapolation(points)
        record.floors = {
            name: floor + HARDER.get(task, 0.0) for name, floor in record.floors.items() if floor is not None
        }
    for name, value in changes.items():
        setattr(record, name, value)
    return record


def _bits(value: float) -> dict[str, Any]:
    return {
        split: {
            "bits_per_character": value,
            "loss": value * math.log(2),
            "n": 100_000,
            "low": value - 0.02,
            "high": value + 0.02,
        }
        for split in ("validation", "test")
    }


def _curve(record: Record, steps: int = 500, every: int = 25) -> pd.DataFrame:
    """Return a curve that converges to the record's validation score."""
    step = np.arange(every, steps + 1, every)
    end, start = record.score("validation"), 0.1 if record.metric == "accuracy" else 5.0
    wobble = 0.012 * np.sin(step / 17 + record.key.seed) * np.exp(-step / 400)
    score = end + (start - end) * np.exp(-step / 110) + wobble
    return pd.DataFrame({"step": step, "train_loss": 2.3 * np.exp(-step / 200), "validation_score": score})
