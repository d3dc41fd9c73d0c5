"""Attention along edges that a network chooses, which learns from how well the model then does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..draws import generator_of
from ..kernels.edges import distinct, edge_attention
from ..kernels.linear import full_precision
from ..mixer import Context, HeadMixer, MixerSpec
from .edge_predictor import EdgePredictor

GOLDEN = 0.6180339887498949  # its multiples spread evenly over [0, 1)


class SparseAdaptiveConnection(HeadMixer):
    """Tokens attend along edges drawn from a recurrent predictor, ``edges`` for each token, and to themselves.

    Li et al. 2020, arXiv 2003.09833. x (B, N, E) -> (B, N, E). With ``sequential`` one walk over the tokens names all
    edges, source and target in turn, as in the paper: 2αN steps, one after another. By default every token is the
    source of a walk of α steps, which run side by side. ``hidden`` is the predictor's width, ``distance`` how far its
    encoding of distances goes. O(α N E) for attention, but O(α N^2) time to choose; O(α N) memory.
    The mean logarithm of the chances of a row's choices is handed on as ``sac``, for ``ReinforcedModel`` to learn from;
    tokens get no gradient from it. Edges of a layer serve all its heads, and equal ones count once.
    Deviates: walks by default side by side; edges are drawn in evaluation too, there by fixed numbers, since a
    predictor's likeliest edges would repeat each other.
    """

    spec = MixerSpec(
        family="routed",
        paper="SAC: Accelerating and Structuring Self-Attention via Sparse Adaptive Connection",
        arxiv="2003.09833",
        causal="pseudo",
        stochastic=True,
        growth=2.0,
        positions=("embed", "rotate"),
        carries=("sac",),
    )
    offsets: Tensor

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        edges: int = 8,
        hidden: int = 16,
        distance: int = 16,
        sequential: bool = False,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        for name, value in (("edges", edges), ("hidden", hidden), ("distance", distance)):
            if value < 1:
                raise UserError(f"model.mixer.{name}={value}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: every head reads keys of its own along an edge; leave it out")
        self.edges, self.sequential = edges, sequential
        self.predictor = EdgePredictor(width, hidden, distance, starts=sequential)
        self.register_buffer("offsets", torch.rand(edges, generator=generator_of("sac", self.seed, self.layer)))

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Choose edges, attend along them; hand on how likely the choice was."""
        sources, targets, real, chance = self.connect(x, context)
        if chance is not None:
            context = context.hand_on("sac", chance + context.carry.get("sac", 0))
        own = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        sources, targets = torch.cat((own, sources), 1), torch.cat((own, targets), 1)
        edges = distinct(sources, targets, torch.cat((torch.ones_like(own, dtype=torch.bool), real), 1), x.shape[1])
        q, k, v = self.project(x)
        q, k = self.turn(q, k, context)
        return self.merge(edge_attention(q, k, v, *edges, dropout=self.drop_rate)), context

    def connect(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Sources and targets of edges (B, αN), which of them are real, and the mean log chance (B,) of choices.

        The last is None where no gradient is wanted.
        """
        batch, rows, device = *x.shape[:2], x.device
        places = torch.arange(rows, device=device)
        valid = None if context.padding is None else context.padding.valid
        walks, steps = (1, 2 * self.edges * rows) if self.sequential else (rows, self.edges)
        begin = None if self.sequential else places.expand(batch, -1)
        # A row's own length says how many edges it has.
        lengths = torch.full((batch,), rows, device=device) if context.padding is None else context.padding.lengths
        real = torch.arange(self.edges * rows, device=device) < self.edges * lengths[:, None]
        with full_precision(x):
            nodes = self.predictor.nodes(x.detach().to(self.query.weight.dtype))
            chosen = self.predictor.walk(nodes, begin, self._draws(batch, walks, steps, device), valid)
            if self.sequential:
                sources, targets, counted = chosen[:, 0, 0::2], chosen[:, 0, 1::2], real.repeat_interleave(2, 1)
            else:
                sources, targets, counted = places.repeat_interleave(steps).expand(batch, -1), chosen.flatten(1), real
            if not torch.is_grad_enabled():
                return sources, targets, real, None
            chances = self.predictor.log_chances(nodes, begin, chosen, valid).flatten(1).masked_fill(~counted, 0)
            return sources, targets, real, chances.sum(1) / counted.sum(1).clamp(min=1)

    def _draws(self, batch: int, walks: int, steps: int, device: torch.device) -> Tensor:
        """Numbers in [0, 1) that decide each choice: random in training, the same for every row in evaluation."""
        if self.training:
            return torch.rand(batch, walks, steps, device=device)
        step = torch.arange(steps, device=device)
        turns = torch.arange(walks, device=device)[:, None] + step.div(self.edges, rounding_mode="floor")
        return ((self.offsets[step % self.edges] + turns * GOLDEN) % 1)[None]
