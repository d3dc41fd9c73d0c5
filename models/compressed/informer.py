"""Attention for the few queries that have something to say; the others take the mean of all values."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..draws import generator_of
from ..kernels.linear import full_precision
from ..kernels.segments import segment_mean
from ..kernels.softmax import softmax_attention
from ..kernels.sorting import take
from ..mixer import Context, HeadMixer, MixerSpec

DRAW_BITS = 31
BLOCK = 32  # neighbouring queries that are compared with the same keys, so that comparing is a matrix product
BLOCKS = 32  # of them at once: what is held does not grow with the length


class Informer(HeadMixer):
    """ProbSparse attention: softmax attention for the u queries of the largest max − mean of their scores.

    Zhou et al. 2021, arXiv 2012.07436. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D); all other queries read
    the mean of the values. Both u and the number of keys that a query is compared with to find it are ``factor``
    times ln N, rounded up (the paper's 5, here 15: some 128 of each). O(N ln N D) time, O(N D) memory.
    As in the authors' code, the mean takes pairs that were not compared as zero. A row's own length counts, without
    its padding. The causal form would only be pseudo: which queries are chosen depends on later tokens.
    Deviates: 32 neighbouring queries are compared with the same random keys, where each has its own in the authors'
    code; keys are drawn once, not in every pass; rows beyond ``max_length`` use the draws again. The distilling
    between layers of the paper's encoder, which shortens the sequence, is no part of the attention.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Informer: Beyond Efficient Transformer for Long Sequence Time-Series Forecasting",
        arxiv="2012.07436",
        causal="pseudo",
        stochastic=True,
        positions=("embed", "rotate"),
        full_config={"factor": 1_000_000},
    )
    draws: Tensor

    def __init__(self, width: int, heads: int, *, factor: int = 15, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if factor < 1:
            raise UserError(f"model.mixer.factor={factor}: must be at least 1")
        self.factor = factor
        shape = (-(-self.max_length // BLOCK), self.most(self.max_length))
        generator = generator_of("informer", self.seed, self.layer)
        self.register_buffer("draws", torch.randint(2**DRAW_BITS, shape, generator=generator))

    def most(self, length: int) -> int:
        """How many queries of a row of ``length`` are chosen, and how many keys each is compared with."""
        return max(1, min(self.factor * math.ceil(math.log(length)), length))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Choose, attend, put each row in its place among the means."""
        length, padding = q.shape[2], context.padding
        lengths = torch.full((1,), length, device=q.device) if padding is None else padding.lengths
        wanted = (self.factor * lengths.double().log().ceil()).minimum(lengths.double()).clamp(min=1).long()
        with torch.no_grad(), full_precision(q):
            measure = self.measure(q, k, lengths, None if padding is None else wanted)
            if padding is not None:
                measure = measure.masked_fill(~padding.valid[:, None], -torch.inf)
            places = measure.topk(self.most(length)).indices
        read = softmax_attention(take(q, places), k, v, padding=padding, dropout=self.drop_rate)
        mean = segment_mean(v, 1, padding)[0].to(v.dtype).repeat_interleave(self.heads // self.kv_heads, 1)
        if padding is not None:
            # A shorter row chooses fewer: what follows in the order of the measure keeps the mean.
            chosen = torch.arange(places.shape[-1], device=q.device) < wanted[:, None]
            read = torch.where(chosen[:, None, :, None], read, mean)
        index = places[..., None].expand(-1, -1, -1, v.shape[-1])
        return mean.expand(-1, -1, length, -1).scatter(2, index, read)

    def measure(self, q: Tensor, k: Tensor, lengths: Tensor, wanted: Tensor | None) -> Tensor:
        """How far each query's largest score stands above the mean of its scores, by a sample of them: (B, H, N).

        Rows of ``lengths`` (B,) or (1,) sample ``wanted`` (B,) keys; None where nothing is padded.
        """
        count, batch, groups = -(-q.shape[2] // BLOCK), *k.shape[:2]
        samples = min(self.most(q.shape[2]), self.draws.shape[1])
        draws = self.draws[torch.arange(count, device=q.device) % len(self.draws), :samples]
        places = (draws * lengths[:, None, None]) >> DRAW_BITS
        unused = None
        if wanted is not None:
            unused = (torch.arange(samples, device=q.device) >= wanted[:, None])[:, None, None, None]
        queries = F.pad(q, (0, 0, 0, count * BLOCK - q.shape[2])).unflatten(2, (count, BLOCK))
        share, parts = lengths.clamp(min=1).view(-1, 1, 1, 1), []
        for some, at in zip(queries.split(BLOCKS, 2), places.split(BLOCKS, 1), strict=True):
            keys = take(k, at[:, None].expand(batch, groups, -1, -1)).to(q.dtype)
            scores = self._wide(some) @ self._wide(keys).repeat_interleave(self.heads // groups, 1).mT
            largest = scores if unused is None else scores.masked_fill(unused, -torch.inf)
            compared = scores if unused is None else scores.masked_fill(unused, 0)
            parts.append(largest.amax(-1) - compared.sum(-1) / share)
        return torch.cat(parts, 2).flatten(2)[:, :, : q.shape[2]]

    @staticmethod
    def _wide(x: Tensor) -> Tensor:
        return x.float() if x.dtype.itemsize < 4 else x
