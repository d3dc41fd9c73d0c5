"""Luna: attention through a short packed sequence that is passed from layer to layer."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.few import few_attention
from ..kernels.linear import causal_linear_sums, full_precision
from ..mixer import Context, HeadMixer, MixerSpec

GAIN = 0.5**0.5  # of the initial weights of the projections to both attentions, as in the authors' code


class Luna(HeadMixer):
    """A packed sequence P (l, E) attends to the tokens, then the tokens attend to its output: two l × N attentions.

    Ma et al. 2021, arXiv 2106.01540. x (B, N, E) -> (B, N, E). O(N l E) time; O(N E) memory, causal O(N √(l D) H).
    ``packed`` is l. Keys and values of each attention are the same projection, as in the authors' code: ``key``
    projects x for P, ``value`` projects the packed output for x. The first layer learns P; each layer passes P plus its
    packed output on, and the next layer normalises it with its own norm.
    The causal form packs by running means with weights log2(1 + 2^(P·k)), which need no normaliser. P is then the
    learned sequence in every layer, because a packed output carried from layer to layer would contain later tokens.
    Initial weights of the projections to both attentions are Xavier-uniform with gain 1/√2.

    Deviations from the authors' code: P is normalised before each layer, also under ``backbone.norm_place=post``; the
    packed output that is passed on has no dropout, and neither have the packing weights of the causal form; P starts
    from N(0, 1), where the authors normalise N(0, 1/E); biases start at zero, where the authors start only that of the
    output at zero; all vectors of P are used in a sequence of fewer tokens, where the authors use as many as there are
    tokens. In their models for the Long Range Arena keys and values have separate projections, and initial weights for
    ListOps are drawn from N(0, 0.02²).
    """

    spec = MixerSpec(
        family="compressed",
        paper="Luna: Linear Unified Nested Attention",
        arxiv="2106.01540",
        code="XuezheMax/fairseq-apollo@3644d20:fairseq/modules/luna_attention.py",
        causal="exact",
        equivariant=True,
        carries=("luna",),
    )
    revision: ClassVar[int] = 2
    not_decayed = ("packed",)

    def __init__(self, width: int, heads: int, *, packed: int = 128, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if packed < 1:
            raise UserError(f"model.mixer.packed={packed}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError(
                "model.mixer.kv_heads: Luna uses one projection for keys and values of all heads; leave it out"
            )
        if self.head_dim * heads != width:
            raise UserError(
                "backbone.head_dim: in Luna the widths of all heads must sum to the model's width; leave it out"
            )
        self.packed_length = packed
        self.packed_query = nn.Linear(width, width)
        nn.init.zeros_(self.packed_query.bias)
        for linear in (self.query, self.key, self.value, self.packed_query):
            nn.init.xavier_uniform_(linear.weight, gain=GAIN)
        # Unit scale, like the normalised input of later layers.
        self.packed = nn.Parameter(torch.randn(1, packed, width)) if self.layer == 0 else None
        self.norm = nn.LayerNorm(width) if self.layer > 0 and not self.causal else None

    def restricts_from(self) -> int:
        """Return the smallest length that exceeds that of the packed sequence."""
        return self.packed_length + 1

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Pack, unpack, merge heads, and pass the packed sequence to the next layer."""
        packed_input = context.carry["luna"] if self.packed is None else self.packed
        packed_input = packed_input if self.norm is None else self.norm(packed_input)
        p_query, keys = self.split(self.packed_query(packed_input)), self.split(self.key(x))
        if self.causal:
            unpacked = self._causal(self.split(self.query(x)), keys, self.split(self.value(x)), p_query)
        else:
            visible = None if context.padding is None else context.padding.key_mask()
            p_query = p_query.expand(len(x), -1, -1, -1)
            packed = few_attention(p_query, keys, keys, visible=visible, dropout=self.drop_rate)
            packed = packed.transpose(1, 2).flatten(2)
            values = self.split(self.value(packed))
            unpacked = few_attention(self.split(self.query(x)), values, values, dropout=self.drop_rate)
            packed_input = packed_input + packed
        if self.layer + 1 < self.depth:
            # A copy, because a sharded layer releases its weights after its forward pass.
            context = context.with_carry("luna", packed_input.clone() if self.causal else packed_input)
        return self.merge(unpacked), context

    def _causal(self, q: Tensor, keys: Tensor, values: Tensor, p_query: Tensor) -> Tensor:
        """Return (B, H, N, D): each token attends to the sequence that was packed up to it.

        q, keys and values are (B, H, N, D), ``p_query``, the queries of P, is (1, H, l, D).
        """
        with full_precision(q):
            q, keys, values, p_query = (x.float() if x.dtype.itemsize < 4 else x for x in (q, keys, values, p_query))
            scale = self.head_dim**-0.5
            weights = F.softplus(keys @ p_query.mT * scale, beta=math.log(2))
            counts = torch.arange(1, q.shape[2] + 1, device=q.device, dtype=q.dtype)[:, None]
            scores = causal_linear_sums(q * scale, values, weights) / counts
            probabilities = dropout(scores.softmax(-1), self.drop_rate)
            return causal_linear_sums(probabilities, weights, values) / counts
