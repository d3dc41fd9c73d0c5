"""B2S6: selective state spaces over blocks of channels, with an input bias per channel."""

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
from .hints import SLOW
from .hippo import named_poles, to_parameter


class B2S6(Recurrence):
    """Selective state space per channel, in which the channels of a block share the input-dependent projections.

    h' = Λ h + (B_j u_j + β_i) u_i, y_i = Re(C_j u_j · h) + D u_i for channel i of block j, with u_j all channels of the
    block. Yu and Erichson 2025, arXiv 2505.09022. u (B, N, E) -> (B, N, E). O(N E (P + E)) time, O(N (E + J P) + E P N
    / 64) memory.

    Discretised with the input held constant over steps of size softplus(w_j · u_j + b_i). Λ, B and β are complex; all
    channels share Λ. GELU and a gated projection follow, as in ``S4D``. w and b have a lower learning rate, as in the
    paper. The text of the paper does not specify initial weights. Here step sizes start between 0.001 and 0.1, β at one
    like B in S4D, and the others normal with standard deviation (E / J)^(−1/2); the real and imaginary part of B have
    half of that variance each. Raises ``UserError`` for an invalid option.

    Deviations from the paper: the mixer is used in a block with a feed-forward network; dropout comes before the GELU.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        states: Number of complex states per channel P.
        blocks: Number of blocks J, by default 8 as in the paper; in the bidirectional form half of them run in each
            direction.
        poles: Initial values of Λ: ``legs``, ``lin``, ``inv`` or ``real``.
        **common: Arguments of ``Mixer``.
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
            even = "" if self.causal else " and be even, with half of the blocks in each direction"
            raise UserError(f"model.mixer.blocks={blocks}: must be positive, divide width {width}{even}")
        size = width // blocks
        first_poles = named_poles(poles, states)
        self.log_decay = to_parameter((-first_poles.real).log())
        self.frequency = to_parameter(first_poles.imag)
        self.choice = nn.Parameter(torch.randn(blocks, size) * size**-0.5)
        self.step_bias = nn.Parameter(step_biases(width))
        self.write = nn.Parameter(torch.randn(blocks, size, states, 2) * (2 * size) ** -0.5)
        self.bias = nn.Parameter(torch.tensor([1.0, 0.0]).repeat(width, states, 1))
        self.read = nn.Parameter(torch.randn(blocks, size, states) * size**-0.5)
        self.skip = nn.Parameter(torch.randn(width))
        self.optimizer_hints = dict.fromkeys(("log_decay", "frequency", "choice", "step_bias"), SLOW)
        self.optimizer_hints["bias"] = {"weight_decay": 0.0}

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Compute step sizes and projections, scan over the sequence, gate and project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        with full_precision(x):
            u = self.ordered(x.float() if x.dtype.itemsize < 4 else x, context)
            blocks = u.unflatten(-1, self.choice.shape)
            block_steps = (blocks * self.choice).sum(-1).repeat_interleave(self.choice.shape[1], -1)
            steps = F.softplus(block_steps + self.step_bias)
            if context.padding is not None:
                steps = context.padding.zero(steps)
            written = torch.einsum("bngi,gis->bngs", blocks, self.write.flatten(2)).unflatten(-1, (-1, 2))
            read = torch.einsum("bngi,gis->bngs", blocks, self.read)
            rates = torch.complex(-self.log_decay.exp(), self.frequency)
            state = rates.new_zeros(len(x), x.shape[2], len(rates))
            if context.memory is not None:
                state = torch.view_as_complex(context.memory["state"])
            # The discretisation divides by Λ. This is cheaper here, before inputs are expanded to one per state.
            weights = (rates, torch.view_as_complex(self.bias) / rates)
            inputs = (u, steps, torch.view_as_complex(written.contiguous()) / rates, read)
            y, state = by_chunks(_scan_chunk, inputs, weights, state)
            y = self.ordered(y + self.skip * u, context)
        return self.finish(y.to(x.dtype)), self.remember(context, state=torch.view_as_real(state))


def _scan_chunk(
    u: Tensor, steps: Tensor, written: Tensor, read: Tensor, rates: Tensor, bias: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over one chunk of n positions.

    Args:
        u: Inputs (B, n, E).
        steps: Step sizes (B, n, E).
        written: Input projections B_j u_j divided by Λ, (B, n, J, P).
        read: Output projections C_j u_j, (B, n, J, P).
        rates: Λ, (P,).
        bias: β divided by Λ, (E, P).
        state: State before the chunk, (B, E, P).

    Returns:
        Outputs (B, n, E) and the state after the chunk.
    """
    factors = (steps[..., None] * rates).exp()
    blocks = written[:, :, :, None] + bias.unflatten(0, (written.shape[2], -1))
    inputs = (factors - 1) * (u[..., None] * blocks.flatten(2, 3))
    h = scan(factors, inputs, state)
    y = (h.real.unflatten(2, (read.shape[2], -1)) @ read[..., None]).flatten(2)
    return y, h[:, -1]
