"""The schema of a configuration: all options except those of single tasks, models and positions, with defaults.

The hash of a cell covers the values of all options of ``backbone`` and ``train``, so a new option or another default
changes the keys of all cells.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from lra_bench.runtime.hardware import HardwareOptions


@dataclass
class Hybrid:
    """Another mixer in every ``every``-th layer, counted from 1; ``every: null`` means none.

    ``mixer`` is the name of a model, a mapping with its name as ``name`` and options of its mixer, or a mapping with
    ``_target_``. Null means full softmax attention.
    """

    every: int | None = None
    mixer: Any = None


@dataclass
class Embedding:
    """Embedding of tokens: a product of two matrices of rank ``rank``, or clusters that begin at the ranks ``cutoffs``.

    Both are null for one table. The width decreases by ``factor`` from cluster to cluster. ``tied`` means that the
    output head uses the embeddings too.
    """

    rank: int | None = None
    cutoffs: list[int] | None = None
    factor: int = 4
    tied: bool = False


@dataclass
class OutputHead:
    """Output head that scores tokens: ``softmax``, ``adaptive`` (softmax) or ``mixture`` (of softmaxes).

    ``cutoffs`` and ``factor`` are those of the clusters of the adaptive softmax; ``factor: null`` means no projections.
    ``components`` is the number of softmaxes of a mixture.
    """

    kind: str = "softmax"
    components: int = 15
    cutoffs: list[int] | None = None
    factor: int | None = 4


@dataclass
class Experts:
    """Mixture of ``count`` experts in every ``every``-th layer, counted from 1; ``count: null`` means none.

    Each token uses ``top_k`` experts, whose hidden width ``ff_width`` is by default that of the networks divided by
    ``top_k``. ``balance`` and ``z_loss`` are the weights of the losses, ``jitter`` is the noise of the router's input.
    """

    count: int | None = None
    top_k: int = 2
    every: int = 1
    ff_width: int | None = None
    balance: float = 0.01
    z_loss: float = 0.0
    jitter: float = 0.0


@dataclass
class ProductKeys:
    """Product-key memory in place of the network of layer ``layer``, counted from 1; ``layer: null`` means none.

    It has ``keys`` half-keys in each of two sets, ``heads`` queries per token, each of which selects ``top_k`` values,
    and ``keys`` squared values, whose learning rate is multiplied by ``lr_factor``.
    """

    layer: int | None = None
    keys: int = 32
    heads: int = 4
    top_k: int = 8
    lr_factor: float = 1.0


@dataclass
class Backbone:
    """Options of the sequence model that contains a mixer; ``_target_`` is its class, which documents them.

    ``causal: null`` means the direction of the task. Batch normalisation uses the unpadded tokens of the batch, which
    is therefore not split into micro-batches.
    """

    _target_: str | None = None
    depth: int = 2
    width: int = 64
    heads: int = 2
    head_dim: int | None = None
    ff_width: int = 128
    dropout: float = 0.1
    attention_dropout: float | None = None
    attention_bias: bool | None = None
    projection_init: str = "xavier"
    embedding_scale: float = 0.25
    position_scale: float | None = None
    cls_scale: float = 0.25
    pooling: str = "mean"
    readout_hidden: list[int] | None = None
    readout_activation: str | None = None
    readout_dropout: float | None = None
    norm: str = "layer"
    norm_place: str = "pre"
    activation: str = "gelu"
    causal: bool | None = None
    max_length: int | None = None
    position: str | None = None
    pair_features: str = "nli"
    reversible: bool = False
    feed_forward_chunks: int = 1
    feed_forward: bool = True
    short_convolution: int | None = None
    hybrid: Hybrid = field(default_factory=Hybrid)
    residual: str = "add"
    block: str = "residual"
    share_every: int | None = None
    embedding: Embedding = field(default_factory=Embedding)
    output: OutputHead = field(default_factory=OutputHead)
    token_order: list[int] | None = None
    experts: Experts = field(default_factory=Experts)
    product_keys: ProductKeys = field(default_factory=ProductKeys)
    mix_layers: bool = False
    funnel: int | None = None
    gate: str | None = None


ADDED = (
    *("short_convolution", "hybrid", "residual", "block", "share_every", "embedding", "output", "token_order"),
    *("experts", "product_keys", "mix_layers", "funnel", "gate"),
)
"""Options of ``Backbone`` that describe the system, not the protocol; with their defaults they change nothing.

