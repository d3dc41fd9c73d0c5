"""Attention among tokens that hash alike."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..draws import RandomDirections
from ..kernels.dropout import dropout
from ..kernels.hashing import DIRECTIONS, angular_buckets
from ..kernels.linear import full_precision
from ..kernels.sorting import stable_order, take
from ..kernels.unit import unit
from ..mixer import Context, MixerSpec

TO_ITSELF = -5e4  # added to the score of a token with itself: chosen only where there is nothing else
LAST = 2**40  # a bucket after all others


class Reformer(RandomDirections):
    """Tokens are sorted by a locality-sensitive hash and attend within their chunk and the one before.

    Kitaev et al. 2020, arXiv 2001.04451. q = k up to its length, v (B, H, N, D) -> (B, H, N, D). In each of ``rounds``
    tokens are sorted by the direction, of some random ones and their negatives, that they point to most, and cut into
    chunks of ``chunk``; there are as many buckets as chunks. A token attends over all rounds together to what it meets
    in any, to itself only where it meets nothing. Directions are drawn anew every ``redraw_every`` steps, 0 never.
    O(R N C D) time with chunks of C beside the sorting; O(R N (C + D)) memory. The causal form would only be pseudo:
    who meets whom depends on later tokens.
    Deviates: tokens of other buckets in the same chunk are seen, as the authors' code allows. More than 32 buckets
    are products of two hashes. Buckets and chunks count a row's own length, and the first chunk looks back to the last.
    """

    spec = MixerSpec(
        family="routed",
        paper="Reformer: The Efficient Transformer",
        arxiv="2001.04451",
        causal="pseudo",
        stochastic=True,
        positions=("embed", "rotate"),
    )
    draws = "reformer"

    def __init__(
        self, width: int, heads: int, *, chunk: int = 64, rounds: int = 2, redraw_every: int = 1, **common: Any
    ) -> None:
        super().__init__(width, heads, redraw_every=redraw_every, **common)
        for name, value in (("chunk", chunk), ("rounds", rounds)):
            if value < 1:
                raise UserError(f"model.mixer.{name}={value}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: queries are the keys; leave it out")
        self.chunk, self.rounds = chunk, rounds
        del self.key
        self.begin()

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, the same as keys of unit length, and values."""
        q = self.split(self.query(x))
        return q, unit(q), self.split(self.value(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Hash, sort, attend by chunks, sort back, join the rounds."""
        length = q.shape[2]
        lengths = q.new_full((q.shape[0],), length, dtype=torch.long)
        lengths = (lengths if context.padding is None else context.padding.lengths).view(-1, 1, 1, 1)
        chunks = (lengths + self.chunk - 1).div(self.chunk, rounding_mode="floor").clamp(min=1)
        buckets = angular_buckets(q, self.directions, chunks, -(-length // self.chunk))
        # Padding comes last, as do the places that fill the last chunk.
        buckets = buckets.masked_fill_(torch.arange(length, device=q.device) >= lengths, LAST)
        order, inverse = stable_order(F.pad(buckets, (0, -length % self.chunk), value=LAST))
        asking = order.unflatten(-1, (-1, self.chunk))
        before = asking.take_along_dim((chunks - 1)[..., None], 3)
        seen = torch.cat((torch.cat((before, asking[:, :, :, :-1]), 3), asking), -1)
        inside = seen.clamp(max=length - 1)

        scores = (take(q, asking.clamp(max=length - 1)) * self.head_dim**-0.5) @ take(k, inside).mT
        with full_precision(q):
            scores = scores.float() if scores.dtype.itemsize < 4 else scores
            # In place: nothing here needs its input again but the exponential, which needs its output.
            scores = scores.add_(self._bias(scores, inverse, asking, seen, lengths, chunks))
            most = scores.detach().amax(-1, keepdim=True)
            weights = scores.sub_(most).exp_()
            total = weights.sum(-1, keepdim=True)
        o = dropout(weights, self.drop_rate).to(v.dtype) @ take(v, inside) / total.to(v.dtype)

        back = inverse[..., :length] + torch.arange(self.rounds, device=q.device)[:, None] * order.shape[-1]
        share = take((most + total.log()).flatten(2, 4), back).softmax(2)
        return (take(o.flatten(2, 4), back) * share.to(o.dtype)).sum(2)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Directions (R, 2, D, 64) of two hashes for each round."""
        return torch.randn(self.rounds, 2, self.head_dim, DIRECTIONS, generator=generator)

    @torch.no_grad()
    def _bias(
        self, scores: Tensor, inverse: Tensor, asking: Tensor, seen: Tensor, lengths: Tensor, chunks: Tensor
    ) -> Tensor:
        """What hides padding, keeps a token from itself, and makes a pair that meets in several rounds count once."""
        own, other = asking.int(), seen.int()
        bias = self._meetings(torch.ones_like(scores), inverse, asking, seen, chunks).log_().neg_()
        bias = bias.masked_fill_(own[..., None] == other[..., None, :], TO_ITSELF)
        hidden = seen >= lengths[..., None]
        hidden[..., : self.chunk] |= chunks[..., None] == 1  # a chunk before itself would be seen twice
        return bias.masked_fill_(hidden[..., None, :], torch.finfo(bias.dtype).min)

    def _meetings(self, met: Tensor, inverse: Tensor, asking: Tensor, seen: Tensor, chunks: Tensor) -> Tensor:
        """In how many rounds a query and a key come together, beginning with the one at hand."""
        chunk = inverse.div(self.chunk, rounding_mode="floor").int()
        for shift in range(1, self.rounds):
            another = chunk.roll(shift, 2)
            own, other = (another.gather(-1, part.flatten(3)).view(part.shape) for part in (asking, seen))
            before = torch.where(own > 0, own, chunks[..., None].int()) - 1
            met += (other[..., None, :] == own[..., None]) | (other[..., None, :] == before[..., None])
        return met
