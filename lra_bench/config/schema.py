"""The schema of a configuration: all options except those of single tasks, models, positions and launchers.

The hash of a cell covers the values of all options of ``backbone`` and ``train``, so a new option or another default
changes the keys of all cells.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache, partial
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.contracts.measurement import Measurement
from lra_bench.options.backbone import BackboneOptions
from lra_bench.options.declaration import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    Rule,
    choose,
    one_of,
    option,
)
from lra_bench.runtime.hardware import HardwareOptions

from .effective import declared
from .measurements import measurements, options_of, our_measurements
from .optimization import OPTIMIZERS, SCHEDULES

BELOW_ONE = Rule("must be below 1 and finite", lambda value: -math.inf < value < 1)
RATE = Rule("must be above 0 and at most 1e9", lambda value: 0 < value <= 1e9)
BATCH = Rule(
    "not a batch size; use positive integers or largest",
    lambda value: value in (None, "largest") or (type(value) is int and value >= 1),
    object,
)
PROBABILITY = Rule("must be above 0 and below 1", lambda value: 0 < value < 1)
BUDGET = Rule("must be at least 1 and at most 1000", lambda value: 1 <= value <= 1000)
FACTOR = Rule("must be above 1 and at most 1000", lambda value: 1 < value <= 1000)


@dataclass
class Backbone(BackboneOptions):
    """Options of the sequence model that contains a mixer.

    Attributes:
        position: Position encodings of which ``position=auto`` chooses the first that the mixers support.
        _target_: Its class.
    """

    position: str | None = None
    _target_: str | None = None


GIVEN = ("spec", "mixer", "position", "options", "seed", "controller")
"""Arguments of the constructor of a backbone that lra-bench sets."""


def extended_backbone(target: str | None) -> type[Backbone]:
    """Return ``Backbone``, extended by the options of its own that the class ``target`` has.

    These are the arguments of its constructor with defaults that JSON can represent. Raises ``UserError`` if the class
    cannot be read, or an argument has the name of an option in ``Backbone``.
    """
    defaults = declared(target, "backbone").defaults if target else {}
    own = {name: value for name, value in defaults.items() if name not in GIVEN and _is_plain(value)}
    if taken := [entry.name for entry in fields(Backbone) if entry.name in own]:
        raise UserError(
            f"backbone._target_={target}: its argument {taken[0]} is an option of every backbone; remove it from the "
            f"constructor and read options.{taken[0]}"
        )
    return _extended(json.dumps(own)) if own else Backbone


@cache
def _extended(own: str) -> type[Backbone]:
    entries = [(name, Any, field(default_factory=partial(deepcopy, value))) for name, value in json.loads(own).items()]
    return make_dataclass("Backbone", entries, bases=(Backbone,))


def own_options(options: Backbone) -> dict[str, Any]:
    """Return the options that only the class of a backbone has (``extended_backbone``), with their values."""
    common = {entry.name for entry in fields(Backbone)}
    return {entry.name: getattr(options, entry.name) for entry in fields(options) if entry.name not in common}


def _is_plain(value: Any) -> bool:
    """Return whether JSON can represent a value."""
    if isinstance(value, list | tuple | dict):
        return all(map(_is_plain, value.values() if isinstance(value, dict) else value))
    return value is None or isinstance(value, bool | int | float | str)


ADDED = tuple(entry.name for entry in fields(Backbone) if entry.metadata.get("of_system"))
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

    Attributes:
        steps: Number of optimizer steps.
        batch_size: Number of examples of a step, over all processes.
        lr: Maximum learning rate.
        state_lr: Maximum learning rate of the parameters of state dynamics, instead of the one that models set for them
            (``max_lr`` in their ``optimizer_hints``); null for theirs.
        optimizer: Name in ``optimization.py``.
        schedule: Name in ``optimization.py`` of the schedule of the learning rate.
        warmup_steps: Number of steps in which the learning rate rises.
        weight_decay: Weight decay of the weights of projections and convolutions.
        decay_all: Whether it also applies to biases, norms, embeddings and learned states.
        betas: Decay rates of the averages of the optimizer.
        beta1_cycle: ``[high, low]`` replaces the first of ``betas``: it falls from high to low during warm-up and rises
            to high again until the last step; null for a constant.
        eps: Constant in the denominator of the optimizer.
        clip: Largest norm of the gradient; null for no clipping.
        evaluate_every: Number of steps between evaluations on the validation split.
        order: ``shuffled``, or ``stream``: in language modelling documents are read in order, in training and
            evaluation, and the memory of the model is passed on. In other tasks, in which an example is a document,
            both are the same.
        window: Length of training windows in language modelling, in tokens; by default the training length of the task.
        validation_tokens: Number of tokens of the validation split that are used in language modelling, from its start;
            by default all.
        stop_at: Validation skill above which training ends early, after three evaluations in a row.
        length_warmup: Shorter lengths in tokens for the first steps, each with its number of steps, such as
            ``[[128,800],[512,200]]``. Batches of shorter examples are larger, so that they contain about as many
            tokens. With null all steps use the training length.
    """

    steps: int = option(1000, AT_LEAST_ONE)
    batch_size: int = option(32, AT_LEAST_ONE)
    lr: float = option(1e-3, POSITIVE)
    state_lr: float | None = option(None, POSITIVE)
    optimizer: str = option("adamw", one_of(OPTIMIZERS, "choose"))
    schedule: str = option("linear", one_of(SCHEDULES, "choose"))
    warmup_steps: int = option(100, NOT_NEGATIVE)
    weight_decay: float = option(0.0, NOT_NEGATIVE)
    decay_all: bool = False
    betas: list[float] = option(lambda: [0.9, 0.999], SHARE)
    beta1_cycle: list[float] | None = option(None, SHARE)
    eps: float = option(1e-8, POSITIVE)
    clip: float | None = option(1.0, NOT_NEGATIVE)
    evaluate_every: int = option(250, AT_LEAST_ONE)
    order: str = option("shuffled", choose(("shuffled", "stream")))
    window: int | None = option(None, AT_LEAST_ONE)
    validation_tokens: int | None = option(None, AT_LEAST_ONE)
    stop_at: float | None = option(None, BELOW_ONE)
    length_warmup: list[list[int]] | None = None


