"""Attention to a pattern of positions."""

import torch

from lra_bench.models.sparse.bigbird import BigBird
from lra_bench.models.sparse.block_local import BlockLocal
from lra_bench.models.sparse.blockwise import Blockwise
from lra_bench.models.sparse.dilated_window import DilatedWindow
from lra_bench.models.sparse.global_tokens import GlobalTokens
from lra_bench.models.sparse.image_local_1d import ImageLocal1d
from lra_bench.models.sparse.image_local_2d import ImageLocal2d
from lra_bench.models.sparse.longformer import Longformer
from lra_bench.models.sparse.random_attention import RandomAttention
from lra_bench.models.sparse.sliding_window import SlidingWindow
from lra_bench.models.sparse.sparse_fixed import SparseFixed
from lra_bench.models.sparse.sparse_strided import SparseStrided

from .positions import turned
from .softmax import softmax

SMALL = {
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
}


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
    """Of rows without a prefix."""
    n = x.shape[1]
    near = torch.zeros(n, n, dtype=torch.bool)
    for i in range(n):
        for j in range(n):
            (first, second), (flange_lines, flange_columns) = mixer.block, mixer.flange
            line, column = i // mixer.columns // first * first, i % mixer.columns // second * second
            lines = line - flange_lines <= j // mixer.columns < line + first + flange_lines
            near[i, j] = lines and column - flange_columns <= j % mixer.columns < column + second + flange_columns
    return softmax(mixer, x, seen & near)


def first_rows(mixer, x, seen):
    place = torch.arange(x.shape[1])
    first = place < mixer.global_tokens
    return softmax(mixer, x, seen & (first | first[:, None] | (place == place[:, None])))


def by_blocks(mixer, x, seen, chosen):
    """What each head sees where ``chosen(head, own block, blocks)`` are the blocks that a block sees."""
    n = x.shape[1]
    block = torch.arange(n) // mixer.block
    # All rows that padding may hide, and of each row of the batch as many blocks as its tokens begin.
    lengths = seen.expand(x.shape[0], 1, n, n).any(-2)[:, 0].sum(-1).tolist()
    visible = torch.zeros(x.shape[0], mixer.heads, n, n, dtype=torch.bool)
    for row, length in enumerate(lengths):
        count = max(1, -(-length // mixer.block))
        for head in range(mixer.heads):
            for own in range(count):
                seen_blocks = torch.tensor(sorted(chosen(head, own, count)))
                visible[row, head, block == own] = torch.isin(block, seen_blocks)
    return softmax(mixer, x, seen & visible)


def blockwise(mixer, x, seen):
    return by_blocks(mixer, x, seen, lambda head, own, count: {(own + mixer.shifts[head]) % count})


def random_blocks(mixer, x, seen):
    def chosen(head, own, count):
        others = [other for other in range(own if mixer.causal else count) if other != own]
        found = {own}
        for draw in mixer.draws[head, own % mixer.draws.shape[1]].tolist():
            if others:
                found.add(others.pop(draw * len(others) // 2**31))
        return found

    return by_blocks(mixer, x, seen, chosen)


def combined(mixer, near, far):
    """What each head sees of two patterns (H, N, N)."""
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
        q, k = turned(mixer, q, k)
        logits = q @ k.repeat_interleave(repeats, 1).mT * mixer.head_dim**-0.5
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
        o = torch.where(first[:, None], weights @ v.repeat_interleave(repeats, 1), o)
    return mixer.merge(o)


def bigbird(mixer, x, seen):
    def chosen(head, own, count):
        if own in (0, count - 1):
            return set(range(count))
        found = {0, count - 1, own - 1, own, own + 1}
        others = [other for other in range(count) if other not in found]
        for draw in mixer.draws[head, own % mixer.draws.shape[1]].tolist():
            if others:
                found.add(others.pop(draw * len(others) // 2**31))
        return found

    return by_blocks(mixer, x, seen, chosen)


OUTPUTS = {Longformer: longformer}
ORACLES = {
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
