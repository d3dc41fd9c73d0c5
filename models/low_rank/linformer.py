"""Linformer: attention to keys and values that are projected to a shorter sequence."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.few import few_attention
from ..mixer import Context, HeadMixer, MixerSpec

SHARING = ("none", "headwise", "key_value", "layerwise", "layerwise_by_head")
PROJECTIONS = ("linear", "convolution", "mean", "max")


class Linformer(HeadMixer):
    """Softmax attention to r = ``rank`` projected keys E k and values F v instead of N.

    Wang et al. 2020, arXiv 2006.04768. q (B, H, N, D), k and v (B, G, N, D) -> (B, H, N, D). O(N r D) time and memory.
    ``projection`` is ``linear``, with matrices (r, N) for up to ``max_length`` positions, or reduces windows of
    max_length / r positions by their ``mean``, ``max`` or a depthwise ``convolution``. ``sharing`` determines which
    projections are equal: each head has its own E and F (``none``), all heads share E and F (``headwise``), E = F in
    addition (``key_value``), or the same E = F in all layers (``layerwise``), in which case the first layer passes it
    on; with ``layerwise_by_head`` all layers have the same E = F, a separate one for each head. Padding is set to zero
    before it is projected, and windows that contain only padding are masked, so that neither the content nor the amount
    of padding has an effect. A CLS token is projected like any other.

    Deviations from the authors' code: projections are normal with standard deviation N^(-1/2), the authors' are
    Xavier-uniform; keys and values are projected along the sequence after the key and value projections, so that their
    biases are projected too.
    """

    spec = MixerSpec(
        family="low_rank",
        paper="Linformer: Self-Attention with Linear Complexity",
        arxiv="2006.04768",
        code="facebookresearch/fairseq@3d262bb:examples/linformer/linformer_src/modules/multihead_linear_attention.py",
        length="maximum",
        carries=("linformer",),
        full_config={"projection": "mean", "rank": 1_000_000},
    )
    shows_heads = True

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        rank: int = 128,
        projection: str = "linear",
        sharing: str = "layerwise",
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        if rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        if projection not in PROJECTIONS:
            raise UserError(f"model.mixer.projection={projection}: must be one of {', '.join(PROJECTIONS)}")
        if sharing not in SHARING:
            raise UserError(f"model.mixer.sharing={sharing}: must be one of {', '.join(SHARING)}")
        self.projection, self.sharing, self.rank = projection, sharing, rank
        self.shares_layers = sharing.startswith("layerwise")
        self.window = -(-self.max_length // min(rank, self.max_length))
        size = {"linear": (rank, self.max_length), "convolution": (self.window, self.head_dim)}.get(projection)
        self.weights: nn.Parameter | None = None
        if size is not None and not (self.shares_layers and self.layer > 0):
            copies = 1 if sharing == "key_value" or self.shares_layers else 2
            heads = self.kv_heads if sharing in ("none", "layerwise_by_head") else 1
            self.weights = nn.Parameter(torch.empty(copies, heads, *size))
            # Initialised such that projected keys and values have about the scale of the originals.
            terms = self.max_length if projection == "linear" else self.window
            nn.init.normal_(self.weights, std=terms**-0.5)

    def restricts_from(self) -> int | None:
        """Return r + 1 for matrices; for windows 2, or None if a window is a single position."""
        if self.projection == "linear":
            return self.rank + 1
        return 2 if self.window > 1 else None

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project, attend and merge; with layerwise sharing, the first layer passes its projection on."""
        y, context = super().forward(x, context)
        if self.shares_layers and self.weights is not None and self.depth > 1:
            # A copy, because a sharded layer releases its weights after its forward pass.
            context = context.with_carry("linformer", self.weights.clone())
        return y, context

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attend to projected keys and values, with windows of padding masked."""
        padding, visible = context.padding, None
        if padding is not None:
            k, v = padding.zero_heads(k), padding.zero_heads(v)
            if self.projection != "linear":
                visible = padding.valid[:, None, None, :: self.window]
        weights = self.weights if self.weights is not None else context.carry.get("linformer")
        k, v = (self._project(x, None if weights is None else weights[i], context) for x, i in ((k, 0), (v, -1)))
        return few_attention(q, k, v, visible=visible, dropout=self.drop_rate)

    def _project(self, x: Tensor, weights: Tensor | None, context: Context) -> Tensor:
        """Project x (B, G, N, D), zero at padding, to (B, G, S, D); ``weights`` are (G or 1, ...) or None."""
        length = x.shape[2]
        if weights is not None and self.projection == "linear":
            weights = weights[..., :length]
            if len(weights) == 1:
                return torch.einsum("sn,bgnd->bgsd", weights[0], x)
            return torch.einsum("gsn,bgnd->bgsd", weights, x)
        windows = F.pad(x, (0, 0, 0, -length % self.window)).unflatten(2, (-1, self.window))
        if weights is not None:
            return (windows * weights[:, None]).sum(3)
        lengths = x.new_full((1, 1), length) if context.padding is None else context.padding.lengths[:, None]
        starts = torch.arange(0, length, self.window, device=x.device)
        # Windows of padding alone, which are masked, count one token to avoid a division by zero.
        tokens = (lengths - starts).clamp(1, self.window)
        if self.projection == "mean":
            return windows.sum(3) / tokens[:, None, :, None]
        real = torch.arange(self.window, device=x.device) < tokens[..., None]
        return windows.masked_fill(~real[:, None, :, :, None], torch.finfo(x.dtype).min).amax(3)
