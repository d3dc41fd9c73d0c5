"""Hash of the options that determine a cell's results."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from .schema import CellConfig
from .serialization import as_dict

HASH_VERSION = 2
"""Version of the rules of ``config_hash``, stored in records; cells of different versions have different keys."""

NOT_HASHED = {("task", "source"), ("task", "allow_partial"), ("model", "label"), ("model", "source")}


@cache
def _defaults() -> dict[str, Any]:
    return as_dict(CellConfig())


def config_hash(config: CellConfig, fingerprint: str) -> str:
    """Return eight hexadecimal digits of a hash of the options that determine a cell's results, and of its data.

    The hash covers the sections task, model, position, backbone and train. Options with the default of the schema are
    left out, so that adding an option does not change existing hashes. Seed, labels, paths, tracker, launcher and
    hardware are not covered either. ``fingerprint`` is the fingerprint of the task's data.
    """
    defaults, values = _defaults(), as_dict(config)
    covered = {
        section: {
            key: value
            for key, value in values[section].items()
            if (section, key) not in NOT_HASHED and not (key in defaults[section] and defaults[section][key] == value)
        }
        for section in ("task", "model", "position", "backbone", "train")
    }
    # The section ``position`` is covered, so the name by which it was chosen is left out.
    covered["backbone"].pop("position", None)
    text = json.dumps([covered, fingerprint], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
