"""Values that depend on other options: the position of ``position=auto`` and the mixer of ``backbone.hybrid``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .effective import mixer_capability, position_hooks
from .groups import listing, option_files, option_paths
from .yaml_files import read

OPTION, FULL_ATTENTION = "backbone.hybrid.mixer", "transformer"


def automatic_position(
    config: Mapping[str, Any],
    choices: Mapping[str, str],
    option: Callable[[str, str], Mapping[str, Any]],
    config_dir: Path | None,
) -> str:
    """Choose the position encoding for ``position=auto``, the default.

    If the model file sets ``backbone.position``, that position is returned. Otherwise the position of the protocol is
    returned if the mixers support its hooks. It can name several, separated by ``|``, of which the first that the
    mixers support is returned. The result is ``none`` if the mixers support none of them, if no position is set, or
    if the model has no mixer.

    Args:
        config: The configuration, without checks of types.
        choices: Name of the chosen option file of each group.
        option: Returns the values of an option file by group and name.
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


def hybrid_mixer(config: Mapping[str, Any], config_dir: Path | None) -> dict[str, Any] | None:
    """Return the configuration node of the other mixer of a hybrid network; None if the network has no other mixer.

    In the composed configuration ``backbone.hybrid.mixer`` may be the name of a model, a mapping with ``name`` and
    options, a mapping with ``_target_``, or None for full softmax attention. Raises ``UserError`` if there is no such
    model or it has no mixer, or if the mixer would not be used.
    """
    from omegaconf import OmegaConf

    hybrid = config["backbone"].get("hybrid") or {}
    given, every = hybrid.get("mixer"), hybrid.get("every")
    if every is None:
        if given is not None:
            raise UserError(f"{OPTION}: is not used without backbone.hybrid.every; set it to 2 or more")
        return None
    if isinstance(given, Mapping) and given.get("_target_"):
        return dict(given)
    options = dict(given) if isinstance(given, Mapping) else {"name": given or FULL_ATTENTION}
    name = options.pop("name", FULL_ATTENTION)
    if not isinstance(name, str):
        raise UserError(f"{OPTION}={name}: must be the name of a model")
    files = option_files("model", config_dir)
    if name not in files:
        raise UserError(f"{OPTION}={name}: there is no such model{suggest(name, set(files), listing('model'))}")
    content, _ = read(files[name], f"{OPTION}={name}")
    node = ((content or {}).get("model") or {}).get("mixer")
    if not node:
        raise UserError(f"{OPTION}={name}: is a whole network without a mixer; choose another model")
    # Interpolations, such as ${backbone.width}, are those of the configuration.
    resolved = OmegaConf.to_container(OmegaConf.create({**config, "found": {**node, **options}}), resolve=True)
    assert isinstance(resolved, dict)
    return dict(resolved["found"])
