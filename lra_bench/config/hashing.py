"""The hash of what decides a cell's numbers."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from typing import Any

from .schema import CellConfig
from .serialization import as_dict

NOT_HASHED = {("task", "source"), ("task", "allow_partial"), ("model", "label"), ("model", "source")}


@cache
def _defaults() -> dict[str, Any]:
    return as_dict(CellConfig())


def config_hash(config: CellConfig, fingerprint: str) -> str:
    """Eight hex digits of what decides a cell's numbers, and of its data.

    Covers task, model, position, backbone and train; keys at the schema's default do not count, so that a new key
    leaves old hashes alone; neither do seed, labels, paths, tracker, launcher and hardware.
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
    # The position itself is covered; by which name it was chosen does not matter.
    covered["backbone"].pop("position", None)
    text = json.dumps([covered, fingerprint], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:8]
