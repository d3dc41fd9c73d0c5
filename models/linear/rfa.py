"""RFA: softmax attention of unit vectors, estimated by random Fourier features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import Context, MixerSpec
from .random_features import RandomFeatureMap

KERNELS = ("gaussian", "arccos")


class RFA(RandomFeatureMap):
    """Attention of unit-length queries and keys, with exp(q·k) estimated by sines and cosines of random projections.

    Peng et al. 2021, arXiv 2103.02143. q, k, v (B, H, N, D) -> (B, H, N, D).
    O(N M D) time, O(N M + M D) memory per head; the causal form is exact and computed in chunks.
    ``features`` is M, the number of directions of each head; each yields a sine and a cosine, or with ``kernel``
    ``arccos`` the positive part of the projection. Directions are multiplied by a learned ``scale`` (H, 1, D), divided
    by ``temperature``, and resampled every ``redraw_every`` steps (0: never).

    Deviations from the authors' code (Noahs-ARK/RFA at b075fa8):

    - Directions are resampled, where the authors draw from a stored pool; evaluation uses the last sample, which is
      saved with the weights.
    - Features are multiplied by M^(−1/2), there by 0.1 for any M, and the normaliser, whose estimate can vanish or be
      negative, is kept at least 0.001 from zero. There a normaliser below 1 is set to 1 in causal
      attention, which is a value of 100 / M here, so that the outputs of the first tokens are sums with too small a
      total weight.
    - ``kernel=arccos``, from the paper, is not in that code.
    - Dropout is applied to outputs, because there are no attention weights.
    """

    spec = MixerSpec(
        family="linear",
        paper="Random Feature Attention",
        arxiv="2103.02143",
        code="Noahs-ARK/RFA@b075fa8:random_feature_attention/causal_attention.py",
        causal="exact",
        equivariant=True,
        stochastic=True,
        positions=("embed", "rotate"),
    )
    has_step_form = True
    not_decayed = ("scale",)
    draws = "rfa"
    floor = 1e-3

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        features: int = 64,
        kernel: str = "gaussian",
        temperature: float = 1.0,
        redraw_every: int = 1,
        **common: Any,
    ) -> None:
        if kernel not in KERNELS:
            raise UserError(f"model.mixer.kernel={kernel}: must be one of {', '.join(KERNELS)}")
        if temperature <= 0:
            raise UserError(f"model.mixer.temperature={temperature}: must be positive")
        super().__init__(width, heads, features=features, redraw_every=redraw_every, **common)
        self.kernel, self.temperature = kernel, temperature
        self.scale = nn.Parameter(torch.ones(heads, 1, self.head_dim))

    def draw(self, generator: torch.Generator) -> Tensor:
        """Return directions (H, M, D), different for each head."""
        # Orthogonal directions would reduce the error, but their QR takes twenty times as long, at every step.
        return torch.randn(self.heads, self.count, self.head_dim, generator=generator)

    def features(self, x: Tensor, context: Context) -> Tensor:
        """Return M^(−1/2) (sin w·x, cos w·x), or M^(−1/2) relu(w·x), for x normalised to unit length."""
        x = x / (x.norm(dim=-1, keepdim=True) + 1e-3)
        along = x @ (self.directions * (self.scale.to(x.dtype) / self.temperature)).mT
        waves = along.relu() if self.kernel == "arccos" else torch.cat((along.sin(), along.cos()), -1)
        return waves * self.count**-0.5
