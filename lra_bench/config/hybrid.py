"""The option ``backbone.hybrid``: the mixer that it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .groups import listing, option_files
from .yaml_files import read

OPTION, FULL_ATTENTION = "backbone.hybrid.mixer", "transformer"


def hybrid_mixer(config: Mapping[str, Any], config_dir: Path | None) -> dict[str, Any] | None:
    """Return the configuration node of the other mixer of a hybrid network; None if the network has no other mixer.

    Args:
        config: The composed configuration, in which ``backbone.hybrid.mixer`` may be the name of a model, a mapping
            with ``name`` and options, a mapping with ``_target_``, or None for full softmax attention.
        config_dir: Folder with option files of the user.

    Returns:
        The node.

    Raises:
        UserError: If there is no such model or it has no mixer, or if the mixer would not be used.
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
    node = _mixer_node(name, config_dir)
    # Interpolations, such as ${backbone.width}, are those of the configuration.
    resolved = OmegaConf.to_container(OmegaConf.create({**config, "found": {**node, **options}}), resolve=True)
    assert isinstance(resolved, dict)
    return dict(resolved["found"])


def _mixer_node(name: str, config_dir: Path | None) -> dict[str, Any]:
    """Return the node ``model.mixer`` of a model file."""
    files = option_files("model", config_dir)
    if name not in files:
        raise UserError(f"{OPTION}={name}: there is no such model{suggest(name, set(files), listing('model'))}")
    content, _ = read(files[name], f"{OPTION}={name}")
    model = (content or {}).get("model") or {}
    if not model.get("mixer"):
        raise UserError(f"{OPTION}={name}: is a whole network without a mixer; choose another model")
    return dict(model["mixer"])
