"""The groups of the configuration, and the file of each of their options: ours and the extensions'."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

PACKAGE = "lra_bench.conf"
GROUPS = ("task", "model", "position", "hardware", "launcher", "tracker", "protocol", "experiment")


def listing(group: str) -> str:
    """The command that lists the options of a group."""
    return f"lra-bench list {group if group == 'hardware' else f'{group}s'}"


def chooses(override: str) -> bool:
    """Whether an override chooses an option of a group, as ``model=performer``."""
    return override.partition("=")[0] in GROUPS


def extension_sources(config_dir: Path | None) -> list[str]:
    """Hydra search paths beside our own: installed extensions, then the user's folder."""
    packages = sorted(f"pkg://{package}" for package in _installed_extensions())
    return [*packages, *([f"file://{config_dir.resolve()}"] if config_dir else [])]


@cache
def _installed_extensions() -> frozenset[str]:
    """Packages of configuration files that other distributions name as theirs."""
    from importlib.metadata import entry_points

    groups = ("lra_bench.models", "lra_bench.tasks")
    return frozenset(point.value for group in groups for point in entry_points(group=group))


def extension_packages(config_dir: Path | None) -> set[str]:
    """The packages whose classes belong to extensions: those installed as such, and what the user's folder holds."""
    installed = {package.partition(".")[0] for package in _installed_extensions()}
    held = config_dir.iterdir() if config_dir else ()
    return installed | {path.stem for path in held if path.suffix == ".py" or path.is_dir()}


def option_files(group: str, config_dir: Path | None = None) -> dict[str, Path]:
    """Every option of a group, by name, ours and the extensions'; helper files begin with ``_`` and stay out."""
    folders = [Path(str(importlib.import_module(PACKAGE).__path__[0])) / group]
    for source in extension_sources(config_dir):
        kind, _, place = source.partition("://")
        root = Path(place) if kind == "file" else Path(str(importlib.import_module(place).__path__[0]))
        folders.append(root / group)
    return {
        file.stem: file
        for folder in folders
        if folder.is_dir()
        for file in sorted(folder.glob("*.yaml"))
        if not file.stem.startswith("_")
    }
