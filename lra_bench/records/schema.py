"""What one record holds: the words, their units, and how records of older versions are read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypedDict

from lra_bench.contracts import UserError
from lra_bench.private import shareable

from .extrapolation import Extrapolation, complete_curves, name_length_variants
from .values import LARGEST, check, hints, plain, shown

SCHEMA_VERSION = 4

STATUSES: Mapping[str, str] = {
    "ok": "finished, every figure that could be measured was",
    "diverged": "the loss or a gradient became infinite or not a number",
    "out_of_memory": "the device or the machine had too little memory",
    "timeout": "the time limit of the cell was reached",
    "incompatible": "the model does not run this task, with the reason",
    "failed": "an error ended the cell, with its first line and the last ones of its process",
    "interrupted": "stopped from outside; the same command resumes it",
}

FINISHED = ("ok", "diverged", "out_of_memory", "incompatible")
"""The statuses that are results."""

RETRIED = ("failed", "timeout", "out_of_memory")
"""The statuses of cells that may end otherwise when they are tried again, which is done on request alone."""


def _to_version_3(raw: dict[str, Any]) -> dict[str, Any]:
    """2 to 3: each section by a function of its own."""
    return _describe_steps(complete_curves(raw))


def _describe_steps(raw: dict[str, Any]) -> dict[str, Any]:
    """Speed points say what of memory lasts, what a step computes and by which attention; unknown before."""
    unknown = ("attention_backend", "static_bytes", "activation_bytes", "flops", "flops_per_second", "utilisation")
    added = {"batch_policy": "fixed", **dict.fromkeys(unknown)}
    flops = raw.get("flops")
    return {
        **raw,
        "speed": [{**added, **point} for point in raw.get("speed", [])],
        "flops": flops and {"ceiling_per_second": None, **flops},
    }


def _to_version_4(raw: dict[str, Any]) -> dict[str, Any]:
    """3 to 4: last words of a process that failed, and what ``torch.compile`` made of the model; unknown before."""
    speed = [{"compile": None, **point} for point in raw.get("speed", [])]
    return {"last_lines": [], **raw, "speed": speed}


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: name_length_variants,
    2: _to_version_3,
    3: _to_version_4,
}
"""From a version to the next: each takes a raw record of its version and returns one of the version after."""

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")


@dataclass(frozen=True, order=True)
class CellKey:
    """What names a cell of the grid, and where its files lie. Raises ``UserError`` where a part is no file name."""

    task: str
    model: str
    hardware: str
    protocol: str
    hash: str
    seed: int

    def __post_init__(self) -> None:
        for part in ("task", "model", "hardware", "protocol", "hash"):
            value = getattr(self, part)
            if not isinstance(value, str) or not _SAFE.fullmatch(value):
                raise UserError(
                    f"{part}={shown(value)}: becomes a folder of results, so use letters, digits and . _ + - alone, "
                    "begin with a letter or digit, and stay under 100"
                )
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < LARGEST:
            raise UserError(f"seed={shown(self.seed)}: set seed to a whole number from 0 on")

    def folder(self) -> PurePosixPath:
        """The cell's folder, relative to ``<results>/runs``; seeds share it."""
        return PurePosixPath(self.task, self.model, self.hardware, f"{self.protocol}-{self.hash}")

    def file(self, suffix: str) -> PurePosixPath:
        """The cell's file of a kind (``json``, ``curves.parquet``), relative to ``<results>/runs``."""
        return self.folder() / f"seed{self.seed}.{suffix}"

    def __str__(self) -> str:
        return str(self.folder() / f"seed{self.seed}")


class Variant(TypedDict):
    """A model and what differs from its file; ``position`` is set only where the user chose it."""

    label: str
    differences: dict[str, Any]
    position: str | None


class Code(TypedDict):
    """The program that made the record; git fields are None outside a checkout."""

    version: str
    git_sha: str | None
    git_dirty: bool | None


class Data(TypedDict):
    """The data and its terms; ``partial`` and ``lossy`` say what it lacks, or are empty."""

    task: str
    version: str
    fingerprint: str
    source: str
    licence: str
    citation: str
    checksums: dict[str, str]
    partial: str
    lossy: str
    rows: dict[str, int]


