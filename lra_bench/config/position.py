"""The position encoding for ``position=auto``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .effective import mixer_capability, position_hooks
from .groups import listing, option_files, option_paths
from .hybrid import hybrid_mixer


def automatic_position(
    config: Mapping[str, Any],
    choices: Mapping[str, str],
    option: Callable[[str, str], Mapping[str, Any]],
    config_dir: Path | None,
) -> str:
    """Return the name of the position encoding for ``position=auto``, the default.

    If the model file sets ``backbone.position``, that position is returned. Otherwise the position of the protocol is
    returned if the mixers support its hooks. It can name several, separated by ``|``, of which the first that the
    mixers support is returned. The result is ``none`` if the mixers support none of them, if no position is set, or
    if the model has no mixer.

    Args:
        config: The configuration, without checks of types.
        choices: Name of the chosen option file of each group.
        option: Returns the values of an option file.
        config_dir: Folder with option files of the user.

    Returns:
        The name.

    Raises:
        UserError: If there is no such position.
    """
    names = str(config["backbone"]["position"] or "none").split("|")
    for name in names:
        if not option_paths("position", name, config_dir):
            hint = suggest(name, set(option_files("position", config_dir)), listing("position"))
            raise UserError(f"backbone.position={name}: there is no such position{hint}")
    if (option("model", choices["model"]).get("backbone") or {}).get("position") and len(names) == 1:
        return names[0]
    node = config["model"].get("mixer")
    if not node:
        return "none"
    nodes = [node, *filter(None, [hybrid_mixer(config, config_dir)])]
    supported = set.intersection(*({"embed", *mixer_capability(each).positions} for each in nodes))
    for name in names:
        if position_hooks(option("position", name)["position"]["_target_"]) <= supported:
            return name
    return "none"
