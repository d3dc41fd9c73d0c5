"""Build the task, the model and the launcher of a configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from lra_bench.build import build, load_class
from lra_bench.contracts import Launcher, Task, TaskSpec, UserError
from lra_bench.runtime.hardware import first_line

from .effective import check_manifest
from .pretraining import MASKED
from .schema import CellConfig, own_options
from .serialization import measured
from .validation import check_value, refuses_network

if TYPE_CHECKING:
    from torch import nn


def build_task(config: CellConfig) -> Task:
    """Build the task of ``config.task``. Raises ``UserError`` if an option is unknown or wrong."""
    return build(config.task, Task, "task")  # type: ignore[type-abstract]


def build_launcher(options: Mapping[str, Any]) -> Launcher:
    """Build the launcher of the section ``launcher``. Raises ``UserError`` if an option is unknown or wrong."""
    found = load_class(str(options.get("_target_")), Launcher, "launcher")  # type: ignore[type-abstract]
    hints = get_type_hints(found)
    declared: Sequence[Field[Any]] = fields(found) if is_dataclass(found) else ()
    for each in declared:
        if each.name in options:
            check_value(hints[each.name], options[each.name], f"launcher.{each.name}", each.metadata.get("rule"))
    return build(options, Launcher, "launcher")  # type: ignore[type-abstract]


def build_model(config: CellConfig, spec: TaskSpec, initial_seed: int | None = None) -> Any:
    """Build the model that a configuration describes, for a task with the specification ``spec``.

    Initial parameters are drawn from ``initial_seed``, by default ``config.seed``.

    A model file defines either ``model.mixer``, which the backbone contains, or ``model.network``, a complete network
    that replaces the backbone. A section ``model.retrieval`` defines a network that contains the backbone. Raises
    ``UserError`` if an option is unknown or wrong, or if the manifest, from which the key of the cell was computed,
    does not describe the classes.
    """
    import torch

    torch.manual_seed(config.seed if initial_seed is None else initial_seed)
    if reason := refuses_network(config):
        raise UserError(reason)
    check_manifest(measured(config))
    if config.model.get("network"):
        return build(config.model["network"], torch.nn.Module, "model.network", spec=spec)
    network = _backbone(config, spec)
    if not config.model.get("retrieval"):
        return network
    return build(
        config.model["retrieval"],
        torch.nn.Module,
        "model.retrieval",
        network=network,
        another=lambda **changes: _backbone(replace(config, backbone=replace(config.backbone, **changes)), spec),
        restore=_restore,
        spec=spec,
        seed=config.seed,
    )


def build_pretraining(config: CellConfig, network: nn.Module, spec: TaskSpec) -> Any:
    """Build the network with the head of pretraining around a network, until ``remove`` is called.

    Raises ``UserError`` if the network does not support it.
    """
    from torch import nn

    node, masked = {"_target_": config.pretrain._target_}, config.pretrain.name == MASKED
    return build(node, nn.Module, "pretrain", network=network, spec=spec, masked=masked)


def _backbone(config: CellConfig, spec: TaskSpec) -> nn.Module:
    from torch import nn

    options = config.backbone
    given = {"spec": spec, "mixer": config.model["mixer"], "position": config.position, "seed": config.seed}
    if controller := config.model.get("controller"):
        given["controller"] = controller
    node = {"_target_": options._target_, **own_options(options)}
    return build(node, nn.Module, "backbone", options=options, **given)


def _restore(model: nn.Module, key: str, option: str) -> None:
    """Load the tested weights of another run into ``model``.

    Args:
        model: A network of the same architecture as that of the run.
        key: The key of its record, the path of the record's file between ``runs/`` and ``.json``.
        option: Name of the option with the key, for the errors.

    Raises:
        UserError: If the weights are not in the cache, or are those of another architecture.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_model

    path = kept_weights(key, option)
    try:
        load_model(model, str(path))
    except (SafetensorError, RuntimeError, OSError) as error:
        raise UserError(f"{option}={key}: its weights are those of another network ({first_line(error)})") from error


def kept_weights(key: str, option: str) -> Path:
    """Return the file of the tested weights of another run, see ``_restore``.

    Raises ``UserError`` if the weights are not in the cache.
    """
    from lra_bench.data.cache import Cache

    path = Cache().root / "checkpoints" / key / "best.safetensors"
    if ".." in Path(key).parts or not path.is_file():
        raise UserError(
            f"{option}={key}: {path} does not exist; give the path of a record between runs/ and .json, and run its "
            "cell with this cache"
        )
    return path
