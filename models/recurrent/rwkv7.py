"""RWKV-7: a state that is edited by vectors of rates, and rows mixed with the one before."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.accelerated import accelerable, accelerated_corrected_decay_attention
from ..kernels.corrected_decay import corrected_decay_attention
from ..kernels.unit import unit
from ..mixer import Context, MixerSpec, Padding
from .recurrence import Recurrence, last_rows, reverse

SLOWEST = -math.exp(-0.5)  # the logarithm of what is kept of a channel at least, from row to row
# Powers of a channel's place with which its shares of the row before begin.
MIXED = {"receptance": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}


class RWKV7(Recurrence):
    """S_t = (Diag(w_t) − (a_t ⊙ κ_t) κ_tᵀ) S_(t−1) + k_t v_tᵀ, read by r_t, all from the row and the one before it.

    Peng et al. 2025, arXiv 2503.14456. x (B, N, E) -> (B, N, E). O(N E (C + E / H)) time, O(N E (1 + E / H C)) memory,
    by chunks of C rows. Each of r, w, k, v, a and the gate has its own share of the row before. log w is −e^(−1/2)
    times a sigmoid and a is a sigmoid, both of low rank; κ is the key, scaled by channel, of unit length; the key
    itself is scaled by how much is written. What heads read has a norm, gets the value of the row as a bonus, passes a
    gate. Values above the first layer are mixed with those of the first. ``rank`` is that of the low-rank maps, of both
    directions together, by default E / 16. Where both directions are seen, every head becomes two of half the width,
    each direction with weights of its own.
    Deviates: ranks are smaller than the authors' (32 and more), so that the system has about as many weights as
    attention; the projection behind begins Xavier-uniform, not at zero; the channel mixing is the block's feed-forward
    network, which sees one row.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="RWKV-7 Goose with Expressive Dynamic State Evolution",
        arxiv="2503.14456",
        causal="exact",
        carries=("rwkv7",),
        memory=True,
    )

    def __init__(self, width: int, heads: int, *, rank: int | None = None, **common: Any) -> None:
        super().__init__(width, heads, inner=width, **common)
        directions = 1 if self.causal else 2
        rank = max(1, width // 16) if rank is None else rank
        if rank < 1:
            raise UserError(f"model.mixer.rank={rank}: must be at least 1")
        if width % (directions * heads):
            raise UserError(
                f"backbone.heads={heads}: {directions * heads} recurrences do not divide width {width}; set another"
            )
        rank = max(1, rank // directions)
        self.mixes = nn.ModuleList(
            TimeMix(width, width // directions, heads, rank, self.layer, self.depth) for _ in range(directions)
        )

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Mix rows in each direction, project; hand on the values of the first layer."""
        padding = context.padding
        if padding is not None:
            x = padding.zero(x)
        first = context.carry["rwkv7"] if self.layer > 0 else (None,) * len(self.mixes)
        orders = (x,) if self.causal else (x, reverse(x, padding))
        memory = {} if context.memory is None else context.memory
        found = [
            mix(rows, values, memory, padding) for mix, rows, values in zip(self.mixes, orders, first, strict=True)
        ]
        o = [each[0] for each in found]
        y = self.finish(o[0] if self.causal else torch.cat((o[0], reverse(o[1], padding)), -1))
        if self.layer == 0 and self.depth > 1:
            context = context.hand_on("rwkv7", tuple(each[1] for each in found))
        return y, self.remember(context, **found[0][2])


class TimeMix(nn.Module):
    """One direction: x (B, N, E), in the order of reading, to what its heads read, (B, N, C)."""

    def __init__(self, width: int, channels: int, heads: int, rank: int, layer: int, depth: int) -> None:
        super().__init__()
        self.heads = heads
        shape = (heads, channels // heads)
        below = 1 - layer / depth  # the share of layers from this one on
        places = torch.arange(width) / width
        self.shares = nn.Parameter(torch.stack([1 - places ** (power * below) for power in MIXED.values()]))
        self.receptance, self.key, self.value = (nn.Linear(width, channels, bias=False) for _ in range(3))
        for linear, bound in ((self.receptance, 0.5), (self.key, 0.05), (self.value, 0.5)):
            nn.init.uniform_(linear.weight, -bound * width**-0.5, bound * width**-0.5)
        rising, bent = torch.linspace(-0.5, 0.5, channels), _bent(shape[1]).repeat(heads)
        above = (layer / max(depth - 1, 1)) ** 0.3
        decay = -5.5 + 6 * (rising + 0.5) ** (1 + above) + 2.5 * bent
        self.decay = LowRank(width, rank, channels, nn.Tanh(), decay)
        self.rate = LowRank(width, rank, channels, nn.Identity(), -0.19 + 0.3 * bent + 0.4 * rising)
        self.gate = LowRank(width, rank, channels, nn.Sigmoid(), None)
        self.blend = None if layer == 0 else LowRank(width, rank, channels, nn.Identity(), 0.73 - 0.4 * rising)
        self.asked = nn.Parameter(0.71 - 0.1 * rising)
        self.written = nn.Parameter(torch.full((channels,), 1.02))
        self.bonus = nn.Parameter(torch.full(shape, -0.04))
        self.norm = nn.GroupNorm(heads, channels, eps=64e-5)
        self.optimizer_hints = {name: {"weight_decay": 0.0} for name in ("shares", "bonus")}
        self.accelerated = False

    def accelerate(self) -> None:
        """Let the state be corrected and read by the kernels of flash-linear-attention."""
        self.accelerated = True

    def forward(
        self, x: Tensor, first: Tensor | None, memory: dict[str, Tensor], padding: Padding | None
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """What is read; the values (B, N, C); and the state and last row to go on from."""
        last = memory.get("last", torch.zeros_like(x[:, :1])).to(x.dtype)
        change = torch.cat((last, x[:, :-1]), 1) - x
        mixed = dict(zip(MIXED, (x + change * share for share in self.shares.to(x.dtype)), strict=True))
        r, k, v = (getattr(self, name)(mixed[name]) for name in ("receptance", "key", "value"))
        if first is not None and self.blend is not None:
            v = v + (first - v) * self.blend(mixed["value"]).sigmoid()
        log_decay = SLOWEST * self.decay(mixed["decay"]).sigmoid()
        rate, asked = self.rate(mixed["rate"]).sigmoid(), unit(self._split(k * self.asked))
        k = k * (1 + (rate - 1) * self.written)
        r, k, log_decay, rate = (self._split(each) for each in (r, k, log_decay, rate))
        written = -rate * asked
        if padding is not None:
            k, log_decay, written = (padding.zero_heads(each) for each in (k, log_decay, written))
        values = self._split(v)
        fast = self.accelerated and accelerable(r, values)
        kernel = accelerated_corrected_decay_attention if fast else corrected_decay_attention
        o, state = kernel(r, k, values, log_decay, asked, written, state=memory.get("state"))
        bonus = (r * k * self.bonus[:, None]).sum(-1, keepdim=True) * values
        read = self.norm(o.transpose(1, 2).flatten(0, 1).flatten(1)).unflatten(0, x.shape[:2])
        read = (read + bonus.transpose(1, 2).flatten(2)).to(x.dtype) * self.gate(mixed["gate"])
        return read, v, {"state": state, "last": last_rows(x, last, padding)}

    def _split(self, x: Tensor) -> Tensor:
        """(B, N, C) to (B, H, N, D)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class LowRank(nn.Module):
    """U f(V x) + b, which begins at b: (..., E) to (..., C)."""

    def __init__(self, width: int, rank: int, channels: int, between: nn.Module, bias: Tensor | None) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, channels, bias=bias is not None)
        self.between = between
        nn.init.zeros_(self.down.weight)
        nn.init.orthogonal_(self.up.weight, gain=0.1)
        if bias is not None:
            with torch.no_grad():
                self.up.bias.copy_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Each row by itself."""
        y: Tensor = self.up(self.between(self.down(x)))
        return y


def _bent(size: int) -> Tensor:
    """From −1 to 1 over ``size`` channels, flat in the middle."""
    line = torch.linspace(-1, 1, size) if size > 1 else torch.zeros(1)
    return line * line.abs()
