"""Nyströmformer: softmax attention approximated from a few landmarks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..kernels.head_convolution import head_convolution
from ..kernels.landmarks import Landmarks, by_query_head
from ..kernels.linear import full_precision
from ..kernels.pseudo_inverse import pseudo_inverse
from ..kernels.segments import segment_mean
from ..kernels.softmax import softmax_attention
from ..mixer import Context, HeadMixer, MixerSpec


class Nystromformer(HeadMixer):
    """softmax(Q k̃ᵀ) softmax(q̃ k̃ᵀ)⁺ softmax(q̃ Kᵀ) V plus a convolution of V; landmarks q̃, k̃ are means of segments.

    Xiong et al. 2021, arXiv 2102.03902. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N m D + m^3) time.
    ``landmarks`` is m. ``iterations`` is the number of iterations of the pseudo-inverse; stopping early regularises,
    and the exact inverse performs far worse. ``convolution`` is the odd kernel size of the filter of each head over its
    values, 0 for none. A sequence of at most m tokens uses every token as a landmark and gets exact attention, as in
    the authors' code for m = N.

    Deviations from the authors' code: segments divide the length of each sequence without padding; the iteration starts
    from the norms of each matrix separately, where the authors' start depends on the batch; dropout is applied to
    outputs, because the attention weights are not available.
    """

    spec = MixerSpec(
        family="low_rank",
        paper="Nyströmformer: A Nyström-Based Algorithm for Approximating Self-Attention",
        arxiv="2102.03902",
        code="mlpen/Nystromformer@5689313:LRA/code/attention_nystrom.py",
        positions=("embed", "rotate"),
        full_config={"landmarks": 1_000_000, "convolution": 0},
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        landmarks: int = 64,
        iterations: int = 6,
        convolution: int = 33,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if landmarks < 1:
            raise UserError(f"model.mixer.landmarks={landmarks}: must be at least 1")
        if iterations < 0:
            raise UserError(f"model.mixer.iterations={iterations}: must not be negative")
        if convolution and (convolution < 0 or convolution % 2 == 0):
            raise UserError(f"model.mixer.convolution={convolution}: must be odd, or 0 for none")
        self.landmarks, self.iterations = landmarks, iterations
        self.filters: nn.Parameter | None = None
        if convolution:
            self.filters = nn.Parameter(torch.empty(self.kv_heads, convolution))
            nn.init.uniform_(self.filters, -(convolution**-0.5), convolution**-0.5)

    def restricts_from(self) -> int:
        """Return m + 1, the smallest length at which tokens are more than landmarks."""
        return self.landmarks + 1

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Apply exact attention for up to ``landmarks`` tokens, otherwise through landmarks; add the convolution."""
        if q.shape[2] <= self.landmarks:
            o = softmax_attention(q, k, v, padding=context.padding)
        else:
            o = self._through_landmarks(q, k, v, context)
        if self.filters is not None:
            local = head_convolution(v if context.padding is None else context.padding.zero_heads(v), self.filters)
            o = o + by_query_head(local, q)
        return dropout(o, self.drop_rate)

    def _through_landmarks(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        padding = context.padding
        landmarks = Landmarks.of(q, k, v, self.landmarks, padding)
        with full_precision(q):
            middle = pseudo_inverse(landmarks.between, self.iterations) @ landmarks.summary
        if padding is not None:
            # If all tokens are landmarks, the first factor is the exact softmax, which applies to the values.
            tokens = by_query_head(segment_mean(v, self.landmarks, padding)[0], q)
            middle = torch.where((padding.lengths <= self.landmarks)[:, None, None, None], tokens, middle)
        return landmarks.read(q, middle)
