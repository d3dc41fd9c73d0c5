"""Merge the values of option files, of the sections of the protocol, and of the user to the configuration of a cell."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

from . import loading, yaml_files
from .groups import is_group_choice, roots
from .position import automatic_position
from .protocols import Layer, Protocol, combined, leaves, merged
from .schema import Backbone, CellConfig, Measure, extended_backbone, measure_options
from .validation import check_name

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


@dataclass(frozen=True)
class Loaded:
    """The configuration of a cell as dictionaries.

    Attributes:
        config: The configuration.
        files: The configuration without the values of the user: that of the chosen files.
        choices: Name of the chosen option file of each group.
        missing: Why the protocol has no values for this task and model, empty if it has.
    """

    config: dict[str, Any]
    files: dict[str, Any]
    choices: dict[str, str]
    missing: str


@dataclass
class _Files:
    """The values of the chosen files.

    Attributes:
        backbone: The section ``backbone`` of the schema.
        values: The values.
        config: The configuration with these values, with interpolations resolved.
        interpolates: Whether there are interpolations, which can refer to values of the user.
    """

    backbone: Callable[[], Backbone]
    values: dict[str, Any]
    config: dict[str, Any]
    interpolates: bool


@cache
def defaults() -> dict[str, Any]:
    """Return the content of ``conf/config.yaml``."""
    return dict(yaml_files.read(roots(None)[0] / "config.yaml", "lra-bench")[0])


def _schema(backbone: Callable[[], Backbone]) -> DictConfig:
    """Return the schema of ``CellConfig``, with the default of each option; do not change it."""
    return _schemas(backbone, measure_options())[0]


def _plain_schema(backbone: Callable[[], Backbone]) -> dict[str, Any]:
    """Return the default of each option; do not change it."""
    return _schemas(backbone, measure_options())[1]


@cache
def _schemas(backbone: Callable[[], Backbone], measure: Callable[[], Measure]) -> tuple[DictConfig, dict[str, Any]]:
    from omegaconf import OmegaConf

    schema = OmegaConf.structured(CellConfig(backbone=backbone(), measure=measure()))
    return schema, loading.plain(schema)


def _unresolved(backbone: Callable[[], Backbone], values: Mapping[str, Any]) -> DictConfig:
    """Return the configuration with these values, in which no option can be added."""
    from omegaconf import OmegaConf

    config = OmegaConf.merge(_schema(backbone), values)
    OmegaConf.set_struct(config, True)
    return config  # type: ignore[return-value]


class Loader:
    """Compose the configurations of many cells, inside ``compose.hydra_context``; each option file is read once.

    The values of the user are set on a copy of the configuration of the chosen files: directly if they replace a value
    of the same type, otherwise by OmegaConf.
    """

    def __init__(self, config_dir: Path | None) -> None:
        self.config_dir = config_dir
        self._options: dict[tuple[str, str], dict[str, Any]] = {}
        self._protocols: dict[str, Protocol] = {}
        self._files: dict[tuple[str, ...], _Files] = {}
        self._sections: dict[tuple[Callable[[], Backbone], str, str], Any] = {}
        self._parsed: dict[str, Override] = {}

    def __call__(self, overrides: Sequence[str]) -> Loaded:
        """Compose the cell of checked overrides. Raises ``UserError`` if a file or a value is wrong."""
        groups = [text.lstrip("+").partition("=") for text in overrides if is_group_choice(text)]
        choices = {**defaults()["choices"], **{group: name for group, _, name in groups}}
        values = self._values(overrides)
        if choices["position"] == "auto":
            preliminary = self._preliminary(choices, values)
            choices["position"] = automatic_position(preliminary, choices, self._option, self.config_dir)
        targets = [each.value() for each in values if each.key_or_group == "backbone._target_"]
        files = self._merged(choices, targets[-1] if targets else None)
        for option, _, value in (text.lstrip("+").partition("=") for text in overrides):
            if option.startswith("backbone."):
                check_name(option, value, files.config["backbone"])
        missing = self._protocol(choices["protocol"]).refuses(choices["task"], choices["model"])
        return Loaded(_with_values(files, values), files.config, choices, missing)

    def layers(self, choices: Mapping[str, str]) -> list[Layer]:
        """Return the values of all files for the choice of each group, in the order in which they are merged."""
        protocol = self._protocol(choices["protocol"])
        task, model = choices["task"], choices["model"]
        layers = [Layer("config.yaml", {key: value for key, value in defaults().items() if key != "choices"})]
        for group, name in choices.items():
            if group != "protocol":
                layers.append(Layer(f"{group}/{name}.yaml", self._option(group, name)))
                continue
            layers.append(Layer(f"protocol/{name}.yaml", {"protocol": {"name": name, **protocol.header}}))
            layers += [*protocol.common(), *protocol.entry("tasks", task)]
        layers += protocol.entry("models", model)
        if not (cell := protocol.entry("cells", f"{task}/{model}")):
            return layers
        searched = "searched" in protocol.header and any("train.lr" in dict(leaves(layer.values)) for layer in cell)
        return [*layers, *cell, *([Layer(cell[-1].origin, {"protocol": {"searched": True}})] if searched else [])]

    def values(self, overrides: Sequence[str]) -> list[tuple[str, Any]]:
        """Return option and value of each checked override that chooses no option file."""
        return [(override.key_or_group, override.value()) for override in self._values(overrides)]

    def _values(self, overrides: Sequence[str]) -> list[Override]:
        return [self._parse(text) for text in overrides if not is_group_choice(text)]

    def _preliminary(self, choices: Mapping[str, str], values: Sequence[Override]) -> dict[str, Any]:
        """Return the configuration of the chosen files and the values of the user, without checks of types."""
        from omegaconf import OmegaConf

        config = merged(_plain_schema(Backbone), combined(self.layers(choices)))
        for override in values:
            config = merged(config, nested(override.key_or_group, override.value()))
        return loading.plain(OmegaConf.create(config)) if "${" in str(config) else config

    def _merged(self, choices: Mapping[str, str], backbone: str | None) -> _Files:
        """Merge the chosen files, with the options of the class ``backbone``, by default that of the files.

        Raises ``UserError`` if the schema does not accept a value.
        """
        from omegaconf.errors import OmegaConfBaseException

        key = (*choices.values(), str(backbone))
        if key not in self._files:
            layers = self.layers(choices)
            values = combined(layers)
            kind: Callable[[], Backbone] = extended_backbone(backbone or (values.get("backbone") or {}).get("_target_"))
            interpolates = "${" in str(values)
            try:
                if interpolates or not all(isinstance(value, dict) for value in values.values()):  # such as seed
                    config = loading.plain(_unresolved(kind, values))
                else:
                    sections = {name: self._section(kind, name, value) for name, value in values.items()}
                    config = {**_plain_schema(kind), **sections}
            except OmegaConfBaseException as error:
                raise _mistake(kind, layers, error) from error
            self._files[key] = _Files(kind, values, config, interpolates)
        return self._files[key]

    def _section(self, backbone: Callable[[], Backbone], name: str, values: dict[str, Any]) -> Any:
        """Return a section of the configuration; the same values, which many cells have, are merged once."""
        from omegaconf import OmegaConf

        key = backbone, name, repr(values)
        if key not in self._sections:
            self._sections[key] = OmegaConf.to_container(OmegaConf.merge(_schema(backbone)[name], values))
        return self._sections[key]

    def _option(self, group: str, name: str) -> dict[str, Any]:
        if (group, name) not in self._options:
            self._options[group, name] = loading.option_file(group, name, self.config_dir)
        return self._options[group, name]

    def _protocol(self, name: str) -> Protocol:
        if name not in self._protocols:
            self._protocols[name] = Protocol(name, self.config_dir)
        return self._protocols[name]

    def _parse(self, text: str) -> Override:
        if text not in self._parsed:
            self._parsed[text] = loading.parse(text)
        return self._parsed[text]


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return ``{"a": {"b": value}}`` for the key ``a.b``."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _mistake(backbone: Callable[[], Backbone], layers: Sequence[Layer], error: Exception) -> UserError:
    """Return the message of an error of merging, with the first layer that the schema does not accept."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    origin = ""
    for layer in reversed(layers):
        try:
            OmegaConf.merge(_schema(backbone), layer.values)
        except OmegaConfBaseException as found:
            origin, error = f"{layer.origin}: ", found
    return UserError(f"{origin}{loading.mistake((), error)}")


def _with_values(files: _Files, values: Sequence[Override]) -> dict[str, Any]:
    """Return a copy of the configuration of the chosen files in which the values of the overrides are set."""
    if not files.interpolates:
        config = copy.deepcopy(files.config)
        if all(_replace_value(config, override) for override in values):
            return config
    unresolved = _unresolved(files.backbone, files.values)
    for override in values:
        loading.set_value(unresolved, override)
    return loading.plain(unresolved, [str(override.input_line) for override in values])


def _replace_value(config: dict[str, Any], override: Override) -> bool:
    """Set the value and return True if the option has a number or boolean of the same type; otherwise return False."""
    *parents, last = override.key_or_group.split(".")
    value = override.value()
    node: Any = config
    for name in parents:
        node = node.get(name) if isinstance(node, dict) else None
    fits = isinstance(node, dict) and last in node and type(node[last]) is type(value)
    if not fits or override.is_add() or type(value) not in (bool, int, float):
        return False
    node[last] = value
    return True
