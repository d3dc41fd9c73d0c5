"""Load configurations with Hydra from the files of the chosen groups and overrides, as dictionaries."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

from .groups import FOLDER, extension_sources, is_group_choice

if TYPE_CHECKING:
    from omegaconf import DictConfig


def by_hydra(overrides: Sequence[str], config_dir: Path | None) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the configuration for checked overrides as dictionaries, and the chosen option of each group.

    Raises ``UserError`` if Hydra or OmegaConf rejects an override or a file cannot be read.
    """
    from omegaconf.errors import OmegaConfBaseException

    unresolved, choices = load_unresolved(overrides, config_dir)
    try:
        return plain(unresolved), choices
    except OmegaConfBaseException as error:
        raise _mistake(overrides, error) from error


def load_unresolved(overrides: Sequence[str], config_dir: Path | None) -> tuple[DictConfig, dict[str, str]]:
    """Return Hydra's configuration for checked overrides before interpolation, and the chosen option of each group.

    The configuration accepts no new keys. Raises ``UserError`` as ``by_hydra``.
    """
    from hydra import compose as hydra_compose
    from hydra.errors import HydraException
    from omegaconf import open_dict
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    # Quote the folders, because their names need not follow Hydra's override grammar.
    sources = ",".join(json.dumps(source, ensure_ascii=False) for source in extension_sources(config_dir))
    search = [f"hydra.searchpath=[{sources}]"] if sources else []
    try:
        composed = hydra_compose("config", [*search, *overrides], return_hydra_config=True)
        choices = {str(key): str(value) for key, value in composed.hydra.runtime.choices.items()}
        with open_dict(composed):
            del composed["hydra"]
    except (HydraException, OmegaConfBaseException, OverflowError) as error:
        raise _mistake(overrides, error) from error
    except (YAMLError, UnicodeDecodeError, OSError, RecursionError) as error:
        chosen = ", ".join(filter(is_group_choice, overrides))
        fault = " ".join(str(error).split())  # the message has several lines, with file and line number
        raise UserError(f"{chosen}: a configuration file cannot be read ({fault})") from error
    return composed, choices


def register_folders() -> None:
    """Register the source of configuration files of ``--config-dir``, which may begin with a byte order mark.

    Hydra's own source does not recognise the line ``# @package`` after such a mark.
    """
    from hydra._internal.core_plugins.file_config_source import FileConfigSource
    from hydra._internal.sources_registry import SourcesRegistry
    from hydra.core.plugins import Plugins
    from hydra.plugins.config_source import ConfigResult

    class Folder(FileConfigSource):
        @staticmethod
        def scheme() -> str:
            return FOLDER

        def load_config(self, config_path: str) -> ConfigResult:
            result = super().load_config(config_path)
            file = Path(self.path, self._normalize_file_name(config_path))
            return replace(result, header=self._get_header_dict(file.read_text(encoding="utf-8-sig")))

    Plugins.instance()  # registers Hydra's sources first
    SourcesRegistry.instance().register(Folder)


def plain(unresolved: DictConfig) -> dict[str, Any]:
    """Return a configuration as dictionaries and lists, with interpolations resolved."""
    from omegaconf import OmegaConf

    config = OmegaConf.to_container(unresolved, resolve=True)
    assert isinstance(config, dict)
    return {str(key): value for key, value in config.items()}


def _mistake(overrides: Sequence[str], error: Exception) -> UserError:
    cause = error.__cause__ or error
    fault = _first_line(cause)
    if fault.endswith("is not a ListConfig, list or tuple"):
        fault = "must be a list, such as [1,2]"
    return UserError(f"{_find_override(overrides, str(error) + str(cause))}{fault}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _find_override(overrides: Sequence[str], message: str) -> str:
    matching = [text for text in overrides if text.partition("=")[0].lstrip("+") in message]
    return f"{matching[0].lstrip('+')}: " if matching else ""
