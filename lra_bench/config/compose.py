"""Compose the configuration of one cell: parse the overrides, merge them with the values of files, convert types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

from . import loading, yaml_files
from .automatic import automatic_position, hybrid_mixer
from .groups import is_group_choice, roots
from .pretraining import NONE
from .protocols import Layer, Protocol, combined, leaves, merged
from .schema import Backbone, CellConfig, added_keys, extended_backbone, measure_options, own_options
from .serialization import WrongValue, converted, from_dict
from .validation import check_model_file, check_name, check_override, is_section

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

PROTOCOL_SECTIONS = ("task", "backbone", "train", "search", "pretrain")
"""Sections of the configuration in which a changed option is a modification of the protocol."""

TABLE_KEYS = ("path", "name", "config", "revision", "text", "label", "values", "delimiter", "splits")
FREE_KEYS = (
    *("task.source", "task.allow_partial", "backbone.position", "pretrain.record"),
    *(f"task.{name}" for name in TABLE_KEYS),
)
"""Options in ``PROTOCOL_SECTIONS`` that may be changed without modifying the protocol.

Missing data changes the fingerprint of the task, which already separates the rankings. Those of ``TABLE_KEYS`` choose
the table of ``task=csv`` and ``task=hub``, of which the version of the task is a digest. ``pretrain.record`` belongs
to the choice ``pretrain=record``, which separates the rankings.
"""

PRETRAIN = "pretrain"
"""Group of the objective of pretraining, which is part of the name of a variant."""

VARIANT_SECTIONS = ("model", "position")
VARIANT_KEYS = ("backbone.causal", "backbone._target_", *added_keys())
"""Sections and options that describe the system, not the protocol; changed ones are part of the name of a variant."""


@dataclass(frozen=True)
class Composed:
    """The composed configuration of a cell, and the options that the user changed.

    Attributes:
        config: The configuration.
        choices: Name of the chosen option file of each group.
        overrides: The overrides of the user.
        differences: Options of model and position, and those in ``VARIANT_KEYS``, that differ from the chosen files,
            with their values, and the objective of pretraining.
        modified: Names of the options of the protocol that differ from the chosen files.
        missing: Why the protocol has no values for this task and model, empty if it has.
    """

    config: CellConfig
    choices: dict[str, str]
    overrides: tuple[str, ...]
    differences: dict[str, Any]
    modified: tuple[str, ...]
    missing: str = ""


@dataclass(frozen=True)
class Loaded:
    """The configuration of a cell as dictionaries.

    Attributes:
        config: The configuration.
        files: The configuration without the values of the user: that of the chosen files.
        choices: Name of the chosen option file of each group.
        layers: The defaults, the values of each file and those of the user, in the order in which they are merged.
        missing: Why the protocol has no values for this task and model, empty if it has.
    """

    config: dict[str, Any]
    files: dict[str, Any]
    choices: dict[str, str]
    layers: list[Layer]
    missing: str


def compose(overrides: Sequence[str], config_dir: Path | None = None, load: Loader | None = None) -> Composed:
    """Compose one cell from overrides without comma lists.

    The options of task, model and position are checked later, by the constructors of their classes.

    Args:
        overrides: The overrides of the user.
        config_dir: Folder with option files of the user.
        load: Loader with the files that earlier cells read; by default a new one.

    Returns:
        The composed cell.

    Raises:
        UserError: If an option, an option file or a value is wrong.
    """
    loaded = (load or Loader(config_dir))(overrides)
    config, changed = loaded.config, _changed(loaded.files, loaded.config)
    hybrid = {**config["backbone"]["hybrid"], "mixer": hybrid_mixer(config, config_dir)}
    cell_config = from_dict({**config, "backbone": {**config["backbone"], "hybrid": hybrid}})
    check_model_file(cell_config.model, loaded.choices["model"], config_dir)
    own = {f"backbone.{name}" for name in own_options(cell_config.backbone)}
    differences = {
        key: value
        for key, value in changed.items()
        if key.partition(".")[0] in VARIANT_SECTIONS or key in VARIANT_KEYS or ".".join(key.split(".")[:2]) in own
    }
    if loaded.choices[PRETRAIN] != NONE:
        differences[PRETRAIN] = loaded.choices[PRETRAIN]
    kept = {*FREE_KEYS, *differences}
    return Composed(
        config=cell_config,
        choices=loaded.choices,
        overrides=tuple(overrides),
        differences=differences,
        modified=tuple(key for key in changed if key.partition(".")[0] in PROTOCOL_SECTIONS and key not in kept),
        missing=loaded.missing,
    )


def _changed(base: Mapping[str, Any], config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the dotted keys whose values differ from those of ``base``, with the new values."""
    found: dict[str, Any] = {}
    for key in {**base, **config}:
        name, old, new = f"{before}{key}", base.get(key), config.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= _changed(old, new, f"{name}.")
        elif old != new:
            found[name] = new
    return found


@cache
def defaults() -> dict[str, Any]:
    """Read ``conf/config.yaml``, which names the default option file of each group."""
    return dict(yaml_files.read(roots(None)[0] / "config.yaml", "lra-bench")[0])


