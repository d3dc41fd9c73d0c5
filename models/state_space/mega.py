"""Mega: single-head gated attention on exponential moving averages."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.rows import row_attention, softmax
from ..mixer import Context, Mixer, MixerSpec, Padding
from .moving_average import MovingAverage

Function = Literal["softmax", "laplace"]
MEAN, DEVIATION = 0.5**0.5, (4 * math.pi) ** -0.5  # with these the Laplace function approximates a squared ReLU


class Mega(Mixer):
    """Gated single-head attention whose queries, keys and gates are computed from moving averages.

    u ⊙ (h − X) with h = SiLU(W m + V (r ⊙ o)), moving averages m of x, attention outputs o, and gates r and u computed
    from m. X is the residual of the block: x, or the input of the norm if x is normalised before the mixer. The sum of
    residual and output is thus u ⊙ h + (1 − u) ⊙ X in both cases.
    Ma et al. 2022, arXiv 2209.10655. x (B, N, E) -> (B, N, E). O(N^2 E) time and O(N E) memory: scores are computed in
    blocks of queries and recomputed in the backward pass. m are damped exponential moving averages. Queries and keys
    are one SiLU projection of m, each with its own scale and shift; values are a SiLU projection of x. Scores have a
    learned bias per relative distance. Dropout applies to m, to h and, with its own probability, to the attention
    weights. Raises ``UserError`` for an invalid option.

    Deviations from the authors' code: default sizes give about as many parameters as attention, where the authors use
    16 averages, a query width of about E / 2 and values of width 2 E; distances beyond ``reach`` share the bias of the
    farthest, where the authors have one for each; the kernel of the averages is not truncated; projections are
    initialised Xavier-uniform, where the authors draw from N(0, 0.02²); values have no dropout, whose probability is 0
    in all commands of the authors for the Long Range Arena.

    Args:
        width: Number of features E.
        heads: Not used; attention has one head.
        averages: Number of moving averages per channel; by default E / 16.
        query_width: Width of queries and keys; by default E / 4.
        hidden: Width of the values; by default E / 2.
        function: ``softmax``, or ``laplace``, which maps each score to a weight between 0 and 1 without normalising
            over the keys and divides scores by the number of visible keys.
        reach: Largest relative distance with its own bias.
        attention_dropout: Dropout probability of the attention weights.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Mega: Moving Average Equipped Gated Attention",
        arxiv="2209.10655",
        code="facebookresearch/mega@aeaa4b4:fairseq/modules/moving_average_gated_attention.py",
        causal="exact",
        growth=2.0,
        materialises="rows",
    )
    revision: ClassVar[int] = 2
    not_decayed = ("scales", "shifts", "average.amount", "average.damping")
    drops_output: ClassVar[bool] = True

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
        attention_dropout: float = 0.0,
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
            raise UserError(f"model.mixer.function={function}: must be one of {', '.join(get_args(Function))}")
        if not 0 <= attention_dropout < 1:
            raise UserError(
                f"model.mixer.attention_dropout={attention_dropout}: is not a probability; set it to 0 or more, below 1"
            )
        self.function, self.reach, self.attention_dropout = function, reach, attention_dropout
        self.average = MovingAverage(width, averages, 1 if self.causal else 2)
        self.sizes = (width, hidden, query_width, width)
        self.value, self.gates, self.read = linear(width, hidden), linear(width, sum(self.sizes)), linear(hidden, width)
        self.scales = nn.Parameter(0.02 * torch.randn(2, query_width))
        self.shifts = nn.Parameter(torch.zeros(2, query_width))
        self.places = nn.Parameter(0.02 * torch.randn(2 * reach + 1))

    def restricts_from(self) -> int | None:
        """Return None: every token attends to all visible tokens."""
        return None

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute moving averages, attend and gate."""
        residual = x if context.residual is None else context.residual
        if context.padding is not None:
            x, residual = context.padding.zero(x), context.padding.zero(residual)
        memory = {} if context.memory is None else dict(context.memory)
        averaged, memory["average"] = self.average(x, memory.get("average"), context.padding)
        update, reset, shared, candidate = self.gates(dropout(averaged, self.drop_rate)).split(self.sizes, -1)
        q, k = (F.silu(shared)[..., None, :] * self.scales + self.shifts).unbind(-2)
        o, memory = self.attend(q, k, F.silu(self.value(x)), context.padding, memory)
        h = dropout(F.silu(candidate + self.read(o.to(x.dtype) * F.silu(reset))), self.drop_rate)
        remembers = self.causal and self.spec.memory
        return update.sigmoid() * (h - residual), context.replace(memory=memory) if remembers else context

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, padding: Padding | None, memory: dict[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Attend with q and k (B, N, Z) and v (B, N, V).

        Returns outputs (B, N, V), and ``memory`` with the entries that attention needs for the next tokens.
        """
        return self.weigh(q, k, v, padding), memory

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, padding: Padding | None) -> Tensor:
        """Attend to all keys with one head and relative biases: q and k (B, N, Z), v (B, N, V) to (B, N, V)."""
        use_laplace = self.function == "laplace"
        q = q / self._visible_keys(q, padding) if use_laplace else q * q.shape[-1] ** -0.5

        def score(queries: Tensor, start: int, count: int) -> Tensor:
            return queries @ k[:, None, :count].mT + self.bias(start, queries.shape[2], count)

        return row_attention(
            *(q[:, None], v[:, None], score),
            padding=padding,
            causal=self.causal,
            dropout=self.attention_dropout if self.training else 0.0,
            weigh=laplace if use_laplace else softmax,
        )[:, 0]

    def bias(self, start: int, queries: int, keys: int) -> Tensor:
        """Return the relative biases of some queries, beginning at ``start``, to the first keys: (queries, keys)."""
        distances = torch.arange(1 - start - queries, keys - start, device=self.places.device)
        biases = self.places[distances.clamp(-self.reach, self.reach) + self.reach]
        return biases.unfold(0, keys, 1).flip(0)

    def _visible_keys(self, q: Tensor, padding: Padding | None) -> Tensor:
        """Return the number of keys visible to each query, at least one, which broadcasts to q (B, N, Z)."""
        if self.causal:
            return torch.arange(1, q.shape[1] + 1, device=q.device)[:, None]
        if padding is None:
            return torch.tensor(q.shape[1], device=q.device)
        return padding.lengths.clamp(min=1)[:, None, None]


def laplace(scores: Tensor) -> Tensor:
    """Return attention weights between 0 and 1: the normal distribution function of each score."""
    return 0.5 * (1 + ((scores - MEAN) / (DEVIATION * 2**0.5)).erf())
