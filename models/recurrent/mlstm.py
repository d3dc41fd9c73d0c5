"""The long short-term memory whose cell is a matrix, with an exponential input gate."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..feedforward import linear
from ..mixer import Context, MixerSpec
from .matrix_recurrence import MatrixRecurrence, still


class MLSTM(MatrixRecurrence):
    """C_t = f_t C_(t−1) + i_t k_t v_tᵀ and n_t alike of keys alone; read as C_tᵀ q_t / max(|n_t · q_t|, 1).

    Beck et al. 2024, arXiv 2405.04517: the mLSTM of xLSTM. x (B, N, E) -> (B, N, E).
    O(N E (C + E / H)) time, O(N E) memory, by chunks of C rows. f is a sigmoid and i an exponential of the row, kept
    finite by a running maximum m: what is stored is exp(−m) of the cell, which changes no output. Queries, keys and
    values go through a convolution over ``filter`` rows; a norm of each head and a SiLU gate follow. Both directions
    and ``key_width`` as ``MatrixRecurrence``. Forget gates begin with biases between 3 and 6, gates with weights of 0.
    Deviates: nothing is projected to twice the width, so that the system has as many weights as attention; values are
    convolved too; gates read the row, not queries, keys and values; projections are not block-diagonal.
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
        """The last column of the state is n; behind the keys stands one row for the maximum."""
        log_forget = F.logsigmoid(self.by_stream(self.forget(x), context))
        log_add = self.by_stream(self.add(x), context)
        if context.padding is not None:
            log_forget = still(log_forget, context.padding)
            log_add = log_add.masked_fill(~context.padding.valid[:, None], -torch.inf)
            k = context.padding.zero_heads(k)
        cell, first = None, log_add.new_zeros(log_add.shape[:2])
        if state is not None:
            cell, first = state[:, :, :-1], state[:, :, -1, -1].to(first.dtype)
        highest = running_maximum(log_forget, log_add, first)
        before = torch.cat((first[..., None], highest[..., :-1]), -1)
        k = k * (log_add - highest).exp()[..., None] * self.key_dim**-0.5
        o, cell = self.decay_attention(q, k, F.pad(v, (0, 1), value=1.0), log_forget + before - highest, state=cell)
        o = o[..., :-1] / torch.maximum(o[..., -1:].abs(), (-highest).exp()[..., None])
        last = highest[..., -1, None, None].expand(-1, -1, 1, cell.shape[-1])
        return o, torch.cat((cell, last), 2)


def running_maximum(log_forget: Tensor, log_add: Tensor, first: Tensor) -> Tensor:
    """m_t = max(log_forget_t + m_(t−1), log_add_t) of gates (B, H, N), with m_0 = ``first`` (B, H); no gradient."""
    with torch.no_grad():
        forgotten = log_forget.cumsum(-1)
        return forgotten + torch.maximum((log_add - forgotten).cummax(-1).values, first[..., None])
