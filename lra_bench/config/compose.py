"""Compose the configuration of one cell from overrides, and determine which options the user changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .groups import PACKAGE
from .hybrid import hybrid_mixer
from .layers import Loader
from .loading import EMPTY, register_folders
from .pretraining import NONE
from .schema import CellConfig, added_keys, own_options
from .serialization import from_dict
from .validation import check_model_file, check_override

PROTOCOL_SECTIONS = ("task", "backbone", "train", "search", "pretrain")
"""Sections of the configuration in which a changed option is a modification of the protocol."""

TABLE_KEYS = ("path", "name", "config", "revision", "text", "label", "values", "delimiter", "splits")
FREE_KEYS = (
    *("task.source", "task.allow_partial", "backbone.position", "pretrain.record"),
    *(f"task.{name}" for name in TABLE_KEYS),
)
"""Options in ``PROTOCOL_SECTIONS`` that may be changed without modifying the protocol.

Missing data changes the fingerprint of the task, which already separates the rankings. Those of ``TABLE_KEYS`` choose
the table of ``task=csv`` and ``task=hub``, of which the version of the task is a digest. ``pretrain.record`` belongs
to the choice ``pretrain=record``, which separates the rankings.
"""

PRETRAIN = "pretrain"
"""Group of the objective of pretraining, which is part of the name of a variant."""

VARIANT_SECTIONS = ("model", "position")
VARIANT_KEYS = ("backbone.causal", "backbone._target_", *added_keys())
"""Sections and options that describe the system, not the protocol; changed ones are part of the name of a variant."""


@dataclass(frozen=True)
class Composed:
    """The composed configuration of a cell, and the options that the user changed.

    Attributes:
        config: The configuration.
        choices: Name of the chosen option file of each group.
        overrides: The overrides of the user.
        differences: Options of model and position, and those in ``VARIANT_KEYS``, that differ from the chosen files,
            with their values, and the objective of pretraining.
        modified: Names of the options of the protocol that differ from the chosen files.
        missing: Why the protocol has no values for this task and model, empty if it has.
    """

    config: CellConfig
    choices: dict[str, str]
    overrides: tuple[str, ...]
    differences: dict[str, Any]
    modified: tuple[str, ...]
    missing: str = ""


@contextmanager
def hydra_context() -> Iterator[None]:
    """Initialise Hydra; configurations are composed inside this context.

    ``version_base``, which selects Hydra's defaults, is set only here.
    """
    from hydra import initialize_config_module
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store(name=EMPTY, node={})
    register_folders()
    with initialize_config_module(PACKAGE, version_base="1.3"):
        yield


def compose(overrides: Sequence[str], config_dir: Path | None = None, load: Loader | None = None) -> Composed:
    """Compose one cell from overrides without comma lists. Call it inside ``hydra_context``.

    The options of task, model and position are checked later, by the constructors of their classes.

    Args:
        overrides: The overrides of the user.
        config_dir: Folder with option files of the user.
        load: Loader with the files that earlier cells read; by default a new one.

    Returns:
        The composed cell.

    Raises:
        UserError: If an option, an option file or a value is wrong.
    """
    loaded = (load or Loader(config_dir))([check_override(override, config_dir) for override in overrides])
    config, changed = loaded.config, _changed(loaded.files, loaded.config)
    hybrid = {**config["backbone"]["hybrid"], "mixer": hybrid_mixer(config, config_dir)}
    cell_config = from_dict({**config, "backbone": {**config["backbone"], "hybrid": hybrid}})
    check_model_file(cell_config.model, loaded.choices["model"], config_dir)
    own = {f"backbone.{name}" for name in own_options(cell_config.backbone)}
    differences = {
        key: value
        for key, value in changed.items()
        if key.partition(".")[0] in VARIANT_SECTIONS or key in VARIANT_KEYS or ".".join(key.split(".")[:2]) in own
    }
    if loaded.choices[PRETRAIN] != NONE:
        differences[PRETRAIN] = loaded.choices[PRETRAIN]
    kept = {*FREE_KEYS, *differences}
    return Composed(
        config=cell_config,
        choices=loaded.choices,
        overrides=tuple(overrides),
        differences=differences,
        modified=tuple(key for key in changed if key.partition(".")[0] in PROTOCOL_SECTIONS and key not in kept),
        missing=loaded.missing,
    )


def _changed(base: Mapping[str, Any], config: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return the dotted keys whose values differ from those of ``base``, with the new values."""
    found: dict[str, Any] = {}
    for key in {**base, **config}:
        name, old, new = f"{before}{key}", base.get(key), config.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= _changed(old, new, f"{name}.")
        elif old != new:
            found[name] = new
    return found
