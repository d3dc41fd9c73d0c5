"""Residual blocks: a mixer and a feed-forward network with norms and dropout."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .batch_norm import BatchNorm, normalised
from .canon_layer import CanonLayer
from .experts import Experts
from .kernels.dropout import Dropout
from .mixer import Context, Mixer
from .residual import PLAIN, RESIDUALS
from .scale_norm import ScaleNorm

NORMS: dict[str, Callable[[int], nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "scale": ScaleNorm,
    "batch": BatchNorm,
    "none": lambda width: nn.Identity(),
}


class Block(nn.Module):
    """Residual block: x + mixer, then x + feed-forward network, each with dropout and a norm.

    Args:
        mixer: Token mixer.
        feed_forward: Position-wise network; None for a block that consists of the mixer branch only.
        width: Number of features E.
        norm: Kind of norm, a key of ``NORMS``.
        place: ``pre``, norm before each branch (Xiong et al. 2020, arXiv 2002.04745), or ``post``, norm after each
            residual sum (Vaswani et al. 2017, arXiv 1706.03762).
        dropout: Dropout probability at the output of each branch, except that of a mixer with ``drops_output``.
        chunks: Number of chunks of the sequence that the feed-forward network processes sequentially.
        convolution: Canon layer between the norm and the mixer, or None.
        residual: Learned scalars of both branches, a key of ``residual.RESIDUALS``.
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
        convolution: CanonLayer | None = None,
        residual: str = PLAIN,
    ) -> None:
        super().__init__()
        self.pre, self.chunks = place == "pre", chunks
        self.mixer, self.feed_forward = mixer, feed_forward
        self.mixer_norm = NORMS[norm](width)
        self.feed_forward_norm = None if feed_forward is None else NORMS[norm](width)
        self.convolution = convolution
        # Set by ``add_gates``; None for residual sums.
        self.mixer_gate: nn.Module | None = None
        self.feed_forward_gate: nn.Module | None = None
        self.drop = Dropout(dropout)
        self.mixer_scalars = RESIDUALS[residual]()
        self.feed_forward_scalars = None if feed_forward is None else RESIDUALS[residual]()

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return x (B, N, E) after all branches, with the context updated by the mixer and the norms."""
        y, context = self.mix(x, context)
        x, context = self._residual(self.mixer_norm, _joined(self.mixer_gate, x, y), context)
        if self.feed_forward_norm is None:
            return x, context
        y, context = self.transform(x, context)
        return self._residual(self.feed_forward_norm, _joined(self.feed_forward_gate, x, y), context)

    def mix(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return the output of the mixer branch, (B, N, E), and the context; the caller adds the output to x.

        The branch includes dropout, the norm if it is placed before the mixer, and the Canon layer if there is one. The
        mixer receives x without the norm as ``Context.residual``.
        """
        context = context.replace(residual=x)
        if self.pre:
            # ``BatchNorm`` needs the padding in the context and adds its statistics to it; other norms leave it as is.
            x, context = normalised(self.mixer_norm, x, context)
        x = self.mixer_scalars.before(x)
        if self.convolution is None:
            y, context = self.mixer(x, context)
        else:
            y, context = self.convolution.then(self.mixer, x, context)
        y = self.mixer_scalars.after(y if self.mixer.drops_output else self.drop(y))
        return y, context.replace(residual=None)

    def transform(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return the output of the feed-forward branch, (B, N, E), and the context; the caller adds the output to x.

        As ``mix``, with the feed-forward network. Must not be called if the block has none.
        """
        assert self.feed_forward is not None and self.feed_forward_norm is not None
        assert self.feed_forward_scalars is not None
        if self.pre:
            x, context = normalised(self.feed_forward_norm, x, context)
        x = self.feed_forward_scalars.before(x)
        if isinstance(self.feed_forward, Experts):
            y, context = self.feed_forward(x, context)
        else:
            y = in_chunks(self.feed_forward, x, self.chunks)
        return self.feed_forward_scalars.after(self.drop(y)), context

    def _residual(self, norm: nn.Module, total: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return ``total``, stream and branch joined, normalised if the norm is placed after it, and the context."""
        return (total, context) if self.pre else normalised(norm, total, context)


def _joined(gate: nn.Module | None, x: Tensor, y: Tensor) -> Tensor:
    """Return x + y, or the gate of the residual stream x and the output y of a branch."""
    return x + y if gate is None else gate(x, y)


def in_chunks(network: nn.Module, x: Tensor, chunks: int) -> Tensor:
    """Apply a position-wise network to x (B, N, E) in ``chunks`` chunks (Kitaev et al. 2020, arXiv 2001.04451).

    If gradients are enabled and there are several chunks, each chunk is checkpointed: the activations inside the
    network are not stored but recomputed in the backward pass, so that those of only one chunk are in memory at a time.
    """
    if chunks == 1:
        y: Tensor = network(x)
        return y
    parts = x.chunk(chunks, 1)
    if not torch.is_grad_enabled():
        return torch.cat([network(part) for part in parts], 1)
    return torch.cat([checkpoint(network, part, use_reentrant=False) for part in parts], 1)