class Environment(TypedDict):
    """The machine and the versions of what ran on it."""

    hardware: dict[str, Any]
    software: dict[str, Any]


class Parameters(TypedDict):
    """Trainable numbers by part; ``body`` leaves out embeddings, position tables and head."""

    total: int
    body: int
    body_active: int
    embeddings: int
    positions: int
    head: int


class Score(TypedDict, total=False):
    """The score under the name of the task's metric; one of the two is there."""

    accuracy: float | None
    bits_per_character: float | None


class Metric(Score):
    """A score over ``n`` scored targets with its 95 % interval; ``loss`` in nats."""

    loss: float | None
    n: int
    low: float | None
    high: float | None


class Compile(TypedDict):
    """What ``torch.compile`` made of a model: graphs, breaks between them, functions left as they are, and ``seconds``.

    ``used`` is false where nothing compiled was run. ``cache_hits`` are graphs, or parts of them, that came from an
    earlier process, in fewer seconds. ``reason`` says why it failed, or why the graph broke first.
    """

    used: bool
    graphs: int
    graph_breaks: int
    uncompiled_functions: int
    cache_hits: int
    seconds: float
    reason: str


class SpeedPoint(TypedDict):
    """The step benchmark at one length: seconds of a step of ``batch_size`` rows, ``n`` steps timed.

    ``batch_policy`` says how that size was chosen, ``attention_backend`` by which kernel torch's attention ran. Static
    are weights, and in training gradients and optimizer state; activations are what the peak holds beside them.
    ``compile`` is None where the model was not to be compiled; its seconds are part of ``warmup_seconds``.
    ``utilisation`` is ``flops_per_second`` over the ceiling of matrix products that was measured on the device.
    """

    mode: str
    length: int
    batch_size: int
    batch_policy: str
    status: str
    reason: str
    n: int
    median_seconds: float | None
    p10_seconds: float | None
    p90_seconds: float | None
    tokens_per_second: float | None
    attention_backend: str | None
    static_bytes: int | None
    activation_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_resident_growth_bytes: int | None
    flops: int | None
    flops_per_second: float | None
    utilisation: float | None
    short_run: bool
    warmup_seconds: float | None
    compile: Compile | None


class Growth(TypedDict):
    """Slopes of log time and log peak memory over log length with 95 % intervals, and the lengths used."""

    time_exponent: float | None
    time_low: float | None
    time_high: float | None
    memory_exponent: float | None
    memory_low: float | None
    memory_high: float | None
    lengths: list[int]


class Flops(TypedDict):
    """Floating point operations per token at ``length``, how they were counted, and what could not be.

    ``ceiling_per_second`` are those of the fastest matrix product on the device, as it was measured.
    """

    per_token_forward: float | None
    per_token_training: float | None
    length: int | None
    route: str | None
    uncounted: list[str]
    ceiling_per_second: float | None


class Energy(TypedDict):
    """Joules of one training step, None where no counter is to be had."""

    joules_per_step: float | None
    route: str | None


