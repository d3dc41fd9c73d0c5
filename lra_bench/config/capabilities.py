"""Declared capabilities of classes, parsed from their source code if possible, so that planning does not load torch."""

from __future__ import annotations

import ast
from dataclasses import fields
from typing import Any

from lra_bench.build import check_trusted, load_class
from lra_bench.contracts import Capability, UserError

from .static_classes import Module, Sources, Unreadable


def mixer_capability(target: str) -> Capability:
    """Return the declared capabilities of a mixer class.

    Raises ``UserError`` if the class is not a mixer.
    """
    if (parsed := _parsed_capability(target, "spec")) is not None:
        return parsed
    capability = getattr(_module_class(target, "model.mixer"), "spec", None)
    if not isinstance(capability, Capability):
        raise UserError(
            f"model.mixer._target_={target}: is not a mixer (the class has no MixerSpec); "
            "name a subclass of lra_bench.models.mixer.Mixer"
        )
    return capability


def network_capability(target: str) -> Capability | None:
    """Return the declared capabilities of a network, or None if its class declares none."""
    if (parsed := _parsed_capability(target, "capability")) is not None:
        return parsed
    capability = getattr(_module_class(target, "model.network"), "capability", None)
    return capability if isinstance(capability, Capability) else None


def controller_capability(target: str) -> Capability:
    """Return the family and source that a depth controller declares.

    Raises ``UserError`` if the class is not a controller.
    """
    if (parsed := _parsed_capability(target, "spec")) is not None:
        return parsed
    capability = getattr(_module_class(target, "model.controller"), "spec", None)
    if not isinstance(capability, Capability):
        raise UserError(f"model.controller._target_={target}: is not a depth controller (the class has no spec)")
    return capability


def position_hooks(target: str) -> frozenset[str]:
    """Return the names of the hooks that a position class defines.

    Raises ``UserError`` if the class is not a position.
    """
    found = _declaration(target, "hooks")
    if found is not None:
        match found[1]:
            case ast.Call(func=ast.Name(id="frozenset"), args=arguments):
                try:
                    return frozenset(ast.literal_eval(arguments[0])) if arguments else frozenset()
                except ValueError:
                    pass
    hooks = getattr(_module_class(target, "position"), "hooks", None)
    if not isinstance(hooks, frozenset):
        raise UserError(f"position._target_={target}: is not a position (the class has no hooks)")
    return hooks


def _module_class(target: str, option: str) -> type[Any]:
    from torch import nn

    return load_class(target, nn.Module, option)


def _parsed_capability(target: str, attribute: str) -> Capability | None:
    """Parse the capabilities from the source of a class or its bases.

    Returns None if they are computed or the source is not available.
    """
    keywords = _keywords(target, attribute)
    if keywords is None:
        return None
    known = {entry.name for entry in fields(Capability)}
    try:
        return Capability(**{name: ast.literal_eval(node) for name, node in keywords.items() if name in known})
    except (ValueError, TypeError):
        return None
    except UserError as error:
        raise UserError(f"{target}: {error}") from error


def _keywords(target: str, attribute: str) -> dict[str, ast.expr] | None:
    """Return the keyword arguments of a declaration, with those of the declaration that it replaces."""
    if (found := _declaration(target, attribute)) is None:
        return None
    module, declaration = found
    match declaration:
        case ast.Call(func=ast.Name(id="MixerSpec" | "Capability"), args=[]):
            inherited: dict[str, ast.expr] | None = {}
        case ast.Call(func=ast.Name(id="replace"), args=[ast.Attribute(ast.Name() as base, attr=attr)]):
            inherited = _keywords(module.place(base), attribute) if attr == attribute else None
        case _:
            inherited = None
    if inherited is None or not isinstance(declaration, ast.Call):
        return None
    return {**inherited, **{str(keyword.arg): keyword.value for keyword in declaration.keywords}}


def _declaration(target: str, attribute: str) -> tuple[Module, ast.expr] | None:
    """Return the expression that a class or its first base with one assigns to ``attribute``, and its module.

    None if there is none or the source is not available.
    """
    check_trusted(target)
    try:
        classes = Sources().ancestry(target)
    except Unreadable:
        return None
    return next(
        ((each.module, value) for each in classes if (value := each.assigned(attribute)) is not None),
        None,
    )
