"""Softmax of scores that are written out."""

import torch


def scores(mixer, x):
    q, k, _ = mixer.project(x)
    return q @ k.repeat_interleave(mixer.heads // mixer.kv_heads, 1).mT * mixer.head_dim**-0.5


def softmax(mixer, x, seen):
    return scores(mixer, x).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0)
