"""Base class of position encodings: one object with up to five hooks; a mixer supports the hooks that it declares."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError


class Position(nn.Module):
    """Base class of position encodings, which act through the hooks listed in ``hooks``.

    Hooks that are not listed are never called. Positions are integers, (N,) or (B, N), counted from 0, with −1 for
    prefix rows, which are not tokens. One object serves all layers.

    Args:
        width: Model width E.
        heads: Number of attention heads H.
        max_length: Largest expected number of tokens in a sequence.
        head_dim: Width D of a head; by default ``width // heads``.
        causal: Whether the model is causal.
        grid: (rows, columns) of the image if the sequences of the task are images, otherwise None.
        random_positions: Number of positions to sample from. Each training step assigns a random sorted subset of
            them to the tokens, so that longer sequences contain no untrained position (Ruoss et al. 2023,
            arXiv 2305.16843). None disables sampling.

    Raises:
        UserError: If ``random_positions`` is below ``max_length``, or is set for an encoding without hooks.
    """

    name: ClassVar[str]
    """Value of the option ``position``."""
    hooks: ClassVar[frozenset[str]] = frozenset()
    """Names of the implemented hooks, a subset of embed, rotate, bias, scores and weight."""
    code: ClassVar[str | None] = None
    """The authors' code, as ``owner/repository@commit:path/to/file``; None if they released none."""
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(
        self,
        width: int,
        heads: int,
        max_length: int,
        *,
        head_dim: int | None = None,
        causal: bool = False,
        grid: tuple[int, int] | None = None,
        random_positions: int | None = None,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.max_length = width, heads, max_length
        self.head_dim, self.causal, self.grid = head_dim or width // heads, causal, grid
        self.random_positions = random_positions
        if random_positions is not None and not self.hooks:
            raise UserError(
                f"position.random_positions={random_positions}: position={self.name} uses no positions; leave it out"
            )
        if random_positions is not None and random_positions < max_length:
            raise UserError(
                f"position.random_positions={random_positions}: must be at least the sequence length, {max_length}"
            )

    @property
    def depends_on_length(self) -> bool:
        """Whether hooks depend on the sequence length, which they read from the positions.

        If so, the positions of padding must not exceed that of the last token.
        """
        return False

    def supports_length(self, length: int) -> str | None:
        """Return the reason why sequences of ``length`` tokens cannot be encoded, or None if they can."""
        return None

    def places(self, length: int, device: torch.device) -> Tensor:
        """Return the positions (N,) of the tokens of a sequence.

        They count from 0, or are a random sorted subset in training if ``random_positions`` is set.
        """
        if self.random_positions is None or not self.training:
            return torch.arange(length, device=device)
        return torch.randperm(self.random_positions, device=device)[:length].sort().values

    def embed(self, x: Tensor, positions: Tensor, step: int | None = None) -> Tensor:
        """Return token embeddings x (B, N, E) with positions added.

        ``step`` is the depth index in models that add positions at every depth.
        """
        raise NotImplementedError(f"{type(self).__name__} has no embed hook")

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, N, D) and keys (B, G, M, D), rotated by their positions."""
        raise NotImplementedError(f"{type(self).__name__} has no rotate hook")

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return a bias (1 or B, H, N, M) to add to attention scores, independent of queries and keys."""
        raise NotImplementedError(f"{type(self).__name__} has no bias hook")

    def scores(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return the term (B, H, N, M) to add to scaled scores, computed from q (B, H, N, D) and k (B, G, M, D)."""
        raise NotImplementedError(f"{type(self).__name__} has no scores hook")

    def weight(self, scores: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return attention scores (B, H, N, M) after a transformation that is not additive."""
        raise NotImplementedError(f"{type(self).__name__} has no weight hook")

    def complete(self, scores: Tensor, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Return scaled scores (B, H, N, M) after the hooks scores, weight and bias: weight(q k + scores) + bias."""
        if "scores" in self.hooks:
            scores = scores + self.scores(q, k, q_positions, k_positions)
        if "weight" in self.hooks:
            scores = self.weight(scores, q_positions, k_positions)
        if "bias" in self.hooks:
            scores = scores + self.bias(q_positions, k_positions)
        return scores


def behind(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """Return the offset i − j of each query i from each key j, (1 or B, 1, N, M); negative for later keys."""
    offsets = q_positions[..., :, None] - k_positions[..., None, :]
    return offsets[(None,) * (3 - offsets.dim())][:, None]
