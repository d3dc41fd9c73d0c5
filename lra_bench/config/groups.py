"""The groups of the configuration and the files of their options, from lra-bench and from extensions."""

from __future__ import annotations

import importlib
import os
from functools import cache
from operator import attrgetter
from pathlib import Path

PACKAGE = "lra_bench.conf"
GROUPS = ("task", "model", "position", "hardware", "launcher", "tracker", "protocol", "search", "pretrain")

UNCOUNTABLE = ("hardware", "search", "pretrain")
"""Groups whose name has no plural form in commands."""


def listing(group: str) -> str:
    """Return the command that lists the options of a group."""
    return f"lra-bench list {group if group in UNCOUNTABLE else f'{group}s'}"


def is_group_choice(override: str) -> bool:
    """Return whether an override chooses an option file of a group, such as ``model=performer``."""
    return override.partition("=")[0] in GROUPS


@cache
def _installed_extensions() -> frozenset[str]:
    """Return the packages of configuration files that other distributions register as entry points."""
    from importlib.metadata import entry_points

    groups = ("lra_bench.models", "lra_bench.tasks", "lra_bench.measurements")
    return frozenset(point.value for group in groups for point in entry_points(group=group))


def extension_packages(config_dir: Path | None) -> set[str]:
    """Return the packages whose classes belong to extensions: installed ones, and those in ``config_dir``."""
    installed = {package.partition(".")[0] for package in _installed_extensions()}
    entries = config_dir.iterdir() if config_dir else ()
    return installed | {path.stem for path in entries if path.suffix == ".py" or path.is_dir()}


def roots(config_dir: Path | None) -> list[Path]:
    """Return the folders of configuration files: that of lra-bench, then those of extensions, then ``config_dir``."""
    packages = (PACKAGE, *sorted(_installed_extensions()))
    folders = [Path(str(importlib.import_module(package).__path__[0])) for package in packages]
    return [*folders, *([config_dir.resolve()] if config_dir else [])]


def option_paths(group: str, name: str, config_dir: Path | None = None) -> list[Path]:
    """Return the files of an option, that of lra-bench first."""
    paths = (root / group / f"{name}.yaml" for root in roots(config_dir))
    return [path for path in paths if os.path.lexists(path)]


def option_files(group: str, config_dir: Path | None = None) -> dict[str, Path]:
    """Return the option files of a group by name, from lra-bench and from extensions.

    Helper files, whose names begin with ``_``, are left out.
    """
    return {
        file.stem: file
        for folder in (root / group for root in roots(config_dir))
        if folder.is_dir()
        for file in sorted(folder.glob("*.yaml"), key=attrgetter("name"))
        if not file.stem.startswith("_") and file.is_file()  # not a pipe or a device
    }
