"""Oracles of attention to a compressed sequence."""

import math

import torch

from lra_bench.models.compressed.clustered import ClusteredAttention
from lra_bench.models.compressed.clustered_improved import ImprovedClusteredAttention
from lra_bench.models.compressed.h_transformer_1d import HTransformer1D
from lra_bench.models.compressed.informer import BLOCK, Informer
from lra_bench.models.compressed.luna import Luna
from lra_bench.models.compressed.memory_compressed import MemoryCompressed
from lra_bench.models.compressed.poolingformer import Poolingformer
from lra_bench.models.compressed.set_transformer import InducedSetAttention
from tests.oracles.attention_free import normalised
from tests.oracles.positions import rotated
from tests.oracles.routed import lengths_of
from tests.oracles.softmax import heads_of, softmax_of

SMALL = {
    "luna": {"packed": 5},
    "h_transformer_1d": {"block": 4},
    "informer": {"factor": 1},
    "isab": {"points": 5},
    "memory_compressed": {"stride": 4},
    "poolingformer": {"window": 3, "pooled_window": 12},
    "clustered": {"clusters": 6, "bits": 24},
    "clustered_improved": {"clusters": 6, "bits": 24, "keys": 7},
}


def luna(mixer, x, seen):
    """Compute both attentions of the first layer, token by token if causal, each with the packed rows at that token."""
    split, scale = mixer.split, mixer.head_dim**-0.5
    packed_queries, q = split(mixer.packed_query(mixer.packed)), split(mixer.query(x)) * scale
    keys = split(mixer.key(x))
    scores = packed_queries @ keys.mT * scale
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
    """Return the clusters of queries (N, D) as lists of positions, by Lloyd's algorithm on tuples of bits."""
    n, planes = len(q), mixer.directions.double()
    codes = [tuple((planes[:, :-1] @ x + planes[:, -1] >= 0).tolist()) for x in q.detach().double()]
    count = min(mixer.clusters, n)
    centres = [codes[c * n // count] for c in range(count)]
    for step in range(mixer.iterations + 1):
        distances = [[hamming(code, centre) for centre in centres] for code in codes]
        nearest = [row.index(min(row)) for row in distances]
        members_of = [[i for i in range(n) if nearest[i] == c] for c in range(count)]
        if step < mixer.iterations:
            centres = [
                tuple(2 * sum(bits) >= len(bits) for bits in zip(*(codes[i] for i in members), strict=True))
                if members
                else centre
                for members, centre in zip(members_of, centres, strict=True)
            ]
    return [members for members in members_of if members]


def clustered(mixer, x, seen):
    """Compute weights per example, head and cluster on real tokens only, in the improved form with the best keys."""
    q, k = rotated(mixer, *mixer.project(x)[:2])
    n = x.shape[1]
    lengths = seen.expand(len(x), 1, n, n)[:, 0, -1].sum(-1).tolist()
    weights_of_heads = []
    for example, length in enumerate(lengths):
        for h in range(mixer.heads):
            weights = torch.zeros(n, n, dtype=x.dtype)
            keys = k[example, h * mixer.kv_heads // mixer.heads, :length] * mixer.head_dim**-0.5
            for members in groups(mixer, q[example, h, :length]):
                shared = (keys @ q[example, h, members].mean(0)).softmax(0)
                for i in members:
                    query_weights = shared
                    if isinstance(mixer, ImprovedClusteredAttention):
                        best = sorted(range(length), key=lambda j: -shared[j].item())[: mixer.keys]
                        best_weights = (keys[best] @ q[example, h, i]).softmax(0) * shared[best].sum()
                        query_weights = shared.index_put((torch.tensor(best),), best_weights)
                    weights = weights.index_put((torch.tensor(i), torch.arange(length)), query_weights)
            weights_of_heads.append(weights)
    return torch.stack(weights_of_heads).view(len(x), mixer.heads, n, n)


def informer(mixer, x, seen):
    """Compute weights query by query, with the keys sampled for each query."""
    q, k = rotated(mixer, *mixer.project(x)[:2])
    k = k.repeat_interleave(mixer.heads // mixer.kv_heads, 1)
    weights = torch.zeros(*q.shape[:3], x.shape[1], dtype=x.dtype)
    for example, length in enumerate(lengths_of(seen, len(x))):
        count = max(1, min(length, mixer.factor * math.ceil(math.log(length))))
        for h in range(mixer.heads):
            measure = []
            for i in range(length):
                draws = mixer.draws[i // BLOCK % len(mixer.draws)].tolist()
                scores = k[example, h, [draw * length // 2**31 for draw in draws[:count]]] @ q[example, h, i]
                measure.append((scores.max() - scores.sum() / length).item())
            weights[example, h, :, :length] = 1 / length
            for i in sorted(range(length), key=measure.__getitem__)[-count:]:
                weights[example, h, i, :length] = (
                    k[example, h, :length] @ q[example, h, i] / mixer.head_dim**0.5
                ).softmax(-1)
    return weights


def outputs_by_heads(mixer, x, seen, token_outputs):
    """Return the outputs that ``write(group, queries, keys, values)`` yields by token, for each head and example."""
    outputs = torch.zeros(len(x), mixer.heads, x.shape[1], mixer.head_dim, dtype=x.dtype)
    for example, length in enumerate(lengths_of(seen, len(x))):
        q, k, v = (part[0] for part in mixer.project(x[example : example + 1, :length]))
        for h in range(mixer.heads):
            g = h * mixer.kv_heads // mixer.heads
            outputs[example, h, :length] = torch.stack(list(token_outputs(g, q[h], k[g], v[g])))
    return mixer.merge(outputs)


def read(q, keys, values):
    keys, values = torch.stack(keys), torch.stack(values)
    return (keys @ q / len(q) ** 0.5).softmax(0) @ values


def memory_compressed(mixer, x, seen):
    """Compute outputs window by window and tap by tap."""
    s = mixer.stride

    def compressed(x, kernel, start):
        return sum(x[start + t] @ kernel[t] for t in range(s) if start + t < len(x))

    def token_outputs(g, q, k, v):
        keys, values = (
            [compressed(part, kernel[g], start) for start in range(0, len(k), s)]
            for part, kernel in ((k, mixer.compress_key), (v, mixer.compress_value))
        )
        for i in range(len(q)):
            read_keys, read_values = keys, values
            if mixer.causal:
                read_keys, read_values = [k[0], *keys[: i // s]], [v[0], *values[: i // s]]
            yield read(q[i], read_keys, read_values)

    return outputs_by_heads(mixer, x, seen, token_outputs)


def poolingformer(mixer, x, seen):
    """Compute both levels token by token, and the taps of each pooled position one by one."""
    n, size, stride = x.shape[1], mixer.kernel, mixer.stride
    first = size - 1 if mixer.causal else size // 2

    def near_outputs(g, q, k, v):
        for i in range(len(q)):
            last = i if mixer.causal else i + mixer.window
            neighbours = range(max(0, i - mixer.window), min(len(k) - 1, last) + 1)
            yield read(q[i], [k[j] for j in neighbours], [v[j] for j in neighbours])

    y = outputs_by_heads(mixer, x, seen, near_outputs)
    heads = torch.zeros(len(x), mixer.heads, n, mixer.head_dim, dtype=x.dtype)
    for example, length in enumerate(lengths_of(seen, len(x))):
        tokens = y[example : example + 1, :length]
        q, k, v = (mixer.split(part(tokens))[0] for part in (mixer.pooled_query, mixer.pooled_key, mixer.pooled_value))
        for h in range(mixer.heads):
            g, slots = h * mixer.kv_heads // mixer.heads, []
            for centre in range(0, length, stride):
                taps = [t for t in range(size) if 0 <= centre - first + t < length]
                indices = [centre - first + t for t in taps]
                if mixer.pooling == "max":
                    slots.append([part[g, indices].amax(0) for part in (k, v)])
                    continue
                weights = torch.full((len(indices),), 1 / len(indices), dtype=x.dtype)
                if mixer.pooling == "dynamic":
                    weights = mixer.taps(tokens[0, centre])[g * size : (g + 1) * size][taps].softmax(0)
                slots.append([weights @ part[g, indices] for part in (k, v)])
            for i in range(length):
                reach = mixer.pooled_window // stride
                last = 0 if mixer.causal else reach
                seen_slots = [slot for m, slot in enumerate(slots) if -reach <= m - i // stride <= last]
                heads[example, h, i] = read(q[h, i], *zip(*seen_slots, strict=True))
    return y + mixer.pooled_output(heads.transpose(1, 2).flatten(2))


def attention_block(block, x, y, visible):
    q, k, v = block.query(x), block.key(y), block.value(y)
    size = x.shape[-1] // block.heads
    parts = []
    for h in range(block.heads):
        channels = slice(h * size, (h + 1) * size)
        scores = (q[..., channels] @ k[..., channels].mT / x.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
        parts.append(scores.softmax(-1).nan_to_num(0) @ v[..., channels])
    o = normalised(block.read_norm, q + torch.cat(parts, -1))
    return normalised(block.norm, o + block.feed_forward(o).relu())


def isab(mixer, x, seen):
    real = seen.expand(len(x), 1, x.shape[1], x.shape[1])[:, 0, :1]
    gathered = attention_block(mixer.gather, mixer.points.expand(len(x), -1, -1), x, real)
    return attention_block(mixer.spread, x, gathered, torch.tensor(True))


def hierarchical(mixer, x, seen):
    """Compute the score of each pair from the level of the pair and the means of real tokens at that level."""
    q, k = rotated(mixer, *heads_of(mixer, x))
    n = x.shape[1]
    real = seen.expand(x.shape[0], 1, n, n)[:, :, -1]
    positions = torch.arange(n)
    block, level = min(mixer.block, n + n % 2), 0
    scores = torch.full((x.shape[0], mixer.heads, n, n), -torch.inf, dtype=x.dtype)
    remaining = torch.ones(n, n, dtype=torch.bool)
    while remaining.any():
        blocks, cells = positions // (block * 2**level), positions // 2**level
        at_level = remaining & ((blocks[:, None] - blocks).abs() <= 1)
        remaining &= ~at_level
        same_cell = ((cells[:, None] == cells) & real[:, :, None]).to(x.dtype)
        mean = same_cell / same_cell.sum(-1, keepdim=True).clamp(min=1) if level else torch.eye(n, dtype=x.dtype)
        level_scores = ((q if mixer.causal else mean @ q) @ (mean @ k).mT) * mixer.head_dim**-0.5
        scores = torch.where(at_level, level_scores, scores)
        level += 1
    return softmax_of(scores, seen)


OUTPUTS = {
    Luna: luna,
    MemoryCompressed: memory_compressed,
    Poolingformer: poolingformer,
    InducedSetAttention: isab,
}
ORACLES = {
    ClusteredAttention: clustered,
    ImprovedClusteredAttention: clustered,
    Informer: informer,
    HTransformer1D: hierarchical,
}
