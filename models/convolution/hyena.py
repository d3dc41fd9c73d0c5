"""Hyena: gated long convolutions whose kernels are computed by a small network of the lag."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..feedforward import linear
from ..kernels.dropout import dropout
from ..kernels.fft_convolution import fft_convolution
from ..kernels.linear import full_precision
from ..mixer import Context, Mixer, MixerSpec

FASTEST, SLOWEST, DECAYED_TO = 0.3, 1.5, 1e-2
"""Fractions of the maximum length after which the fastest and the slowest window have decayed to ``DECAYED_TO``."""


class Hyena(Mixer):
    """z ← g_o ⊙ (h_o ∗ z + d_o ⊙ z) for o = 1 … ``order``, starting at z = v, followed by the output projection.

    Poli et al. 2023, arXiv 2302.10866. x (B, N, E) -> (B, N, E). O(o N E log N + N E²) time, O(o N E) memory. v and the
    gates g are projections of x followed by a depthwise convolution over three positions. The filters h are computed by
    ``ImplicitFilters`` with ``filter_width``, ``filter_layers``, ``bands`` and ``frequency``. With ``filter_bias`` the
    short convolution has a bias. If not causal, negative lags have separate filters, and the short convolution is
    centred.

    Deviations from the authors' code: there are as many long filters as gates, as in the paper's definition; the code
    omits the first, and its gates are in reverse order. Dropout is applied once, before the output projection. The
    block also has a feed-forward network.
    """

    spec = MixerSpec(
        family="convolution",
        paper="Hyena Hierarchy: Towards Larger Convolutional Language Models",
        arxiv="2302.10866",
        causal="exact",
        code="HazyResearch/safari@02220c6:src/models/sequence/hyena.py",
    )
    revision = 2
    not_decayed = ("skip",)

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        order: int = 2,
        filter_width: int = 64,
        filter_layers: int = 2,
        bands: int = 16,
        frequency: float = 14.0,
        filter_bias: bool = True,
        **common: Any,
    ) -> None:
        super().__init__(width, heads, **common)
        for name, value in (("order", order), ("filter_width", filter_width), ("bands", bands)):
            if value < 1:
                raise UserError(f"model.mixer.{name}={value}: must be at least 1")
        if filter_layers < 0:
            raise UserError(f"model.mixer.filter_layers={filter_layers}: must not be negative")
        if frequency <= 0:
            raise UserError(f"model.mixer.frequency={frequency}: must be positive")
        self.order, directions = order, 1 if self.causal else 2
        self.input, self.output = linear(width, (order + 1) * width), linear(width, width)
        self.short = nn.Parameter(torch.empty((order + 1) * width, 1, 3).uniform_(-(3**-0.5), 3**-0.5))
        bias = torch.empty((order + 1) * width).uniform_(-(3**-0.5), 3**-0.5) if filter_bias else None
        self.short_bias = None if bias is None else nn.Parameter(bias)
        self.skip = nn.Parameter(torch.randn(order, width))
        self.filters = ImplicitFilters(
            (directions, order, width), filter_width, filter_layers, bands, frequency, self.max_length
        )

    def restricts_from(self) -> int:
        """Return 0: weights of the filters depend on distances only."""
        return 0

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Project x, alternate long convolutions and gates, and apply the output projection."""
        projected = self.input(x)
        if context.padding is not None:
            projected = context.padding.zero(projected)
        padded = F.pad(projected.mT, (2, 0) if self.causal else (1, 1))
        channels = F.conv1d(padded, self.short, self.short_bias, groups=len(self.short))
        if context.padding is not None:
            channels = context.padding.zero(channels.mT).mT
        with full_precision(x):
            z, *gates = (channels.float() if channels.dtype.itemsize < 4 else channels).chunk(self.order + 1, 1)
            ahead, *behind = self.filters(x.shape[1]).unbind()
            for index, gate in enumerate(gates):
                # Lag zero belongs to the forward filter alone.
                lags = (ahead[index], *(each[index, :, 1:] for each in behind))
                z = gate * (fft_convolution(z, *lags) + self.skip[index][:, None] * z)
        return self.output(dropout(z.mT, self.drop_rate)), context


class ImplicitFilters(nn.Module):
    """h(t) = exp(−t r) ⊙ network(t, cos and sin of ``bands`` multiples of t), with t = lag / maximum length.

    ``shape`` is the shape of the filters with channels last; the output is (*shape, N). The network has an input layer
    and ``layers`` further hidden layers of ``width`` units with activation sin(f ⊙ ·); f is learned, initialised to
    ``frequency`` and shared by the layers. The rates r are fixed and spread over the channels such that the windows
    decay to 0.01 after 0.3 to 1.5 times the maximum length.

    Deviations: the authors also train the features, with a learning rate near zero; fixed features extend beyond the
    maximum length.
    """

    multiples: Tensor
    rates: Tensor

    def __init__(
        self, shape: tuple[int, ...], width: int, layers: int, bands: int, frequency: float, max_length: int
    ) -> None:
        super().__init__()
        self.shape, self.max_length = shape, max_length
        self.layers = nn.ModuleList(nn.Linear(width if after else 1 + 2 * bands, width) for after in range(layers + 1))
        self.frequency = nn.Parameter(torch.full((width,), frequency))
        self.last = nn.Linear(width, math.prod(shape), bias=False)
        self.register_buffer("multiples", torch.linspace(1e-4, bands - 1, bands), persistent=False)
        rates = -math.log(DECAYED_TO) * torch.linspace(1 / SLOWEST, 1 / FASTEST, shape[-1])
        self.register_buffer("rates", rates, persistent=False)
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = {"frequency": slow}
        for layer in (*self.layers, self.last):
            layer.optimizer_hints = {name: slow for name, _ in layer.named_parameters()}

    def forward(self, length: int) -> Tensor:
        """Return the filters (*shape, ``length``)."""
        lags = torch.arange(length, device=self.rates.device, dtype=self.rates.dtype)
        time, angles = lags / max(1, self.max_length - 1), 2 * math.pi / self.max_length * lags
        angles = angles[:, None] * self.multiples
        y = torch.cat((time[:, None], angles.cos(), -angles.sin()), -1)
        for layer in self.layers:
            y = (self.frequency * layer(y)).sin()
        unwindowed = self.last(y).mT.unflatten(0, self.shape)
        filters: Tensor = unwindowed * (-time * self.rates[:, None]).exp()
        return filters
