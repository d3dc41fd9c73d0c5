"""What a class declares of itself, read from its source where that suffices: planning a grid need not load torch."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import fields
from pathlib import Path
from typing import Any

from lra_bench.build import check_trusted, load_class
from lra_bench.contracts import Capability, UserError


def mixer_ability(target: str) -> Capability:
    """The declared abilities of a mixer class; ``UserError`` where it is none."""
    call = _declared(target, "spec")
    if call is not None and isinstance(call.func, ast.Name) and call.func.id == "MixerSpec":
        known = {entry.name for entry in fields(Capability)}
        try:
            written = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords if k.arg in known}
            return Capability(**written)
        except ValueError:
            pass  # computed, not written down: ask the class itself
    ability = getattr(_module_class(target, "model.mixer"), "spec", None)
    if not isinstance(ability, Capability):
        raise UserError(
            f"model.mixer._target_={target}: is no mixer (its class has no MixerSpec); "
            "name a class that derives from lra_bench.models.mixer.Mixer"
        )
    return ability


def network_ability(target: str) -> Capability | None:
    """The declared abilities of a whole network; None where its class declares none."""
    ability = getattr(_module_class(target, "model.network"), "capability", None)
    return ability if isinstance(ability, Capability) else None


def position_hooks(target: str) -> frozenset[str]:
    """The hooks that a position class defines."""
    call = _declared(target, "hooks")
    if call is not None and isinstance(call.func, ast.Name) and call.func.id == "frozenset":
        try:
            return frozenset(ast.literal_eval(call.args[0])) if call.args else frozenset()
        except ValueError:
            pass
    hooks = getattr(_module_class(target, "position"), "hooks", None)
    if not isinstance(hooks, frozenset):
        raise UserError(f"position._target_={target}: is no position (its class names no hooks)")
    return hooks


def _module_class(target: str, option: str) -> type[Any]:
    from torch import nn

    return load_class(target, nn.Module, option)


def _declared(target: str, attribute: str) -> ast.Call | None:
    """The call that a class body assigns to ``attribute``; None where there is none or no source at hand."""
    check_trusted(target)  # looking for a module imports the packages it is in
    module, _, name = target.rpartition(".")
    if module.partition(".")[0] == "torch":
        return None  # finding one of its modules would load it
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if found is None or not found.origin or not found.origin.endswith(".py"):
        return None
    for statement in ast.parse(Path(found.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            for inner in statement.body:
                match inner:
                    case ast.Assign(targets=[ast.Name(id=assigned)], value=ast.Call() as call) if assigned == attribute:
                        return call
    return None
