"""How a mixer and a feed-forward network are wired into the residual stream."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lra_bench.contracts import UserError

from .batch_norm import BatchNorm, normalised
from .kernels.dropout import Dropout
from .mixer import Context, Mixer
from .scale_norm import ScaleNorm

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "scale": ScaleNorm,
    "batch": BatchNorm,
}
PLACES = ("pre", "post")


def norm_layer(kind: str, width: int) -> nn.Module:
    """The norm of that kind; raises ``UserError`` where there is none."""
    if kind not in NORMS:
        raise UserError(f"backbone.norm={kind}: is none of {', '.join(NORMS)}")
    return NORMS[kind](width)


class Block(nn.Module):
    """x + mixer, then x + feed-forward, each with dropout and a norm.

    ``place`` is ``pre``, norm before each branch (Xiong et al. 2020, arXiv 2002.04745), or ``post``, norm after each
    sum (Vaswani et al. 2017, arXiv 1706.03762). ``chunks`` is for how many parts of the rows the feed-forward network
    runs in turn. ``feed_forward`` None leaves its branch out.
    """

    def __init__(
        self,
        mixer: Mixer,
        feed_forward: nn.Module | None,
        width: int,
        *,
        norm: str,
        place: str,
        dropout: float,
        chunks: int = 1,
    ) -> None:
        super().__init__()
        if place not in PLACES:
            raise UserError(f"backbone.norm_place={place}: is none of {', '.join(PLACES)}")
        if chunks < 1:
            raise UserError(f"backbone.feed_forward_chunks={chunks}: must be at least 1")
        self.pre, self.chunks = place == "pre", chunks
        self.mixer, self.feed_forward = mixer, feed_forward
        self.mixer_norm = norm_layer(norm, width)
        self.feed_forward_norm = None if feed_forward is None else norm_layer(norm, width)
        self.drop = Dropout(dropout)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """x (B, N, E) to x (B, N, E), with the context that the mixer hands on."""
        y, context = self.mix(x, context)
        x, context = self._added(self.mixer_norm, x + y, context)
        if self.feed_forward_norm is None:
            return x, context
        y, context = self.transform(x, context)
        return self._added(self.feed_forward_norm, x + y, context)

    def mix(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """What the mixer adds to x."""
        if self.pre:
            x, context = normalised(self.mixer_norm, x, context)
        y, context = self.mixer(x, context)
        return self.drop(y), context

    def transform(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """What the feed-forward network adds to x, where there is one."""
        assert self.feed_forward is not None and self.feed_forward_norm is not None
        if self.pre:
            x, context = normalised(self.feed_forward_norm, x, context)
        return self.drop(in_chunks(self.feed_forward, x, self.chunks)), context

    def _added(self, norm: nn.Module, total: Tensor, context: Context) -> tuple[Tensor, Context]:
        """The sum behind a branch, normalised where norms stand there."""
        return (total, context) if self.pre else normalised(norm, total, context)


def in_chunks(network: nn.Module, x: Tensor, chunks: int) -> Tensor:
    """A network of single rows on x (B, N, E), some rows at a time (Kitaev et al. 2020, arXiv 2001.04451).

    Its inner tensors are computed again in the backward pass, so that only one part of them is ever held.
    """
    if chunks == 1:
        y: Tensor = network(x)
        return y
    parts = x.chunk(chunks, 1)
    if not torch.is_grad_enabled():
        return torch.cat([network(part) for part in parts], 1)
    return torch.cat([checkpoint(network, part, use_reentrant=False) for part in parts], 1)
