"""Load option files with Hydra, parse overrides, and apply them; each error becomes one sentence."""

from __future__ import annotations

import os
import re
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError

from . import yaml_files
from .groups import PACKAGE, option_paths, roots

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override


GLOBAL = "_global_"
"""Package in the header of a file whose sections are those of the configuration, not those of its group."""

MOST_CHARACTERS = 20_000
"""Largest number of characters of an override. Parsing one of this length takes seconds."""


def option_file(group: str, name: str, config_dir: Path | None) -> dict[str, Any]:
    """Return the values of an option file, with interpolations unresolved.

    A file with a defaults list, or in another package than that of its group or ``_global_``, is composed by Hydra.
    Raises ``UserError`` if the file cannot be read.
    """
    path = option_paths(group, name, config_dir)[0]
    content, package = yaml_files.read(path, f"{group}={name}")
    if not isinstance(content or {}, dict):
        raise UserError(f"{group}={name}: {path} must be a mapping of options to values")
    if package == GLOBAL and not isinstance((content or {}).get(group, {}), dict):
        raise UserError(f"{group}={name}: the section {group} of {path} must be a mapping of options to values")
    if package not in ("", "_group_", GLOBAL) or "defaults" in (content or {}):
        if path.read_bytes().startswith(BOM_UTF8):
            raise UserError(f"{group}={name}: {path} begins with a byte order mark; save it as UTF-8 without one")
        return by_hydra(group, name, config_dir)
    return (content or {}) if package == GLOBAL else {group: content or {}}


def by_hydra(group: str, name: str, config_dir: Path | None) -> dict[str, Any]:
    """Return the values of an option file and of those in its defaults list, each in the package of its header."""
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    sources = ",".join(quoted(f"file://{root}") for root in roots(config_dir)[1:])
    ConfigStore.instance().store(name="empty", node={})  # Hydra adds the option file to it
    try:
        with initialize_config_module(PACKAGE, version_base="1.3"):  # version_base selects Hydra's defaults
            searched = [f"hydra.searchpath=[{sources}]"] if sources else []
            composed = hydra_compose("empty", [f"+{group}={name}", *searched])
        return OmegaConf.to_container(composed, resolve=False)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError, RecursionError) as error:
        fault = " ".join(str(error).split())
        raise UserError(f"{group}={name}: a configuration file cannot be read ({fault})") from error


def parse_any(text: str) -> Override:
    """Parse an override, which may have several values. Raises ``UserError`` if it is too long or cannot be parsed."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if len(text) > MOST_CHARACTERS:
        option = text.lstrip("+").partition("=")[0][:100]
        raise UserError(
            f"{option}: has {len(text):,} characters; at most {MOST_CHARACTERS:,} are allowed; write long values into "
            "a file of --config-dir"
        )
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        fault = str(error).splitlines()[0].partition(" expecting ")[0]
        if text.endswith(","):
            fault = "a value is missing after the last comma"
        raise UserError(f"{text}: cannot be read as key=value ({fault})") from error


def parse(text: str) -> Override:
    """Parse an override with one value. Raises ``UserError`` as ``parse_any``, or if it has several values."""
    override = parse_any(text)
    if override.package is not None:
        raise UserError(f"{text.lstrip('+')}: there is no such option")
    if override.is_sweep_override():
        raise UserError(f"{text.lstrip('+')}: has several values, but one cell is composed here; write one")
    return override


def override(option: str, value: Any) -> str:
    """Return the override that sets an option to a value of Python, such as ``train.lr=0.0003``.

    Raises ``UserError`` if the value is not a number, a text, None, or a list or mapping of such values.
    """

    def text(value: Any) -> str:
        if hasattr(value, "tolist") and not isinstance(value, type):  # a number or array of numpy
            value = value.tolist()
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        if isinstance(value, int | float):
            return repr(value)
        if isinstance(value, list | tuple):
            return f"[{','.join(map(text, value))}]"
        if isinstance(value, Mapping):
            return f"{{{','.join(f'{key}:{text(entry)}' for key, entry in value.items())}}}"
        if not isinstance(value, str | os.PathLike):
            raise UserError(f"{option}: cannot be a {type(value).__name__}; set a number, text or list")
        name = os.fspath(value)
        plain = re.fullmatch(r"[A-Za-z_][\w./-]*", name) and name.lower() not in ("null", "true", "false", "nan", "inf")
        return name if plain else quoted(name)

    return f"{option}={text(value)}"


def quoted(path: str) -> str:
    """Return a path as a quoted string of Hydra's override grammar, which no unquoted path need follow."""
    from hydra.core.override_parser.types import Quote, QuotedString

    return QuotedString(text=path, quote=Quote.double).with_quotes()


def mistake(overrides: Sequence[str], error: Exception) -> UserError:
    """Return the error message for an error of Hydra or OmegaConf, about the override with the longest name in it."""
    cause = error.__cause__ or error
    fault = str(cause).strip().splitlines()[0].rstrip(".")
    names = {text.partition("=")[0].lstrip("+"): text.lstrip("+") for text in overrides}
    named = max((name for name in names if name in f"{error}{cause}"), key=len, default=None)
    return UserError(fault if named is None else f"{names[named]}: {fault}")
