"""Choice of the feed-forward network of each layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from lra_bench.contracts import UserError

from .experts import Experts
from .feedforward import FeedForward
from .product_keys import ProductKeyMemory


@dataclass(frozen=True)
class Networks:
    """Options of the feed-forward networks of all layers.

    Attributes:
        width: Number of features E.
        ff_width: Hidden width; None if blocks have no feed-forward networks.
        activation: Activation, as in ``FeedForward``.
        dropout: Dropout probability.
        chunks: Number of chunks of the sequence that a network processes sequentially.
        experts: Options ``backbone.experts``.
        product_keys: Options ``backbone.product_keys``.
    """

    width: int
    ff_width: int | None
    activation: str
    dropout: float
    chunks: int = 1
    experts: Mapping[str, Any] | None = None
    product_keys: Mapping[str, Any] | None = None

    def check(self, depth: int) -> None:
        """Raise ``UserError`` if the options do not suit each other or a network of ``depth`` layers."""
        layer = (self.product_keys or {}).get("layer")
        if layer is not None and not 1 <= layer <= depth:
            raise UserError(
                f"backbone.product_keys.layer={layer}: must be at least 1 and at most the number of layers, "
                f"backbone.depth={depth}"
            )
        if self.has_experts and not 1 <= self._experts["every"] <= depth:
            raise UserError(
                f"backbone.experts.every={self._experts['every']}: must be at least 1 and at most the number of "
                f"layers, backbone.depth={depth}"
            )
        for option, applies in {"experts": self.has_experts, "product_keys": layer is not None}.items():
            if applies and self.ff_width is None:
                raise UserError(f"backbone.{option}: blocks have no feed-forward networks; leave it out")
        if self.has_experts and self.chunks > 1:
            raise UserError("backbone.experts: needs all tokens at once; set backbone.feed_forward_chunks=1")

    @property
    def has_experts(self) -> bool:
        """Whether some layers have experts."""
        return self._experts.get("count") is not None

    @property
    def _experts(self) -> Mapping[str, Any]:
        return self.experts or {}

    def build(self, layer: int) -> nn.Module | None:
        """Return a new network for the layer with index ``layer``, counted from 0; None if blocks have none."""
        if self.ff_width is None:
            return None
        if layer + 1 == (self.product_keys or {}).get("layer"):
            own = {name: value for name, value in (self.product_keys or {}).items() if name != "layer"}
            return ProductKeyMemory(self.width, **own)
        if self.has_experts and (layer + 1) % self._experts["every"] == 0:
            own = {name: value for name, value in self._experts.items() if name not in ("every", "ff_width")}
            hidden = self._experts["ff_width"] or max(1, self.ff_width // own["top_k"])
            return Experts(self.width, hidden, self.activation, self.dropout, **own)
        return FeedForward(self.width, self.ff_width, self.activation, self.dropout)
