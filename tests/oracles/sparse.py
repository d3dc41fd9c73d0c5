"""Attention to a pattern of positions."""

import torch

from lra_bench.models.sparse.block_local import BlockLocal
from lra_bench.models.sparse.sliding_window import SlidingWindow

from .softmax import softmax

SMALL = {"local": {"window": 5}, "block_local": {"block": 7}}


def window(mixer, x, seen):
    behind = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    return softmax(mixer, x, seen & (behind.abs() <= mixer.window))


def same_block(mixer, x, seen):
    block = torch.arange(x.shape[1]) // mixer.block
    return softmax(mixer, x, seen & (block[:, None] == block))


ORACLES = {SlidingWindow: window, BlockLocal: same_block}
