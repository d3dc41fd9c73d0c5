"""Dynamic span: attention in windows whose width is predicted for each token and head."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor, nn

from lra_bench.contracts import UserError

from .adaptive_span import SpanAttention


class DynamicSpan(SpanAttention):
    """Adaptive span with one z per token and head: ``span`` times a sigmoid of a linear map of the token.

    Sukhbaatar et al. 2019, arXiv 1905.07799, section 3.2. x (B, N, E) -> (B, N, E). Options, cost and deviations as in
    ``SpanAttention``.
    """

    spec = replace(SpanAttention.spec, code=None)

    def begin(self, initial: int) -> None:
        """Create the linear map, initialised to the same span for all tokens.

        Different initial spans would be slow, because the largest span sets the window of all tokens. Raises
        ``UserError`` unless ``initial`` is between 0 and ``span``, exclusive.
        """
        if not 0 < initial < self.span:
            raise UserError(
                f"model.mixer.initial_span={initial}: a sigmoid reaches neither 0 nor {self.span}; choose between them"
            )
        self.share = nn.Linear(self.width, self.heads)
        nn.init.zeros_(self.share.weight)
        nn.init.constant_(self.share.bias, math.log(initial / (self.span - initial)))

    def spans(self, x: Tensor) -> Tensor:
        """Return z (B, H, N) for x (B, N, E)."""
        share = self.share(x).mT
        return self.span * (share.float() if share.dtype.itemsize < 4 else share).sigmoid()
