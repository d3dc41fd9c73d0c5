"""Position encoding of a network, with the options that the network decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lra_bench.build import build, known_options, load_class
from lra_bench.contracts import TaskSpec

from .position import Position


def network_position(
    node: Mapping[str, Any],
    spec: TaskSpec,
    *,
    width: int,
    heads: int,
    max_length: int,
    causal: bool,
    head_dim: int | None,
    scale: float | None,
) -> Position:
    """Return the position encoding of ``node`` for a network.

    Options that the class in ``node`` does not have are left out. ``scale`` is None for the default of the class.
    """
    options = {
        "head_dim": head_dim,
        "causal": causal,
        "grid": spec.grid,
        # Position encodings that scale longer sequences do so beyond the training length, not beyond max_length.
        **({} if "train_length" in node else {"train_length": spec.train_length}),
        **({} if scale is None or "scale" in node else {"scale": scale}),
    }
    accepted = _accepted_options(options, node)
    return build(node, Position, "position", width=width, heads=heads, max_length=max_length, **accepted)


def _accepted_options(options: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``options`` that the constructor of the class in ``node`` accepts."""
    if not node.get("_target_"):
        return {}
    accepted = known_options(load_class(str(node["_target_"]), Position, "position"))
    return {name: value for name, value in options.items() if accepted is None or name in accepted}
