"""What the classes that a configuration names declare: defaults of their arguments, revisions, capabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lra_bench.build import check_trusted, default_options, load_class
from lra_bench.contracts import Capability, UserError

from .sources import MANIFEST, edited_modules, manifest, targets


@dataclass(frozen=True)
class Declared:
    """What planning needs of a class, as values of JSON.

    Attributes:
        defaults: Default of each constructor argument that has one, those passed on to base classes included.
        revisions: Each ``revision`` above 1 that the class or one of its bases sets, in method resolution order. It is
            raised when the class computes something else from the same arguments.
        named_classes: For each option that selects a class by name, the dotted paths of the classes by name.
        not_decayed: Names of the parameters without weight decay, see ``training.optimizer.parameter_groups``.
        spec: Capabilities of a mixer, family and source of a depth controller; None for other classes.
        capability: Capabilities of a network, None if it declares none.
        hooks: Names of the hooks of a position, None for other classes.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    revisions: Sequence[int] = field(default_factory=list)
    named_classes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    not_decayed: Sequence[str] = field(default_factory=list)
    spec: Mapping[str, Any] | None = None
    capability: Mapping[str, Any] | None = None
    hooks: Sequence[str] | None = None


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
        UserError: If a class cannot be imported.
    """
    if isinstance(node, Mapping):
        values = {str(name): value for name, value in node.items()}
        if target := values.get("_target_"):
            of_target = declared(str(target), option)
            values = {**of_target.defaults, **values, "_revisions_": of_target.revisions}
            values |= {name: _selected(values.get(name), choices) for name, choices in of_target.named_classes.items()}
            if decays and of_target.not_decayed:
                values["_not_decayed_"] = of_target.not_decayed
        return {name: effective(value, f"{option}.{name}".removeprefix("."), decays) for name, value in values.items()}
    if isinstance(node, list | tuple):
        return [effective(entry, option, decays) for entry in node]
    if isinstance(node, float) and node.is_integer():
        return int(node)
    if node is None or isinstance(node, bool | int | float | str):
        return node
    # A default of another type, such as a function. What it computes is covered by the class's revision.
    named = node if hasattr(node, "__qualname__") else type(node)
    return f"{named.__module__}.{named.__qualname__}"


def _selected(given: Any, classes: Mapping[str, str]) -> Any:
    """Return the value of an option that selects classes by name, with ``_target_`` in place of their names."""
    if isinstance(given, list | tuple):
        return [_selected(each, classes) for each in given]
    options = {"name": given} if isinstance(given, str) else given
    if not isinstance(options, Mapping) or "_target_" in options or str(options.get("name")) not in classes:
        return given
    return {"_target_": classes[str(options["name"])], **{key: each for key, each in options.items() if key != "name"}}


def declared(target: str, option: str) -> Declared:
    """Return what a class declares: from the manifest, or from the imported class.

    Classes that the manifest does not contain are imported, and so are classes of lra-bench whose module, or one that
    it imports, was edited.

    Args:
        target: Dotted path of the class.
        option: Option of the node that names it, for error messages.

    Returns:
        The declaration.

    Raises:
        UserError: If the class cannot be imported, or ``build.classes_of`` does not allow it.
    """
    check_trusted(target)
    stored = manifest()["classes"].get(target)
    if stored is None or edited_modules({"_target_": target}):
        return of_class(load_class(target, object, option))
    return Declared(**stored)


def of_class(cls: type) -> Declared:
    """Return what an imported class declares."""
    capabilities = {name: getattr(cls, name, None) for name in ("spec", "capability")}
    hooks = getattr(cls, "hooks", None)
    return Declared(
        defaults=effective(default_options(cls), ""),
        revisions=[revision for base in cls.__mro__ if (revision := vars(base).get("revision", 1)) != 1],
        named_classes=effective(getattr(cls, "named_classes", {}), ""),
        not_decayed=list(getattr(cls, "not_decayed", ())),
        hooks=sorted(hooks) if isinstance(hooks, frozenset) else None,
        **{name: each.as_dict() if isinstance(each, Capability) else None for name, each in capabilities.items()},
    )


def check_manifest(node: Any) -> None:
    """Import the classes that a part of a configuration names, and compare them with the manifest.

    Raises ``UserError`` if the manifest describes another version of a class, so that the key of the cell is wrong.
    """
    for target in targets(effective(node, "")):
        if declared(target, "") != of_class(load_class(target, object, "")):
            raise UserError(
                f"{target}: {MANIFEST} does not describe this class; install lra-bench again, or run "
                "`python -m tests.support.manifest` in a checkout"
            )


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
    """Return the ``Capability`` that the class of a network declares, or None."""
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
