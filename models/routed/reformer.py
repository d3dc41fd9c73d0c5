"""Attention among tokens that hash alike."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.linear import full_precision
from ..kernels.sorting import stable_order, take
from ..mixer import Context, HeadMixer, MixerSpec

TO_ITSELF = -5e4  # the score of a token with itself: chosen only where there is nothing else
DIRECTIONS = 64  # of each of the two hashes, enough for 2^14 buckets
ONE_HASH = 32  # buckets up to which one hash is cheaper than two


class Reformer(HeadMixer):
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
    directions: Tensor

    def __init__(
        self, width: int, heads: int, *, chunk: int = 64, rounds: int = 2, redraw_every: int = 1, **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        for name, value, least in (("chunk", chunk, 1), ("rounds", rounds, 1), ("redraw_every", redraw_every, 0)):
            if value < least:
                raise UserError(f"model.mixer.{name}={value}: must be at least {least}")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: queries are the keys; leave it out")
        self.chunk, self.rounds, self.redraw_every = chunk, rounds, redraw_every
        del self.key
        self.register_buffer("directions", self._draw(0))

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, the same as keys of unit length, and values."""
        q = self.split(self.query(x))
        return q, F.normalize(q, dim=-1), self.split(self.value(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Hash, sort, attend by chunks, sort back, join the rounds."""
        length = q.shape[2]
        lengths = q.new_full((q.shape[0],), length, dtype=torch.long)
        lengths = (lengths if context.padding is None else context.padding.lengths).view(-1, 1, 1, 1)
        chunks = (lengths + self.chunk - 1).div(self.chunk, rounding_mode="floor").clamp(min=1)
        buckets = self.hash(q, chunks)
        places = torch.arange(length, device=q.device)
        # Padding comes last, as do the places that fill the last chunk.
        keys = F.pad(buckets.masked_fill(places >= lengths, 2**40), (0, -length % self.chunk), value=2**40)
        order, inverse = stable_order(keys)
        asking = order.unflatten(-1, (-1, self.chunk))
        before = asking.take_along_dim((chunks - 1)[..., None], 3)
        seen = torch.cat((torch.cat((before, asking[:, :, :, :-1]), 3), asking), -1)
        inside = seen.clamp(max=length - 1)

        scores = take(q, asking.clamp(max=length - 1)) @ take(k, inside).mT
        scores = (scores.float() if scores.dtype.itemsize < 4 else scores) * self.head_dim**-0.5
        scores = scores.masked_fill(asking[..., None] == seen[..., None, :], TO_ITSELF)
        if self.rounds > 1:
            met = self._meetings(inverse.div(self.chunk, rounding_mode="floor"), asking, seen, chunks)
            scores = scores - met.to(scores.dtype).log()
        hidden = seen >= lengths[..., None]
        hidden[..., : self.chunk] |= chunks[..., None] == 1  # a chunk before itself would be seen twice
        scores = scores.masked_fill(hidden[..., None, :], torch.finfo(scores.dtype).min)
        total = scores.logsumexp(-1, keepdim=True)
        o = dropout((scores - total).exp(), self.drop_rate).to(v.dtype) @ take(v, inside)

        back = inverse[..., :length] + torch.arange(self.rounds, device=q.device)[:, None] * order.shape[-1]
        o, total = take(o.flatten(2, 4), back), take(total.flatten(2, 4), back)
        return (o * total.softmax(2).to(o.dtype)).sum(2)

    def hash(self, q: Tensor, chunks: Tensor) -> Tensor:
        """The bucket of each token in each round (B, H, R, N), of as many as there are ``chunks`` (B, 1, 1, 1)."""
        most = -(-q.shape[2] // self.chunk)
        wanted = (chunks + chunks % 2).clamp(min=2)
        root = 2 * (wanted.double().sqrt() / 2).ceil().long()
        two = wanted > ONE_HASH
        sizes = torch.where(two, root, wanted), torch.where(two, 2 * (wanted / root / 2).ceil().long(), 0)
        widest = min(DIRECTIONS, max(min(most, ONE_HASH), 2 * math.ceil(math.sqrt(most + 1) / 2)) // 2 + 1)
        bucket = torch.zeros((), dtype=torch.long, device=q.device)
        with full_precision(q), torch.no_grad():
            q = q.float() if q.dtype.itemsize < 4 else q
            for part in range(1 if most + most % 2 <= ONE_HASH else 2):
                along = torch.einsum("bhnd,rdf->bhrnf", q, self.directions[:, part, :, :widest].to(q.dtype))
                outside = torch.arange(widest, device=q.device) >= sizes[part][..., None].div(2, rounding_mode="floor")
                nearest = along.abs().masked_fill(outside, -1).argmax(-1, keepdim=True)
                negative = (along.gather(-1, nearest) < 0) & (sizes[part][..., None] > 0)
                bucket = bucket + (nearest + DIRECTIONS * negative)[..., 0] * (2 * DIRECTIONS) ** part
        return bucket

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Draw new directions every ``redraw_every`` steps."""
        if self.redraw_every and (step + 1) % self.redraw_every == 0:
            self.directions.copy_(self._draw(step + 1))

    def _draw(self, step: int) -> Tensor:
        digest = hashlib.blake2b(f"reformer/{self.seed}/{self.layer}/{step}".encode(), digest_size=7).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        return torch.randn(self.rounds, 2, self.head_dim, DIRECTIONS, generator=generator)

    def _meetings(self, chunk: Tensor, asking: Tensor, seen: Tensor, chunks: Tensor) -> Tensor:
        """How many rounds bring a query and a key together, so that none counts twice."""
        count = torch.zeros((), dtype=torch.int8, device=chunk.device)
        for each in chunk.unbind(2):
            own, other = (
                each[:, :, None].expand_as(chunk).gather(-1, part.flatten(3)).view(part.shape)
                for part in (asking, seen)
            )
            before = torch.where(own > 0, own, chunks[..., None]) - 1
            together = (other[..., None, :] == own[..., None]) | (other[..., None, :] == before[..., None])
            count = count + together.to(torch.int8)
        return count
