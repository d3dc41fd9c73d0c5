"""Compose the configuration of one cell from overrides, choose its position, and find the modified options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from lra_bench.build import suggest
from lra_bench.contracts import UserError

from .capabilities import mixer_capability, position_hooks
from .groups import GROUPS, PACKAGE, is_group_choice, listing, option_files
from .hints import check_bare_words, suggest_options
from .loading import by_hydra
from .schema import CellConfig
from .serialization import from_dict

OPEN_GROUPS = ("task", "model", "position")
PROTOCOL_SECTIONS = ("task", "backbone", "train")
# Missing data changes the fingerprint of the task, which already separates the rankings.
FREE_KEYS = ("task.source", "task.allow_partial", "backbone.position")
# These options describe the system, not the rules of the protocol; they are part of the name of a variant.
VARIANT_SECTIONS, VARIANT_KEYS = ("model", "position"), ("backbone.causal",)
DERIVED_GROUPS = ("recipe", "tuned")

Load = Callable[[Sequence[str]], tuple[dict[str, Any], dict[str, str]]]


@dataclass(frozen=True)
class Composed:
    """A composed cell: its configuration, the chosen option of each group, and the options that the user changed.

    ``differences`` contains the options of model and position, and the direction, that differ from the chosen files.
    ``modified`` contains the keys of the protocol that differ.
    """

    config: CellConfig
    choices: dict[str, str]
    overrides: tuple[str, ...]
    differences: dict[str, Any]
    modified: tuple[str, ...]


@cache
def _schema_keys() -> frozenset[str]:
    def walk(node: Any, before: str) -> Iterator[str]:
        for entry in fields(node):
            name, value = f"{before}{entry.name}", getattr(node, entry.name)
            yield name
            if is_dataclass(value):
                yield from walk(value, f"{name}.")

    return frozenset(walk(CellConfig(), ""))


def option_names() -> frozenset[str]:
    """Return the names of all groups and of all options that do not belong to a single task, model or position."""
    return _schema_keys() | set(GROUPS)


def check_override(override: str, config_dir: Path | None) -> str:
    """Check an override of the user and return it in the form that Hydra requires.

    Raises ``UserError`` with a suggestion if the key or the name of an option file does not exist.
    """
    check_bare_words([override], config_dir)
    key, _, value = override.partition("=")
    option = key.lstrip("+~")
    section, _, inner = option.partition(".")
    if option in DERIVED_GROUPS:
        raise UserError(
            f"{option}=: is derived from protocol, task and model; choose protocol=… or set train.… and backbone.…"
        )
    if option in GROUPS:
        known = option_files(option, config_dir)
        for name in value.split(","):
            if name and name not in known and not (option == "experiment" and name == "null"):
                raise UserError(
                    f"{option}={name}: there is no such {option}{suggest(name, set(known), listing(option))}"
                )
        return override
    if section in OPEN_GROUPS and inner:
        return override if key != option else f"++{override}"
    if section != "hydra" and option not in _schema_keys():
        if suggestion := suggest_options(option, value, option_names()):
            raise UserError(f"{option}: there is no such option; did you mean {suggestion}?")
        raise UserError(f"{option}: there is no such option{_nearest(option, option_names())}")
    return override


def _nearest(name: str, known: Iterable[str]) -> str:
    siblings = {key for key in known if key.rpartition(".")[0] == name.rpartition(".")[0]}
    return suggest(name, siblings or set(known))


@contextmanager
def hydra_context() -> Iterator[None]:
    """Initialise Hydra and register the schema; configurations are composed inside this context.

    No other code sets ``version_base``.
    """
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=CellConfig)
    with initialize_config_module(PACKAGE, version_base="1.3"):
        yield


def compose(overrides: Sequence[str], config_dir: Path | None = None, load: Load | None = None) -> Composed:
    """Compose one cell from overrides without comma lists. Call it inside ``hydra_context``.

    ``load`` returns the configuration and the choices for checked overrides; by default it is ``by_hydra``. The options
    of task, model and position are checked later, by the constructors of their classes. Raises ``UserError`` if a key,
    an option or a value is wrong.
    """
    load = load or partial(by_hydra, config_dir=config_dir)
    checked = [check_override(override, config_dir) for override in overrides]
    groups = [override for override in checked if is_group_choice(override)]
    config, choices = load(checked)
    if choices["position"] == "auto":
        position = _automatic_position(config, choices, config_dir)
        checked.append(f"position={position}")
        groups.append(f"position={position}")
        config, choices = load(checked)
    base = load(groups)[0] if len(groups) < len(checked) else config
    changed = _changed(base, config)
    cell_config = from_dict(config)
    if not cell_config.model.get("mixer") and not cell_config.model.get("network"):
        raise UserError("model: the model file defines neither model.mixer nor model.network")
    return Composed(
        config=cell_config,
        choices=choices,
        overrides=tuple(overrides),
        differences={
            key: value
            for key, value in changed.items()
            if key.partition(".")[0] in VARIANT_SECTIONS or key in VARIANT_KEYS
        },
        modified=tuple(
            key
            for key in changed
            if key.partition(".")[0] in PROTOCOL_SECTIONS and key not in (*FREE_KEYS, *VARIANT_KEYS)
        ),
    )


def check_tuned(composed: Composed, config_dir: Path | None) -> None:
    """Raise ``UserError`` if the protocol requires a recipe per task and model and the cell has none."""
    protocol, choices = composed.config.protocol.name, composed.choices
    start = f"{protocol}_{choices['task']}_"
    files = option_files("tuned", config_dir)
    if not composed.config.protocol.tuned or f"{start}{choices['model']}" in files:
        return
    others = ",".join(name.removeprefix(start) for name in files if name.startswith(start))
    raise UserError(
        f"protocol={protocol}: trains each system as in its paper, and tuned/{start}{choices['model']}.yaml "
        f"does not exist; create it, or choose {f'model={others}' if others else 'another task'}"
    )


def _automatic_position(config: Mapping[str, Any], choices: Mapping[str, str], config_dir: Path | None) -> str:
    """Return the name of the position if the user chose none.

    This is the position of the model file; otherwise the position of the recipe if the mixer supports it; otherwise
    ``none``.
    """
    import yaml

    name = config["backbone"]["position"]
    if not name:
        return "none"
    files = option_files("position", config_dir)
    if name not in files:
        raise UserError(
            f"backbone.position={name}: there is no such position{suggest(name, set(files), listing('position'))}"
        )
    model_file = yaml.safe_load(option_files("model", config_dir)[choices["model"]].read_text(encoding="utf-8")) or {}
    if (model_file.get("backbone") or {}).get("position"):
        return str(name)
    node = config["model"].get("mixer")
    if not node:
        return "none"
    position = yaml.safe_load(files[name].read_text(encoding="utf-8"))
    supported = {"embed", *mixer_capability(str(node.get("_target_"))).positions}
    return str(name) if position_hooks(position["_target_"]) <= supported else "none"


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
