"""Options of every head mixer that are selected by name: how heads are merged, and losses on heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lra_bench.contracts import UserError

Choice = str | Mapping[str, Any]

MERGES = {
    "capsule_dynamic": "lra_bench.models.heads.capsules.DynamicRouting",
    "capsule_em": "lra_bench.models.heads.capsules.ExpectationMaximisation",
    "weighted_branches": "lra_bench.models.heads.branches.WeightedBranches",
}
LOSSES = {
    "disagreement": "lra_bench.models.heads.disagreement.Disagreement",
    "pattern_guided": "lra_bench.models.heads.pattern_guidance.PatternGuidance",
}


def merge_node(given: Choice) -> dict[str, Any]:
    """Return the configuration node of the merge named by ``given``. Raises ``UserError`` if it is unknown."""
    return _node(given, MERGES, "model.mixer.merge")


def loss_nodes(given: Choice | Sequence[Choice] | None) -> list[dict[str, Any]]:
    """Return the configuration node of each loss named by ``given``, which is one name or mapping, several, or None.

    Raises ``UserError`` if a name is unknown.
    """
    if given is None:
        return []
    several = [given] if isinstance(given, (str, Mapping)) else given
    return [_node(each, LOSSES, "model.mixer.head_losses") for each in several]


def _node(given: Choice, known: Mapping[str, str], option: str) -> dict[str, Any]:
    """Return ``_target_`` and options for a name, a mapping with ``name``, or a mapping with its own ``_target_``."""
    options: dict[str, Any] = {"name": given} if isinstance(given, str) else {str(k): v for k, v in given.items()}
    if "_target_" in options:
        return options
    name = options.pop("name", None)
    if name not in known:
        raise UserError(f"{option}={name}: must be one of {', '.join(known)}")
    return {"_target_": known[name], **options}
