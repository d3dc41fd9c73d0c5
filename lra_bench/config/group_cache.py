"""Configurations of many cells, composed by Hydra once for each distinct choice of groups."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import loading
from .groups import chooses

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


@dataclass
class _Groups:
    """What Hydra composed of a choice of groups; ``plain`` is the same followed through, if nothing in it refers."""

    unresolved: DictConfig
    choices: dict[str, str]
    plain: dict[str, Any] | None


class Loader:
    """Compose the configurations of many cells as ``loading.by_hydra`` does, inside ``hydra_context``.

    Single values are set on a copy of what Hydra composed for the groups, by the calls with which Hydra sets them, or
    straight away where they take the place of one of their own type. A list of overrides that has more than that, or a
    mistake, is left to Hydra whole.
    """

    def __init__(self, config_dir: Path | None) -> None:
        self.config_dir = config_dir
        self._groups: dict[tuple[str, ...], _Groups] = {}
        self._parsed: dict[str, Override] = {}

    def __call__(self, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """The plain configuration of checked overrides, and the choice of each group."""
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        own = [text for text in overrides if not chooses(text)]
        if all(map(_sets_a_value, own)):
            groups = self._of_groups(tuple(text for text in overrides if chooses(text)))
            try:
                return _with_values(groups, [self._parse(text) for text in own]), dict(groups.choices)
            except (_NotAValue, HydraException, OmegaConfBaseException, OverflowError):
                pass  # Hydra knows what it is, or how to say what is wrong with it
        return loading.by_hydra(overrides, self.config_dir)

    def _of_groups(self, groups: tuple[str, ...]) -> _Groups:
        from omegaconf import OmegaConf

        if groups not in self._groups:
            unresolved, choices = loading.load_unresolved(groups, self.config_dir)
            refers = "${" in str(OmegaConf.to_container(unresolved, resolve=False))
            self._groups[groups] = _Groups(unresolved, choices, None if refers else loading.plain(unresolved))
        return self._groups[groups]

    def _parse(self, text: str) -> Override:
        from hydra.core.override_parser.overrides_parser import OverridesParser

        if text not in self._parsed:
            override = OverridesParser.create().parse_override(text)
            if override.is_sweep_override() or override.package is not None:
                raise _NotAValue
            self._parsed[text] = override
        return self._parsed[text]


def _with_values(groups: _Groups, own: Sequence[Override]) -> dict[str, Any]:
    from omegaconf import OmegaConf

    if groups.plain is not None:
        config = copy.deepcopy(groups.plain)
        if all(_replaced(config, override.key_or_group, override.value()) for override in own):
            return config
    unresolved = copy.deepcopy(groups.unresolved)
    for override in own:
        OmegaConf.update(
            unresolved, override.key_or_group, override.value(), merge=True, force_add=override.is_force_add()
        )
    return loading.plain(unresolved)


def _replaced(config: dict[str, Any], key: str, value: Any) -> bool:
    """Whether ``value`` could take the place of one that needs neither a check nor a conversion to become it."""
    *way, last = key.split(".")
    node: Any = config
    for name in way:
        node = node.get(name) if isinstance(node, dict) else None
    fits = isinstance(node, dict) and last in node and type(node[last]) is type(value)
    if not fits or type(value) not in (bool, int, float):
        return False
    node[last] = value
    return True


class _NotAValue(Exception):
    """An override that does more than to set one value."""


def _sets_a_value(override: str) -> bool:
    """Whether an override sets an option that no group of files can be called, or adds one (``++``)."""
    key = override.partition("=")[0]
    bare = key.removeprefix("++")
    return key[:1] != "~" and bare[:1] != "+" and (bare == "seed" or "." in bare) and not bare.startswith("hydra")
