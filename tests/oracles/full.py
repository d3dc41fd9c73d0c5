"""Oracles of full attention with each of its score functions."""

import torch

from lra_bench.models.full.additive_attention import AdditiveAttention
from lra_bench.models.full.differential import Differential
from lra_bench.models.full.softmax_attention import SoftmaxAttention
from tests.oracles.softmax import heads_of, positioned_scores, softmax_of


def compared(mixer, x, seen):
    """Compute weights of all pairs of tokens from the formula of the score."""
    q, k = heads_of(mixer, x)
    repeats = mixer.heads // mixer.kv_heads
    a, b, scale = q, k, mixer.head_dim**-0.5 if mixer.score == "scaled" else 1
    if mixer.score == "bilinear":
        a = torch.einsum("bhid,hde->bhie", q, mixer.between)
    if mixer.score == "reduced":
        a = torch.einsum("bhid,hdr->bhir", q, mixer.reduce_query)
        b = torch.einsum("bhjd,hdr->bhjr", k, mixer.reduce_key.repeat_interleave(repeats, 0))
    scores = positioned_scores(mixer, q, k, a, b, scale)
    n = seen.sum(-1, keepdim=True).clamp(min=1)
    if mixer.normalizer == "relu":
        return scores.clamp(min=0) / n * seen
    if mixer.normalizer == "sigmoid":
        return seen / (1 + n * torch.exp(-scores))
    if mixer.normalizer == "entmax15":
        return entmax15(scores, seen)
    return softmax_of(scores, seen)


def entmax15(scores, seen):
    """Find the threshold at which the weights of the visible keys sum to one by bisection."""
    halved = (scores / 2).masked_fill(~seen, -torch.inf)
    known = halved.detach()
    low, high = known.amax(-1, keepdim=True) - 1, known.amax(-1, keepdim=True)
    for _ in range(80):
        middle = (low + high) / 2
        above = (known - middle).clamp(min=0).square().sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    # A step of Newton's method, whose gradient is that of the threshold.
    roots = (halved - low).clamp(min=0).nan_to_num(0)
    threshold = low + (roots.square().sum(-1, keepdim=True) - 1) / (2 * roots.sum(-1, keepdim=True))
    return (halved - threshold).clamp(min=0).square().nan_to_num(0)


def additive(mixer, x, seen):
    """Apply the score network to every pair of tokens, head by head."""
    q, k = heads_of(mixer, x)
    scores_of_heads = []
    for h in range(mixer.heads):
        keys = k[:, h] @ mixer.for_key[h * mixer.kv_heads // mixer.heads]
        queries = q[:, h] @ mixer.for_query[h]
        scores_of_heads.append(
            torch.stack([torch.tanh(keys + query[:, None]) @ mixer.weigh[h] for query in queries.unbind(1)], 1)
        )
    scores = torch.stack(scores_of_heads, 1)
    return softmax_of(positioned_scores(mixer, q, k, scores=scores), seen)


def differential(mixer, x, seen):
    """Compute two weight matrices per head and subtract one from the other."""
    (q, k), half = heads_of(mixer, x), mixer.head_dim // 2
    maps = []
    for channels in (slice(half), slice(half, None)):
        a, b = q[..., channels], k[..., channels]
        maps.append(softmax_of(positioned_scores(mixer, a, b, a, b, half**-0.5), seen))
    a, b = mixer.for_queries, mixer.for_keys
    factor = torch.exp(a[0] @ b[0]) - torch.exp(a[1] @ b[1]) + mixer.lambda_init
    _, _, v = mixer.project(x)
    o = (maps[0] - factor * maps[1]) @ v.repeat_interleave(mixer.heads // mixer.kv_heads, 1)
    size = (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    return mixer.merge(o / size * mixer.norm.weight * (1 - mixer.lambda_init))


ORACLES = {SoftmaxAttention: compared, AdditiveAttention: additive}
OUTPUTS = {Differential: differential}
