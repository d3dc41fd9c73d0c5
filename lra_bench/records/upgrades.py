"""Upgrade records of older schema versions, one version at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lra_bench.contracts import UserError

SCHEMA_VERSION = 9
"""The current schema version."""


def upgrade(raw: Any) -> dict[str, Any]:
    """Return a raw record upgraded to the current schema version.

    Raises ``UserError`` if the version is missing, older than the first of ``UPGRADES``, or newer than this program.
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
            raise UserError(f"record: schema version {version} is not supported; the oldest is {min(UPGRADES)}")
        version += 1
        current = {**UPGRADES[version - 1](current), "schema_version": version}
    return current


def _to_version_9(raw: dict[str, Any]) -> dict[str, Any]:
    """Upgrade from version 8 to 9: add the scores of rungs and of minimal pairs, of which there are none."""
    return {"rungs": {}, "minimal_pairs": None, **raw}


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {8: _to_version_9}
"""Upgrade functions by version: each receives a raw record of that version and returns one of the next version."""
