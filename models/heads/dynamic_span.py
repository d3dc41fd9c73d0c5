"""Attention in windows whose width is learned, one for each token and head."""

from __future__ import annotations

import math

from torch import Tensor, nn

from lra_bench.contracts import UserError

from .adaptive_span import SpanAttention


class DynamicSpan(SpanAttention):
    """Each token has a z for each head: the largest, times a sigmoid of a linear map of the token.

    Sukhbaatar et al. 2019, arXiv 1905.07799, section 3.2. x (B, N, E) -> (B, N, E). All else is ``SpanAttention``'s.
    """

    def begin(self, initial: int) -> None:
        """The linear map, whose bias begins where the sigmoid gives ``initial``."""
        if not 0 < initial < self.span:
            raise UserError(f"model.mixer.initial_span={initial}: a sigmoid reaches neither 0 nor {self.span}")
        self.share = nn.Linear(self.width, self.heads)
        nn.init.xavier_uniform_(self.share.weight)
        nn.init.constant_(self.share.bias, math.log(initial / (self.span - initial)))

    def spans(self, x: Tensor) -> Tensor:
        """z (B, H, N) of the tokens of x (B, N, E)."""
        share = self.share(x).mT
        return self.span * (share.float() if share.dtype.itemsize < 4 else share).sigmoid()
