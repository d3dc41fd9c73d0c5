"""Effective arguments of the classes that a configuration names: its values, and the defaults in their code."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_bench.build import check_trusted, default_options, load_class

from .static_classes import Sources, Stamp, StaticClass, Unreadable, stamp

REVISION = "revision"
"""Class attribute: number that is raised when the class computes something else from the same arguments."""

NAMED_CLASSES = "named_classes"
"""Class attribute: for each option that selects a class by name, the dotted paths of the classes by name."""

NOT_DECAYED = "not_decayed"
"""Class attribute: names of parameters without weight decay, see ``training.optimizer.parameter_groups``."""


@dataclass(frozen=True)
class Declared:
    """What the code of a class contributes to the hash of a cell.

    Attributes:
        defaults: Default of each constructor argument that has one, those passed on to base classes included.
        revisions: Each ``revision`` above 1 that the class or one of its bases sets, in method resolution order.
        named: For each option that selects a class by name, the dotted paths of the classes by name.
        not_decayed: Names of the parameters without weight decay.
    """

    defaults: Mapping[str, Any]
    revisions: Sequence[Any]
    named: Mapping[str, Mapping[str, str]]
    not_decayed: Sequence[str]


def effective(node: Any, option: str, decays: bool = False) -> Any:
    """Return a part of a configuration with the defaults of all classes that it names, as plain values.

    A mapping with ``_target_`` is completed with the defaults of the constructor and with the class's revisions, as
    ``_revisions_``. A name or a mapping with ``name`` that selects a class becomes a mapping with ``_target_``. Numbers
    that are equal, such as 1 and 1.0, become identical.

    Args:
        node: The part of the configuration.
        option: Its option, for error messages.
        decays: Whether to add the names of parameters without weight decay, as ``_not_decayed_``, for classes with any.

    Returns:
        The completed copy.

    Raises:
        UserError: If a class can be neither parsed nor imported.
    """
    if isinstance(node, Mapping):
        values = {str(name): value for name, value in node.items()}
        if target := values.get("_target_"):
            found = declared(str(target), option)
            values = {**found.defaults, **values, "_revisions_": found.revisions}
            values |= {name: _selected(values.get(name), known) for name, known in found.named.items()}
            if decays and found.not_decayed:
                values["_not_decayed_"] = found.not_decayed
        return {name: effective(value, f"{option}.{name}", decays) for name, value in values.items()}
    if isinstance(node, list | tuple):
        return [effective(entry, option, decays) for entry in node]
    if isinstance(node, float) and node.is_integer():
        return int(node)
    if node is None or isinstance(node, bool | int | float | str):
        return node
    # A default of another type, such as a function. What it computes is covered by the class's revision.
    named = node if hasattr(node, "__qualname__") else type(node)
    return f"{named.__module__}.{named.__qualname__}"


def _selected(given: Any, known: Mapping[str, str]) -> Any:
    """Return the value of an option that selects classes by name, with ``_target_`` in place of known names."""
    if isinstance(given, list | tuple):
        return [_selected(each, known) for each in given]
    options = {"name": given} if isinstance(given, str) else given
    if not isinstance(options, Mapping) or "_target_" in options or str(options.get("name")) not in known:
        return given
    return {"_target_": known[str(options["name"])], **{key: each for key, each in options.items() if key != "name"}}


_known: dict[tuple[str, tuple[str, ...]], tuple[dict[Path, Stamp], Declared]] = {}
"""Declarations with the stamps of the files that they were read from, by class and import path."""


def declared(target: str, option: str) -> Declared:
    """Return what a class declares: read from its source code if possible, otherwise from the imported class.

    Args:
        target: Dotted path of the class.
        option: Option of the node that names it, for error messages.

    Returns:
        The declaration.

    Raises:
        UserError: If the class cannot be imported, or ``build.classes_of`` does not allow it.
    """
    check_trusted(target)
    place = target, tuple(sys.path)
    sources = Sources()
    try:
        if place not in _known or any(stamp(file) != known for file, known in _known[place][0].items()):
            found = _read(sources.ancestry(target))
            _known[place] = sources.files, found
    except Unreadable:
        _known[place] = {}, _imported(load_class(target, object, option))
    return _known[place][1]


def _read(classes: Sequence[StaticClass]) -> Declared:
    """Return the declaration of the first of ``classes``, which are in method resolution order.

    Raises ``Unreadable`` if it cannot be determined from source code.
    """
    parameters: dict[str, Any] = {}
    for each in classes:
        if (arguments := each.constructor()) is None:
            continue
        own = {
            name: default if default is inspect.Parameter.empty else each.value(default)
            for name, default in _parameters(arguments)
        }
        parameters = {**own, **parameters}
        if arguments.kwarg is None:
            break
    revisions = [each.value(assigned) for each in classes if (assigned := each.assigned(REVISION)) is not None]
    named, not_decayed = (
        [each.value(assigned) for each in classes if (assigned := each.assigned(attribute)) is not None]
        for attribute in (NAMED_CLASSES, NOT_DECAYED)
    )
    return Declared(
        {name: default for name, default in parameters.items() if default is not inspect.Parameter.empty},
        [revision for revision in revisions if revision != 1],
        named[0] if named else {},
        not_decayed[0] if not_decayed else [],
    )


def _parameters(arguments: ast.arguments) -> Iterator[tuple[str, Any]]:
    """Yield name and default of each parameter that can be passed by name, except ``self``.

    The default is an expression, or ``inspect.Parameter.empty`` if there is none.
    """
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    pairs = [*zip(positional, defaults, strict=True)][max(1, len(arguments.posonlyargs)) :]
    for argument, default in (*pairs, *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)):
        yield argument.arg, inspect.Parameter.empty if default is None else default


def _imported(found: type) -> Declared:
    """Return the declaration of an imported class."""
    revisions = [vars(base)[REVISION] for base in found.__mro__ if vars(base).get(REVISION, 1) != 1]
    return Declared(
        default_options(found), revisions, getattr(found, NAMED_CLASSES, {}), getattr(found, NOT_DECAYED, [])
    )
