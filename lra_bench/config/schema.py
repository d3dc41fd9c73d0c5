"""The shape of a configuration: every key that is not a task's, a model's or a position's own, with its default.

A key at its default does not count in a cell's hash, so a new key with a default leaves old hashes alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lra_bench.runtime.hardware import HardwareOptions


@dataclass
class Backbone:
    """The sequence model around a mixer; ``_target_`` is its class, ``causal: null`` the task's direction.

    ``norm`` is ``layer``, ``rms`` or ``batch``; the last is over the real tokens of a batch, which then is computed at
    once. ``feed_forward: false`` leaves the feed-forward networks out of the blocks.
    """

    _target_: str | None = None
    depth: int = 2
    width: int = 64
    heads: int = 2
    head_dim: int | None = None
    ff_width: int = 128
    dropout: float = 0.1
    pooling: str = "mean"
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


@dataclass
class Train:
    """How a model is trained.

    ``optimizer`` and ``schedule`` are names in ``optimization.py``.
    ``state_lr`` takes the place of the rate that systems allow what decides their states' time (``max_lr`` of their
    ``optimizer_hints``). In language modelling ``window`` is the length of training windows, by default the task's
    training length, and validation reads the first ``validation_tokens`` of its split, by default all.
    """

    steps: int = 1000
    batch_size: int = 32
    lr: float = 1e-3
    state_lr: float | None = None
    optimizer: str = "adamw"
    schedule: str = "linear"
    warmup_steps: int = 100
    weight_decay: float = 0.0
    betas: list[float] = field(default_factory=lambda: [0.9, 0.999])
    eps: float = 1e-8
    clip: float | None = 1.0
    evaluate_every: int = 250
    order: str = "shuffled"
    window: int | None = None
    validation_tokens: int | None = None


@dataclass
class Measure:
    """What is measured beside the test score.

    ``speed_lengths: null`` means the device's default lengths, ``extrapolation_variants: null`` all ways to lengthen
    that the task has, ``extrapolation_knobs: null`` all options that the model declares to be set for evaluation alone
    (``position.scaling=yarn``), none with ``[]``. In language modelling contexts are compared on the same
    ``extrapolation_tokens`` of the test split, rounded to whole multiples of the longest context. FLOPs are counted on
    rows of ``flops_length`` tokens, by default the training length. ``speed_batches`` are
    the batches of a profile, sizes or ``largest``; null means ``speed_batch_size`` where that is given, else those of
    the device. A cell's steps are warmed up for ``speed_seconds``, by default two, or ten steps, and timed for at
    least as long. What a step may take is ``memory_limit_gigabytes``: by default most of a machine's free memory, and
    all of a card's.
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
    evaluation_batch_size: int = 32
    flops: bool = True
    flops_length: int | None = None
    energy: bool = True


@dataclass
class ProtocolOptions:
    """The rules under which numbers compare; ``next`` is the track to go on to.

    With ``tuned`` every cell needs a file of its own under ``tuned``, for task and model.
    """

    name: str = "quick"
    next: str | None = None
    tuned: bool = False


@dataclass
class TrackerOptions:
    """Where runs are mirrored; ``mode: null`` means online with an account, offline without."""

    name: str = "wandb"
    project: str = "lra-bench"
    mode: str | None = None


@dataclass
class LauncherOptions:
    """Who starts the cells: ``local``, on this machine, or ``slurm``, on a cluster.

    ``workers`` cells run at once on this machine, each with cores, and cards, of its own. The others are of Slurm: what
    ``sbatch`` is asked for, for each cell; ``cpus`` and ``gpus`` are by default those that the hardware needs, and at
    most ``at_once`` cells run at a time. ``cluster: local`` runs the same jobs on this machine, without Slurm.
    """

    name: str = "local"
    workers: int | None = None
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
    """The configuration of one cell; ``task``, ``model`` and ``position`` hold the options of their classes."""

    seed: int = 0
    task: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    position: dict[str, Any] = field(default_factory=dict)
    backbone: Backbone = field(default_factory=Backbone)
    train: Train = field(default_factory=Train)
    measure: Measure = field(default_factory=Measure)
    hardware: HardwareOptions = field(default_factory=HardwareOptions)
    protocol: ProtocolOptions = field(default_factory=ProtocolOptions)
    tracker: TrackerOptions = field(default_factory=TrackerOptions)
    launcher: LauncherOptions = field(default_factory=LauncherOptions)
