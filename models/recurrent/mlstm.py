"""mLSTM: a long short-term memory with a matrix state and an exponential input gate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence, still
from .short_filter import ShortFilter

DENOMINATOR_EPS = 1e-6
"""Constant that the authors add to the denominator of the outputs."""


class MLSTM(MatrixRecurrence):
    """mLSTM layer of xLSTM: linear attention with a matrix state, a forget gate and an exponential input gate.

    C_t = f_t C_(t−1) + i_t k_t v_tᵀ, n_t = f_t n_(t−1) + i_t k_t, outputs C_tᵀ q_t / max(|n_t · q_t|, 1). Beck et al.
    2024, arXiv 2405.04517. x (B, N, E) -> (B, N, E). O(N E (E + C + E / H)) time and O(N E) memory, in chunks of C
    tokens.

    x is projected to features u. Queries and keys are block-diagonal projections of c, which is u after a convolution
    and SiLU; values are block-diagonal projections of u. f is a sigmoid and i an exponential of projections of the
    queries, keys and values of all heads. The outputs of each head are normalised to mean 0 and variance 1 and scaled
    per channel; c, scaled per channel, is added, and a SiLU gate of x is applied.

    A running maximum m keeps f and i finite: the stored state is exp(−m) times C and n, which changes the outputs only
    in that ``DENOMINATOR_EPS`` is added to a denominator of the same scale. In the bidirectional form every head
    becomes two of half the width, and each direction has its own gates. Raises ``UserError`` for an invalid option.

    Initial values as in the authors' code: gate weights 0, biases of forget gates from 3 to 6, those of input gates
    normal with standard deviation 0.1; projections normal with variance 2 / (5 E), the output projection with standard
    deviation 2 / (``depth`` √E).

    Deviations from the authors' code: u is as wide as x, where theirs is twice as wide, which gives three quarters of
    the parameters of attention; the block also has a feed-forward network; dropout comes before the output projection.

    Args:
        width: Number of features E.
        heads: Number of heads of the backbone.
        filter: Length of the convolution in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        key_width: Total width of the queries, and of the keys, of all heads; by default ``width``.
        block: Number of features of u and c in a block of the block-diagonal projections.
        gated: Whether the SiLU gate is applied.
        state_heads: Number of heads H of the state; by default as in ``MatrixRecurrence``.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="xLSTM: Extended Long Short-Term Memory",
        arxiv="2405.04517",
        causal="exact",
        memory=True,
        code="NX-AI/xlstm@032a6fb:xlstm/blocks/mlstm/layer.py",
    )
    decay_per_head = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        filter: int = 4,
        filter_bias: bool = True,
        key_width: int | None = None,
        block: int = 4,
        gated: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        key_width = width if key_width is None else key_width
        super().__init__(width, heads, key_width=key_width, filter=0, gated=gated, state_heads=state_heads, **common)
        if filter < 0:
            raise UserError(f"model.mixer.filter={filter}: must be at least 0; 0 means no convolution")
        directions = 1 if self.causal else 2
        if block < 1 or width % (directions * block):
            raise UserError(
                f"model.mixer.block={block}: blocks do not divide the {width // directions} features of a direction; "
                "choose a divisor"
            )
        if key_width % (width // block):
            raise UserError(
                f"model.mixer.key_width={key_width}: not a multiple of the {width // block} blocks of "
                f"model.mixer.block={block}; change one of them"
            )
        blocks, begin = width // block, (2 / (5 * width)) ** 0.5
        self.query = BlockDiagonal(blocks, block, key_width // blocks, begin)
        self.key = BlockDiagonal(blocks, block, key_width // blocks, begin)
        self.value = BlockDiagonal(blocks, block, block, begin)
        self.up, self.output = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, width, bias=False) if gated else None
        for projection in (self.up, self.gate):
            if projection is not None:
                nn.init.normal_(projection.weight, std=begin)
        nn.init.normal_(self.output.weight, std=2 / self.depth / width**0.5)
        self.filter = ShortFilter(width, filter, bias=filter_bias) if filter else None
        self.norm = nn.LayerNorm(self.head_dim, eps=self.norm_eps, elementwise_affine=False)
        self.scale, self.skip = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        inputs = (2 * key_width + width) // directions
        forget, add = ([linear(inputs, self.state_heads) for _ in range(directions)] for _ in range(2))
        for forget_gate, add_gate in zip(forget, add, strict=True):
            nn.init.zeros_(forget_gate.weight)
            nn.init.zeros_(add_gate.weight)
            with torch.no_grad():
                forget_gate.bias.copy_(torch.linspace(3, 6, self.state_heads))
            nn.init.normal_(add_gate.bias, std=0.1)
        self.forget, self.add = nn.ModuleList(forget), nn.ModuleList(add)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project x, apply the convolution, run the recurrence, add the convolved features, gate and project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        memory = {} if context.memory is None else dict(context.memory)
        u = self.ordered(self.up(x), context)
        if self.filter is None:
            convolved = F.silu(u)
        else:
            convolved, memory["filter"] = self.filter(u, memory.get("filter"), context.padding)
        q, k = (self.split(project(convolved), self.streams) for project in (self.query, self.key))
        v = self.split(self.value(u), self.streams)
        o, memory["state"] = self.recall(q, k, v, x, context, memory.get("state"))
        o = self.norm(o).transpose(1, 2).flatten(2).to(x.dtype) * self.scale + self.skip * convolved
        o = self.ordered(o, context)
        y = o if self.gate is None else o * F.silu(self.gate(x))
        return self.finish(y), self.remember(context, **memory)

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence on queries, keys and values, with the shapes of ``MatrixRecurrence.recall``.

        The state is (B, H, K + 1, V + 1): C with n as its last column, and m in the last row.
        """
        log_forget = F.logsigmoid(self._by_direction(self.forget, q, k, v))
        log_add = self._by_direction(self.add, q, k, v)
        if context.padding is not None:
            log_forget = still(log_forget, context.padding)
            log_add = log_add.masked_fill(~context.padding.valid[:, None], -torch.inf)
            k = context.padding.zero_heads(k)
        cell, first = None, log_add.new_zeros(log_add.shape[:2])
        if state is not None:
            cell, first = state[:, :, :-1], state[:, :, -1, -1].to(first.dtype)
        running_max = running_maximum(log_forget, log_add, first)
        before = torch.cat((first[..., None], running_max[..., :-1]), -1)
        k = k * (log_add - running_max).exp()[..., None] * self.key_dim**-0.5
        # A value of one in an additional column accumulates n.
        o, cell = self.decay_attention(q, k, F.pad(v, (0, 1), value=1.0), log_forget + before - running_max, state=cell)
        denominator = torch.maximum(o[..., -1:].abs(), (-running_max).exp()[..., None]) + DENOMINATOR_EPS
        last = running_max[..., -1, None, None].expand(-1, -1, 1, cell.shape[-1])
        return o[..., :-1] / denominator, torch.cat((cell, last), 2)

    def _by_direction(self, gates: nn.ModuleList, *features: Tensor) -> Tensor:
        """Return projections (B, H, N) of the features (B, H, N, D) of all heads of a direction, by one of ``gates``.

        In single precision or better.
        """
        parts = zip(*(each.chunk(len(gates), 1) for each in features), strict=True)
        rows = [torch.cat([each.transpose(1, 2).flatten(2) for each in part], -1) for part in parts]
        logits = torch.cat([gate(row) for gate, row in zip(gates, rows, strict=True)], -1).transpose(1, 2)
        return logits.float() if logits.dtype.itemsize < 4 else logits


class BlockDiagonal(nn.Module):
    """Linear map without bias by a block-diagonal matrix: x (..., G·I) to (..., G·O).

    Args:
        blocks: Number of blocks G.
        inputs: Number of input features of a block I.
        outputs: Number of output features of a block O.
        deviation: Standard deviation of the initial weights.
    """

    def __init__(self, blocks: int, inputs: int, outputs: int, deviation: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(blocks, outputs, inputs) * deviation)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to x (..., G·I)."""
        return torch.einsum("...gi,goi->...go", x.unflatten(-1, (self.weight.shape[0], -1)), self.weight).flatten(-2)


def running_maximum(log_forget: Tensor, log_add: Tensor, first: Tensor) -> Tensor:
    """Return m_t = max(log_forget_t + m_(t−1), log_add_t) of gates (B, H, N), without gradient.

    m_0 is ``first`` (B, H).
    """
    with torch.no_grad():
        total = log_forget.cumsum(-1)
        return total + torch.maximum((log_add - total).cummax(-1).values, first[..., None])
