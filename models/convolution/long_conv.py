"""LongConv: convolution with kernels that have one parameter for every lag."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.dropout import dropout
from ..mixer import MixerSpec
from .convolved import Convolved

INITIALISATIONS = ("random", "double_exp")


class LongConv(Convolved):
    """y = k ∗ x + D ⊙ x for each channel, with k_t = sign(w_t) max(|w_t| − λ, 0) and one parameter w_t per lag t.

    Fu et al. 2023, arXiv 2302.06646. x (B, N, E) -> (B, N, E). O(N E log N) time, O(N E) memory and parameters, for up
    to ``max_length`` positions. Raises ``UserError`` for an invalid option.

    Deviations from the authors' code (HazyResearch/safari at 02220c6, src/models/sequence/long_conv.py): each channel
    has one kernel, where the configurations for Long Range Arena have two (``channels: 2``), whose outputs are
    concatenated before the projection. Those configurations have a squash of 0.001 to 0.004 and a kernel dropout of 0.1
    to 0.3, and the defaults of the code are 0.1 and 0. Lags are trained at a rate of at most 0.001, there at 0.0001 to
    0.001, depending on the task. The block also has a feed-forward network.

    Args:
        width: Model width E.
        heads: Number of heads, which has no effect.
        squash: λ, below which a lag is set to zero.
        kernel_dropout: Probability with which lags are dropped during training.
        smooth: Odd number of neighbouring lags that are averaged first; 1 for no smoothing.
        begin: Initialisation of w: ``random``, with the same small scale at all lags, or ``double_exp``, which decays
            with the lag at a different rate for each channel.
        gated: Whether the output projection is gated (GLU); otherwise a linear layer.
        common: Options of ``Mixer``.
    """

    spec = MixerSpec(
        family="convolution",
        paper="Simple Hardware-Efficient Long Convolutions for Sequence Modeling",
        arxiv="2302.06646",
        causal="exact",
        length="maximum",
        code="HazyResearch/safari@02220c6:src/models/sequence/long_conv.py",
    )

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        squash: float = 0.001,
        kernel_dropout: float = 0.2,
        smooth: int = 1,
        begin: str = "random",
        gated: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, gated=gated, **common)
        if squash < 0:
            raise UserError(f"model.mixer.squash={squash}: must not be negative")
        if not 0 <= kernel_dropout < 1:
            raise UserError(f"model.mixer.kernel_dropout={kernel_dropout}: must be at least 0 and below 1")
        if smooth < 1 or smooth % 2 == 0:
            raise UserError(f"model.mixer.smooth={smooth}: must be odd and positive")
        if begin not in INITIALISATIONS:
            raise UserError(f"model.mixer.begin={begin}: must be one of {', '.join(INITIALISATIONS)}")
        self.squash, self.kernel_dropout, self.smooth = squash, kernel_dropout, smooth
        noise = torch.randn(self.directions, width, self.max_length)
        if begin == "random":
            self.kernel = nn.Parameter(0.002 * noise)
        else:
            fraction = torch.arange(width) / width
            rate = max(1.0, width / 2) ** fraction[:, None]
            self.kernel = nn.Parameter(0.02 * noise * (-rate * torch.arange(self.max_length) / self.max_length).exp())
        self.optimizer_hints = {"kernel": {"max_lr": 1e-3, "weight_decay": 0.0}}

    def lags(self, length: int) -> tuple[Tensor, ...]:
        """Return the kernels (E, ``length``), one for each direction."""
        half = self.smooth // 2
        kernel = self.kernel[..., : length + half]
        if half:
            kernel = F.avg_pool1d(kernel, self.smooth, stride=1, padding=half)[..., :length]
        kernel = F.softshrink(kernel, self.squash)
        return tuple(dropout(kernel, self.kernel_dropout if self.training else 0.0).unbind())
