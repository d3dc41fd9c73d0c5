"""Softmax of scores that are written out, with whatever the position does to them."""

import torch

from tests.oracles.positions import WRITTEN, turned_products


def heads_of(mixer, x):
    """Queries and keys (B, H, N, D), shared keys repeated."""
    q, k, _ = mixer.project(x)
    return q, k.repeat_interleave(mixer.heads // mixer.kv_heads, 1)


def placed(mixer, q, k, a=None, b=None, scale=1, scores=None):
    """Scores of pairs: ``scores`` as given, else the products of a and b; then what the position makes of them."""
    name = mixer.position.name if mixer.position is not None else "none"
    if name == "rope":
        return turned_products(a, b) * scale
    plain = a @ b.mT * scale if scores is None else scores
    return plain if name == "none" else WRITTEN[name](mixer.position, q, k, plain)


def softmax_of(scores, seen):
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)


def scores(mixer, x):
    q, k = heads_of(mixer, x)
    return placed(mixer, q, k, q, k, mixer.head_dim**-0.5)


def softmax(mixer, x, seen):
    return softmax_of(scores(mixer, x), seen)
