"""Declared capabilities of classes, parsed from their source code if possible, so that planning does not load torch."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from lra_bench.build import check_trusted, load_class
from lra_bench.contracts import Capability, UserError


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


def position_hooks(target: str) -> frozenset[str]:
    """Return the names of the hooks that a position class defines.

    Raises ``UserError`` if the class is not a position.
    """
    call = _declaration(target, "hooks")
    if call is not None and isinstance(call.func, ast.Name) and call.func.id == "frozenset":
        try:
            return frozenset(ast.literal_eval(call.args[0])) if call.args else frozenset()
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


def _keywords(target: str, attribute: str) -> dict[str, ast.expr] | None:
    """Return the keyword arguments of a declaration, with those of the declaration that it replaces or inherits."""
    if (found := _class(target)) is None:
        return None
    tree, body = found
    places = _imported(tree, target.rpartition(".")[0])
    declaration = _assigned(body, attribute)
    if declaration is None:
        bases = (places.get(base.id) for base in body.bases if isinstance(base, ast.Name))
        return next((each for base in bases if base and (each := _keywords(base, attribute)) is not None), None)
    match declaration:
        case ast.Call(func=ast.Name(id="MixerSpec" | "Capability"), args=[]):
            inherited: dict[str, ast.expr] | None = {}
        case ast.Call(func=ast.Name(id="replace"), args=[ast.Attribute(ast.Name(id=name), attr=attr)]):
            inherited = _keywords(places[name], attribute) if attr == attribute and name in places else None
        case _:
            inherited = None
    if inherited is None:
        return None
    return {**inherited, **{str(keyword.arg): keyword.value for keyword in declaration.keywords}}


def _assigned(body: ast.ClassDef, attribute: str) -> ast.Call | None:
    """Return the call that a class body assigns to ``attribute``, or None."""
    for statement in body.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=assigned)], value=ast.Call() as call) if assigned == attribute:
                return call
    return None


def _imported(tree: ast.Module, module: str) -> dict[str, str]:
    """Return the dotted path of each class that a module defines, and of each name that it imports with ``from``."""
    places = {each.name: f"{module}.{each.name}" for each in tree.body if isinstance(each, ast.ClassDef)}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            parents = module.split(".")[: -statement.level] if statement.level else []
            source = ".".join([*parents, *([statement.module] if statement.module else [])])
            places |= {alias.asname or alias.name: f"{source}.{alias.name}" for alias in statement.names}
    return places


def _declaration(target: str, attribute: str) -> ast.Call | None:
    """Return the call that a class assigns to ``attribute``; None if there is none or the source is not available."""
    found = _class(target)
    return None if found is None else _assigned(found[1], attribute)


def _class(target: str) -> tuple[ast.Module, ast.ClassDef] | None:
    """Return the syntax trees of the module of a class and of the class; None if the source is not available."""
    check_trusted(target)  # find_spec imports the parent packages of a module
    module, _, name = target.rpartition(".")
    if module.partition(".")[0] == "torch":
        return None  # find_spec would import torch
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    if found is None or not found.origin or not found.origin.endswith(".py"):
        return None
    tree = _parsed(Path(found.origin), Path(found.origin).stat().st_mtime_ns)
    classes = (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)
    return next(((tree, each) for each in classes), None)


@cache
def _parsed(path: Path, changed_at: int) -> ast.Module:
    """Parse the source of a module, once per modification time."""
    return ast.parse(path.read_text(encoding="utf-8"))
