"""What a position encoding is: one object with up to five hooks, of which a mixer honours those it declares."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError


class Position(nn.Module):
    """Tells the model where tokens stand, through the hooks that ``hooks`` names.

    Hooks that a class does not name are never called. Positions are (N,) or (B, N), counted from 0, with −1 on rows
    that are no tokens. Built for a model of ``width`` and ``heads`` that expects at most ``max_length`` tokens, of one
    direction where it is ``causal``, on images of ``grid`` (rows, columns); plus options of its own. One object serves
    all layers.

    ``random_positions`` draws, for each step of training, which of that many positions its tokens take, in order, so
    that longer rows meet no position that was never trained (Ruoss et al. 2023, arXiv 2305.16843).
    """

    name: ClassVar[str]
    hooks: ClassVar[frozenset[str]] = frozenset()

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
            raise UserError(f"position.random_positions={random_positions}: position={self.name} uses no positions")
        if random_positions is not None and random_positions < max_length:
            raise UserError(
                f"position.random_positions={random_positions}: must be at least the {max_length} tokens of a row"
            )

    @property
    def by_length(self) -> bool:
        """Whether hooks depend on how long a row is, so that positions of padding must not go on counting."""
        return False

    def supports_length(self, length: int) -> str | None:
        """None where rows of ``length`` tokens can be encoded, else the reason why not."""
        return None

    def places(self, length: int, device: torch.device) -> Tensor:
        """The positions (N,) of the tokens of a row: counted from 0, or drawn where training asks for it."""
        if self.random_positions is None or not self.training:
            return torch.arange(length, device=device)
        return torch.randperm(self.random_positions, device=device)[:length].sort().values

    def embed(self, x: Tensor, positions: Tensor, step: int | None = None) -> Tensor:
        """Token embeddings x (B, N, E) with positions in them; ``step`` is the depth where each depth embeds anew."""
        raise NotImplementedError(f"{type(self).__name__} has no embed hook")

    def rotate(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> tuple[Tensor, Tensor]:
        """Queries (B, H, N, D) and keys (B, G, M, D), turned by their positions."""
        raise NotImplementedError(f"{type(self).__name__} has no rotate hook")

    def bias(self, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """What is added to attention scores whatever their content: (1 or B, H, N, M)."""
        raise NotImplementedError(f"{type(self).__name__} has no bias hook")

    def scores(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """What is added to scaled scores depending on their content: q (B, H, N, D), k (B, G, M, D) to (B, H, N, M)."""
        raise NotImplementedError(f"{type(self).__name__} has no scores hook")

    def weight(self, scores: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Attention scores (B, H, N, M) after a rule that is not additive."""
        raise NotImplementedError(f"{type(self).__name__} has no weight hook")

    def complete(self, scores: Tensor, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
        """Scaled scores (B, H, N, M) with all that the hooks add: weight(q k + scores) + bias."""
        if "scores" in self.hooks:
            scores = scores + self.scores(q, k, q_positions, k_positions)
        if "weight" in self.hooks:
            scores = self.weight(scores, q_positions, k_positions)
        if "bias" in self.hooks:
            scores = scores + self.bias(q_positions, k_positions)
        return scores


def behind(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """How many places each key stands before each query, (1 or B, 1, N, M); negative where it stands after."""
    places = q_positions[..., :, None] - k_positions[..., None, :]
    return places[(None,) * (3 - places.dim())][:, None]
