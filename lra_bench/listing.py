"""What can be chosen, read from the YAML files alone, without composing them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from lra_bench.abilities import mixer_ability, network_ability
from lra_bench.build import suggest
from lra_bench.contracts import UserError
from lra_bench.option_files import GROUPS, option_files

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


def options(kind: str, config_dir: Path | None = None, *, declared: bool = False) -> list[dict[str, Any]]:
    """Name and description of each option of a group; ``kind`` in the singular or the plural.

    With ``declared`` models tell their abilities as well, for some of which their classes are loaded.
    Raises ``UserError`` where there is no such group.
    """
    group = PLURALS.get(kind, kind)
    if group not in LISTED:
        raise UserError(f"list {kind}: there is no such kind of thing{suggest(kind, set(PLURALS))}")
    return [
        {"name": name, "description": describe(file), **(abilities(file) if declared and group == "model" else {})}
        for name, file in option_files(group, config_dir).items()
    ]


def abilities(model: Path) -> dict[str, Any]:
    """What the system of a model file declares of itself: family, paper, direction, growth and the rest.

    A file whose options make a system of their own names its ``source``: family, paper and arXiv id.
    """
    node = yaml.safe_load(model.read_text(encoding="utf-8"))["model"]
    if "mixer" in node:
        return {**mixer_ability(node["mixer"]["_target_"]).as_dict(), **node.get("source", {})}
    declared = network_ability(node["network"]["_target_"])
    return {} if declared is None else {**declared.as_dict(), **node.get("source", {})}
