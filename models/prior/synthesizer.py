"""Attention whose scores are synthesised, not compared: those forms that are attention to static keys."""

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
    """What the forms share: ``mixture`` of synthetic scores with those of queries and keys.

    ``alone`` has no queries and keys; ``plus`` adds both scores; ``plus_alpha`` weighs them by σ(a) and 1 − σ(a) with
    a learned scalar a that begins at zero.
    """

    spec = MixerSpec(
        family="prior",
        paper="Synthesizer: Rethinking Self-Attention in Transformer Models",
        arxiv="2005.00743",
        causal="exact",
        length="maximum",
        growth=2.0,
    )

    def __init__(self, width: int, heads: int, *, mixture: str = "alone", **common: Any) -> None:
        super().__init__(width, heads, **common)
        if mixture not in MIXTURES:
            raise UserError(f"model.mixer.mixture={mixture}: is none of {', '.join(MIXTURES)}")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: a synthesizer has no keys to share; leave it out")
        self.mixture = mixture
        self.balance = nn.Parameter(torch.zeros(1)) if mixture == "plus_alpha" else None
        if mixture == "alone":
            del self.query, self.key

    def shares(self) -> tuple[Tensor | float, Tensor | float]:
        """Factors of the scores of queries and keys, and of synthetic scores."""
        if self.balance is None:
            return float(self.mixture == "plus"), 1.0
        return (-self.balance).sigmoid(), self.balance.sigmoid()

    def content(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, already scaled by their share and 1/√D, and keys (B, H, N, D)."""
        scale = self.shares()[0] * self.head_dim**-0.5
        return self.split(self.query(x)) * scale, self.split(self.key(x))


class StaticKeys(Synthesizer):
    """Synthetic scores that are inner products with learned keys, one for each place, beside those of the content."""

    def synthesise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B or 1, H, N, F) and static keys (H, N, F) whose inner products are the scores."""
        raise NotImplementedError(f"{type(self).__name__} defines no synthesise")

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys whose inner products are all scores, and values."""
        v = self.split(self.value(x))
        queries, keys = self.synthesise(x)
        queries, keys = (each.to(v.dtype).expand(x.shape[0], -1, -1, -1) for each in (queries, keys[None]))
        if self.mixture == "alone":
            return queries, keys, v
        q, k = self.content(x)
        return torch.cat((q, queries * self.shares()[1]), -1), torch.cat((k, keys), -1), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Softmax attention over the joined channels."""
        return softmax_attention(
            q, k, v, padding=context.padding, causal=self.causal, scale=1.0, dropout=self.drop_rate
        )


class DenseSynthesizer(StaticKeys):
    """Every token writes its own row of scores by a network of two layers, which sees that token alone.

    Tay et al. 2021, arXiv 2005.00743. x (B, N, E) -> scores W₂ ReLU(W₁ x + b₁) + b₂, per head (N).
    O(N^2 D) time; O(N D) memory, for the second layer is read as static keys; parameters O(H N D).
    """

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
        """The hidden layer with a channel of ones, against the second layer with its bias."""
        length = x.shape[1]
        queries = F.pad(self.split(self.hidden(x)).relu(), (0, 1), value=1.0)
        return queries, torch.cat((self.rows[:, :length], self.row_bias[:, :length, None]), -1)


class FactorisedRandomSynthesizer(StaticKeys):
    """Scores are a learned matrix of low rank, the same for every input.

    Tay et al. 2021, arXiv 2005.00743. Scores R₁ R₂ᵀ, per head (N, N) of rank ``rank``; values (B, H, N, D).
    O(N^2 D) time, O(N D) memory; parameters O(H N r).
    """

    def __init__(self, width: int, heads: int, *, rank: int = 8, mixture: str = "alone", **options: Any) -> None:
        super().__init__(width, heads, mixture=mixture, **options)
        if rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        # So that scores begin with a variance of 1 / N, as a full matrix would.
        deviation = (rank * self.max_length) ** -0.25
        self.left = nn.Parameter(deviation * torch.randn(heads, self.max_length, rank))
        self.right = nn.Parameter(deviation * torch.randn(heads, self.max_length, rank))

    def synthesise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both factors, as far as the rows reach."""
        return self.left[None, :, : x.shape[1]], self.right[:, : x.shape[1]]
