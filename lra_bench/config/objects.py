"""Build the task and the model of a configuration."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lra_bench.build import build
from lra_bench.contracts import Task, TaskSpec, UserError

from .hybrid import refuses_network
from .schema import CellConfig


def build_task(config: CellConfig) -> Task:
    """Build the task of ``config.task``. Raises ``UserError`` if an option is unknown or wrong."""
    return build(config.task, Task, "task")  # type: ignore[type-abstract]


def build_model(config: CellConfig, spec: TaskSpec) -> Any:
    """Build the model of a configuration for a task's ``spec``, with parameters initialised from ``config.seed``.

    A model file defines either ``model.mixer``, which the backbone contains, or ``model.network``, a complete network
    that replaces the backbone. A section ``model.retrieval`` defines a network that contains the backbone. Raises
    ``UserError`` if an option is unknown or wrong.
    """
    import torch

    torch.manual_seed(config.seed)
    if reason := refuses_network(config):
        raise UserError(reason)
    if config.model.get("network"):
        return build(config.model["network"], torch.nn.Module, "model.network", spec=spec)
    # The name of a position is only used for composition; its options are in the section ``position``.
    backbone = {name: value for name, value in asdict(config.backbone).items() if name != "position"}
    arguments = {"spec": spec, "mixer": config.model["mixer"], "position": config.position, "seed": config.seed}
    if controller := config.model.get("controller"):
        arguments["controller"] = controller
    network = build(backbone, torch.nn.Module, "backbone", **arguments)
    if not config.model.get("retrieval"):
        return network
    return build(
        config.model["retrieval"],
        torch.nn.Module,
        "model.retrieval",
        network=network,
        another=lambda **changes: build({**backbone, **changes}, torch.nn.Module, "backbone", **arguments),
        spec=spec,
        seed=config.seed,
    )
