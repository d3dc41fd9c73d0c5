"""Attention to a compressed sequence."""

import math

import torch

from lra_bench.models.compressed.clustered import ClusteredAttention
from lra_bench.models.compressed.clustered_improved import ImprovedClusteredAttention
from lra_bench.models.compressed.luna import Luna

from .positions import turned

SMALL = {
    "clustered": {"clusters": 6, "bits": 24},
    "clustered_improved": {"clusters": 6, "bits": 24, "keys": 7},
    "luna": {"packed": 5},
}


def luna(mixer, x, seen):
    """The two attentions of the first layer; causally, token by token, with packed rows as they stood by then."""
    split, scale = mixer.split, mixer.head_dim**-0.5
    asks, q = split(mixer.packed_query(mixer.packed)), split(mixer.query(x)) * scale
    keys = split(mixer.key(x))
    scores = asks @ keys.mT * scale
    if not mixer.causal:
        packed = scores.masked_fill(~seen[..., :1, :], -torch.inf).softmax(-1) @ keys
        values = split(mixer.value(packed.transpose(1, 2).flatten(2)))
        return mixer.merge((q @ values.mT).softmax(-1) @ values)
    weights, values, outputs = (1 + 2**scores).log() / math.log(2), split(mixer.value(x)), []
    for t in range(x.shape[1]):
        packed = weights[..., : t + 1] @ values[:, :, : t + 1] / (t + 1)
        outputs.append((q[:, :, t, None] @ packed.mT).softmax(-1) @ packed)
    return mixer.merge(torch.cat(outputs, 2))


def hamming(a, b):
    return sum(x != y for x, y in zip(a, b, strict=True))


def groups(mixer, q):
    """Which queries (N, D) form a cluster: lists of their places, by Lloyd's algorithm on tuples of bits."""
    n, planes = len(q), mixer.directions.double()
    codes = [tuple((planes[:, :-1] @ x + planes[:, -1] >= 0).tolist()) for x in q.detach().double()]
    count = min(mixer.clusters, n)
    centres = [codes[c * n // count] for c in range(count)]
    for step in range(mixer.iterations + 1):
        distances = [[hamming(code, centre) for centre in centres] for code in codes]
        nearest = [of.index(min(of)) for of in distances]
        found = [[i for i in range(n) if nearest[i] == c] for c in range(count)]
        if step < mixer.iterations:
            centres = [
                tuple(2 * sum(bits) >= len(bits) for bits in zip(*(codes[i] for i in members), strict=True))
                if members
                else centre
                for members, centre in zip(found, centres, strict=True)
            ]
    return [members for members in found if members]


def clustered(mixer, x, seen):
    """Row by row, head by head and cluster by cluster, on real tokens alone; then query by query on the best keys."""
    q, k = turned(mixer, *mixer.project(x)[:2])
    n = x.shape[1]
    lengths = seen.expand(len(x), 1, n, n)[:, 0, -1].sum(-1).tolist()
    rows = []
    for row, length in enumerate(lengths):
        for h in range(mixer.heads):
            weights = torch.zeros(n, n, dtype=x.dtype)
            keys = k[row, h * mixer.kv_heads // mixer.heads, :length] * mixer.head_dim**-0.5
            for members in groups(mixer, q[row, h, :length]):
                shared = (keys @ q[row, h, members].mean(0)).softmax(0)
                for i in members:
                    own = shared
                    if isinstance(mixer, ImprovedClusteredAttention):
                        best = sorted(range(length), key=lambda j: -shared[j].item())[: mixer.keys]
                        spread = (keys[best] @ q[row, h, i]).softmax(0) * shared[best].sum()
                        own = shared.index_put((torch.tensor(best),), spread)
                    weights = weights.index_put((torch.tensor(i), torch.arange(length)), own)
            rows.append(weights)
    return torch.stack(rows).view(len(x), mixer.heads, n, n)


ORACLES = {ClusteredAttention: clustered, ImprovedClusteredAttention: clustered}
OUTPUTS = {Luna: luna}
