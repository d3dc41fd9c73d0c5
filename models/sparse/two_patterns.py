"""Two patterns of attention that together reach every token in two steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..mixer import Context, HeadMixer

COMBINATIONS = ("merged", "heads", "interleave")
MULTIPLE = 8  # matrix units and masks prefer such strides


class TwoPatterns(HeadMixer):
    """A near pattern within ``stride`` tokens and a far one that skips by it, of the Sparse Transformer.

    Child et al. 2019, arXiv 1904.10509. ``combine`` says how heads use them: ``merged``, each both in one softmax;
    ``heads``, the first half the near one, the other half the far one; ``interleave``, even layers the near one, odd
    layers the far one. ``stride`` is by default the square root of ``max_length``, to the nearest multiple of eight.
    """

    def __init__(
        self, width: int, heads: int, *, stride: int | None = None, combine: str = "merged", **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        if stride is not None and stride < 1:
            raise UserError(f"model.mixer.stride={stride}: must be at least 1")
        if combine not in COMBINATIONS:
            raise UserError(f"model.mixer.combine={combine}: is none of {', '.join(COMBINATIONS)}")
        if combine == "heads" and heads < 2:
            raise UserError("model.mixer.combine=heads: needs two heads; set merged or interleave")
        if self.kv_heads != heads:
            raise UserError("model.mixer.kv_heads: heads differ in what they see; leave it out")
        self.stride = stride or near_root(self.max_length)
        self.combine = combine

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in one pattern or both."""
        if self.combine == "merged":
            return self.merged(q, k, v, context)
        if self.combine == "interleave":
            return (self.far if self.layer % 2 else self.near)(q, k, v, context)
        half = self.heads // 2
        near = self.near(q[:, :half], k[:, :half], v[:, :half], context)
        far = self.far(q[:, half:], k[:, half:], v[:, half:], context)
        return torch.cat((near, far), 1)

    def near(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in the near pattern, for as many heads as are given."""
        raise NotImplementedError(f"{type(self).__name__} defines no near pattern")

    def far(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in the far pattern, for as many heads as are given."""
        raise NotImplementedError(f"{type(self).__name__} defines no far pattern")

    def merged(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention in both patterns, a key of both counted once."""
        raise NotImplementedError(f"{type(self).__name__} does not merge its patterns")


def near_root(length: int) -> int:
    """The multiple of eight that is nearest to the square root."""
    return MULTIPLE * max(1, round(math.sqrt(length) / MULTIPLE))
