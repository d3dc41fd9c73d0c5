"""Base class of the Sparse Transformer: two attention patterns that together connect all tokens in two steps."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from lra_bench.contracts import UserError

from ..mixer import Context, HeadMixer

COMBINATIONS = ("merged", "heads", "interleave")
MULTIPLE = 8
"""Number of which default strides are multiples, for the efficiency of matrix units and masks."""


class TwoPatterns(HeadMixer):
    """Base class of mixers with a near pattern within ``stride`` tokens and a far pattern in steps of ``stride``.

    The Sparse Transformer of Child et al. 2019, arXiv 1904.10509. ``stride`` is by default the multiple of eight
    nearest to the square root of ``max_length``. ``combine`` is one of:

    - ``merged``: each head uses both patterns in one softmax.
    - ``heads``: the first half of the heads uses the near pattern, the second half the far pattern.
    - ``interleave``: even layers use the near pattern, odd layers the far pattern.

    Raises ``UserError`` if an option is invalid, or ``kv_heads`` differs from ``heads``.
    """

    def __init__(
        self, width: int, heads: int, *, stride: int | None = None, combine: str = "merged", **common: Any
    ) -> None:
        super().__init__(width, heads, **common)
        if stride is not None and stride < 1:
            raise UserError(f"model.mixer.stride={stride}: must be at least 1")
        if combine not in COMBINATIONS:
            raise UserError(f"model.mixer.combine={combine}: must be one of {', '.join(COMBINATIONS)}")
        if combine == "heads" and heads < 2:
            raise UserError(f"model.mixer.combine=heads: needs 2 heads, there are {heads}; set merged or interleave")
        if self.kv_heads != heads:
            raise UserError(f"model.mixer.kv_heads={self.kv_heads}: heads have different patterns; leave it out")
        self.stride = stride or near_root(self.max_length)
        self.combine = combine

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention with the patterns that ``combine`` selects."""
        if self.combine == "merged":
            return self.merged(q, k, v, context)
        if self.combine == "interleave":
            return (self.far if self.layer % 2 else self.near)(q, k, v, context)
        half = self.heads // 2
        near = self.near(q[:, :half], k[:, :half], v[:, :half], context)
        far = self.far(q[:, half:], k[:, half:], v[:, half:], context)
        return torch.cat((near, far), 1)

    def restricts_from(self) -> int | None:
        """Return the smallest length at which a pattern of the layer excludes a token."""
        lengths = self.excludes_from()
        if self.combine == "merged":
            return lengths["merged"]
        if self.combine == "interleave":
            return lengths["far" if self.layer % 2 else "near"]
        return min((length for name, length in lengths.items() if name != "merged" and length), default=None)

    def excludes_from(self) -> dict[str, int | None]:
        """Return the smallest length at which ``near``, ``far`` and ``merged`` exclude a token, None if none does."""
        raise NotImplementedError(f"{type(self).__name__} defines no excludes_from")

    def near(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention with the near pattern, for all or some of the heads."""
        raise NotImplementedError(f"{type(self).__name__} defines no near pattern")

    def far(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention with the far pattern, for all or some of the heads."""
        raise NotImplementedError(f"{type(self).__name__} defines no far pattern")

    def merged(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Compute attention with both patterns in one softmax; a key that is in both counts once."""
        raise NotImplementedError(f"{type(self).__name__} does not merge its patterns")


def near_root(length: int) -> int:
    """Return the multiple of eight, at least 8, that is nearest to the square root of ``length``."""
    return MULTIPLE * max(1, round(math.sqrt(length) / MULTIPLE))
