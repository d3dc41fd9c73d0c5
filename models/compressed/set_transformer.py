"""Set Transformer: attention through a few learned inducing points."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.few import few_attention
from ..mixer import Context, Mixer, MixerSpec

SCALES = ("width", "head")


class AttentionBlock(nn.Module):
    """MAB(X, Y) = norm(O + ReLU(W_o O)), with O = norm(W_q X + multi-head attention from X to Y).

    x (B, N, E), y (B, M, E) -> (B, N, E). ``scale`` is the factor of the scores.
    """

    def __init__(self, width: int, heads: int, norm: bool, qkv_bias: bool, scale: float) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.query, self.key, self.value = (linear(width, width, qkv_bias) for _ in range(3))
        self.feed_forward = linear(width, width)
        self.read_norm, self.norm = (nn.LayerNorm(width) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor, y: Tensor, visible: Tensor | None, drop_rate: float) -> Tensor:
        """Return the output (B, N, E) of x attending to those positions of y that are ``visible`` (B, 1, 1, M)."""
        projected = self.query(x)
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (projected, self.key(y), self.value(y))
        )
        is_short = self.training and x.shape[1] < y.shape[1]
        o = few_attention(q, k, v, visible=visible, scale=self.scale, dropout=drop_rate, hold=is_short)
        o = self.read_norm(projected + dropout(o.transpose(1, 2).flatten(2), drop_rate))
        output: Tensor = self.norm(o + dropout(F.relu(self.feed_forward(o)), drop_rate))
        return output


class InducedSetAttention(Mixer):
    """ISAB(X) = MAB(X, MAB(I, X)): ``points`` learned inducing points I attend to the set, then the set to them.

    Lee et al. 2019, arXiv 1810.00825. x (B, N, E) -> (B, N, E). O(N m E) time; O(N E) memory, and during training on
    CPU N m stored attention weights per head, those of the inducing points. A self-contained block, which includes the
    residual sums, norms and feed-forward layer of each MAB.

    As in the authors' code (juho-lee/set_transformer at 73432c6, modules.py), the residual is the projected query,
    heads are concatenated without an output projection, so that an ISAB has about as many parameters as a Transformer
    block, and scores are multiplied by 1/√E, with E the width of all heads.

    Deviations from the authors' code: norms are applied by default, as in the paper; dropout is applied to attention
    weights and branches, as in all blocks of this repository.

    Args:
        width: Model width E.
        heads: Number of heads.
        points: Number of inducing points m.
        norm: Whether each MAB has its two norms; the default of the authors' code is False.
        scale: ``width`` for scores multiplied by 1/√E, or ``head`` for 1/√D with D the width of a head.
        qkv_bias: Whether the query, key and value projections have a bias.
        head_dim: Width of a head, which must be E divided by the number of heads.
        common: Options of ``Mixer``.

    Raises:
        UserError: If an option is out of range.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Set Transformer: A Framework for Attention-based Permutation-Invariant Neural Networks",
        arxiv="1810.00825",
        equivariant=True,
        block="self_contained",
        code="juho-lee/set_transformer@73432c6:modules.py",
    )
    revision: ClassVar[int] = 2
    not_decayed = ("points",)

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        points: int = 32,
        norm: bool = True,
        scale: str = "width",
        qkv_bias: bool = True,
        head_dim: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if points < 1:
            raise UserError(f"model.mixer.points={points}: must be at least 1")
        if scale not in SCALES:
            raise UserError(f"model.mixer.scale={scale}: must be one of {', '.join(SCALES)}")
        if width % heads or head_dim not in (None, width // heads):
            raise UserError(
                f"backbone.head_dim={head_dim}: the {heads} heads of an ISAB must have a total width of {width}; "
                "leave it out and set backbone.heads to a divisor of backbone.width"
            )
        self.points = nn.Parameter(torch.empty(1, points, width))
        nn.init.xavier_uniform_(self.points)
        factor = (width if scale == "width" else width // heads) ** -0.5
        self.gather, self.spread = (AttentionBlock(width, heads, norm, qkv_bias, factor) for _ in range(2))

    def restricts_from(self) -> int:
        """Return m + 1, the smallest length at which tokens are more than inducing points."""
        return len(self.points[0]) + 1

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Attend from the inducing points to the tokens without padding, then from all tokens to the points."""
        visible = None if context.padding is None else context.padding.key_mask()
        points = self.points.expand(len(x), -1, -1)
        gathered = self.gather(points, x, visible, self.drop_rate)
        return self.spread(x, gathered, None, self.drop_rate), context