They were added after ``hashing.HASH_VERSION``.
"""


def added_keys() -> list[str]:
    """Return the dotted names of the options in ``ADDED``, of sections those of their options."""
    keys = []
    for name in ADDED:
        value = getattr(Backbone(), name)
        inner = [f".{entry.name}" for entry in fields(value)] if is_dataclass(value) else [""]
        keys += [f"backbone.{name}{each}" for each in inner]
    return keys


@dataclass
class Train:
    """Options of training.

    ``optimizer`` and ``schedule`` are names in ``optimization.py``. ``state_lr`` replaces the maximum learning rate
    that models set for the parameters of their state dynamics (``max_lr`` in their ``optimizer_hints``).
    ``weight_decay`` applies to weights of projections and convolutions, with ``decay_all`` also to biases, norms,
    embeddings and learned states. ``beta1_cycle: [high, low]`` replaces the first of ``betas``: it falls from high to
    low during warm-up and rises to high again until the last step. ``order`` is ``shuffled`` or ``stream``: in language
    modelling, a stream reads documents in order in training and evaluation and passes on the memory of the model; in
    other tasks, in which an example is a document, both are the same. In language modelling ``window`` is the length of
    training windows in tokens, by default the training length of the task, and validation uses the first
    ``validation_tokens`` of its split, by default all. ``stop_at`` ends training early after three evaluations in a row
    with a validation skill above this value.
    """

    steps: int = 1000
    batch_size: int = 32
    lr: float = 1e-3
    state_lr: float | None = None
    optimizer: str = "adamw"
    schedule: str = "linear"
    warmup_steps: int = 100
    weight_decay: float = 0.0
    decay_all: bool = False
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    beta1_cycle: list[float] | None = None
    eps: float = 1e-8
    clip: float | None = 1.0
    evaluate_every: int = 250
    order: str = "shuffled"
    window: int | None = None
    validation_tokens: int | None = None
    stop_at: float | None = None


@dataclass
class Measure:
    """Options of the measurements in addition to the test score.

    ``speed_lengths: null`` means the default lengths of the device. ``extrapolation_variants: null`` means all variants
    of longer inputs that the task defines. ``extrapolation_knobs: null`` means all options that the model declares as
    changeable for evaluation only (such as ``position.scaling=yarn``); ``[]`` means none. In language modelling all
    contexts are scored on the same ``extrapolation_tokens`` tokens of the test split, rounded to multiples of the
    longest context. ``memory_lengths`` are the memory lengths with which a language model with memory is tested; ``[]``
    means none. FLOPs are counted for sequences of ``flops_length`` tokens, by default the training length.
    ``speed_batches`` are the batch sizes of a profile, or ``largest``; null means ``speed_batch_size`` if it is set,
    otherwise the defaults of the device. The step benchmark of a cell is warmed up for ``speed_seconds`` (by default
    0.5 s on a CPU and 2 s on CUDA), or ten steps, and timed for at least as long, by default 2 s.
    ``memory_limit_gigabytes`` is the memory limit of a step, by default most of the free memory of the machine, or all
    memory of a GPU.
    """

    speed_lengths: list[int] | None = None
    speed_batch_size: int | None = None
    speed_seconds: float | None = None
    speed_batches: list[Any] | None = None
    memory_limit_gigabytes: float | None = None
    extrapolation_ratios: list[float] = field(default_factory=lambda: [0.5, 1.0, 2.0, 4.0, 8.0])
    extrapolation_variants: list[str] | None = None
    extrapolation_knobs: list[str] | None = None
    extrapolation_tokens: int = 1_000_000
    memory_lengths: list[int] = field(default_factory=lambda: [0, 128, 512, 2048])
    evaluation_batch_size: int = 32
    flops: bool = True
    flops_length: int | None = None
    energy: bool = True


@dataclass
class ProtocolOptions:
    """Options of the protocol, which defines the rules under which results are comparable.

    ``version`` rises when the rules change; results of different versions are not comparable. ``next`` is the protocol
    to use after this one. With ``recipe`` every cell requires an entry of its task in the section ``tasks`` of
    the protocol, with ``tuned`` one of its task and model in the section ``cells``.
    """

    name: str = "quick"
    version: int = 1
    next: str | None = None
    recipe: bool = False
    tuned: bool = False

    @property
    def label(self) -> str:
        """Name and version, such as ``small-v2``; the name alone for version 1."""
        return self.name if self.version == 1 else f"{self.name}-v{self.version}"


@dataclass
class SearchOptions:
    """Options of the search of the learning rate.

    With ``name: lr`` trials at the learning rates ``rates`` with the seeds ``seeds`` choose the rate of a cell; a rate
    at the end of the grid adds the rate ``factor`` times higher or lower. With ``name: trial`` only training and
    validation are run. ``protocol_lr`` is set by lra-bench: the learning rate of the protocol, if ``train.lr`` is a
    rate of the search.
    """

    name: str = "none"
    rates: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    factor: float = 3.0
    protocol_lr: float | None = None


@dataclass
class TrackerOptions:
    """Options of the tracker that receives a copy of each run.

    ``mode: null`` means online if an account is configured, otherwise offline.
    """

    name: str = "wandb"
    project: str = "lra-bench"
    mode: str | None = None


@dataclass
class LauncherOptions:
    """Options of the launcher: ``local`` runs cells on this machine, ``slurm`` submits them to a cluster.

    ``workers`` is the number of cells that run at the same time on this machine, each with its own cores and GPUs.
    ``cells_per_gpu`` is the largest number of them that share a GPU, by default 1; energy, which cannot be attributed
    to one of several cells, is then not measured. The other options apply to ``slurm`` and are requested from
    ``sbatch`` for each cell. ``cpus`` and ``gpus`` default to the needs of the hardware options. At most ``at_once``
    cells of a job array run at the same time; cells with the same resources share an array. ``cluster: local`` runs the
    same jobs on this machine, without Slurm.
    """

    name: str = "local"
    workers: int | None = None
    cells_per_gpu: int | None = None
    cluster: str = "slurm"
    partition: str | None = None
    account: str | None = None
    minutes: int = 240
    cpus: int | None = None
    gpus: int | None = None
    memory_gigabytes: float | None = None
    at_once: int | None = None
    signal_seconds: int = 90


@dataclass
class CellConfig:
    """The configuration of one cell; ``task``, ``model`` and ``position`` contain the options of their classes."""

    seed: int = 0
    task: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    position: dict[str, Any] = field(default_factory=dict)
    backbone: Backbone = field(default_factory=Backbone)
    train: Train = field(default_factory=Train)
    measure: Measure = field(default_factory=Measure)
    hardware: HardwareOptions = field(default_factory=HardwareOptions)
    protocol: ProtocolOptions = field(default_factory=ProtocolOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    tracker: TrackerOptions = field(default_factory=TrackerOptions)
    launcher: LauncherOptions = field(default_factory=LauncherOptions)
