"""What can be chosen, read from the YAML files alone, without composing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .capabilities import mixer_capability, network_capability
from .groups import GROUPS, option_files

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a hundred files are read
LISTED = (*GROUPS, "grid")
PLURALS = {**{f"{group}s": group for group in LISTED}, "hardware": "hardware"}


def describe(file: Path) -> str:
    """The first comment of an option's file that is no directive: its one-line description."""
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
    """Name and description of each option of a group; ``kind`` in the singular or the plural.

    With ``declared``, ``family`` or ``causal`` models have their capabilities too, for which a class is loaded if its
    source does not state them; a model that cannot be loaded has none. ``family`` keeps the models of one family,
    and ``causal`` those with an exact causal form.
    Raises ``UserError`` where there is no such group or family, or where the group has none.
    """
    group = PLURALS.get(kind, kind)
    if group not in LISTED:
        raise UserError(f"list {kind}: there is no such kind of thing{suggest(kind, set(PLURALS))}")
    if group != "model" and (family is not None or causal):
        raise UserError(f"{'--causal' if family is None else '--family'}: is for lra-bench list models")
    files = option_files(group, config_dir)
    rows = [{"name": name, "description": describe(file)} for name, file in files.items()]
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


def by_family(rows: list[dict[str, Any]], config_dir: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Models by their family; those that declare none come last."""
    files = option_files("model", config_dir)
    found = {row["name"]: _family(files[row["name"]]) for row in rows}
    names = sorted(set(found.values()), key=lambda name: (not name, name))
    return {name or "no family": [row for row in rows if found[row["name"]] == name] for name in names}


def _family(model: Path) -> str:
    """The family of a model: as its file says, the folder of a class of ours, or as its class declares."""
    try:
        node, target = _read(model)
    except UserError:
        return ""
    package, _, folder = target.rpartition(".")[0].rpartition(".")[0].rpartition(".")
    if "family" not in node.get("source", {}) and package == "lra_bench.models":
        return folder
    return str(_declared(model).get("family", ""))


def _declared(model: Path) -> dict[str, Any]:
    try:
        return capabilities(model)
    except UserError:
        return {}


def capabilities(model: Path) -> dict[str, Any]:
    """What the system of a model file declares of itself: family, paper, direction, growth and the rest.

    A file whose options make a system of their own names its ``source``: family, paper and arXiv id. Raises
    ``UserError`` where the file or its class cannot be loaded.
    """
    node, target = _read(model)
    if "mixer" in node:
        return {**mixer_capability(target).as_dict(), **node.get("source", {})}
    declared = network_capability(target)
    return {} if declared is None else {**declared.as_dict(), **node.get("source", {})}


def _read(model: Path) -> tuple[dict[str, Any], str]:
    """Read the model section of a model file and the class that it names."""
    try:
        node = yaml.load(model.read_text(encoding="utf-8"), LOADER)["model"]
        return node, str((node["mixer"] if "mixer" in node else node["network"])["_target_"])
    except (yaml.YAMLError, LookupError, TypeError) as error:
        raise UserError(f"model={model.stem}: {model} names no class under model.mixer or model.network") from error
