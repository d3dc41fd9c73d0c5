"""How records of older versions are read: a step from each version to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lra_bench.contracts import UserError

from .extrapolation import complete_curves, name_length_variants

SCHEMA_VERSION = 4


def upgrade(raw: Any) -> dict[str, Any]:
    """The raw record of any version as one of this version; ``UserError`` where it is newer than this program."""
    version = raw.get("schema_version") if isinstance(raw, Mapping) else None
    if not isinstance(version, int) or isinstance(version, bool):
        raise UserError("record: schema_version is missing, so this is no lra-bench record")
    if version > SCHEMA_VERSION:
        raise UserError(
            f"record: has schema version {version}, this lra-bench reads up to {SCHEMA_VERSION}; upgrade lra-bench"
        )
    current = dict(raw)
    while version < SCHEMA_VERSION:
        if version not in UPGRADES:
            raise UserError(f"record: schema version {version} never existed")
        version += 1
        current = {**UPGRADES[version - 1](current), "schema_version": version}
    return current


def _to_version_3(raw: dict[str, Any]) -> dict[str, Any]:
    """2 to 3: each section by a function of its own."""
    return _describe_steps(complete_curves(raw))


def _describe_steps(raw: dict[str, Any]) -> dict[str, Any]:
    """Speed points say what of memory lasts, what a step computes and by which attention; unknown before."""
    unknown = ("attention_backend", "static_bytes", "activation_bytes", "flops", "flops_per_second", "utilisation")
    added = {"batch_policy": "fixed", **dict.fromkeys(unknown)}
    flops = raw.get("flops")
    return {
        **raw,
        "speed": [{**added, **point} for point in raw.get("speed", [])],
        "flops": flops and {"ceiling_per_second": None, **flops},
    }


def _to_version_4(raw: dict[str, Any]) -> dict[str, Any]:
    """3 to 4: last words of a process that failed, and what ``torch.compile`` made of the model; unknown before."""
    speed = [{"compile": None, **point} for point in raw.get("speed", [])]
    return {"last_lines": [], **raw, "speed": speed}


UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: name_length_variants,
    2: _to_version_3,
    3: _to_version_4,
}
"""From a version to the next: each takes a raw record of its version and returns one of the version after."""
