"""The position encoding for ``position=auto``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .capabilities import mixer_capability, position_hooks
from .groups import listing, option_files
from .hybrid import hybrid_mixer


def automatic_position(config: Mapping[str, Any], choices: Mapping[str, str], config_dir: Path | None) -> str:
    """Return the name of the position encoding for ``position=auto``, the default.

    If the model file sets ``backbone.position``, that position is returned. Otherwise the position of the protocol is
    returned if the mixers support its hooks. It can name several, separated by ``|``, of which the first that the
    mixers support is returned. The result is ``none`` if the mixers support none of them, if no position is set, or
    if the model has no mixer. Raises ``UserError`` if there is no such position.
    """
    import yaml

    files = option_files("position", config_dir)
    names = str(config["backbone"]["position"] or "none").split("|")
    for name in names:
        if name not in files:
            raise UserError(
                f"backbone.position={name}: there is no such position{suggest(name, set(files), listing('position'))}"
            )
    model_file = yaml.safe_load(option_files("model", config_dir)[choices["model"]].read_text(encoding="utf-8")) or {}
    if (model_file.get("backbone") or {}).get("position") and len(names) == 1:
        return names[0]
    node = config["model"].get("mixer")
    if not node:
        return "none"
    nodes = [node, *filter(None, [hybrid_mixer(config, config_dir)])]
    supported = set.intersection(*({"embed", *mixer_capability(str(each.get("_target_"))).positions} for each in nodes))
    for name in names:
        if position_hooks(yaml.safe_load(files[name].read_text(encoding="utf-8"))["_target_"]) <= supported:
            return name
    return "none"