@dataclass(kw_only=True)
class Record:
    """One cell, measured: everything that later tables and figures read. Sections not reached are None or empty.

    ``training`` holds ``steps``, ``best_step``, ``train_seconds``, ``tokens_per_second`` and their like, by unit.
    ``floors`` are scores of rules without a model on the test split. ``last_lines`` are the last words of a process
    that failed. ``path`` is where it was loaded from.
    """

    schema_version: int = SCHEMA_VERSION
    status: str
    reason: str = ""
    last_lines: list[str] = field(default_factory=list)
    attempt: int = 1
    key: CellKey
    variant: Variant
    config: dict[str, Any]
    protocol_modified: list[str] = field(default_factory=list)
    command: str
    started_at: str
    finished_at: str
    wall_seconds: float | None
    code: Code
    data: Data | None = None
    environment: Environment
    parameters: Parameters | None = None
    training: dict[str, Any] | None = None
    speed: list[SpeedPoint] = field(default_factory=list)
    growth: dict[str, Growth] = field(default_factory=dict)
    flops: Flops | None = None
    energy: Energy | None = None
    metrics: dict[str, Metric] = field(default_factory=dict)
    floors: dict[str, float | None] = field(default_factory=dict)
    extrapolation: Extrapolation | None = None
    capability: dict[str, Any] | None = None
    artifacts: dict[str, str] = field(default_factory=dict)
    path: Path | None = field(default=None, compare=False, repr=False)

    @property
    def metric(self) -> Literal["accuracy", "bits_per_character"] | None:
        """The name of the score, None where none was measured."""
        for measured in self.metrics.values():
            if "accuracy" in measured:
                return "accuracy"
            if "bits_per_character" in measured:
                return "bits_per_character"
        return None

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger score is the better one."""
        return self.metric != "bits_per_character"

    def score(self, split: str = "test") -> float | None:
        """The score on ``split``, None where it was not measured."""
        name = self.metric
        measured = self.metrics.get(split)
        return None if name is None or measured is None else measured.get(name)

    def best_floor(self) -> tuple[str, float] | None:
        """The strongest rule without a model, by name; None where none was computed."""
        floors = {name: score for name, score in self.floors.items() if score is not None}
        if not floors:
            return None
        name = (max if self.higher_is_better else min)(floors, key=lambda floor: floors[floor])
        return name, floors[name]

    @property
    def variant_name(self) -> str:
        """The model and what differs from its file: ``performer · features=64 · rope``."""
        return variant_name(self.key.model, self.variant["differences"], self.variant["position"])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, all of them finite, with nothing private in them; ``path`` stays out."""
        values = {
            entry.name: plain(dataclasses.asdict(value) if isinstance(value, CellKey) else value)
            for entry in dataclasses.fields(self)
            if entry.name != "path"
            for value in [getattr(self, entry.name)]
        }
        cleaned: dict[str, Any] = shareable(values)
        return cleaned

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], path: Path | None = None) -> Record:
        """The record in ``raw``, which ``upgrade`` brought to this version; ``UserError`` names what is wrong."""
        values = dict(raw)
        for entry in dataclasses.fields(cls):
            if entry.name in ("key", "path"):
                continue
            if entry.name not in values:
                raise UserError(f"record: {entry.name} is missing")
            check(values[entry.name], hints(cls)[entry.name], entry.name)
        if values["status"] not in STATUSES:
            raise UserError(f"record: status {shown(values['status'])} is unknown (known: {', '.join(STATUSES)})")
        key = values.get("key")
        parts = [entry.name for entry in dataclasses.fields(CellKey)]
        if not isinstance(key, Mapping) or (missing := [part for part in parts if part not in key]):
            raise UserError(f"record: key.{missing[0] if isinstance(key, Mapping) else parts[0]} is missing")
        values["key"] = CellKey(**{part: key[part] for part in parts})
        for name, file in values["artifacts"].items():
            own = values["key"].file(name).name
            if not isinstance(file, str) or not re.fullmatch(re.escape(own) + r"(-[0-9a-f]{8})?\.parquet", file):
                raise UserError(f"record: artifacts.{name} should be its own table beside it, is {shown(file)}")
        known = {entry.name for entry in dataclasses.fields(cls)} - {"path"}
        if unknown := sorted(set(values) - known):
            raise UserError(f"record: {unknown[0]} is no field of a version {SCHEMA_VERSION} record")
        return cls(**values, path=path)


def variant_name(model: str, differences: Mapping[str, Any], position: str | None) -> str:
    """A model and what differs from its file: ``performer · features=64 · rope``."""
    short = [option.rsplit(".", 1)[-1] for option in differences]
    parts = [
        f"{tail if short.count(tail) == 1 else option}={_spell(value)}"
        for (option, value), tail in zip(differences.items(), short, strict=True)
    ]
    return " · ".join([model, *parts, *filter(None, [position])])


def upgrade(raw: Any) -> dict[str, Any]:
    """The raw record of any version as one of this version; ``UserError`` where it is newer than this program."""
    version = raw.get("schema_version") if isinstance(raw, Mapping) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise UserError("record: schema_version is missing, so this is no lra-bench record")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"record: has schema version {version}, this lra-bench reads up to {SCHEMA_VERSION}; upgrade lra-bench"
        )
    current = dict(raw)
    while version < SCHEMA_VERSION:
        if version not in UPGRADES:
            raise UserError(f"record: schema version {version} never existed")
        version += 1
        current = {**UPGRADES[version - 1](current), "schema_version": version}
    return current


def _spell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_spell(entry) for entry in value) + "]"
    return str(value)
