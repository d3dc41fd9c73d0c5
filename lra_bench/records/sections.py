"""The sections of a record: their words and units."""

from __future__ import annotations

from typing import Any, TypedDict


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


class Train(TypedDict, total=False):
    """Training options that tables and cost estimates use."""

    steps: int
    batch_size: int


class Config(TypedDict, total=False):
    """The sections of a configuration that readers look into, each a mapping."""

    task: dict[str, Any]
    model: dict[str, Any]
    position: dict[str, Any]
    backbone: dict[str, Any]
    train: Train
    measure: dict[str, Any]
    hardware: dict[str, Any]
    launcher: dict[str, Any]
    protocol: dict[str, Any]
    tracker: dict[str, Any]


class Training(TypedDict, total=False):
    """Figures of the training run; further ones are allowed."""

    steps: int | None
    best_step: int | None
    train_seconds: float | None
    evaluation_seconds: float | None
    tokens_per_second: float | None
    padded_tokens_per_second: float | None
    validation_change_on_reload: float | None
    final_weights_sha256: str


class Capability(TypedDict, total=False):
    """Declared properties of the system; further ones are allowed."""

    family: str
    paper: str
    arxiv: str | None
    causal: str
    growth: float


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

    ``batch_policy`` says how that size was chosen, ``attention_backend`` by which kernels attention ran. Static
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
