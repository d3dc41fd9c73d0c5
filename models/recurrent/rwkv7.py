"""RWKV-7: a matrix state with a generalised delta rule, and token shift."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.accelerated import accelerable, accelerated_corrected_decay_attention
from ..kernels.corrected_decay import corrected_decay_attention
from ..kernels.unit import unit
from ..mixer import Context, MixerSpec, Padding
from .recurrence import Recurrence, last_rows, reverse

MIN_LOG_DECAY = -math.exp(-0.5)  # lower bound of log w: every channel keeps at least 54.5 % per token
# Exponents of the initial weights of the previous token: 1 − (channel / E)^(exponent · (1 − layer / depth)).
SHIFT_EXPONENTS = {"receptance": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}

RANK_FACTORS = {"decay": 2.5, "rate": 2.5, "blend": 1.7, "gate": 5.0}
"""Ranks of the low-rank maps relative to the square root of the number of channels."""


class RWKV7(Recurrence):
    """RWKV-7 time mixing: a matrix state with a generalised delta rule, and token shift.

    S_t = (Diag(w_t) − (a_t ⊙ κ_t) κ_tᵀ) S_(t−1) + k_t v_tᵀ, read by r_t, all computed from x_t and x_(t−1). Peng et al.
    2025, arXiv 2503.14456. x (B, N, E) -> (B, N, E). O(N E (C + E / H)) time and O(N E (1 + E / H C)) memory, in chunks
    of C tokens.

    Each of r, w, k, v, a and the gate has its own interpolation with the previous token (token shift). log w is
    −e^(−1/2) times a sigmoid and a is a sigmoid, both of low-rank maps; κ is the key, scaled per channel and normalised
    to unit length; the key is also scaled by the rate at which it is written. The outputs of the heads are normalised,
    the current value is added as a bonus, and a gate is applied. Values above the first layer are mixed with those of
    the first.

    In the bidirectional form every head becomes two of half the width, and each direction has its own weights. Ranks,
    initial values, doubled learning rate of the constant in w and parameters with weight decay as in the authors' code,
    for each direction those of its own width. Raises ``UserError`` for an invalid rank or if the heads do not divide
    the width.

    Deviations from the authors' code: the output projection is initialised Xavier-uniform, not to zero; heads may be
    smaller than 64; the channel mixing is the block's feed-forward network, which has no token shift. At small widths
    the low-rank maps, whose rank is at least 32, have more parameters than the rest.

    Args:
        width: Number of features E.
        heads: Number of heads H.
        rank: Rank of all low-rank maps, of both directions together; by default that of each map in the authors' code:
            a multiple of 32 close to 2.5 √C (w and a), 1.7 √C (values) and 5 √C (gate), with C the channels of a
            direction.
        **common: Arguments of ``Mixer``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="RWKV-7 Goose with Expressive Dynamic State Evolution",
        arxiv="2503.14456",
        causal="exact",
        carries=("rwkv7",),
        memory=True,
        code="BlinkDL/RWKV-LM@524481d:RWKV-v7/train_temp/src/model.py",
    )
    revision = 2

    def __init__(self, width: int, heads: int, *, rank: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, inner=width, **common)
        directions = 1 if self.causal else 2
        if rank is not None and rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        if width % (directions * heads):
            raise UserError(
                f"backbone.heads={heads}: {directions * heads} recurrences do not divide width {width}; change "
                "backbone.heads or backbone.width"
            )
        channels = width // directions
        ranks = {name: _rank(factor, channels) for name, factor in RANK_FACTORS.items()}
        if rank is not None:
            ranks = dict.fromkeys(ranks, max(1, rank // directions))
        self.mixes = nn.ModuleList(
            TimeMix(width, channels, heads, ranks, self.layer, self.depth) for _ in range(directions)
        )

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Run each direction and project; add the first layer's values to the context for the layers above."""
        padding = context.padding
        if padding is not None:
            x = padding.zero(x)
        first = context.carry["rwkv7"] if self.layer > 0 else (None,) * len(self.mixes)
        orders = (x,) if self.causal else (x, reverse(x, padding))
        memory = {} if context.memory is None else context.memory
        results = [
            mix(inputs, values, memory, padding) for mix, inputs, values in zip(self.mixes, orders, first, strict=True)
        ]
        o = [each[0] for each in results]
        y = self.finish(o[0] if self.causal else torch.cat((o[0], reverse(o[1], padding)), -1))
        if self.layer == 0 and self.depth > 1:
            context = context.with_carry("rwkv7", tuple(each[1] for each in results))
        return y, self.remember(context, **results[0][2])


class TimeMix(nn.Module):
    """Time mixing in one direction: x (B, N, E) in processing order to the gated outputs of the heads (B, N, C).

    Args:
        width: Number of features E.
        channels: Number of output channels C.
        heads: Number of heads H.
        ranks: Ranks of the low-rank maps, with the keys of ``RANK_FACTORS``.
        layer: Index of the layer, which sets initial values.
        depth: Number of layers.
    """

    def __init__(self, width: int, channels: int, heads: int, ranks: Mapping[str, int], layer: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        shape = (heads, channels // heads)
        remaining = 1 - layer / depth  # fraction of the layers from this one to the last
        channel = torch.arange(width) / width
        self.shares = nn.Parameter(
            torch.stack([1 - channel ** (exponent * remaining) for exponent in SHIFT_EXPONENTS.values()])
        )
        self.receptance, self.key, self.value = (nn.Linear(width, channels, bias=False) for _ in range(3))
        for linear, gain in ((self.receptance, 1.0), (self.key, 0.1), (self.value, 1.0)):
            nn.init.orthogonal_(linear.weight, gain=gain)
        linear_ramp, squared_ramp = torch.linspace(-0.5, 0.5, channels), _signed_squares(shape[1]).repeat(heads)
        steepness = (layer / max(depth - 1, 1)) ** 0.3
        decay = -5.5 + 6 * (linear_ramp + 0.5) ** (1 + steepness) + 2.5 * squared_ramp
        rate = -0.19 + 0.3 * squared_ramp + 0.4 * linear_ramp
        self.decay = LowRank(width, ranks["decay"], channels, nn.Tanh(), decay)
        self.rate = LowRank(width, ranks["rate"], channels, nn.Identity(), rate)
        self.gate = LowRank(width, ranks["gate"], channels, nn.Sigmoid(), None)
        self.blend = None
        if layer > 0:
            self.blend = LowRank(width, ranks["blend"], channels, nn.Identity(), 0.73 - 0.4 * linear_ramp)
        self.decay.up.optimizer_hints = {  # type: ignore[assignment]
            "weight": {"weight_decay": 0.0},
            "bias": {"lr_factor": 2.0},
        }
        # Per channel: the scale of κ, and how much the rate a scales the key that is written.
        self.asked = nn.Parameter(0.71 - 0.1 * linear_ramp)
        self.written = nn.Parameter(torch.full((channels,), 1.02))
        self.bonus = nn.Parameter(torch.full(shape, -0.04))
        self.norm = nn.GroupNorm(heads, channels, eps=64e-5)
        nn.init.constant_(self.norm.weight, ((layer + 1) / depth) ** 0.7)
        self.optimizer_hints = {name: {"weight_decay": 0.0} for name in ("shares", "bonus")}
        self.accelerated = False

    def accelerate(self) -> None:
        """Use the kernels of flash-linear-attention from now on."""
        self.accelerated = True

    def forward(
        self, x: Tensor, first: Tensor | None, memory: dict[str, Tensor], padding: Padding | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Run the recurrence over x.

        Args:
            x: Inputs (B, N, E) in processing order.
            first: Values (B, N, C) of the first layer; None in the first layer.
            memory: State and last token of the previous forward pass; empty at the start.
            padding: Padding of the batch, or None.

        Returns:
            Outputs (B, N, C), values (B, N, C), and the memory for the next forward pass.
        """
        last = memory.get("last", torch.zeros_like(x[:, :1])).to(x.dtype)
        difference = torch.cat((last, x[:, :-1]), 1) - x
        mixed = dict(zip(SHIFT_EXPONENTS, (x + difference * share for share in self.shares.to(x.dtype)), strict=True))
        r, k, v = (getattr(self, name)(mixed[name]) for name in ("receptance", "key", "value"))
        if first is not None and self.blend is not None:
            v = v + (first - v) * self.blend(mixed["value"]).sigmoid()
        log_decay = MIN_LOG_DECAY * self.decay(mixed["decay"]).sigmoid()
        rate, removal_key = self.rate(mixed["rate"]).sigmoid(), unit(self._split(k * self.asked))
        k = k * (1 + (rate - 1) * self.written)
        r, k, log_decay, rate = (self._split(each) for each in (r, k, log_decay, rate))
        removal = -rate * removal_key
        if padding is not None:
            k, log_decay, removal = (padding.zero_heads(each) for each in (k, log_decay, removal))
        values = self._split(v)
        use_accelerated = self.accelerated and accelerable(r, values)
        kernel = accelerated_corrected_decay_attention if use_accelerated else corrected_decay_attention
        o, state = kernel(r, k, values, log_decay, removal_key, removal, state=memory.get("state"))
        bonus = (r * k * self.bonus[:, None]).sum(-1, keepdim=True) * values
        y = self.norm(o.transpose(1, 2).flatten(0, 1).flatten(1)).unflatten(0, x.shape[:2])
        y = (y + bonus.transpose(1, 2).flatten(2)).to(x.dtype) * self.gate(mixed["gate"])
        return y, v, {"state": state, "last": last_rows(x, last, padding)}

    def _split(self, x: Tensor) -> Tensor:
        """Split (B, N, C) into heads (B, H, N, D)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class LowRank(nn.Module):
    """Low-rank map U f(V x) + b, initialised to b + U f(0): (..., E) to (..., C). Weights are not decayed.

    Args:
        width: Number of input features E.
        rank: Rank of the map.
        channels: Number of output channels C.
        between: Activation f.
        bias: Initial bias b (C,); None for no bias.
    """

    def __init__(self, width: int, rank: int, channels: int, between: nn.Module, bias: Tensor | None) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, channels, bias=bias is not None)
        self.between = between
        nn.init.zeros_(self.down.weight)
        nn.init.orthogonal_(self.up.weight, gain=0.1 * max(1.0, rank / channels) ** 0.5)
        for layer in (self.down, self.up):
            layer.optimizer_hints = {"weight": {"weight_decay": 0.0}}  # type: ignore[assignment]
        if bias is not None:
            with torch.no_grad():
                self.up.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to x (..., E)."""
        y: Tensor = self.up(self.between(self.down(x)))
        return y


def _rank(factor: float, channels: int) -> int:
    """Return the multiple of 32 that is closest to ``factor`` √``channels``, at least 32."""
    return max(32, round(factor * channels**0.5 / 32) * 32)


def _signed_squares(size: int) -> Tensor:
    """Return t |t| for ``size`` values t evenly spaced from −1 to 1."""
    ramp = torch.linspace(-1, 1, size) if size > 1 else torch.zeros(1)
    return ramp * ramp.abs()
