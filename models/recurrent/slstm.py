"""sLSTM: a long short-term memory with exponential gates and a normaliser."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.exponential_scan import exponential_scan
from ..mixer import Context, MixerSpec
from .mlstm import BlockDiagonal
from .recurrence import Recurrence
from .short_filter import ShortFilter

MOST_HEADS = 2
"""Default of the number of heads, if the backbone does not have fewer."""


class SLSTM(Recurrence):
    """sLSTM layer of xLSTM: a scalar memory per channel, exponential gates, and recurrent weights within heads.

    c_t = f_t ⊙ c_(t−1) + i_t ⊙ tanh(z_t), n_t = f_t ⊙ n_(t−1) + i_t, h_t = σ(o_t) ⊙ c_t / n_t. Beck et al. 2024, arXiv
    2405.04517. x (B, N, E) -> (B, N, E). O(N E² / H) time, in N sequential steps; O(N E) memory.

    z_t and o_t and the logits of i_t and f_t are sums of a projection of x_t, a projection of h_(t−1) and a bias. All
    projections are block-diagonal with a block per head. The inputs of i_t and f_t are those of a convolution over x
    and SiLU. i_t is an exponential and f_t a sigmoid; a running maximum keeps both finite, without any effect on the
    outputs. The outputs of each head are normalised to mean 0 and variance 1 and scaled per channel; no projection
    follows, as the feed-forward network does.

    In the bidirectional form every head becomes two of half the width, which both read all features of the head, and
    each direction has its own weights. Raises ``UserError`` for an invalid option. Initial values as in the authors'
    code: recurrent weights 0, other weights normal with variance 2 / (5 E), biases 0 except those of f, which decrease
    from 5 to −7 within a head, in higher layers first slowly and then faster.

    Deviations from the authors' code: two heads instead of four, which gives about as many parameters as attention; the
    feed-forward network is that of the block; dropout follows the norm of the outputs.

    Args:
        width: Number of features E.
        heads: Number of heads of the backbone.
        filter: Length of the convolution in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        state_heads: Number of heads H; by default the heads of the backbone, but at most ``MOST_HEADS``.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="xLSTM: Extended Long Short-Term Memory",
        arxiv="2405.04517",
        causal="exact",
        memory=True,
        code="NX-AI/xlstm@032a6fb:xlstm/blocks/slstm/layer.py",
    )
    not_decayed = ("recurrent", "bias")  # as in the authors' code

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        filter: int = 4,
        filter_bias: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, inner=width, output=nn.Identity(), **common)
        directions = 1 if self.causal else 2
        if state_heads is not None and state_heads < 1:
            raise UserError(f"model.mixer.state_heads={state_heads}: must be at least 1")
        if filter < 0:
            raise UserError(f"model.mixer.filter={filter}: must be at least 0; 0 means no convolution")
        self.state_heads = min(heads, MOST_HEADS) if state_heads is None else state_heads
        self.streams = directions * self.state_heads
        if width % self.streams:
            sides = "" if self.causal else " in two directions"
            raise UserError(
                f"model.mixer.state_heads={self.state_heads}: {self.streams} recurrences{sides} do not divide width "
                f"{width}; change model.mixer.state_heads"
            )
        size, inputs = width // self.streams, width // self.state_heads
        self.filter = ShortFilter(directions * width, filter, bias=filter_bias) if filter else None
        deviation = (2 / (5 * width)) ** 0.5
        # Input and forget gates, and candidates and output gates.
        self.gates = BlockDiagonal(self.streams, inputs, 2 * size, deviation)
        self.values = BlockDiagonal(self.streams, inputs, 2 * size, deviation)
        self.recurrent = nn.Parameter(torch.zeros(self.streams, size, 4 * size))
        self.bias = nn.Parameter(torch.zeros(self.streams, 4 * size))
        with torch.no_grad():
            self.bias[:, size : 2 * size] = forget_biases(size, self.layer / max(self.depth - 1, 1))
        self.norm = nn.LayerNorm(size, elementwise_affine=False)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Convolve, compute the inputs of the gates, run the recurrence and normalise."""
        padding = context.padding
        if padding is not None:
            x = padding.zero(x)
        memory = {} if context.memory is None else dict(context.memory)
        u = x if self.causal else self.ordered(torch.cat((x, x), -1), context)
        convolved = u
        if self.filter is not None:
            convolved, memory["filter"] = self.filter(u, memory.get("filter"), padding)
        parts = [
            project(inputs).unflatten(-1, (self.streams, -1))
            for project, inputs in ((self.gates, convolved), (self.values, u))
        ]
        h, memory["state"] = exponential_scan(
            torch.cat(parts, -1) + self.bias,
            self.recurrent,
            memory.get("state"),
            None if padding is None else padding.lengths,
        )
        o = self.norm(h).flatten(2).to(x.dtype) * self.scale
        return self.finish(self.ordered(o, context)), self.remember(context, **memory)


def forget_biases(count: int, place: float) -> Tensor:
    """Return ``count`` biases of forget gates, decreasing from 5 to −7, for a layer at ``place`` between 0 and 1."""
    return 5 - 12 * (torch.arange(count) / max(count - 1, 1)) ** (0.3 + 1.3 * place)
