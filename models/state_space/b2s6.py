"""Selective state spaces of blocks of channels, each channel with a bias of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.linear import full_precision
from ..kernels.scan import scan
from ..kernels.selective_scan import by_chunks
from ..mixer import Context, MixerSpec
from ..recurrent.complex_recurrence import GatedLinear
from ..recurrent.recurrence import Recurrence
from ..recurrent.steps import step_biases
from .hippo import named_poles, trained


class B2S6(Recurrence):
    """h' = Λ h + (B_j u_j + β_i) u_i, y_i = Re(C_j u_j · h) + D u_i for channel i of block j, u_j the whole block.

    Yu and Erichson 2025, arXiv 2505.09022. u (B, N, E) -> (B, N, E). O(N E (P + E)) time, O(N (E + J P) + E P N / 64)
    memory. Held constant between steps softplus(w_j · u_j + b_i); Λ, B and β are complex, and Λ serves all channels.
    GELU and a gated projection follow, as in ``S4D``. ``states`` is P, ``blocks`` J, the paper's 8, half of them for
    each direction where both are seen. ``poles`` names what Λ begins with: ``legs``, ``lin``, ``inv`` or ``real``. w
    and b are learned at a slower rate, as the paper has it.
    The paper's text does not say how weights begin: here steps between 0.001 and 0.1, β at one as B in S4D, the others
    normal of deviation (E / J)^(−1/2), or with B half of that variance in either part.
    Deviates: within a block that has a feed-forward network; dropout comes before the GELU.
    """

    spec = MixerSpec(
        family="state_space",
        paper="Block-Biased Mamba for Long-Range Sequence Processing",
        arxiv="2505.09022",
        causal="exact",
        memory=True,
    )

    def __init__(
        self, width: int, heads: int, *, states: int = 16, blocks: int = 8, poles: str = "legs", **common: Any
    ) -> None:
        super().__init__(width, heads, inner=width, output=GatedLinear(width), **common)
        if states < 1:
            raise UserError(f"model.mixer.states={states}: must be at least 1")
        directions = 1 if self.causal else 2
        if blocks < 1 or width % blocks or blocks % directions:
            either = "" if self.causal else ", half of them in each direction"
            raise UserError(f"model.mixer.blocks={blocks}: do not share out width {width}{either}")
        size = width // blocks
        first_poles = named_poles(poles, states)
        self.log_decay = trained((-first_poles.real).log())
        self.frequency = trained(first_poles.imag)
        self.choice = nn.Parameter(torch.randn(blocks, size) * size**-0.5)
        self.step_bias = nn.Parameter(step_biases(width))
        self.write = nn.Parameter(torch.randn(blocks, size, states, 2) * (2 * size) ** -0.5)
        self.bias = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(width, states, 1))
        self.read = nn.Parameter(torch.randn(blocks, size, states) * size**-0.5)
        self.skip = nn.Parameter(torch.randn(width))
        slow = {"max_lr": 1e-3, "weight_decay": 0.0}
        self.optimizer_hints = dict.fromkeys(("log_decay", "frequency", "choice", "step_bias"), slow)
        self.optimizer_hints["bias"] = {"weight_decay": 0.0}

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Choose, scan, gate, project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        with full_precision(x):
            u = self.ordered(x.float() if x.dtype.itemsize < 4 else x, context)
            parts = u.unflatten(-1, self.choice.shape)
            chosen = (parts * self.choice).sum(-1).repeat_interleave(self.choice.shape[1], -1)
            steps = F.softplus(chosen + self.step_bias)
            if context.padding is not None:
                steps = context.padding.zero(steps)
            written = torch.einsum("bngi,gis->bngs", parts, self.write.flatten(2)).unflatten(-1, (-1, 2))
            read = torch.einsum("bngi,gis->bngs", parts, self.read)
            rates = torch.complex(-self.log_decay.exp(), self.frequency)
            state = rates.new_zeros(len(x), x.shape[2], len(rates))
            if context.memory is not None:
                state = torch.view_as_complex(context.memory["state"])
            # Holding inputs constant divides by Λ, here before they are as many as states.
            weights = (rates, torch.view_as_complex(self.bias) / rates)
            rows = (u, steps, torch.view_as_complex(written.contiguous()) / rates, read)
            y, state = by_chunks(_chunk, rows, weights, state)
            y = self.ordered(y + self.skip * u, context)
        return self.finish(y.to(x.dtype)), self.remember(context, state=torch.view_as_real(state))


def _chunk(
    u: Tensor, steps: Tensor, written: Tensor, read: Tensor, rates: Tensor, bias: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """u and steps (B, n, E), written and read (B, n, J, P), Λ (P,), β (E, P) and a state (B, E, P); B and β over Λ."""
    factors = (steps[..., None] * rates).exp()
    blocks = written[:, :, :, None] + bias.unflatten(0, (written.shape[2], -1))
    inputs = (factors - 1) * (u[..., None] * blocks.flatten(2, 3))
    h = scan(factors, inputs, state)
    y = (h.real.unflatten(2, (read.shape[2], -1)) @ read[..., None]).flatten(2)
    return y, h[:, -1]
