"""Oracles of attention to patterns of positions."""

import torch

from lra_bench.models.sparse.axial import AxialAttention
from lra_bench.models.sparse.bigbird import BigBird
from lra_bench.models.sparse.block_local import BlockLocal
from lra_bench.models.sparse.blockwise import Blockwise
from lra_bench.models.sparse.bpt import BPTransformer
from lra_bench.models.sparse.dilated_window import DilatedWindow
from lra_bench.models.sparse.etc import ETC
from lra_bench.models.sparse.global_tokens import GlobalTokens
from lra_bench.models.sparse.image_local_1d import ImageLocal1d
from lra_bench.models.sparse.image_local_2d import ImageLocal2d
from lra_bench.models.sparse.longformer import Longformer
from lra_bench.models.sparse.random_attention import RandomAttention
from lra_bench.models.sparse.sliding_window import SlidingWindow
from lra_bench.models.sparse.sparse_fixed import SparseFixed
from lra_bench.models.sparse.sparse_strided import SparseStrided
from lra_bench.models.sparse.star import StarTransformer
from tests.oracles.positions import rotated
from tests.oracles.softmax import softmax

SMALL = {
    "axial": {"columns": 7},
    "local": {"window": 5},
    "block_local": {"block": 7},
    "blockwise": {"block": 7},
    "random": {"block": 4, "random_blocks": 3},
    "global_tokens": {"global_tokens": 3},
    "dilated": {"window": 3},
    "image_local_1d": {"block": 7, "flange": 5},
    "image_local_2d": {"block": [2, 3], "flange": [1, 2], "columns": 7},
    "sparse_fixed": {"summary": 2},
    "longformer": {"window": 5, "global_tokens": 3},
    "bigbird": {"block": 4, "random_blocks": 2},
    "etc": {"window": 5, "global_tokens": 4, "clip": 3},
    "bpt": {"neighbours": 2, "levels": 3},
}