@dataclass
class _Steps:
    """Options of the step benchmark of a cell and of a profile.

    Attributes:
        speed_lengths: Lengths in tokens; null for the default lengths of the device.
        speed_batch_size: Batch size of a cell, and of a profile without ``speed_batches``.
        speed_seconds: Duration of the warm-up in a cell, by default 0.5 s on a CPU and 2 s on CUDA, or ten steps, and
            shortest duration of the timing, by default 2 s.
        speed_batches: Batch sizes of a profile, or ``largest``; null for ``speed_batch_size`` if it is set, otherwise
            for the defaults of the device.
        memory_limit_gigabytes: Memory limit of a step in a profile, in units of 10⁹ bytes; by default most of the free
            memory of the machine, or all memory of a GPU.
    """

    speed_lengths: list[int] | None = option(None, AT_LEAST_ONE)
    speed_batch_size: int | None = option(None, AT_LEAST_ONE)
    speed_seconds: float | None = option(None, POSITIVE)
    speed_batches: list[Any] | None = option(None, BATCH)
    memory_limit_gigabytes: float | None = option(None, POSITIVE)


@dataclass
class _Shared:
    """Options of several measurements.

    Attributes:
        evaluation_batch_size: Number of examples of a batch in validation and test.
        flops: Whether FLOPs are counted.
        flops_length: Length in tokens for which a cell counts them; by default the training length.
        energy: Whether energy is measured.
    """

    evaluation_batch_size: int = option(32, AT_LEAST_ONE)
    flops: bool = True
    flops_length: int | None = option(None, AT_LEAST_ONE)
    energy: bool = True


@dataclass
class Measure(_Shared, options_of(our_measurements()), _Steps):  # type: ignore[misc]
    """Options of the measurements; those of a class derived from ``Measurement`` are documented in its ``Options``."""


def measure_options() -> Callable[[], Measure]:
    """Return ``Measure``, extended by the options of the user's measurements (see ``measurements``)."""
    return _extended_measure(tuple(measurements().values())[len(our_measurements()) :])


@cache
def _extended_measure(own: tuple[type[Measurement], ...]) -> Callable[[], Measure]:
    options = options_of({each.name: each for each in own}, [entry.name for entry in fields(Measure)])
    return make_dataclass("Measure", [], bases=(options, Measure)) if own else Measure


