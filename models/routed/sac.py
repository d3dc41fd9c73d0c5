"""SAC: attention along edges that a predictor samples, trained by REINFORCE."""

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

GOLDEN = 0.6180339887498949
"""Golden ratio minus 1; the fractional parts of its multiples are evenly spread over [0, 1)."""


class SparseAdaptiveConnection(HeadMixer):
    """Attention along edges sampled by a recurrent predictor, α edges per token, and from each token to itself.

    Li et al. 2020, arXiv 2003.09833. x (B, N, E) -> (B, N, E). Edges of a layer are shared by its heads; duplicates
    count once. The mean log-probability of the choices of a sequence is carried as ``sac``, for the REINFORCE loss of
    ``ReinforcedModel``; tokens receive no gradient from it. O(α N E) time for attention and O(α N^2) time for sampling;
    O(α N) memory.

    Deviations from the paper: by default one walk per token, in parallel, instead of one sequential walk; edges are
    sampled in evaluation as well, from fixed numbers, since the most likely edges would be duplicates.

    Args:
        width: Model width E.
        heads: Number of heads H.
        edges: Number of edges α per token.
        hidden: Width of the predictor.
        distance: Largest offset, on either side, with its own learned bias in the predictor.
        sequential: Whether to sample all edges with one walk over the tokens, as in the paper: its 2αN sequential
            choices are alternately the source and the target of an edge. By default every token is the source of
            the edges of its own walk of α steps, and walks run in parallel.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is below 1, or ``kv_heads`` differs from ``heads``.
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
            raise UserError(f"model.mixer.kv_heads={self.kv_heads}: each head has its own keys; leave it out")
        self.edges, self.sequential = edges, sequential
        self.predictor = EdgePredictor(width, hidden, distance, starts=sequential)
        self.register_buffer("offsets", torch.rand(edges, generator=generator_of("sac", self.seed, self.layer)))

    def restricts_from(self) -> int:
        """Return 2: at every length, tokens without an edge do not see each other."""
        return 2

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Sample edges and attend along them; add the log-probability of the choices to the carry."""
        sources, targets, real, log_probability = self.connect(x, context)
        if log_probability is not None:
            context = context.with_carry("sac", log_probability + context.carry.get("sac", 0))
        own = torch.arange(x.shape[1], device=x.device).expand(len(x), -1)
        sources, targets = torch.cat((own, sources), 1), torch.cat((own, targets), 1)
        edges = distinct(sources, targets, torch.cat((torch.ones_like(own, dtype=torch.bool), real), 1), x.shape[1])
        q, k, v = self.project(x)
        q, k = self.apply_rotation(q, k, context)
        return self.merge(edge_attention(q, k, v, *edges, dropout=self.drop_rate)), context

    def connect(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return the edges and the log-probability of the choices that led to them.

        Returns:
            Token indices of sources and of targets, (B, αN); a mask (B, αN) of edges that are not padding; and the mean
            log-probability (B,) of the choices, None if gradients are disabled.
        """
        batch, rows, device = *x.shape[:2], x.device
        places = torch.arange(rows, device=device)
        valid = None if context.padding is None else context.padding.valid
        walks, steps = (1, 2 * self.edges * rows) if self.sequential else (rows, self.edges)
        begin = None if self.sequential else places.expand(batch, -1)
        # The number of edges depends on the length of each sequence.
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
            log_p = self.predictor.log_chances(nodes, begin, chosen, valid).flatten(1).masked_fill(~counted, 0)
            return sources, targets, real, log_p.sum(1) / counted.sum(1).clamp(min=1)

    def _draws(self, batch: int, walks: int, steps: int, device: torch.device) -> Tensor:
        """Return the numbers in [0, 1) that determine each choice.

        They are random (B, K, T) in training, fixed and shared by all sequences (1, K, T) in evaluation.
        """
        if self.training:
            return torch.rand(batch, walks, steps, device=device)
        step = torch.arange(steps, device=device)
        multiples = torch.arange(walks, device=device)[:, None] + step.div(self.edges, rounding_mode="floor")
        return ((self.offsets[step % self.edges] + multiples * GOLDEN) % 1)[None]
