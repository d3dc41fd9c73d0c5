"""Log-linear attention with the decays of Mamba-2: a hierarchy of states instead of a single one."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.log_linear import level_count, log_linear_attention
from ..mixer import Context, MixerSpec
from ..recurrent.matrix_recurrence import still
from .mamba2 import Mamba2


class LogLinearMamba2(Mamba2):
    """Mamba-2 with a state for each of about log₂ N blocks of preceding tokens, and weights of these states.

    y_t = Σ_l λ_(t,l) S_(t,l)ᵀ C_t + D x_t, where S_(t,l) = Σ_j α_(j→t) Δ_j B_j x_jᵀ sums over the tokens j of block l,
    with the decay α_(j→t) of Mamba-2 from j to t. Block 0 is the token itself, and the blocks before it are of the
    sizes of the binary digits of t, counted from 0, the smallest nearest. λ_(t,l) = softplus(L_l (w_l u_t + b_l)). Guo
    et al. 2025, arXiv 2506.04761. u (B, N, E) -> (B, N, E). O(N H K (C + E / H log(N / C))) time and O(N (E + H K + H
    C)) memory, in chunks of C tokens; the forward pass stores O(N E) for each of the log(N / C) levels. Projections,
    convolution, gate, initial values and bidirectional form as in ``Mamba2``; L is initialised to one. With all λ equal
    to one it computes ``Mamba2``.

    Blocks are counted from the first token of a sequence, so that no state is passed from batch to batch.

    Deviations from the authors' code: there are as many λ as the longest expected sequence needs, where theirs has 15;
    longer sequences use the last one for all larger blocks; rates A are drawn uniformly from 1 to 16, where theirs are
    1 to H. The others as in ``Mamba2``.

    Args:
        width: Number of features E.
        heads: Number of heads H of the backbone.
        levels: Number of λ per head; by default 1 + ⌈log₂ ``max_length``⌉.
        key_width: Width of B, and of C; by default E / 2, half of it for each direction in the bidirectional form.
        filter: Length of the convolution in tokens; 0 for none.
        filter_bias: Whether the convolution has a bias.
        gated: Whether a SiLU gate is applied before the norm.
        state_heads: Number of heads H of the state; by default as in ``MatrixRecurrence``.
        **common: Arguments of ``Mixer``.
    """

    accelerate = None  # type: ignore[assignment]  # no kernels of another package are used
    spec = MixerSpec(
        family="state_space",
        paper="Log-Linear Attention",
        arxiv="2506.04761",
        causal="exact",
        growth=1.2,  # effective exponent of N log N between a few hundred and a few thousand tokens
        code="HanGuo97/log-linear-attention@7f86441:hattention/modeling_hattention.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        levels: int | None = None,
        key_width: int | None = None,
        filter: int = 4,
        filter_bias: bool = True,
        gated: bool = True,
        state_heads: int | None = None,
        **common: Any,
    ) -> None:
        matrix: dict[str, Any] = {"filter": filter, "filter_bias": filter_bias, "gated": gated}
        super().__init__(width, heads, key_width=key_width, state_heads=state_heads, **matrix, **common)
        if levels is not None and levels < 1:
            raise UserError(f"model.mixer.levels={levels}: must be at least 1")
        self.levels = level_count(self.max_length) if levels is None else levels
        self.level = linear(width, self.streams * self.levels)
        self.level_scale = nn.Parameter(torch.ones(self.streams, self.levels))
        self.optimizer_hints = {**self.optimizer_hints, "level_scale": {"weight_decay": 0.0}}

    def remember(self, context: Context, **state: Tensor) -> Context:
        """Return the context without a memory."""
        return context

    def recall(
        self, q: Tensor, k: Tensor, v: Tensor, x: Tensor, context: Context, state: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Compute the outputs (B, H, N, V) with C as queries, B as keys and x as values; no state is returned."""
        steps = F.softplus(self.by_stream(self.step(x), context))
        if context.padding is not None:
            steps = still(steps, context.padding)
        log_decay = -self.log_rate.exp()[:, None] * steps
        levels = self.by_stream(self.level(x), context).unflatten(1, (self.streams, self.levels)).mT
        scales = F.softplus(self.level_scale[:, None] * levels)
        o = log_linear_attention(q, k, v * steps[..., None], log_decay, scales)
        return o + self.skip[:, None, None] * v, o.new_empty(0)
