"""List the available options of each group, read from the YAML files without composing them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from . import yaml_files
from .effective import controller_capability, mixer_capability, network_capability
from .groups import GROUPS, UNCOUNTABLE, option_files
from .protocols import Protocol, combined, leaves, one_line
from .task_groups import task_group

LISTED = (*GROUPS, "grid", "task_group")
PLURALS = {
    **{f"{group}s": group for group in LISTED if group not in UNCOUNTABLE},
    **{group: group for group in UNCOUNTABLE},
    "group": "task_group",
    "groups": "task_group",
}


def group_of(kind: str) -> str:
    """Return the group with the singular or plural name ``kind``. Raises ``UserError`` if there is none."""
    group = PLURALS.get(kind, kind)
    if group not in LISTED:
        raise UserError(f"list {kind}: there is no such group{suggest(kind, set(PLURALS))}")
    return group


def describe(file: Path) -> str:
    """Return the one-line description of an option: the first comment of its file that is not a directive."""
    for line in file.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and not line.startswith("# @"):
            return line.lstrip("# ").strip()
        if line and not line.startswith("#"):
            break
    return ""


def options(
    kind: str,
    config_dir: Path | None = None,
    *,
    declared: bool = False,
    family: str | None = None,
    causal: bool = False,
) -> list[dict[str, Any]]:
    """Return name and description of each option of a group.

    The kind ``cells`` means the entries of the sections ``cells`` of all protocols. Groups of tasks also have the list
    ``tasks``, which their description contains too. With ``declared``, ``family`` or ``causal`` each model also has its
    declared capabilities. Models that cannot be loaded have no capabilities.

    Args:
        kind: Name of the group, in the singular or plural.
        config_dir: Folder of additional configuration and classes.
        declared: Whether to add the declared capabilities of models.
        family: If given, only models of this family are returned.
        causal: Whether to return only models with an exact causal form.

    Returns:
        One mapping per option, with the keys ``name``, ``description`` and the capabilities.

    Raises:
        UserError: If the group or the family does not exist, or ``family`` or ``causal`` is given for another group
            than models.
    """
    if kind in ("cell", "cells"):
        return _cells(config_dir)
    group = group_of(kind)
    if group != "model" and (family is not None or causal):
        raise UserError(f"{'--causal' if family is None else '--family'}: only applies to lra-bench list models")
    files = option_files(group, config_dir)
    rows: list[dict[str, Any]] = [{"name": name, "description": describe(file)} for name, file in files.items()]
    if group == "task_group":
        rows = [{**row, "tasks": list(task_group(row["name"], config_dir).tasks)} for row in rows]
        return [{**row, "description": f"{row['description']}: {', '.join(row['tasks'])}"} for row in rows]
    if group != "model" or not (declared or causal or family is not None):
        return rows
    rows = [{**row, **_declared(files[row["name"]])} for row in rows]
    families = {row["family"] for row in rows if "family" in row}
    if family is not None and family not in families:
        raise UserError(f"--family {family}: there is no such family{suggest(family, families)}")
    return [
        row
        for row in rows
        if (family is None or row.get("family") == family) and (not causal or row.get("causal") == "exact")
    ]


def _cells(config_dir: Path | None) -> list[dict[str, Any]]:
    """Return the cells for which a protocol has values of their own, with these values as overrides, the rate first."""
    rows = []
    for name in option_files("protocol", config_dir):
        protocol = Protocol(name, config_dir)
        for key in protocol.keys("cells"):
            values = dict(leaves(combined(protocol.entry("cells", key))))
            rate_first = sorted(values.items(), key=lambda entry: entry[0] != "train.lr")
            task, _, model = key.partition("/")
            rows.append(
                {
                    "name": f"protocol={name} task={task} model={model}",
                    "description": " ".join(f"{option}={one_line(value)}" for option, value in rate_first),
                }
            )
    return rows


def by_family(rows: list[dict[str, Any]], config_dir: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Group models by family, in alphabetical order; models without a family come last."""
    files = option_files("model", config_dir)
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(_family(files[row["name"]]), []).append(row)
    return {name or "no family": found[name] for name in sorted(found, key=lambda name: (not name, name))}


def _family(model: Path) -> str:
    """Return the family of a model: that of its file, the folder of a class of lra-bench, or that of its class."""
    try:
        node, target = _read(model)
    except UserError:
        return ""
    package, _, folder = target.rpartition(".")[0].rpartition(".")[0].rpartition(".")
    if "family" not in node.get("source", {}) and "controller" not in node and package == "lra_bench.models":
        return folder
    return str(_declared(model).get("family", ""))


def _declared(model: Path) -> dict[str, Any]:
    try:
        return capabilities(model)
    except UserError:
        return {}


def capabilities(model: Path) -> dict[str, Any]:
    """Return the declared capabilities of the system of a model file: family, paper, direction, growth and others.

    A file whose options define a separate system has a section ``source`` with its family, paper, arXiv id and authors'
    code, which replace those of the class; so do those of a depth controller. Raises ``UserError`` if the file or its
    class cannot be loaded.
    """
    node, target = _read(model)
    declared = mixer_capability(node["mixer"]) if "mixer" in node else network_capability(target)
    if declared is None:
        return {}
    if controller := node.get("controller"):
        declared = declared.sourced(controller_capability(str(controller["_target_"])))
    if source := node.get("source"):
        return {**replace(declared, code=None).as_dict(), **source}
    return declared.as_dict()


def _read(model: Path) -> tuple[dict[str, Any], str]:
    """Return the model section of a model file and the dotted path of its class.

    Raises ``UserError`` if the file names no class.
    """
    try:
        node = yaml_files.load(model.read_text(encoding="utf-8"))["model"]
        return node, str((node["mixer"] if "mixer" in node else node["network"])["_target_"])
    except (yaml.YAMLError, LookupError, TypeError) as error:
        raise UserError(f"model={model.stem}: {model} names no class under model.mixer or model.network") from error
