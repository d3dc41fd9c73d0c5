"""The configurations of many systems on one task, composed without Hydra except for the first one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from omegaconf import OmegaConf

from lra_bench.config.compose import automatic_position, compose, hydra_context
from lra_bench.config.groups import option_files
from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict, from_dict


def of_systems(names: Sequence[str], *overrides: str) -> Iterator[CellConfig]:
    """Yield the configuration of each system under ``protocol=smoke``, equal to that of ``compose``.

    Composing with Hydra takes longer than a training step on the fake device, so the files of model, position and
    mechanism are read and merged here.
    """
    with hydra_context():
        base = as_dict(compose([*overrides, "protocol=smoke", "model=transformer", "tracker=none"]).config)
    models, positions, mechanisms = (option_files(group, None) for group in ("model", "position", "mechanism"))
    for name in names:
        content = yaml.safe_load(models[name].read_text(encoding="utf-8"))
        config = _merged({**base, "model": {}, "position": {}}, content)
        position = positions[automatic_position(config, {"model": name}, None)]
        config["position"] = yaml.safe_load(position.read_text(encoding="utf-8"))
        if f"smoke_{name}" in mechanisms:
            config = _merged(config, yaml.safe_load(mechanisms[f"smoke_{name}"].read_text(encoding="utf-8")))
        if "${" in str(content):
            config = OmegaConf.to_container(OmegaConf.create(config), resolve=True)  # type: ignore[assignment]
        yield from_dict(config)


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(base)
    for key, value in changes.items():
        before = found.get(key)
        found[key] = _merged(before, value) if isinstance(value, dict) and isinstance(before, dict) else value
    return found
