"""The classes of all measurements: those of lra-bench, of installed extensions, and in the folder of the user."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import fields, make_dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from lra_bench.build import load_class
from lra_bench.contracts import UserError
from lra_bench.contracts.measurement import Measurement

from . import import_path, yaml_files
from .groups import option_files

FOLDER = "measurement"
"""Folder of extensions with one YAML file per measurement, which names its class in ``_target_``."""

OURS = (
    "lra_bench.measurements.slices.Slices",
    "lra_bench.measurements.minimal_pairs.MinimalPairs",
    "lra_bench.measurements.pretraining.PretrainingRun",
    "lra_bench.measurements.training.TrainingRun",
    "lra_bench.measurements.rate_search.Search",
    "lra_bench.measurements.parameters.ParameterCounts",
    "lra_bench.measurements.restriction.Restricted",
    "lra_bench.measurements.memory_lengths.MemoryLengths",
    "lra_bench.measurements.adaptive_depth.DepthBudgets",
    "lra_bench.measurements.state.InferenceState",
    "lra_bench.measurements.steps.StepBenchmark",
    "lra_bench.measurements.lengths.Lengths",
)
"""Paths of the built-in measurements, in the order in which a cell runs them and the page shows their facts.

User-defined measurements follow them.
"""


@cache
def our_measurements() -> Mapping[str, type[Measurement]]:
    """Return the measurements of lra-bench by name."""
    paths = (target.rpartition(".") for target in OURS)
    return {each.name: each for each in (getattr(importlib.import_module(module), name) for module, _, name in paths)}


def measurements() -> Mapping[str, type[Measurement]]:
    """Return all measurements by name, those in the folders of ``import_path.importable`` included.

    Raises ``UserError`` if the class of a measurement of the user cannot be loaded.
    """
    return _with_those_of_users(tuple(import_path.entered))


@lru_cache(maxsize=8)
def _with_those_of_users(entered: tuple[import_path.Entered, ...]) -> Mapping[str, type[Measurement]]:
    found = dict(our_measurements())
    folders: list[Path | None] = [each.folder for each in entered]
    for folder in folders or [None]:
        for name, file in option_files(FOLDER, folder).items():
            option = f"{FOLDER}/{name}.yaml"
            content, _ = yaml_files.read(file, option)
            target = content.get("_target_") if isinstance(content, Mapping) else None
            if not target:
                raise UserError(f"{file}: has no _target_; set it to the class of the measurement")
            measurement = load_class(str(target), Measurement, option)
            if measurement.name in our_measurements():
                raise UserError(f"{target}: {measurement.name} is a measurement of lra-bench; choose another name")
            found[measurement.name] = measurement
    return found


def options_of(added: Mapping[str, type[Measurement]], taken: Collection[str] = ()) -> type:
    """Return a dataclass with the options of measurements, in the order of their names.

    Raises ``UserError`` if an option is in ``taken`` or occurs twice.
    """
    own: dict[str, tuple[str, Any, Any]] = {}
    for name, measurement in sorted(added.items()):
        hints = get_type_hints(measurement.Options)
        for each in fields(measurement.Options):
            if each.name in taken or each.name in own:
                raise UserError(f"measure.{each.name}: exists already; rename this option of the measurement {name}")
            own[each.name] = (each.name, hints[each.name], each)
    return make_dataclass("Options", own.values())
