"""Softmax of scores, including the effect of the position."""

import torch

from tests.oracles.positions import WRITTEN, rotated_products


def heads_of(mixer, x):
    """Return queries and keys (B, H, N, D), with shared keys repeated."""
    q, k, _ = mixer.project(x)
    return q, k.repeat_interleave(mixer.heads // mixer.kv_heads, 1)


def positioned_scores(mixer, q, k, a=None, b=None, scale=1, scores=None):
    """Return the scores of all pairs with the position applied.

    The scores before the position are ``scores``, or otherwise the scaled products of a and b.
    """
    name = mixer.position.name if mixer.position is not None else "none"
    if name == "rope":
        return rotated_products(a, b) * scale
    without_position = a @ b.mT * scale if scores is None else scores
    return without_position if name == "none" else WRITTEN[name](mixer.position, q, k, without_position)


def softmax_of(scores, seen):
    return scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)


def scores(mixer, x):
    q, k = heads_of(mixer, x)
    return positioned_scores(mixer, q, k, q, k, mixer.head_dim**-0.5)


def softmax(mixer, x, seen):
    return softmax_of(scores(mixer, x), seen)
