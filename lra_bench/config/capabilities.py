"""Declared capabilities of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lra_bench.contracts import Capability, UserError

from .effective import declared


def mixer_capability(node: Mapping[str, Any]) -> Capability:
    """Return the declared capabilities of the mixer of a node, with the values of its option ``declares``.

    Raises ``UserError`` if the class is not a mixer.
    """
    target = str(node.get("_target_"))
    if (capability := _capability(declared(target, "model.mixer").spec)) is None:
        raise UserError(
            f"model.mixer._target_={target}: is not a mixer (the class has no MixerSpec); "
            "name a subclass of lra_bench.models.mixer.Mixer"
        )
    return capability.declaring(node.get("declares") or {})


def network_capability(target: str) -> Capability | None:
    """Return the declared capabilities of a network, or None if its class declares none."""
    return _capability(declared(target, "model.network").capability)


def controller_capability(target: str) -> Capability:
    """Return the family and source that a depth controller declares.

    Raises ``UserError`` if the class is not a controller.
    """
    if (capability := _capability(declared(target, "model.controller").spec)) is None:
        raise UserError(f"model.controller._target_={target}: is not a depth controller (the class has no spec)")
    return capability


def position_hooks(target: str) -> frozenset[str]:
    """Return the names of the hooks that a position class defines.

    Raises ``UserError`` if the class is not a position.
    """
    if (hooks := declared(target, "position").hooks) is None:
        raise UserError(f"position._target_={target}: is not a position (the class has no hooks)")
    return frozenset(hooks)


def _capability(values: Mapping[str, Any] | None) -> Capability | None:
    if values is None:
        return None
    fields: dict[str, Any] = {name: tuple(each) if isinstance(each, list) else each for name, each in values.items()}
    return Capability(**fields)
