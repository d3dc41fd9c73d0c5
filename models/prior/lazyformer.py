"""LazyFormer: several consecutive layers share their attention weights."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.maps import attention_weights, visible_keys
from ..kernels.softmax import grouped, softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class LazyFormer(HeadMixer):
    """Attention whose weights are computed in the first of every ``share`` layers and reused in the others.

    Ying et al. 2021, arXiv 2102.12702. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). Every layer has its own
    values; only the first layer of a group has queries and keys. O(N^2 D) time, O(N D) memory. As in the paper, dropout
    is applied to the outputs instead of the weights. Raises ``UserError`` if ``share`` is below 1.

    Deviation from the paper: layers pass on queries and keys, and compute the weights again, so that no layer stores
    them; ``LazyMaps`` stores them.
    """

    spec = MixerSpec(
        family="prior",
        paper="LazyFormer: Self Attention with Lazy Update",
        arxiv="2102.12702",
        causal="exact",
        equivariant=True,
        growth=2.0,
        positions=("embed", "rotate"),
        carries=("lazyformer",),
        full_config={"share": 1},
    )

    def __init__(self, width: int, heads: int, *, share: int = 2, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if share < 1:
            raise UserError(f"model.mixer.share={share}: must be at least 1")
        self.leads = self.layer % share == 0
        self.is_followed = self.layer + 1 < self.depth and (self.layer + 1) % share > 0
        if not self.leads:
            del self.query, self.key

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute the weights or take those of the layer below, apply them and merge; add them to the carry."""
        decided = self.decide(x, context) if self.leads else context.carry["lazyformer"]
        o = dropout(self.apply_to(self.split(self.value(x)), decided, context), self.drop_rate)
        return self.merge(o), context.with_carry("lazyformer", decided) if self.is_followed else context

    def decide(self, x: Tensor, context: Context) -> tuple[Tensor, ...]:
        """Return the tensors that determine the weights: queries (B, H, N, D) and keys (B, G, N, D)."""
        return self.apply_rotation(self.split(self.query(x)), self.split(self.key(x)), context)

    def apply_to(self, v: Tensor, decided: tuple[Tensor, ...], context: Context) -> Tensor:
        """Return the outputs (B, H, N, D) for values (B, G, N, D), with the result of ``decide`` as second argument."""
        q, k = decided
        return softmax_attention(q, k, v, padding=context.padding, causal=self.causal)


class LazyMaps(LazyFormer):
    """``LazyFormer`` whose layers pass on the weights themselves, as in the paper.

    Ying et al. 2021, arXiv 2102.12702. O(N^2 D) time, of which layers that reuse weights save half; O(N^2) memory.

    Deviations from the paper: none.
    """

    spec = replace(LazyFormer.spec, materialises="maps")

    def decide(self, x: Tensor, context: Context) -> tuple[Tensor, ...]:
        """Return the attention weights (B, H, N, N) as a tuple of one tensor."""
        q, k = super().decide(x, context)
        visible = visible_keys(x.shape[1], context.padding, self.causal, x.device)
        return (attention_weights(grouped(q * self.head_dim**-0.5, k.mT), visible),)

    def apply_to(self, v: Tensor, decided: tuple[Tensor, ...], context: Context) -> Tensor:
        """Return the products (B, H, N, D) of weights and values (B, G, N, D)."""
        return grouped(decided[0].to(v.dtype), v)
