"""Synthesizer: attention with synthetic scores; base class, and the forms that are attention to static keys."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.softmax import softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec

MIXTURES = ("alone", "plus", "plus_alpha")


class Synthesizer(HeadMixer):
    """Base class of Synthesizers, with synthetic scores and their mixtures with scores of queries and keys.

    ``mixture`` is one of:

    - ``alone``: synthetic scores only; there are no queries and keys.
    - ``plus``: the sum of both scores.
    - ``plus_alpha``: the sum of synthetic scores times σ(a) and the others times 1 − σ(a), with a learned scalar a that
      is initialised to zero.

    Raises ``UserError`` if ``mixture`` is unknown or ``kv_heads`` differs from ``heads``.
    """

    spec = MixerSpec(
        family="prior",
        paper="Synthesizer: Rethinking Self-Attention in Transformer Models",
        arxiv="2005.00743",
        code="tensorflow/mesh@da90793:mesh_tensorflow/transformer/attention.py",
        causal="exact",
        length="maximum",
        growth=2.0,
    )

    def __init__(self, width: int, heads: int, *, mixture: str = "alone", **common: Any) -> None:
        super().__init__(width, heads, **common)
        if mixture not in MIXTURES:
            raise UserError(f"model.mixer.mixture={mixture}: must be one of {', '.join(MIXTURES)}")
        if self.kv_heads != heads:
            raise UserError(f"model.mixer.kv_heads={self.kv_heads}: a synthesizer cannot share keys; leave it out")
        self.mixture = mixture
        self.balance = nn.Parameter(torch.zeros(1)) if mixture == "plus_alpha" else None
        if mixture == "alone":
            del self.query, self.key

    def restricts_from(self) -> int | None:
        """Return 0, because synthetic scores do not compare tokens; None in a mixture with scores that do."""
        return 0 if self.mixture == "alone" else None

    def shares(self) -> tuple[Tensor | float, Tensor | float]:
        """Return the factors of the scores of queries and keys, and of the synthetic scores."""
        if self.balance is None:
            return float(self.mixture == "plus"), 1.0
        return (-self.balance).sigmoid(), self.balance.sigmoid()

    def content(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries, multiplied by their factor in the mixture and 1/√D, and keys, each (B, H, N, D)."""
        scale = self.shares()[0] * self.head_dim**-0.5
        return self.split(self.query(x)) * scale, self.split(self.key(x))


class StaticKeys(Synthesizer):
    """Synthesizer whose synthetic scores are inner products with learned keys, one key for each position."""

    def synthesise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B or 1, H, N, F) and static keys (H, N, F) whose inner products are the synthetic scores."""
        raise NotImplementedError(f"{type(self).__name__} defines no synthesise")

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries and keys whose inner products are the scores of the mixture, and values (B, H, N, D).

        Queries and keys are (B, H, N, F), or (B, H, N, D + F) in a mixture.
        """
        v = self.split(self.value(x))
        queries, keys = self.synthesise(x)
        queries, keys = (each.to(v.dtype).expand(x.shape[0], -1, -1, -1) for each in (queries, keys[None]))
        if self.mixture == "alone":
            return queries, keys, v
        q, k = self.content(x)
        return torch.cat((q, queries * self.shares()[1]), -1), torch.cat((k, keys), -1), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute softmax attention with the concatenated queries and keys, without scaling."""
        return softmax_attention(
            q, k, v, padding=context.padding, causal=self.causal, scale=1.0, dropout=self.drop_rate
        )


class DenseSynthesizer(StaticKeys):
    """Synthesizer in which each token predicts its scores for all positions by a two-layer network.

    Tay et al. 2021, arXiv 2005.00743. The scores (N) of a token x in a head are W₂ ReLU(W₁ x + b₁) + b₂.
    O(N^2 D) time; O(N D) memory, since the second layer is treated as static keys; O(H N D) parameters.

    Deviations from the authors' code (tensorflow/mesh at da90793, mesh_tensorflow/transformer/attention.py): each head
    has its own W₂, as in the paper, which all heads share there; b₁ and b₂ are absent there; and in
    mixtures W₁ is separate from the projection of queries, which are its output there, before the ReLU.
    """

    not_decayed = ("row_bias",)

    def __init__(self, width: int, heads: int, *, mixture: str = "alone", **options: Any) -> None:
        super().__init__(width, heads, mixture=mixture, **options)
        self.hidden = nn.Linear(width, heads * self.head_dim)
        self.rows = nn.Parameter(torch.empty(heads, self.max_length, self.head_dim))
        self.row_bias = nn.Parameter(torch.zeros(heads, self.max_length))
        nn.init.xavier_uniform_(self.hidden.weight)
        nn.init.zeros_(self.hidden.bias)
        for weight in self.rows.unbind():
            nn.init.xavier_uniform_(weight)

    def synthesise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden layer with a channel of ones as queries, and the second layer with its bias as keys."""
        length = x.shape[1]
        queries = F.pad(self.split(self.hidden(x)).relu(), (0, 1), value=1.0)
        return queries, torch.cat((self.rows[:, :length], self.row_bias[:, :length, None]), -1)


class FactorisedRandomSynthesizer(StaticKeys):
    """Synthesizer whose scores are a learned low-rank matrix that is independent of the input.

    Tay et al. 2021, arXiv 2005.00743. Scores R₁ R₂ᵀ (N, N) for each head, of rank r = ``rank``; values (B, H, N, D).
    O(N^2 D) time, O(N D) memory, O(H N r) parameters. Raises ``UserError`` if ``rank`` is below 1. The default rank is
    that of the paper.
    """

    not_decayed = ("left", "right")

    def __init__(self, width: int, heads: int, *, rank: int = 8, mixture: str = "alone", **options: Any) -> None:
        super().__init__(width, heads, mixture=mixture, **options)
        if rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        # Scores then have an initial variance of 1 / N, like those of the full matrix.
        deviation = (rank * self.max_length) ** -0.25
        self.left = nn.Parameter(deviation * torch.randn(heads, self.max_length, rank))
        self.right = nn.Parameter(deviation * torch.randn(heads, self.max_length, rank))

    def synthesise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return both factors, cut to the length of the sequence."""
        return self.left[None, :, : x.shape[1]], self.right[:, : x.shape[1]]
