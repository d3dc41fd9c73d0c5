"""From overrides to one composed configuration: composition, the choice of position, what was modified."""

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
from .groups import GROUPS, PACKAGE, chooses, listing, option_files
from .hints import check_words, meant_by
from .loading import by_hydra
from .schema import CellConfig
from .serialization import from_dict

OPEN_GROUPS = ("task", "model", "position")
PROTOCOL_SECTIONS = ("task", "backbone", "train")
# What the data lacks stands in its fingerprint, and parts rankings by itself.
FREE_KEYS = ("task.source", "task.allow_partial", "backbone.position")
# A choice of system, not of the rules: part of a variant's name.
VARIANT_SECTIONS, VARIANT_KEYS = ("model", "position"), ("backbone.causal",)
DERIVED_GROUPS = ("recipe", "tuned")

Load = Callable[[Sequence[str]], tuple[dict[str, Any], dict[str, str]]]


@dataclass(frozen=True)
class Composed:
    """A composed cell: its configuration, the group choices, and what the user changed of them.

    ``differences`` are options of model and position that differ from the chosen files, and the direction;
    ``modified`` the protocol's own keys that do.
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
    """Every group, and every option that is not a task's, a model's or a position's own."""
    return _schema_keys() | set(GROUPS)


def check_override(override: str, config_dir: Path | None) -> str:
    """One override of the user's as Hydra wants it; ``UserError`` naming the right key where it is misspelt."""
    check_words([override], config_dir)
    key, _, value = override.partition("=")
    bare = key.lstrip("+~")
    section, _, inner = bare.partition(".")
    if bare in DERIVED_GROUPS:
        raise UserError(
            f"{bare}=: is chosen by protocol, task and model; choose protocol=… or set train.… and backbone.…"
        )
    if bare in GROUPS:
        known = option_files(bare, config_dir)
        for name in value.split(","):
            if name and name not in known and not (bare == "experiment" and name == "null"):
                raise UserError(f"{bare}={name}: there is no such {bare}{suggest(name, set(known), listing(bare))}")
        return override
    if section in OPEN_GROUPS and inner:
        return override if key != bare else f"++{override}"
    if section != "hydra" and bare not in _schema_keys():
        if meant := meant_by(bare, value, option_names()):
            raise UserError(f"{bare}: there is no such option; did you mean {meant}?")
        raise UserError(f"{bare}: there is no such option{_nearest(bare, option_names())}")
    return override


def _nearest(name: str, known: Iterable[str]) -> str:
    siblings = {key for key in known if key.rpartition(".")[0] == name.rpartition(".")[0]}
    return suggest(name, siblings or set(known))


@contextmanager
def hydra_context() -> Iterator[None]:
    """Hydra initialised for composing, our schema stored; the one place that names ``version_base``."""
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name="schema", node=CellConfig)
    with initialize_config_module(PACKAGE, version_base="1.3"):
        yield


def compose(overrides: Sequence[str], config_dir: Path | None = None, load: Load | None = None) -> Composed:
    """Compose one cell from the user's overrides (no comma lists), inside ``hydra_context``.

    ``load`` makes a configuration of checked overrides, by default ``by_hydra``. Raises ``UserError`` in one sentence
    if a key, an option or a value is wrong. The options of task, model and position are checked by their classes, when
    these are built.
    """
    load = load or partial(by_hydra, config_dir=config_dir)
    checked = [check_override(override, config_dir) for override in overrides]
    groups = [override for override in checked if chooses(override)]
    config, choices = load(checked)
    if choices["position"] == "auto":
        position = _automatic_position(config, choices, config_dir)
        checked.append(f"position={position}")
        groups.append(f"position={position}")
        config, choices = load(checked)
    base = load(groups)[0] if len(groups) < len(checked) else config
    changed = _changed(base, config)
    made = from_dict(config)
    if not made.model.get("mixer") and not made.model.get("network"):
        raise UserError("model: the model file gives neither model.mixer nor model.network")
    return Composed(
        config=made,
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
    """Raise ``UserError`` where a protocol in which each system has its own recipe has none for this cell."""
    protocol, choices = composed.config.protocol.name, composed.choices
    start = f"{protocol}_{choices['task']}_"
    files = option_files("tuned", config_dir)
    if not composed.config.protocol.tuned or f"{start}{choices['model']}" in files:
        return
    others = ",".join(name.removeprefix(start) for name in files if name.startswith(start))
    raise UserError(
        f"protocol={protocol}: trains each system as its own paper does, and tuned/{start}{choices['model']}.yaml is "
        f"missing; write it, or choose {f'model={others}' if others else 'another task'}"
    )


def _automatic_position(config: Mapping[str, Any], choices: Mapping[str, str], config_dir: Path | None) -> str:
    """The position where the user names none: the model's own, else the recipe's if the mixer honours it, else none."""
    import yaml

    wanted = config["backbone"]["position"]
    if not wanted:
        return "none"
    files = option_files("position", config_dir)
    if wanted not in files:
        raise UserError(
            f"backbone.position={wanted}: there is no such position{suggest(wanted, set(files), listing('position'))}"
        )
    model_file = yaml.safe_load(option_files("model", config_dir)[choices["model"]].read_text(encoding="utf-8")) or {}
    if (model_file.get("backbone") or {}).get("position"):
        return str(wanted)
    node = config["model"].get("mixer")
    if not node:
        return "none"
    position = yaml.safe_load(files[wanted].read_text(encoding="utf-8"))
    honoured = {"embed", *mixer_capability(str(node.get("_target_"))).positions}
    return str(wanted) if position_hooks(position["_target_"]) <= honoured else "none"


def _changed(base: Mapping[str, Any], config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Dotted keys whose value differs from the base's."""
    found: dict[str, Any] = {}
    for key in {**base, **config}:
        name, old, new = f"{before}{key}", base.get(key), config.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= _changed(old, new, f"{name}.")
        elif old != new:
            found[name] = new
    return found
