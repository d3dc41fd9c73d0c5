"""Softmax of scores that are written out, with whatever the position does to them."""

import torch

from .positions import WRITTEN


def scores(mixer, x):
    q, k, _ = mixer.project(x)
    k = k.repeat_interleave(mixer.heads // mixer.kv_heads, 1)
    plain = q @ k.mT * mixer.head_dim**-0.5
    return plain if mixer.position is None else WRITTEN[mixer.position.name](mixer.position, q, k, plain)


def softmax(mixer, x, seen):
    return scores(mixer, x).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
