"""Attention through a few learned points that read the whole set."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.few import few_attention
from ..mixer import Context, Mixer, MixerSpec


class AttentionBlock(nn.Module):
    """MAB(X, Y) = norm(O + ReLU(W_o O)), where O = norm(W_q X + heads of X reading Y): x (B, N, E), y (B, M, E)."""

    def __init__(self, width: int, heads: int, norm: bool, qkv_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (linear(width, width, qkv_bias) for _ in range(3))
        self.feed_forward = linear(width, width)
        self.read_norm, self.norm = (nn.LayerNorm(width) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, y: Tensor, visible: Tensor | None, drop_rate: float) -> Tensor:
        """What x becomes by reading those rows of y that are ``visible`` (B, 1, 1, M)."""
        asks = self.query(x)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (asks, self.key(y), self.value(y)))
        few = self.training and x.shape[1] < y.shape[1]
        read = few_attention(q, k, v, visible=visible, dropout=drop_rate, hold=few).transpose(1, 2).flatten(2)
        o = self.read_norm(asks + dropout(read, drop_rate))
        added: Tensor = self.norm(o + dropout(F.relu(self.feed_forward(o)), drop_rate))
        return added


class InducedSetAttention(Mixer):
    """ISAB(X) = MAB(X, MAB(I, X)): ``points`` learned rows I read the set, then the set reads them.

    Lee et al. 2019, arXiv 1810.00825. x (B, N, E) -> (B, N, E). O(N m E) time; O(N E) memory, and
    while training on CPU N m weights per head, of what the points read. A block of its own, with the sums, norms and
    feed-forward layer of each MAB; ``points`` is m. ``norm=False`` leaves out the norms, as their code does by default.
    As in the authors' code, a residual is the projected query and heads are joined without another projection, which
    leaves an ISAB about as many parameters as a Transformer's block. Scores are scaled by 1/√D of a head.
    Deviates: attention weights and branches are dropped, as in all blocks here; the paper drops nothing.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Set Transformer: A Framework for Attention-based Permutation-Invariant Neural Networks",
        arxiv="1810.00825",
        equivariant=True,
        block="self_contained",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        points: int = 32,
        norm: bool = True,
        qkv_bias: bool = True,
        head_dim: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if points < 1:
            raise UserError(f"model.mixer.points={points}: must be at least 1")
        if width % heads or head_dim not in (None, width // heads):
            raise UserError(
                f"backbone.head_dim={head_dim}: an ISAB adds {heads} heads to rows of {width}; "
                "leave it out and choose backbone.heads that divide backbone.width"
            )
        self.points = nn.Parameter(torch.empty(1, points, width))
        nn.init.xavier_uniform_(self.points)
        self.gather, self.spread = (AttentionBlock(width, heads, norm, qkv_bias) for _ in range(2))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """The points read the real rows, the rows read the points."""
        visible = None if context.padding is None else context.padding.key_mask()
        points = self.points.expand(len(x), -1, -1)
        gathered = self.gather(points, x, visible, self.drop_rate)
        return self.spread(x, gathered, None, self.drop_rate), context
