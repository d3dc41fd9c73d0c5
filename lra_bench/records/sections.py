"""The sections of a record: fields and units."""

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict


class Variant(TypedDict):
    """A model and its differences from its configuration file; ``position`` is None unless the user chose it."""

    label: str
    differences: dict[str, Any]
    position: str | None


class Code(TypedDict):
    """Version of lra-bench that wrote the record. The git fields are None outside a git checkout.

    ``sources`` are the texts of modules of classes outside lra-bench and of edited modules of lra-bench, by module.
    """

    sources: NotRequired[dict[str, str]]
    version: str
    git_sha: str | None
    git_dirty: bool | None


class Data(TypedDict):
    """The task's data and its licence; ``partial`` and ``lossy`` describe missing information and are usually empty.

    ``repeats`` are numbers of examples in several splits, such as ``test in train``; old records do not contain it.
    """

    repeats: NotRequired[dict[str, int]]
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


class Machine(TypedDict, total=False):
    """The machine, as ``records.environment`` describes it; None is unknown."""

    processor: str | None
    processor_family: str | None
    processor_model: str | None
    processor_stepping: str | None
    virtual: bool | None
    cache_bytes: dict[str, int] | None
    instruction_sets: list[str] | None
    architecture: str | None
    cores_physical: int | None
    cores_logical: int | None
    cores_usable: int | None
    memory_bytes: int | None
    load_average_1_minute: float | None
    device: str | None
    precision: str | None
    compile: bool | None
    accelerated: bool | None
    threads: int | None
    processes: int | None
    strategy: str | None
    gpu: dict[str, Any] | None
    matmul_flops_per_second: float | None


class Environment(TypedDict):
    """The machine and the versions of the software."""

    hardware: Machine
    software: dict[str, Any]


class ProfiledCosts(TypedDict):
    """Costs of a training step in a stored profile, in which several systems were timed alternately.

    ``relative_speed`` is the speed of a step divided by the Transformer's with the attention kernel ``kernel``, at
    ``length`` tokens; ``relative_memory`` is the same ratio of peak memory. ``spread_of_relative_speed`` is half of the
    width of the 95 % interval of the ratio, divided by it. The time of a step over ``growth_lengths`` is fitted as N^a
    with a = ``time_exponent``; ``time_low`` and ``time_high`` are the ends of its 95 % interval. ``inference_seconds``
    is the median time of a forward pass at the same length, divided by the batch size.
    """

    relative_speed: float
    spread_of_relative_speed: float | None
    relative_memory: float | None
    length: int
    kernel: str | None
    time_exponent: float | None
    time_low: float | None
    time_high: float | None
    growth_lengths: Sequence[int]
    inference_seconds: float | None


class Margin(TypedDict):
    """Improvement of a score over a floor (baseline without a model) on the same rows, paired by row.

    ``difference`` is positive if the model is better, in units of the metric; ``low`` and ``high`` are the ends of its
    95 % confidence interval over rows.
    """

    difference: float
    low: float
    high: float


class Train(TypedDict, total=False):
    """Training options that tables and cost estimates read."""

    steps: int
    batch_size: int
    lr: float


class Config(TypedDict, total=False):
    """The sections of a configuration, each a mapping."""

    task: dict[str, Any]
    model: dict[str, Any]
    position: dict[str, Any]
    backbone: dict[str, Any]
    train: Train
    pretrain: dict[str, Any]
    measure: dict[str, Any]
    hardware: dict[str, Any]
    launcher: dict[str, Any]
    protocol: dict[str, Any]
    search: dict[str, Any]
    tracker: dict[str, Any]


class Capability(TypedDict, total=False):
    """Declared properties of the system; further fields are allowed."""

    family: str
    paper: str
    arxiv: str | None
    causal: str
    growth: float


class Metric(TypedDict):
    """A score over ``n`` scored targets with its 95 % confidence interval; ``loss`` in nats.

    The score has the name of the task's metric; one of the two fields is set.
    """

    accuracy: NotRequired[float | None]
    bits_per_character: NotRequired[float | None]
    loss: float | None
    n: int
    low: float | None
    high: float | None


class Compile(TypedDict):
    """Result of ``torch.compile``.

    Attributes:
        used: Whether compiled code was run.
        graphs: Number of compiled graphs.
        graph_breaks: Number of breaks between graphs.
        uncompiled_functions: Number of functions that were left uncompiled.
        cache_hits: Number of graphs, or parts of graphs, loaded from the cache of an earlier process.
        seconds: Compilation time.
        reason: Why compilation failed, or the reason of the first graph break.
    """

    used: bool
    graphs: int
    graph_breaks: int
    uncompiled_functions: int
    cache_hits: int
    seconds: float
    reason: str


class HintedRate(TypedDict):
    """The learning rate of parameters with an own hint: the hint, such as ``max_lr=0.001``, and the ratio to the rate.

    ``absolute`` is whether the hint is a rate, not a factor. The ratio is that at the rate of the protocol.
    """

    hint: str
    ratio: float
    absolute: bool
