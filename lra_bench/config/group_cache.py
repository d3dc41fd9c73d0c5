"""Compose the configurations of many cells; Hydra composes each distinct choice of groups only once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import loading
from .groups import is_group_choice

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


@dataclass
class _Groups:
    """The configuration that Hydra composed for a choice of groups.

    ``plain`` is the same configuration as dictionaries, or None if it contains interpolations.
    """

    unresolved: DictConfig
    choices: dict[str, str]
    plain: dict[str, Any] | None


class Loader:
    """Compose the configurations of many cells with the results of ``loading.by_hydra``, inside ``hydra_context``.

    Hydra composes each choice of groups once. The values of a cell are set on a copy of that configuration: directly
    if they replace a value of the same type, otherwise by the OmegaConf call that Hydra uses. Overrides of other kinds
    and invalid overrides are passed to ``loading.by_hydra``.
    """

    def __init__(self, config_dir: Path | None) -> None:
        self.config_dir = config_dir
        self._groups: dict[tuple[str, ...], _Groups] = {}
        self._parsed: dict[str, Override] = {}

    def __call__(self, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the configuration for checked overrides as dictionaries, and the chosen option of each group."""
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        values = [text for text in overrides if not is_group_choice(text)]
        if all(map(_sets_a_value, values)):
            groups = self._of_groups(tuple(text for text in overrides if is_group_choice(text)))
            try:
                return _with_values(groups, [self._parse(text) for text in values]), dict(groups.choices)
            except (_NotAValue, HydraException, OmegaConfBaseException, OverflowError):
                pass  # by_hydra below handles the override or raises the error message
        return loading.by_hydra(overrides, self.config_dir)

    def _of_groups(self, groups: tuple[str, ...]) -> _Groups:
        from omegaconf import OmegaConf

        if groups not in self._groups:
            unresolved, choices = loading.load_unresolved(groups, self.config_dir)
            has_interpolation = "${" in str(OmegaConf.to_container(unresolved, resolve=False))
            self._groups[groups] = _Groups(
                unresolved, choices, None if has_interpolation else loading.plain(unresolved)
            )
        return self._groups[groups]

    def _parse(self, text: str) -> Override:
        from hydra.core.override_parser.overrides_parser import OverridesParser

        if text not in self._parsed:
            override = OverridesParser.create().parse_override(text)
            if override.is_sweep_override() or override.package is not None:
                raise _NotAValue
            self._parsed[text] = override
        return self._parsed[text]


def _with_values(groups: _Groups, values: Sequence[Override]) -> dict[str, Any]:
    """Return a copy of a composed configuration in which the values of the overrides are set."""
    from omegaconf import OmegaConf

    if groups.plain is not None:
        config = copy.deepcopy(groups.plain)
        if all(_replace_value(config, override.key_or_group, override.value()) for override in values):
            return config
    unresolved = copy.deepcopy(groups.unresolved)
    for override in values:
        OmegaConf.update(
            unresolved, override.key_or_group, override.value(), merge=True, force_add=override.is_force_add()
        )
    return loading.plain(unresolved)


def _replace_value(config: dict[str, Any], key: str, value: Any) -> bool:
    """Set ``value`` and return True if ``key`` has a number or boolean of the same type; otherwise return False."""
    *parents, last = key.split(".")
    node: Any = config
    for name in parents:
        node = node.get(name) if isinstance(node, dict) else None
    fits = isinstance(node, dict) and last in node and type(node[last]) is type(value)
    if not fits or type(value) not in (bool, int, float):
        return False
    node[last] = value
    return True


class _NotAValue(Exception):
    """Raised for an override that does more than set one value."""


def _sets_a_value(override: str) -> bool:
    """Return whether an override sets, or adds with ``++``, an option that cannot be the name of a group."""
    key = override.partition("=")[0]
    bare = key.removeprefix("++")
    return key[:1] != "~" and bare[:1] != "+" and (bare == "seed" or "." in bare) and not bare.startswith("hydra")
