"""Choice of the feed-forward network of each layer."""

from __future__ import annotations

from dataclasses import asdict

from torch import nn

from lra_bench.contracts import UserError
from lra_bench.options.backbone import BackboneOptions

from .experts import Experts
from .feedforward import FeedForward
from .product_keys import ProductKeyMemory


def check_networks(options: BackboneOptions) -> None:
    """Raise ``UserError`` if the options of the feed-forward networks do not suit each other or the depth."""
    layer, every, depth = options.product_keys.layer, options.experts.every, options.depth
    has_experts = options.experts.count is not None
    if layer is not None and layer > depth:
        raise UserError(
            f"backbone.product_keys.layer={layer}: must be at least 1 and at most the number of layers, "
            f"backbone.depth={depth}"
        )
    if has_experts and every > depth:
        raise UserError(
            f"backbone.experts.every={every}: must be at least 1 and at most the number of layers, "
            f"backbone.depth={depth}"
        )
    for option, applies in {"experts": has_experts, "product_keys": layer is not None}.items():
        if applies and not options.feed_forward:
            raise UserError(f"backbone.{option}: blocks have no feed-forward networks; leave it out")
    if has_experts and options.feed_forward_chunks > 1:
        raise UserError("backbone.experts: needs all tokens at once; set backbone.feed_forward_chunks=1")


def feed_forward_network(options: BackboneOptions, layer: int) -> nn.Module | None:
    """Return a new network for the layer with index ``layer``, counted from 0; None if blocks have none."""
    width, memory, experts = options.width, asdict(options.product_keys), asdict(options.experts)
    if not options.feed_forward:
        return None
    if layer + 1 == memory.pop("layer"):
        return ProductKeyMemory(width, **memory)
    every, hidden = experts.pop("every"), experts.pop("ff_width")
    if experts["count"] is not None and (layer + 1) % every == 0:
        hidden = hidden or max(1, options.ff_width // experts["top_k"])
        return Experts(width, hidden, options.activation, options.dropout, **experts)
    return FeedForward(width, options.ff_width, options.activation, options.dropout)
