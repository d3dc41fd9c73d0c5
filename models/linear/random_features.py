"""Feature maps along random directions."""

from __future__ import annotations

from typing import Any

from lra_bench.contracts import UserError

from ..draws import RandomDirections
from .feature_attention import FeatureAttention


class RandomFeatureMap(RandomDirections, FeatureAttention):
    """Linear attention with features along ``features`` random directions."""

    def __init__(self, width: int, heads: int, *, features: int, **common: Any) -> None:
        super().__init__(width, heads, **common)
        if features < 1:
            raise UserError(f"model.mixer.features={features}: must be at least 1")
        self.count = features
        self.begin()
