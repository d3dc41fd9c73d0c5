"""Upgrade records of older schema versions, one version at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lra_bench.contracts import UserError

from .extrapolation import compare_with_strongest_floor, complete_curves, name_length_variants

SCHEMA_VERSION = 9
"""The current schema version."""


def upgrade(raw: Any) -> dict[str, Any]:
    """Return a raw record upgraded to the current schema version.

    Raises ``UserError`` if the version is missing, unknown, or newer than this program.
    """
    version = raw.get("schema_version") if isinstance(raw, Mapping) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise UserError("record: schema_version is missing, so this is not an lra-bench record")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"record: has schema version {version}, this lra-bench supports up to {SCHEMA_VERSION}; upgrade lra-bench"
        )
    current = dict(raw)
    while version < SCHEMA_VERSION:
        if version not in UPGRADES:
            raise UserError(f"record: schema version {version} does not exist")
        version += 1
        current = {**UPGRADES[version - 1](current), "schema_version": version}
    return current


def _to_version_3(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 2 to 3."""
    return _describe_steps(complete_curves(raw))


def _describe_steps(raw: dict[str, Any]) -> dict[str, Any]:
    """Add static memory, FLOPs and attention backend to speed points; unknown in version 2."""
    unknown = ("attention_backend", "static_bytes", "activation_bytes", "flops", "flops_per_second", "utilisation")
    added = {"batch_policy": "fixed", **dict.fromkeys(unknown)}
    flops = raw.get("flops")
    return {
        **raw,
        "speed": [{**added, **point} for point in raw.get("speed", [])],
        "flops": flops and {"ceiling_per_second": None, **flops},
    }


def _to_version_4(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 3 to 4: add the last lines of a failed process and the results of ``torch.compile``."""
    speed = [{"compile": None, **point} for point in raw.get("speed", [])]
    return {"last_lines": [], **raw, "speed": speed}


def _to_version_5(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 4 to 5: add the version of the hash, margins over floors and the restriction, all unknown.

    Points of other lengths are compared with the strongest floor instead of the one that the task named.
    """
    return compare_with_strongest_floor({"hash_version": 1, "margins": {}, "restriction": None, **raw})


def _to_version_6(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 5 to 6: add scores of slices, of which there are none."""
    return {"slices": [], **raw}


def _to_version_7(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 6 to 7: add the search of the rate, of which there was none, and the state, unknown."""
    return {"search": None, "state": None, **raw}


def _to_version_8(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 7 to 8: add the scores by memory length and by depth, of which there are none."""
    return {"memory": None, "adaptive_depth": None, **raw}


def _to_version_9(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 8 to 9: add the scores of rungs and of minimal pairs, of which there are none."""
    return {"rungs": {}, "minimal_pairs": None, **raw}


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: name_length_variants,
    2: _to_version_3,
    3: _to_version_4,
    4: _to_version_5,
    5: _to_version_6,
    6: _to_version_7,
    7: _to_version_8,
    8: _to_version_9,
}
"""Upgrade functions by version: each receives a raw record of that version and returns one of the next version."""
