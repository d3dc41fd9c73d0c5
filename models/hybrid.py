"""Hybrid networks: the mixer of every k-th layer is replaced by another one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from lra_bench.build import load_class
from lra_bench.contracts import Capability, UserError
from lra_bench.options.backbone import Hybrid

from .mixer import Mixer

FULL_ATTENTION: Mapping[str, Any] = {"_target_": "lra_bench.models.full.softmax_attention.SoftmaxAttention"}
OPTION = "backbone.hybrid.mixer"


@dataclass(frozen=True)
class Layers:
    """The mixer of each layer of a network.

    Attributes:
        nodes: Configuration node of the mixer of each layer.
        options: Name of the option that each node is the value of, for error messages.
        kinds: Class of the mixer of each layer.
    """

    nodes: tuple[Mapping[str, Any], ...]
    options: tuple[str, ...]
    kinds: tuple[type[Mixer], ...]

    @property
    def capability(self) -> Capability:
        """Capabilities of the network: those that all its mixers have, with the highest cost of any of them."""
        specs: list[Capability] = [kind.spec_of(node) for kind, node in zip(self.kinds, self.nodes, strict=True)]
        return reduce(lambda first, other: first if other == first else first.combined(other), specs)

    def check_rows(self, causal: bool) -> None:
        """Raise ``UserError`` if rows in front of the tokens would pass later tokens on to a mixer that reads all rows.

        The mixer that adds such rows decides which tokens may read them in the causal form; other mixers do not know.
        """
        first, *others = dict.fromkeys(self.kinds)
        if causal and others and first.prefix_rows is not Mixer.prefix_rows:
            raise UserError(
                f"{OPTION}: {first.__name__} adds rows of later tokens in front of the tokens of a causal model, which "
                f"{others[0].__name__} would read; set backbone.hybrid.every=null or choose another model"
            )


def arrange(mixer: Mapping[str, Any], hybrid: Hybrid, depth: int) -> Layers:
    """Return the mixers of ``depth`` layers: ``mixer``, and that of ``hybrid`` in layers k, 2k, … counted from 1.

    Args:
        mixer: Configuration node of the mixer of the model.
        hybrid: The number k, and the configuration node of the other mixer.
        depth: Number of layers.

    Raises:
        UserError: If there is no layer k or no layer before it, or if the other mixer cannot be used in later layers
            alone.
    """
    kind = load_class(str(mixer.get("_target_")), Mixer, "model.mixer")
    every = hybrid.every
    if every is None:
        return Layers((mixer,) * depth, ("model.mixer",) * depth, (kind,) * depth)
    if not 2 <= every <= depth:
        raise UserError(
            f"backbone.hybrid.every={every}: must be at least 2 and at most the number of layers, "
            f"backbone.depth={depth}"
        )
    other = hybrid.mixer or FULL_ATTENTION
    other_kind = load_class(str(other.get("_target_")), Mixer, OPTION)
    if other_kind.spec.carries or other_kind.prefix_rows is not Mixer.prefix_rows:
        raise UserError(
            f"{OPTION}: {other_kind.__name__} depends on what its first layer passes to the next or puts in front of "
            "the tokens, and the first layer has another mixer; choose another mixer"
        )
    replaced = [(layer + 1) % every == 0 for layer in range(depth)]
    return Layers(
        tuple(other if each else mixer for each in replaced),
        tuple(OPTION if each else "model.mixer" for each in replaced),
        tuple(other_kind if each else kind for each in replaced),
    )
