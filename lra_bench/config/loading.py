"""Load configurations with Hydra from the files of the chosen groups and overrides, as dictionaries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
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

    sources = ",".join(map(quoted, extension_sources(config_dir)))
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


def quoted(path: str) -> str:
    """Return a path as a quoted string of Hydra's override grammar, which no unquoted path need follow."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text=path, quote=Quote.double).with_quotes()


def _mistake(overrides: Sequence[str], error: Exception) -> UserError:
    cause = error.__cause__ or error
    fault = _first_line(cause)
    override = _find_override(overrides, str(error) + str(cause))
    key, _, value = override.partition("=")
    if fault.endswith("is not a ListConfig, list or tuple"):
        fault = f"must be a list; write {key}=[{value}]"
    elif "could not be converted to Integer" in fault:
        fault = "must be a list of integers" if value[:1] == "[" else f"must be an integer{_integers(key, value)}"
    elif "could not be converted to Float" in fault:
        fault = "must be a list of numbers" if value[:1] == "[" else "must be a number"
    return UserError(f"{override}: {fault}" if override else fault)


def _integers(key: str, value: str) -> str:
    """Return what to write instead of a number such as ``1e3`` or a range such as ``0-2``; empty for other values."""
    if ends := re.fullmatch(r"(\d{1,9})-(\d{1,9})", value):
        return f"; write {key}=range({ends[1]},{int(ends[2]) + 1}) for several"
    with suppress(ValueError, OverflowError):
        return f"; write {key}={int(float(value))}" if float(value).is_integer() else ""
    return ""


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")


def _find_override(overrides: Sequence[str], message: str) -> str:
    """Return the override with the longest name in an error message, without a prefix, or an empty string."""
    matching = [text.lstrip("+") for text in overrides if text.partition("=")[0].lstrip("+") in message]
    return max(matching, key=lambda text: len(text.partition("=")[0]), default="")
