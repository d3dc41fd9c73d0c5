"""Informer: softmax attention for a few selected queries; all others receive the mean of the values."""

from __future__ import annotations

import itertools
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

DRAW_BITS = 31  # sampled integers are below 2**31 and are scaled to key indices
BLOCK = 32  # neighbouring queries that are compared with the same keys, so that the comparison is a matrix product
BLOCKS = 32  # blocks per slice, so that the size of the scores does not grow with the length


class Informer(HeadMixer):
    """ProbSparse attention: softmax attention for the u queries with the largest max − mean of their scores.

    Zhou et al. 2021, arXiv 2012.07436. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D); the output of all other
    queries is the mean of the values. Both u and the number of keys that each query is compared with are ``factor``
    times ⌈ln N⌉ (the paper's factor is 5, here it is 15: about 128 of each). O(N ln N D) time, O(N D) memory.
    As in the authors' code, pairs that are not compared count as zero in the mean. N is the length of each sequence
    without padding. A causal form would only be pseudo-causal, because the selection depends on later tokens.

    Deviations from the authors' code: 32 neighbouring queries are compared with the same random keys; in the authors'
    code each query has its own. Keys are sampled once, not in every forward pass; positions beyond ``max_length`` reuse
    the samples. The distilling between the layers of the paper's encoder, which shortens the sequence, is not part of
    this mixer.
    """

    spec = MixerSpec(
        family="compressed",
        paper="Informer: Beyond Efficient Transformer for Long Sequence Time-Series Forecasting",
        arxiv="2012.07436",
        code="zhouhaoyi/Informer2020@29f2a73:models/attn.py",
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

    def restricts_from(self) -> int:
        """Return the smallest length at which not all queries are selected."""
        # ⌈ln N⌉ is k from the smallest integer above exp(k − 1) to the largest one below exp(k).
        for k in itertools.count(1):
            first = max(math.floor(math.exp(k - 1)), self.factor * k) + 1
            if first < math.exp(k):
                return first
        raise AssertionError("unreachable: N exceeds any multiple of ln N")

    def most(self, length: int) -> int:
        """Return the number of queries selected from ``length`` tokens, and of keys that each is compared with."""
        return max(1, min(self.factor * math.ceil(math.log(length)), length))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Select queries, compute their attention, and write the outputs over the means of the values."""
        length, padding = q.shape[2], context.padding
        lengths = torch.full((1,), length, device=q.device) if padding is None else padding.lengths
        quotas = (self.factor * lengths.double().log().ceil()).minimum(lengths.double()).clamp(min=1).long()
        with torch.no_grad(), full_precision(q):
            measure = self.measure(q, k, lengths, None if padding is None else quotas)
            if padding is not None:
                measure = measure.masked_fill(~padding.valid[:, None], -torch.inf)
            selected = measure.topk(self.most(length)).indices
        attended = softmax_attention(take(q, selected), k, v, padding=padding, dropout=self.drop_rate)
        mean = segment_mean(v, 1, padding)[0].to(v.dtype).repeat_interleave(self.heads // self.kv_heads, 1)
        if padding is not None:
            # A shorter sequence selects fewer queries; the remaining top-k entries keep the mean.
            is_selected = torch.arange(selected.shape[-1], device=q.device) < quotas[:, None]
            attended = torch.where(is_selected[:, None, :, None], attended, mean)
        index = selected[..., None].expand(-1, -1, -1, v.shape[-1])
        return mean.expand(-1, -1, length, -1).scatter(2, index, attended)

    def measure(self, q: Tensor, k: Tensor, lengths: Tensor, quotas: Tensor | None) -> Tensor:
        """Return max − mean of the scores of each query (B, H, N), estimated from sampled keys.

        ``lengths`` (B,) or (1,) are the sequence lengths; ``quotas`` (B,) are the numbers of sampled keys, None if
        nothing is padded.
        """
        count, batch, groups = -(-q.shape[2] // BLOCK), *k.shape[:2]
        samples = min(self.most(q.shape[2]), self.draws.shape[1])
        draws = self.draws[torch.arange(count, device=q.device) % len(self.draws), :samples]
        selected = (draws * lengths[:, None, None]) >> DRAW_BITS
        unused = None
        if quotas is not None:
            unused = (torch.arange(samples, device=q.device) >= quotas[:, None])[:, None, None, None]
        queries = F.pad(q, (0, 0, 0, count * BLOCK - q.shape[2])).unflatten(2, (count, BLOCK))
        divisor, parts = lengths.clamp(min=1).view(-1, 1, 1, 1), []
        for part, key_indices in zip(queries.split(BLOCKS, 2), selected.split(BLOCKS, 1), strict=True):
            keys = take(k, key_indices[:, None].expand(batch, groups, -1, -1)).to(q.dtype)
            scores = self._wide(part) @ self._wide(keys).repeat_interleave(self.heads // groups, 1).mT
            largest = scores if unused is None else scores.masked_fill(unused, -torch.inf)
            compared = scores if unused is None else scores.masked_fill(unused, 0)
            parts.append(largest.amax(-1) - compared.sum(-1) / divisor)
        return torch.cat(parts, 2).flatten(2)[:, :, : q.shape[2]]

    @staticmethod
    def _wide(x: Tensor) -> Tensor:
        return x.float() if x.dtype.itemsize < 4 else x
