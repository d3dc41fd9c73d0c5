"""Self-pretraining (``pretrain=masked`` and ``causal``): its configuration, and the cells that it does not support."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from lra_bench.contracts import TaskSpec, UserError

from .schema import CellConfig, PretrainOptions

NONE, MASKED, CAUSAL, RECORD = "none", "masked", "causal", "record"
"""Values of ``pretrain.name``. ``RECORD`` loads the weights of another cell and does not pretrain."""

PROBABILITY_OF_TOKENS, PROBABILITY_OF_VALUES = 0.15, 0.5
"""Default probabilities with which a position is hidden."""


def pretrains(config: CellConfig) -> bool:
    """Return whether the training of a cell does not begin with random weights."""
    return config.pretrain.name != NONE


def has_objective(config: CellConfig) -> bool:
    """Return whether a cell trains its network on the inputs first."""
    return config.pretrain.name in (MASKED, CAUSAL)


def pretraining_steps(config: CellConfig) -> int:
    """Return the number of pretraining steps of a cell, 0 if it is not pretrained."""
    return (config.pretrain.steps or config.train.steps) if has_objective(config) else 0


def hiding_probability(options: PretrainOptions, spec: TaskSpec) -> float | None:
    """Return the probability with which a position is hidden, None if the objective is the next input."""
    if options.name != MASKED:
        return None
    default = PROBABILITY_OF_VALUES if spec.vocabulary_size is None else PROBABILITY_OF_TOKENS
    return default if options.probability is None else options.probability


def phase_spec(spec: TaskSpec) -> TaskSpec:
    """Return the specification of the objective on the inputs of a task.

    Every token or value is a target, and each document of a pair is an example. The number of classes is the size of
    the vocabulary, or the number of channels.
    """
    classes = spec.channels if spec.vocabulary_size is None else spec.vocabulary_size
    assert classes is not None
    return replace(spec, kind="tagging", classes=classes, metric="accuracy", chance=None, select_by="loss")


def phase_config(config: CellConfig) -> CellConfig:
    """Return the configuration of the pretraining of a cell, whose section ``train`` is its recipe."""
    options, recipe = config.pretrain, config.train
    own = replace(recipe, steps=pretraining_steps(config), lr=options.lr or recipe.lr, stop_at=None)
    return replace(config, train=own, model={**config.model, "label": f"{config.model['label']} ({options.name})"})


def check_options(config: CellConfig, spec: TaskSpec) -> None:
    """Raise ``UserError`` if the task has no pretraining, or the options contradict each other."""
    options = config.pretrain
    if not pretrains(config):
        if changed := _changed(options, ("name", "_target_")):
            raise UserError(f"{changed}: needs pretrain=masked or pretrain=causal")
        return
    if options.name == RECORD:
        if changed := _changed(options, ("name", "record")):
            raise UserError(f"{changed}: pretrain=record trains on no inputs; leave it out or set pretrain=masked")
        if options.record is None:
            raise UserError("pretrain.record: has no value; set it to the key of a record (lra-bench results list)")
        return
    if options.record is not None:
        raise UserError(f"pretrain.record={options.record}: needs pretrain=record")
    if spec.kind == "language_modeling":
        raise UserError(
            f"pretrain={options.name}: {spec.name} predicts its own inputs, so the task is its own pretraining; "
            "set pretrain=none"
        )
    if options.name == CAUSAL and (changed := _changed(options, ("name", "_target_", "steps", "lr", "rows", "select"))):
        raise UserError(f"{changed}: pretrain=causal hides no inputs; leave it out or set pretrain=masked")
    if options.name == CAUSAL and config.backbone.causal is False:
        raise UserError("backbone.causal=false: pretrain=causal needs a causal network; leave it out")


def _changed(options: PretrainOptions, ignored: tuple[str, ...]) -> str:
    """Return the first option that differs from its default as an override, without those in ``ignored``."""
    values: list[tuple[str, Any, Any]] = [
        (each.name, getattr(options, each.name), each.default) for each in fields(options) if each.name not in ignored
    ]
    return next((f"pretrain.{name}={value}" for name, value, default in values if value != default), "")
