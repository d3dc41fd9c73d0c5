"""The task and the model that a configuration describes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lra_bench.build import build
from lra_bench.contracts import Task, TaskSpec

from .schema import CellConfig


def build_task(config: CellConfig) -> Task:
    """The task of ``config.task``; raises ``UserError`` if an option is unknown or wrong."""
    return build(config.task, Task, "task")  # type: ignore[type-abstract]


def build_model(config: CellConfig, spec: TaskSpec) -> Any:
    """The model of a configuration for a task's ``spec``, seeded by ``config.seed``.

    A model file gives either ``model.mixer``, hosted by the backbone, or ``model.network``, a module of its own.
    """
    import torch

    torch.manual_seed(config.seed)
    if config.model.get("network"):
        return build(config.model["network"], torch.nn.Module, "model.network", spec=spec)
    # The name of a position only steers composition; by now it has become the node ``position``.
    backbone = {name: value for name, value in asdict(config.backbone).items() if name != "position"}
    return build(
        backbone,
        torch.nn.Module,
        "backbone",
        spec=spec,
        mixer=config.model["mixer"],
        position=config.position,
        seed=config.seed,
    )
