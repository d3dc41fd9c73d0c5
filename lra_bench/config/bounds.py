"""Bounds and choices of option values."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from operator import attrgetter
from typing import Any

from lra_bench.contracts import UserError

from .optimization import OPTIMIZERS, SCHEDULES
from .schema import CellConfig, SearchOptions
from .search import LR, NAMES

Rule = tuple[str, Callable[[float], bool]]

AT_LEAST_ONE: Rule = ("must be at least 1", lambda value: value >= 1)
RATE: Rule = ("must be above 0 and at most 1e9", lambda value: 0 < value <= 1e9)
FACTOR: Rule = ("must be above 1 and at most 1000", lambda value: 1 < value <= 1000)
AT_LEAST_TWO: Rule = ("must be at least 2; null means none", lambda value: value >= 2)
POSITIVE: Rule = ("must be above 0 and finite", lambda value: 0 < value < math.inf)
NOT_NEGATIVE: Rule = ("must be at least 0 and finite", lambda value: 0 <= value < math.inf)
THREADS: Rule = ("must be 1 to 65536", lambda value: 1 <= value <= 65536)
SHARE: Rule = ("must be at least 0 and below 1", lambda value: 0 <= value < 1)
BELOW_ONE: Rule = ("must be below 1 and finite", lambda value: -math.inf < value < 1)
SEED: Rule = ("must be at least 0 and below 2^63", lambda value: 0 <= value < 2**63)

BOUNDS: dict[str, Rule] = {
    "seed": SEED,
    **dict.fromkeys(("train.lr", "train.state_lr", "train.eps"), POSITIVE),
    **dict.fromkeys(("train.warmup_steps", "train.weight_decay", "train.clip"), NOT_NEGATIVE),
    **dict.fromkeys(("train.betas", "train.beta1_cycle"), SHARE),
    **dict.fromkeys(("backbone.dropout", "backbone.attention_dropout", "backbone.readout_dropout"), SHARE),
    **dict.fromkeys(("backbone.embedding_scale", "backbone.position_scale", "backbone.cls_scale"), NOT_NEGATIVE),
    **dict.fromkeys(("train.steps", "train.batch_size", "train.evaluate_every"), AT_LEAST_ONE),
    **dict.fromkeys(("train.window", "train.validation_tokens"), AT_LEAST_ONE),
    "train.stop_at": BELOW_ONE,
    "measure.memory_lengths": NOT_NEGATIVE,
    **dict.fromkeys(("backbone.depth", "backbone.width", "backbone.heads", "backbone.head_dim"), AT_LEAST_ONE),
    **dict.fromkeys(("backbone.ff_width", "backbone.readout_hidden"), AT_LEAST_ONE),
    **dict.fromkeys(("backbone.max_length", "backbone.feed_forward_chunks"), AT_LEAST_ONE),
    **dict.fromkeys(("backbone.short_convolution", "backbone.hybrid.every"), AT_LEAST_TWO),
    **dict.fromkeys(("backbone.share_every", "backbone.embedding.rank", "backbone.embedding.factor"), AT_LEAST_ONE),
    **dict.fromkeys(("backbone.output.components", "backbone.output.factor"), AT_LEAST_ONE),
    **dict.fromkeys(("backbone.experts.count", "backbone.experts.top_k", "backbone.experts.every"), AT_LEAST_ONE),
    **dict.fromkeys(("backbone.experts.ff_width", "backbone.product_keys.layer"), AT_LEAST_ONE),
    **dict.fromkeys(("backbone.experts.balance", "backbone.experts.z_loss"), NOT_NEGATIVE),
    "backbone.experts.jitter": SHARE,
    **dict.fromkeys((f"backbone.product_keys.{name}" for name in ("keys", "heads", "top_k")), AT_LEAST_ONE),
    "backbone.product_keys.lr_factor": POSITIVE,
    "backbone.funnel": AT_LEAST_TWO,
    **dict.fromkeys(("measure.speed_lengths", "measure.speed_batch_size", "measure.speed_batches"), AT_LEAST_ONE),
    **dict.fromkeys(
        ("measure.evaluation_batch_size", "measure.extrapolation_tokens", "measure.flops_length"), AT_LEAST_ONE
    ),
    **dict.fromkeys(
        ("measure.speed_seconds", "measure.memory_limit_gigabytes", "measure.extrapolation_ratios"), POSITIVE
    ),
    **dict.fromkeys(("search.rates", "search.protocol_lr"), RATE),
    "search.seeds": SEED,
    "search.factor": FACTOR,
    "hardware.threads": THREADS,
    **dict.fromkeys(("hardware.processes", "hardware.micro_batch"), AT_LEAST_ONE),
    "hardware.timeout_seconds": AT_LEAST_ONE,
    "hardware.memory_limit_gigabytes": POSITIVE,
    "hardware.checkpoint_seconds": NOT_NEGATIVE,
    **dict.fromkeys(
        ("launcher.workers", "launcher.cells_per_gpu", "launcher.minutes", "launcher.cpus", "launcher.at_once"),
        AT_LEAST_ONE,
    ),
    "launcher.signal_seconds": AT_LEAST_ONE,
    "launcher.gpus": NOT_NEGATIVE,
    "launcher.memory_gigabytes": POSITIVE,
}
"""Numeric options, or lists of numbers, with the rule for each number. Null and strings are not checked here."""

CHOICES: dict[str, Collection[str]] = {
    "train.optimizer": OPTIMIZERS,
    "train.schedule": SCHEDULES,
    "search.name": NAMES,
}
"""Options whose value is one of several names."""


def check_bounds(config: CellConfig) -> None:
    """Raise ``UserError`` if a value of a configuration violates the rule of its option."""
    for option in BOUNDS:
        _check(option, attrgetter(option)(config))
    for option, names in CHOICES.items():
        if (value := attrgetter(option)(config)) not in names:
            raise UserError(f"{option}={value}: choose one of {', '.join(names)}")
    betas = config.train.betas
    if len(betas) != 2:
        raise UserError(f"train.betas={_shown(betas)}: must be two numbers, such as [0.9,0.999]")
    cycle = config.train.beta1_cycle
    if cycle is not None and len(cycle) != 2:
        raise UserError(f"train.beta1_cycle={_shown(cycle)}: must be two numbers, such as [0.95,0.85], or null")
    _check_search(config.search)


def _check_search(search: SearchOptions) -> None:
    if search.name != LR:
        return
    if len(set(search.rates)) < max(2, len(search.rates)):
        raise UserError(f"search.rates={_shown(search.rates)}: must be two or more different rates")
    if len(set(search.seeds)) < max(1, len(search.seeds)):
        raise UserError(f"search.seeds={_shown(search.seeds)}: must be one or more different seeds")


def _check(option: str, value: Any) -> None:
    requirement, is_valid = BOUNDS[option]
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, int | float) and not is_valid(number):
            raise UserError(f"{option}={_shown(value)}: {requirement}")


def _shown(value: Any) -> str:
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)
