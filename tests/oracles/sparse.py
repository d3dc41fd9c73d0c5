"""Attention to a pattern of positions."""

import torch

from lra_bench.models.sparse.bigbird import BigBird
from lra_bench.models.sparse.block_local import BlockLocal
from lra_bench.models.sparse.longformer import Longformer
from lra_bench.models.sparse.sliding_window import SlidingWindow
from lra_bench.models.sparse.sparse_fixed import SparseFixed
from lra_bench.models.sparse.sparse_strided import SparseStrided

from .positions import turned
from .softmax import softmax

SMALL = {
    "local": {"window": 5},
    "block_local": {"block": 7},
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
    n = x.shape[1]
    block = torch.arange(n) // mixer.block
    lengths = seen.expand(x.shape[0], 1, n, n)[:, 0, 0].sum(-1).tolist()
    visible = torch.zeros(x.shape[0], mixer.heads, n, n, dtype=torch.bool)
    for row, length in enumerate(lengths):
        count = max(1, -(-length // mixer.block))
        for head in range(mixer.heads):
            for own in range(count):
                chosen = {0, count - 1, own - 1, own, own + 1}
                others = [other for other in range(count) if other not in chosen]
                for draw in mixer.draws[head, own % mixer.draws.shape[1]].tolist():
                    if others:
                        chosen.add(others.pop(draw * len(others) // 2**31))
                if own in (0, count - 1):
                    chosen = set(range(count))
                visible[row, head, block == own] = torch.isin(block, torch.tensor(sorted(chosen)))
    return softmax(mixer, x, seen & visible)


OUTPUTS = {Longformer: longformer}
ORACLES = {
    SlidingWindow: window,
    BlockLocal: same_block,
    SparseFixed: fixed,
    SparseStrided: strided,
    BigBird: bigbird,
}
