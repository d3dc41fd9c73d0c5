"""mLSTM: a long short-term memory with a matrix state and an exponential input gate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence, still


class MLSTM(MatrixRecurrence):
    """mLSTM of xLSTM: linear attention with a matrix state, a forget gate and an exponential input gate.

    C_t = f_t C_(t−1) + i_t k_t v_tᵀ, n_t = f_t n_(t−1) + i_t k_t, outputs C_tᵀ q_t / max(|n_t · q_t|, 1). Beck et al.
    2024, arXiv 2405.04517. x (B, N, E) -> (B, N, E). O(N E (C + E / H)) time and O(N E) memory, in chunks of C tokens.
    f is a sigmoid and i an exponential of a projection of x_t. A running maximum m keeps them finite: the stored state
    is exp(−m) times C and n, which does not change the outputs. Queries, keys and values pass through a convolution
    over ``filter`` tokens; a norm of each head and a SiLU gate follow. Bidirectional form and ``key_width`` as in
    ``MatrixRecurrence``. Gate weights are initialised to 0, biases of forget gates to values from 3 to 6 and those of
    input gates normal with standard deviation 0.1.

    Deviations from the paper: nothing is projected to twice the width, which gives about as many parameters as
    attention; values are convolved too; gates depend on x, not on queries, keys and values; projections are not
    block-diagonal.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="xLSTM: Extended Long Short-Term Memory",
        arxiv="2405.04517",
        causal="exact",
        memory=True,
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        filter: int = 4,
        key_width: int | None = None,
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, filter=filter, key_width=key_width, gated=gated, **common)
        self.forget, self.add = linear(width, self.streams), linear(width, self.streams)
        with torch.no_grad():
            for gate in (self.forget, self.add):
                gate.weight.zero_()
            self.forget.bias.copy_(torch.linspace(3, 6, heads).repeat(self.streams // heads))
            self.add.bias.normal_(std=0.1)

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the recurrence on queries, keys and values, with the shapes of ``MatrixRecurrence.recall``.

        The state is (B, H, K + 1, V + 1): C with n as its last column, and m in the last row.
        """
        log_forget = F.logsigmoid(self.by_stream(self.forget(x), context))
        log_add = self.by_stream(self.add(x), context)
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
        o = o[..., :-1] / torch.maximum(o[..., -1:].abs(), (-running_max).exp()[..., None])
        last = running_max[..., -1, None, None].expand(-1, -1, 1, cell.shape[-1])
        return o, torch.cat((cell, last), 2)


def running_maximum(log_forget: Tensor, log_add: Tensor, first: Tensor) -> Tensor:
    """Return m_t = max(log_forget_t + m_(t−1), log_add_t) of gates (B, H, N), without gradient.

    m_0 is ``first`` (B, H).
    """
    with torch.no_grad():
        total = log_forget.cumsum(-1)
        return total + torch.maximum((log_add - total).cummax(-1).values, first[..., None])
