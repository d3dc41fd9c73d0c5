"""What may be chosen by name for any mixer of heads: how heads are merged, and losses on what they do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lra_bench.contracts import UserError

Choice = str | Mapping[str, Any]

MERGES = {
    "capsule_dynamic": "lra_bench.models.heads.capsules.DynamicRouting",
    "capsule_em": "lra_bench.models.heads.capsules.ExpectationMaximisation",
}
LOSSES = {
    "disagreement": "lra_bench.models.heads.disagreement.Disagreement",
    "pattern_guided": "lra_bench.models.heads.pattern_guidance.PatternGuidance",
}


def merge_node(given: Choice) -> dict[str, Any]:
    """The node of the merge that ``given`` names; ``UserError`` where there is none."""
    return _node(given, MERGES, "model.mixer.merge")


def loss_nodes(given: Choice | Sequence[Choice] | None) -> list[dict[str, Any]]:
    """The node of each loss that ``given`` names, which is one, several or none; ``UserError`` where there is none."""
    if given is None:
        return []
    several = [given] if isinstance(given, (str, Mapping)) else given
    return [_node(each, LOSSES, "model.mixer.head_losses") for each in several]


def _node(given: Choice, known: Mapping[str, str], option: str) -> dict[str, Any]:
    """``_target_`` and options of a name, or of a mapping with ``name``, or with a ``_target_`` of its own."""
    options: dict[str, Any] = {"name": given} if isinstance(given, str) else {str(k): v for k, v in given.items()}
    if "_target_" in options:
        return options
    name = options.pop("name", None)
    if name not in known:
        raise UserError(f"{option}={name}: is none of {', '.join(known)}")
    return {"_target_": known[name], **options}
