"""Reformer: attention within chunks of tokens that are sorted by hash bucket."""

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

SELF_SCORE = -5e4
"""Bias on the score of a token with itself, so low that it attends to itself only if no other key is visible."""
LAST_BUCKET = 2**40
"""Bucket of padding, larger than all others."""


class Reformer(RandomDirections):
    """Attention within chunks of tokens that are sorted by a locality-sensitive hash.

    Kitaev et al. 2020, arXiv 2001.04451. q, v (B, H, N, D) -> (B, H, N, D); keys are queries scaled to unit length. In
    each of R rounds, tokens are hashed into buckets: the bucket of a token is the one of several random directions and
    their negatives with which its query has the largest inner product. Tokens are sorted by bucket, and the sorted
    sequence is cut into chunks of C tokens. The number of buckets is chosen to be about the number of chunks, but the
    borders of chunks do not depend on the buckets: a chunk may contain several buckets, or only a part of one. A token
    attends, in one softmax over all rounds, to all tokens that are in its chunk or the preceding one in any round, and
    to itself only if there are no others. O(R N C D) time in addition to sorting; O(R N (C + D)) memory. There is no
    causal form, so causal tasks are refused: it would be pseudo-causal, since later tokens influence which tokens share
    a chunk.

    Deviations from the paper: tokens attend to other buckets within a chunk, which the authors' code allows; if there
    are more than 32 buckets, a bucket is a pair of the results of two hashes; the numbers of buckets and chunks are
    computed from the length of each sequence without padding; the chunk that precedes the first one is the last one.

    Args:
        width: Model width E.
        heads: Number of heads H.
        chunk: Number of tokens C in a chunk.
        rounds: Number of hash rounds R.
        redraw_every: Number of training steps between new random directions; 0 keeps the initial ones. Evaluation uses
            the latest directions.
        common: Options of ``HeadMixer``.

    Raises:
        UserError: If an option is out of range, or ``kv_heads`` differs from ``heads``.
    """

    spec = MixerSpec(
        family="routed",
        paper="Reformer: The Efficient Transformer",
        arxiv="2001.04451",
        code="google/trax@7c189c2:trax/layers/research/efficient_attention.py",
        causal="pseudo",
        stochastic=True,
        positions=("embed", "rotate"),
    )
    draws = "reformer"  # part of the seed of the directions

    def __init__(
        self, width: int, heads: int, *, chunk: int = 64, rounds: int = 2, redraw_every: int = 1, **common: Any
    ) -> None:
        super().__init__(width, heads, redraw_every=redraw_every, **common)
        for name, value in (("chunk", chunk), ("rounds", rounds)):
            if value < 1:
                raise UserError(f"model.mixer.{name}={value}: must be at least 1")
        if self.kv_heads != heads:
            raise UserError(f"model.mixer.kv_heads={self.kv_heads}: keys are computed from queries; leave it out")
        self.chunk, self.rounds = chunk, rounds
        del self.key  # ``project`` computes keys from queries
        self.begin()  # samples the directions, whose shape depends on ``rounds``

    def restricts_from(self) -> int:
        """Return 2 C + 1, the smallest length of three chunks."""
        return 2 * self.chunk + 1

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, the same scaled to unit length as keys, and values, each (B, H, N, D)."""
        q = self.split(self.query(x))
        return q, unit(q), self.split(self.value(x))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Hash and sort tokens, attend within chunks, restore the order and combine the rounds."""
        length = q.shape[2]
        lengths = q.new_full((q.shape[0],), length, dtype=torch.long)
        lengths = (lengths if context.padding is None else context.padding.lengths).view(-1, 1, 1, 1)
        chunks = (lengths + self.chunk - 1).div(self.chunk, rounding_mode="floor").clamp(min=1)
        buckets = angular_buckets(q, self.directions, chunks, -(-length // self.chunk))
        # Padding is sorted last, like the positions that fill the last chunk.
        buckets = buckets.masked_fill_(torch.arange(length, device=q.device) >= lengths, LAST_BUCKET)
        order, inverse = stable_order(F.pad(buckets, (0, -length % self.chunk), value=LAST_BUCKET))
        q_tokens = order.unflatten(-1, (-1, self.chunk))
        before_first = q_tokens.take_along_dim((chunks - 1)[..., None], 3)
        k_tokens = torch.cat((torch.cat((before_first, q_tokens[:, :, :, :-1]), 3), q_tokens), -1)
        # Positions that fill the last chunk have no token; their scores are masked.
        k_indices = k_tokens.clamp(max=length - 1)

        scores = (take(q, q_tokens.clamp(max=length - 1)) * self.head_dim**-0.5) @ take(k, k_indices).mT
        with full_precision(q):
            scores = scores.float() if scores.dtype.itemsize < 4 else scores
            # In place: the backward passes need no input of these operations; that of exp needs only its output.
            scores = scores.add_(self._bias(scores, inverse, q_tokens, k_tokens, lengths, chunks))
            peak = scores.detach().amax(-1, keepdim=True)
            weights = scores.sub_(peak).exp_()
            total = weights.sum(-1, keepdim=True)
        o = dropout(weights, self.drop_rate).to(v.dtype) @ take(v, k_indices) / total.to(v.dtype)

        # Index of each token, by round, in the sorted tokens of all rounds: restores the original order.
        token_ranks = inverse[..., :length] + torch.arange(self.rounds, device=q.device)[:, None] * order.shape[-1]
        # Each round is weighted by its share of the normaliser of the softmax over all rounds.
        round_weights = take((peak + total.log()).flatten(2, 4), token_ranks).softmax(2)
        return (take(o.flatten(2, 4), token_ranks) * round_weights.to(o.dtype)).sum(2)

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return random directions (R, 2, D, 64) of two hashes per round.

        ``angular_buckets`` uses only as many of the 64 directions as the number of buckets requires, and the second
        hash only for more than 32 buckets.
        """
        return torch.randn(self.rounds, 2, self.head_dim, DIRECTIONS, generator=generator)

    @torch.no_grad()
    def _bias(
        self, scores: Tensor, inverse: Tensor, q_tokens: Tensor, k_tokens: Tensor, lengths: Tensor, chunks: Tensor
    ) -> Tensor:
        """Return the bias of ``scores``, which masks padding and penalises attention of a token to itself.

        A key that a query can attend to in m rounds occurs m times in its softmax, which combines all rounds. The bias
        −log m divides each of these weights by m, so that the key counts once.

        Args:
            scores: Scores (B, H, R, X, C, 2C) of the queries in X chunks.
            inverse: Sorted position of each token (B, H, R, X·C).
            q_tokens: Token of each query (B, H, R, X, C).
            k_tokens: Token of each key (B, H, R, X, 2C).
            lengths: Number of tokens of each sequence (B, 1, 1, 1).
            chunks: Number of chunks of each sequence (B, 1, 1, 1).

        Returns:
            The bias, of the shape of ``scores``.
        """
        queries, keys = q_tokens.int(), k_tokens.int()
        bias = self._add_shared_rounds(torch.ones_like(scores), inverse, q_tokens, k_tokens, chunks).log_().neg_()
        bias = bias.masked_fill_(queries[..., None] == keys[..., None, :], SELF_SCORE)
        masked = k_tokens >= lengths[..., None]
        masked[..., : self.chunk] |= chunks[..., None] == 1  # a single chunk would precede itself and count twice
        return bias.masked_fill_(masked[..., None, :], torch.finfo(bias.dtype).min)

    def _add_shared_rounds(
        self, counts: Tensor, inverse: Tensor, q_tokens: Tensor, k_tokens: Tensor, chunks: Tensor
    ) -> Tensor:
        """Add to ``counts``, in place, the number of other rounds in which a query and a key share chunks."""
        chunk = inverse.div(self.chunk, rounding_mode="floor").int()
        for shift in range(1, self.rounds):
            other_round = chunk.roll(shift, 2)
            q_chunk, k_chunk = (
                other_round.gather(-1, part.flatten(3)).view(part.shape) for part in (q_tokens, k_tokens)
            )
            previous = torch.where(q_chunk > 0, q_chunk, chunks[..., None].int()) - 1
            counts += (k_chunk[..., None, :] == q_chunk[..., None]) | (k_chunk[..., None, :] == previous[..., None])
        return counts
