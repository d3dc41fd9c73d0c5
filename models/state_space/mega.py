"""Gated attention of one head, whose queries and keys are moving averages."""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.rows import row_attention, softmax
from ..mixer import Context, Mixer, MixerSpec, Padding
from .moving_average import MovingAverage

Function = Literal["softmax", "laplace"]
MEAN, DEVIATION = 0.5**0.5, (4 * math.pi) ** -0.5  # with which the Laplace function comes near a squared ReLU


class Mega(Mixer):
    """u ⊙ (SiLU(W m + V (r ⊙ o)) − x): what attention o reads, let through by gates r and u of moving averages m of x.

    Ma et al. 2022, arXiv 2209.10655. x (B, N, E) -> (B, N, E). O(N^2 E) time; O(N E) memory, by rows of scores that are
    computed again in the backward pass. m are damped averages, of ``averages`` dimensions for each channel. Queries and
    keys are one SiLU projection of m, ``query_width`` wide, each with its own scales and shifts; values are a SiLU
    projection of x, ``hidden`` wide. ``function`` makes weights of scores: ``softmax``, or ``laplace``, a sigmoid that
    does not let keys compete, of scores divided by their number. Scores have a learned bias for each distance up to
    ``reach``; what is farther has that of the farthest, where the paper has one for every distance of a row.
    Deviates: norm and sum stand where the recipe has them, so that the gate u mixes the result with x as the block's
    norm leaves it, and with x itself, as the paper has it, under backbone.norm_place=post; sizes (E / 16, E / 4 and
    E / 2 by default) are such that the system has about as many weights as attention, where the paper has 16, about
    E / 2 and 2 E; projections begin Xavier-uniform; of what is inside, weights alone are dropped.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Mega: Moving Average Equipped Gated Attention",
        arxiv="2209.10655",
        causal="exact",
        growth=2.0,
        materialises="rows",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        averages: int | None = None,
        query_width: int | None = None,
        hidden: int | None = None,
        function: Function = "softmax",
        reach: int = 256,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        averages = max(1, width // 16) if averages is None else averages
        query_width = max(1, width // 4) if query_width is None else query_width
        hidden = max(1, width // 2) if hidden is None else hidden
        for name, size in {"query_width": query_width, "hidden": hidden, "reach": reach}.items():
            if size < 1:
                raise UserError(f"model.mixer.{name}={size}: must be at least 1")
        if function not in get_args(Function):
            raise UserError(f"model.mixer.function={function}: is none of {', '.join(get_args(Function))}")
        self.function, self.reach = function, reach
        self.average = MovingAverage(width, averages, 1 if self.causal else 2)
        self.sizes = (width, hidden, query_width, width)
        self.value, self.gates, self.read = linear(width, hidden), linear(width, sum(self.sizes)), linear(hidden, width)
        self.scales = nn.Parameter(0.02 * torch.randn(2, query_width))
        self.shifts = nn.Parameter(torch.zeros(2, query_width))
        self.places = nn.Parameter(0.02 * torch.randn(2 * reach + 1))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Average, attend, gate."""
        if context.padding is not None:
            x = context.padding.zero(x)
        memory = {} if context.memory is None else dict(context.memory)
        averaged, memory["average"] = self.average(x, memory.get("average"), context.padding)
        update, reset, shared, own = self.gates(averaged).split(self.sizes, -1)
        q, k = (F.silu(shared)[..., None, :] * self.scales + self.shifts).unbind(-2)
        o, memory = self.attend(q, k, F.silu(self.value(x)), context.padding, memory)
        y = F.silu(own + self.read(o.to(x.dtype) * F.silu(reset)))
        remembers = self.causal and self.spec.memory
        return update.sigmoid() * (y - x), context.replace(memory=memory) if remembers else context

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Padding | None, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """q and k (B, N, Z), v (B, N, V) to (B, N, V), and what attention adds to ``memory``."""
        return self.weigh(q, k, v, padding), memory

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, padding: Padding | None) -> Tensor:
        """Attention of one head to all keys, with the bias of distances: as ``attend``."""
        laplacian = self.function == "laplace"
        q = q / self._seen(q, padding) if laplacian else q * q.shape[-1] ** -0.5

        def score(queries: Tensor, start: int, count: int) -> Tensor:
            return queries @ k[:, None, :count].mT + self.bias(start, queries.shape[2], count)

        return row_attention(
            *(q[:, None], v[:, None], score),
            padding=padding,
            causal=self.causal,
            dropout=self.drop_rate,
            weigh=laplace if laplacian else softmax,
        )[:, 0]

    def bias(self, start: int, queries: int, keys: int) -> Tensor:
        """What is added to the scores of some queries from ``start`` on against the first keys, (queries, keys)."""
        distances = torch.arange(1 - start - queries, keys - start, device=self.places.device)
        line = self.places[distances.clamp(-self.reach, self.reach) + self.reach]
        return line.unfold(0, keys, 1).flip(0)

    def _seen(self, q: Tensor, padding: Padding | None) -> Tensor:
        """How many keys each query sees, at least one, broadcasting to q (B, N, Z)."""
        if self.causal:
            return torch.arange(1, q.shape[1] + 1, device=q.device)[:, None]
        if padding is None:
            return torch.tensor(q.shape[1], device=q.device)
        return padding.lengths.clamp(min=1)[:, None, None]


def laplace(scores: Tensor) -> Tensor:
    """The distribution function of a normal variable, each score by itself: weights between 0 and 1."""
    return 0.5 * (1 + ((scores - MEAN) / (DEVIATION * 2**0.5)).erf())