class Loader:
    """Compose the configurations of many cells; each option file is read once."""

    def __init__(self, config_dir: Path | None) -> None:
        self.config_dir = config_dir
        self._option = cache(lambda group, name: loading.option_file(group, name, config_dir))
        self._protocol = cache(lambda name: Protocol(name, config_dir))
        self._parse = cache(loading.parse)
        self._files: dict[tuple[str, ...], dict[str, Any]] = {}

    def __call__(self, overrides: Sequence[str]) -> Loaded:
        """Compose the cell of overrides. Raises ``UserError`` if a file or a value is wrong."""
        checked = [check_override(override, self.config_dir) for override in overrides]
        groups = [text.lstrip("+").partition("=") for text in checked if is_group_choice(text)]
        choices = {**defaults()["choices"], **{group: name for group, _, name in groups}}
        values = [self._parse(text) for text in checked if not is_group_choice(text)]
        for each in values:
            key = each.key_or_group
            if is_section(key) and not isinstance(each.value(), Mapping):
                raise UserError(f"{_written(each)}: is a group of options; write {key}.OPTION=…")
        if choices["position"] == "auto":
            preliminary = _resolved(_with_values(combined(self._layers(choices, values)), values), ())
            choices["position"] = automatic_position(preliminary, choices, self._option, self.config_dir)
        layers = self._layers(choices, values)
        own: Mapping[str, Any] = layers[0].values["backbone"]
        for each in values:
            if each.key_or_group.startswith("backbone."):
                check_name(each.key_or_group, str(each.input_line).partition("=")[2], own)
        chosen = (*choices.values(), str(own))
        if chosen not in self._files:
            self._files[chosen] = _file_config(layers, values)
        files = self._files[chosen]
        config = _converted(_with_values(combined(layers), values), layers, values) if values else files
        missing = self._protocol(choices["protocol"]).refuses(choices["task"], choices["model"])
        users = [Layer("override", nested(each.key_or_group, each.value())) for each in values]
        return Loaded(config, files, choices, [*layers, *users], missing)

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

    def _layers(self, choices: Mapping[str, str], values: Sequence[Override]) -> list[Layer]:
        """Return all layers, the first of which contains the default of every option, also of a custom backbone."""
        layers = self.layers(choices)
        backbones = [each.values.get("backbone") for each in layers]
        named = [each["_target_"] for each in backbones if isinstance(each, Mapping) and "_target_" in each]
        named += [each.value() for each in values if each.key_or_group == "backbone._target_"]
        backbone: Callable[[], Backbone] = extended_backbone(named[-1] and str(named[-1]))
        return [Layer("default", asdict(CellConfig(backbone=backbone(), measure=measure_options()()))), *layers]


def _file_config(layers: Sequence[Layer], values: Sequence[Override]) -> dict[str, Any]:
    """Return the configuration of the option files alone.

    If an override selects a custom backbone, its options are contained with their defaults.
    """
    files = combined(layers)
    target = [nested(each.key_or_group, each.value()) for each in values if each.key_or_group == "backbone._target_"]
    config = _converted(combined([Layer("", files), *(Layer("", each) for each in target)]), layers, ())
    return merged(config, nested("backbone._target_", files["backbone"]["_target_"])) if target else config


def nested(key: str, value: Any) -> dict[str, Any]:
    """Return ``{"a": {"b": value}}`` for the key ``a.b``."""
    for name in reversed(key.split(".")):
        value = {name: value}
    return dict(value)


def _written(override: Override) -> str:
    return str(override.input_line).lstrip("+")


def _with_values(config: Mapping[str, Any], values: Sequence[Override]) -> dict[str, Any]:
    """Return a configuration with the values of overrides; only the prefix ``+`` requires that there is none."""
    found = dict(config)
    for override in values:
        key, value = override.key_or_group, override.value()
        if override.is_add() and _has_value(found, key):
            raise UserError(f"{override.input_line}: the option has a value; write it without +")
        if key == "search.space":  # a mapping that replaces the one in a file instead of being merged with it
            found = merged(found, nested(key, None))
        found = merged(found, nested(key, value))
    return found


def _resolved(config: dict[str, Any], values: Sequence[Override]) -> dict[str, Any]:
    """Return a configuration with interpolations replaced. Raises ``UserError`` if one of them is wrong."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if "${" not in str(config):
        return config
    try:
        return OmegaConf.to_container(OmegaConf.create(config), resolve=True)  # type: ignore[return-value]
    except OmegaConfBaseException as error:
        raise loading.mistake([str(each.input_line) for each in values], error) from error


def _converted(config: dict[str, Any], layers: Sequence[Layer], values: Sequence[Override]) -> dict[str, Any]:
    """Return a configuration whose values have the types of the schema.

    Raises ``UserError`` with the override, or the origin of the value, if one has another type.
    """
    try:
        return dict(converted(CellConfig, _resolved(config, values), ""))
    except WrongValue as error:
        for each in reversed(values):
            if error.option == each.key_or_group:
                raise UserError(f"{_written(each)}: {error.fault}") from error
            if error.option.startswith(f"{each.key_or_group}."):
                raise
        origins = [each.origin for each in layers if _has_value(each.values, error.option)]
        raise UserError(f"{': '.join([*origins[-1:], str(error)])}") from error


def _has_value(config: Any, option: str) -> bool:
    """Return whether nested values contain an option with a value, or a value in place of its section."""
    for name in option.split("."):
        if not isinstance(config, Mapping):
            break
        config = config.get(name)
    return config is not None
