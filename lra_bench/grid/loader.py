"""Configurations of many cells, composed by Hydra once for each distinct choice of groups."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench import config as configuration

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


class Loader:
    """What ``config.by_hydra`` gives, of many cells, inside ``hydra_ready``.

    Single values are set on a copy of what Hydra composed for the groups, by the calls with which Hydra sets them;
    a list of overrides that has more than that, or a mistake, is left to Hydra whole.
    """

    def __init__(self, config_dir: Path | None) -> None:
        self.config_dir = config_dir
        self._composed: dict[tuple[str, ...], tuple[DictConfig, dict[str, str]]] = {}
        self._parsed: dict[str, Override] = {}

    def __call__(self, overrides: Sequence[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """The plain configuration of checked overrides, and the choice of each group."""
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        groups = tuple(text for text in overrides if configuration.chooses(text))
        own = [text for text in overrides if not configuration.chooses(text)]
        if all(map(_sets_a_value, own)):
            unresolved, choices = self._of_groups(groups)
            try:
                return configuration.plain(self._with_values(unresolved, own)), dict(choices)
            except (_NotAValue, HydraException, OmegaConfBaseException):
                pass  # Hydra knows what it is, or how to say what is wrong with it
        return configuration.by_hydra(overrides, self.config_dir)

    def _of_groups(self, groups: tuple[str, ...]) -> tuple[DictConfig, dict[str, str]]:
        if groups not in self._composed:
            self._composed[groups] = configuration.load_unresolved(groups, self.config_dir)
        return self._composed[groups]

    def _with_values(self, unresolved: DictConfig, own: Sequence[str]) -> DictConfig:
        from omegaconf import OmegaConf

        if not own:
            return unresolved
        unresolved = copy.deepcopy(unresolved)
        for text in own:
            override = self._parse(text)
            OmegaConf.update(
                unresolved, override.key_or_group, override.value(), merge=True, force_add=override.is_force_add()
            )
        return unresolved

    def _parse(self, text: str) -> Override:
        from hydra.core.override_parser.overrides_parser import OverridesParser

        if text not in self._parsed:
            override = OverridesParser.create().parse_override(text)
            if override.is_sweep_override() or override.package is not None:
                raise _NotAValue
            self._parsed[text] = override
        return self._parsed[text]


class _NotAValue(Exception):
    """An override that does more than to set one value."""


def _sets_a_value(override: str) -> bool:
    """Whether an override sets an option that no group of files can be called, or adds one (``++``)."""
    key = override.partition("=")[0]
    bare = key.removeprefix("++")
    return key[:1] != "~" and bare[:1] != "+" and (bare == "seed" or "." in bare) and not bare.startswith("hydra")