@dataclass
class ProtocolOptions:
    """Options of the protocol, which defines the rules under which results are comparable.

    Attributes:
        name: Name of its file.
        version: Version, which rises when the rules change; results of different versions are not comparable.
        next: Protocol to use after this one.
        recipe: Whether every cell requires an entry of its task in the section ``tasks`` of the protocol.
        tuned: Whether every cell requires an entry of its task and model in the section ``cells``.
        searched: Whether the section ``cells`` contains the rate of the cell, in protocols whose section contains the
            rates that a search chose; otherwise null.
    """

    name: str = "quick"
    version: int = 1
    next: str | None = None
    recipe: bool = False
    tuned: bool = False
    searched: bool | None = None

    @property
    def label(self) -> str:
        """Name and version, such as ``small-v2``; the name alone for version 1."""
        return self.name if self.version == 1 else f"{self.name}-v{self.version}"


@dataclass
class SearchOptions:
    """Options of the search of the learning rate or of other options.

    Attributes:
        name: ``none``; ``lr``: trials choose the rate of a cell; ``optuna``: trials choose the options in ``space``;
            ``trial``: only training and validation are run.
        space: Values of each option of ``optuna``: ``[low,high,log]``, ``[low,high,linear]``, or a list of choices.
        trials: Number of trials of ``optuna``, each of which is trained with all ``seeds``.
        rates: Learning rates of the trials.
        seeds: Seeds of the trials.
        factor: Factor between the rate at an end of the grid and the one that is added beyond it.
        protocol: The protocol whose rates this search chose: its cells train as without a search at the chosen rate,
            and are ranked with the others.
        protocol_lr: Learning rate of the protocol, if ``train.lr`` is a rate of the search; set by lra-bench.
    """

    name: str = option("none", one_of(("none", "lr", "optuna", "trial"), "choose"))
    space: dict[str, Any] = field(default_factory=dict)
    trials: int = option(20, BUDGET)
    rates: list[float] = option(list, RATE)
    seeds: list[int] = option(list, SEED)
    factor: float = option(3.0, FACTOR)
    protocol: str | None = None
    protocol_lr: float | None = option(None, RATE)


@dataclass
class PretrainOptions:
    """Options of self-pretraining: a network learns to restore its inputs before it is trained on the targets.

    Attributes:
        name: ``none``; ``masked``: hidden inputs are restored; ``causal``: the next input is predicted; ``record``: the
            weights of another cell are loaded instead.
        steps: Number of optimizer steps; null for those of training.
        probability: Probability with which a position is hidden; null for 0.15 of tokens and 0.5 of values.
        span: Length of hidden spans in positions, which do not overlap; with 1 each position is hidden independently.
        lr: Maximum learning rate; null for that of training.
        rows: Number of examples of the training split that are used, from its start; null for all.
        select: Weights with which training begins: ``best``, those of the lowest validation loss, or ``last``.
        record: Key of a record, the path of its file between ``runs/`` and ``.json``, for ``pretrain=record``.
        _target_: Class of the network with the head of this objective.
    """

    name: str = option("none", one_of(("none", "masked", "causal", "record"), "choose"))
    steps: int | None = option(None, AT_LEAST_ONE)
    probability: float | None = option(None, PROBABILITY)
    span: int = option(1, AT_LEAST_ONE)
    lr: float | None = option(None, POSITIVE)
    rows: int | None = option(None, AT_LEAST_ONE)
    select: str = option("best", choose(("best", "last")))
    record: str | None = None
    _target_: str | None = None


@dataclass
class TrackerOptions:
    """Options of the tracker that receives a copy of each run.

    Attributes:
        name: ``wandb`` or ``none``.
        project: Name of the project on W&B.
        mode: ``online``, ``offline`` or ``disabled``; null for online if an account is configured, otherwise offline.
    """

    name: str = option("wandb", choose(("wandb", "none")))
    project: str = "lra-bench"
    mode: str | None = option(None, choose(("online", "offline", "disabled")))


@dataclass
class CellConfig:
    """The configuration of one cell.

    ``task``, ``model``, ``position`` and ``launcher`` contain the options of their classes.

    Attributes:
        seed: Seed of the initial weights, of the order of examples and of dropout.
    """

    seed: int = option(0, SEED)
    task: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    position: dict[str, Any] = field(default_factory=dict)
    backbone: Backbone = field(default_factory=Backbone)
    pretrain: PretrainOptions = field(default_factory=PretrainOptions)
    train: Train = field(default_factory=Train)
    measure: Measure = field(default_factory=Measure)
    hardware: HardwareOptions = field(default_factory=HardwareOptions)
    protocol: ProtocolOptions = field(default_factory=ProtocolOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    tracker: TrackerOptions = field(default_factory=TrackerOptions)
    launcher: dict[str, Any] = field(default_factory=dict)