def axial(mixer, x, seen):
    n = x.shape[1]
    near = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(n):
            same_row, row_above = (i // mixer.columns - j // mixer.columns == above for above in (0, 1))
            same_column = i % mixer.columns == j % mixer.columns
            near[i, j] = same_column if mixer.layer % 2 else same_row or (mixer.causal and row_above)
    return softmax(mixer, x, seen & near)


def window(mixer, x, seen):
    behind = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    return softmax(mixer, x, seen & (behind.abs() <= mixer.window))


def same_block(mixer, x, seen):
    block = torch.arange(x.shape[1]) // mixer.block
    return softmax(mixer, x, seen & (block[:, None] == block))


def dilated(mixer, x, seen):
    n = x.shape[1]
    near = torch.zeros(mixer.heads, n, n, dtype=torch.bool)
    for head, dilation in enumerate(mixer.dilation):
        for i in range(n):
            steps = [i + dilation * t for t in range(-min(n, mixer.window), min(n, mixer.window) + 1)]
            near[head, i, [j for j in steps if 0 <= j < n]] = True
    return softmax(mixer, x, seen & near)


def image_1d(mixer, x, seen):
    n = x.shape[1]
    near = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        start = i // mixer.block * mixer.block
        near[i, max(0, start - mixer.flange) : start + mixer.block + mixer.flange] = True
    return softmax(mixer, x, seen & near)


def image_2d(mixer, x, seen):
    """Compute weights of sequences without a prefix."""
    n = x.shape[1]
    near = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(n):
            (first, second), (flange_lines, flange_columns) = mixer.block, mixer.flange
            first_line, first_column = i // mixer.columns // first * first, i % mixer.columns // second * second
            in_lines = first_line - flange_lines <= j // mixer.columns < first_line + first + flange_lines
            near[i, j] = (
                in_lines and first_column - flange_columns <= j % mixer.columns < first_column + second + flange_columns
            )
    return softmax(mixer, x, seen & near)


def first_rows(mixer, x, seen):
    positions = torch.arange(x.shape[1])
    first = positions < mixer.global_tokens
    return softmax(mixer, x, seen & (first | first[:, None] | (positions == positions[:, None])))


def by_blocks(mixer, x, seen, chosen):
    """Compute weights if ``chosen(head, own block, blocks)`` returns the blocks visible to a block."""
    n = x.shape[1]
    block = torch.arange(n) // mixer.block
    # Each example has as many blocks as its tokens without padding begin.
    lengths = seen.expand(x.shape[0], 1, n, n).any(-2)[:, 0].sum(-1).tolist()
    visible = torch.zeros(x.shape[0], mixer.heads, n, n, dtype=torch.bool)
    for example, length in enumerate(lengths):
        count = max(1, -(-length // mixer.block))
        for head in range(mixer.heads):
            for own_block in range(count):
                seen_blocks = torch.tensor(sorted(chosen(head, own_block, count)))
                visible[example, head, block == own_block] = torch.isin(block, seen_blocks)
    return softmax(mixer, x, seen & visible)


def blockwise(mixer, x, seen):
    return by_blocks(mixer, x, seen, lambda head, own, count: {(own + mixer.shifts[head]) % count})


def random_blocks(mixer, x, seen):
    def chosen(head, own_block, count):
        others = [other for other in range(own_block if mixer.causal else count) if other != own_block]
        chosen_blocks = {own_block}
        for draw in mixer.draws[head, own_block % mixer.draws.shape[1]].tolist():
            if others:
                chosen_blocks.add(others.pop(draw * len(others) // 2**31))
        return chosen_blocks

    return by_blocks(mixer, x, seen, chosen)


def combined(mixer, near, far):
    """Return the mask of each head from two patterns (H, N, N)."""
    if mixer.combine == "merged":
        return near | far
    if mixer.combine == "interleave":
        return far if mixer.layer % 2 else near
    return torch.where(torch.arange(mixer.heads)[:, None, None] < mixer.heads // 2, near, far)


def fixed(mixer, x, seen):
    n, stride = x.shape[1], mixer.stride
    near, far = (torch.zeros(mixer.heads, n, n, dtype=torch.bool) for _ in range(2))
    for head in range(mixer.heads):
        first = mixer.heads // 2 if mixer.combine == "heads" and head >= mixer.heads // 2 else 0
        last = stride - (head - first) % (stride // mixer.summary) * mixer.summary
        for j in range(n):
            near[head, :, j] = torch.arange(n) // stride == j // stride
            far[head, :, j] = last - mixer.summary <= j % stride < last
    return softmax(mixer, x, seen & combined(mixer, near, far))


def strided(mixer, x, seen):
    behind = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    return softmax(mixer, x, seen & combined(mixer, behind.abs() <= mixer.stride, behind % mixer.stride == 0))


def longformer(mixer, x, seen):
    n, first = x.shape[1], torch.arange(x.shape[1]) < mixer.global_tokens
    behind = torch.arange(n)[:, None] - torch.arange(n)
    near = torch.stack([(behind.abs() <= mixer.window * step) & (behind % step == 0) for step in mixer.dilation])
    repeats = mixer.heads // mixer.kv_heads
    _, _, v = mixer.project(x)
    o = softmax(mixer, x, seen & (near | first)) @ v.repeat_interleave(repeats, 1)
    if mixer.global_tokens:
        q, k, v = (mixer.split(part(x)) for part in (mixer.global_query, mixer.global_key, mixer.global_value))
        q, k = rotated(mixer, q, k)
        logits = q @ k.repeat_interleave(repeats, 1).mT * mixer.head_dim**-0.5
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
        o = torch.where(first[:, None], weights @ v.repeat_interleave(repeats, 1), o)
    return mixer.merge(o)


def bigbird(mixer, x, seen):
    def chosen(head, own_block, count):
        if own_block in (0, count - 1):
            return set(range(count))
        chosen_blocks = {0, count - 1, own_block - 1, own_block, own_block + 1}
        others = [other for other in range(count) if other not in chosen_blocks]
        for draw in mixer.draws[head, own_block % mixer.draws.shape[1]].tolist():
            if others:
                chosen_blocks.add(others.pop(draw * len(others) // 2**31))
        return chosen_blocks

    return by_blocks(mixer, x, seen, chosen)


def heads_read(mixer, query, keys, values):
    """Return the attention of one query (H·D) to a few keys and values (rows, G·D)."""
    size, outputs = mixer.head_dim, []
    for head in range(mixer.heads):
        head_channels, group_channels = (
            slice(i * size, (i + 1) * size) for i in (head, head * mixer.kv_heads // mixer.heads)
        )
        weights = (keys[:, group_channels] @ query[head_channels] / size**0.5).softmax(0)
        outputs.append(weights @ values[:, group_channels])
    return torch.cat(outputs)


def star(mixer, x, seen):
    """Compute the first layer per example and token; the relay is initialised with the mean."""
    y = torch.zeros_like(x)
    for b, length in enumerate(seen.expand(x.shape[0], 1, x.shape[1], x.shape[1])[:, 0, 0].sum(-1).tolist()):
        tokens = x[b, :length]
        relay = tokens.mean(0, keepdim=True)
        rows = torch.cat((relay, tokens))
        read = heads_read(mixer, mixer.relay_query(relay[0]), mixer.relay_key(rows), mixer.relay_value(rows))
        relay = relay[0] + mixer.relay_output(read)
        for i in range(length):
            near = torch.stack((tokens[i - 1], tokens[i], tokens[(i + 1) % length], tokens[i], relay))
            y[b, i] = mixer.output(heads_read(mixer, mixer.query(tokens[i]), mixer.key(near), mixer.value(near)))
    return y


def edges_of_leaf(mixer, leaf, length):
    """Return first leaf, size and type of the nodes that a leaf reads, by a walk in both directions."""
    leaf_edges, sides = [(leaf, 1, 0)], ("left",) if mixer.causal else ("right", "left")
    for number, side in enumerate(sides):
        boundary, level = leaf + (side == "right"), 0
        while boundary > 0 if side == "left" else boundary < length:
            for slot in range(mixer.neighbours):
                size = 2**level if boundary % 2**level == 0 else 2 ** (level - 1)
                start = boundary if side == "right" else boundary - size
                if 0 <= start < length:
                    kind = min(level, mixer.levels - 1) * len(sides) + number
                    leaf_edges.append((start, size, 1 + kind * mixer.neighbours + slot))
                boundary = start + size if side == "right" else start
            level += 1
    return leaf_edges


def bpt(mixer, x, seen):
    """Compute the first layer, whose spans are initialised with zeros, per example, span and leaf."""
    y, scale = torch.zeros_like(x), mixer.head_dim**-0.5

    def shared(rows):
        return mixer.split(rows).repeat_interleave(mixer.heads // mixer.kv_heads, 1)

    for b, length in enumerate(seen.expand(x.shape[0], 1, x.shape[1], x.shape[1])[:, 0, -1].sum(-1).tolist()):
        tokens = x[b : b + 1, :length]
        q, k, v = mixer.split(mixer.query(tokens)), shared(mixer.key(tokens)), shared(mixer.value(tokens))
        zero_queries = mixer.split(mixer.query(torch.zeros_like(tokens[:, :1])))
        nodes = {(leaf, 1): (k[:, :, leaf : leaf + 1], v[:, :, leaf : leaf + 1]) for leaf in range(length)}
        for leaf in range(length):
            keys, values = [], []
            for start, size, kind in edges_of_leaf(mixer, leaf, length):
                if (start, size) not in nodes:
                    leaves = slice(start, start + size)
                    read = mixer.merge((zero_queries @ k[:, :, leaves].mT * scale).softmax(-1) @ v[:, :, leaves])
                    nodes[start, size] = shared(mixer.key(read)), shared(mixer.value(read))
                key, value = nodes[start, size]
                keys.append(key + mixer.types[kind])
                values.append(value)
            weights = (q[:, :, leaf : leaf + 1] @ torch.cat(keys, 2).mT * scale).softmax(-1)
            y[b, leaf] = mixer.merge(weights @ torch.cat(values, 2))[0, 0]
    return y


def etc(mixer, x, seen):
    """Compute weights pair by pair for each example, cut to its length and preceded by its global tokens."""
    y, clip = torch.zeros_like(x), mixer.clip
    for b, length in enumerate(seen.expand(x.shape[0], 1, x.shape[1], x.shape[1])[:, 0, 0].sum(-1).tolist()):
        count = min(mixer.global_tokens, length)
        segment = [token * count // length for token in range(length)]
        segment_tokens = [[t for t in range(length) if segment[t] == s] for s in range(count)]
        globals_ = [x[b, tokens].mean(0) + mixer.start for tokens in segment_tokens]
        q, k, v = mixer.project(torch.stack([*globals_, *x[b, :length]])[None])
        pairs = range(count + length)

        def label(i, j, count=count, segment=segment):
            if (i < count) == (j < count):
                return 4 + clip + max(-clip, min(clip, j - i))
            if i < count:
                return 2 if segment[j - count] == i else 3
            return 0 if segment[i - count] == j else 1

        labels = torch.tensor([[label(i, j) for j in pairs] for i in pairs])
        visible = torch.tensor([[min(i, j) < count or abs(i - j) <= mixer.window for j in pairs] for i in pairs])
        k, v = (part.repeat_interleave(mixer.heads // mixer.kv_heads, 1) for part in (k, v))
        scores = []
        for head in range(mixer.heads):
            label_scores = (q[0, head, :, None] * mixer.labels[head][labels]).sum(-1) + mixer.label_bias[head][labels]
            scores.append(((q @ k.mT)[0, head] + label_scores) * mixer.head_dim**-0.5)
        weights = torch.stack(scores).masked_fill(~visible, -torch.inf).softmax(-1)
        y[b, :length] = mixer.merge(weights[None] @ v)[0, count:]
    return y


OUTPUTS = {BPTransformer: bpt, ETC: etc, Longformer: longformer, StarTransformer: star}
ORACLES = {
    AxialAttention: axial,
    SlidingWindow: window,
    BlockLocal: same_block,
    Blockwise: blockwise,
    RandomAttention: random_blocks,
    GlobalTokens: first_rows,
    DilatedWindow: dilated,
    ImageLocal1d: image_1d,
    ImageLocal2d: image_2d,
    SparseFixed: fixed,
    SparseStrided: strided,
    BigBird: bigbird,
}
