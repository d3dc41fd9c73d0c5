"""Torch's own recurrent networks, whose gates see the state, so that rows come strictly one after the other."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.linear import full_precision
from ..mixer import Context
from .recurrence import Recurrence, reverse


class Network(Recurrence):
    """One layer of ``cell`` in each direction, and a projection behind: x (B, N, E) -> (B, N, E).

    ``hidden`` is the width of the state, of both directions together; by default a ``share`` of the width with which
    the system has as many weights as attention. Recurrent weights begin orthogonal, the others Xavier-uniform.
    """

    cell: ClassVar[type[nn.LSTM] | type[nn.GRU]]
    share: ClassVar[tuple[float, float]]
    """Of the width, where one direction is seen and where both are."""

    def __init__(self, width: int, heads: int, *, hidden: int | None = None, **common: Any) -> None:
        causal = bool(common.get("causal", False))
        if hidden is None:
            hidden = 2 * max(1, round(self.share[not causal] * width / 2))
        if hidden < 1:
            raise UserError(f"model.mixer.hidden={hidden}: must be at least 1")
        super().__init__(width, heads, inner=hidden, **common)
        own = hidden if self.causal else hidden // 2
        networks = [self.cell(width, own, batch_first=True) for _ in range(1 if self.causal else 2)]
        for network in networks:
            self.begin(network)
        self.networks, self.hidden = nn.ModuleList(networks), own

    def begin(self, network: nn.RNNBase) -> None:
        """Draw the weights of one direction."""
        draw_gates(network)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Read in each direction, project."""
        if context.padding is not None:
            x = context.padding.zero(x)
        with computable(x):
            if self.causal:
                h, state = self.read(x, context)
                context = self.remember(context, state=state)
            else:
                ahead, back = self.networks
                h = torch.cat((ahead(x)[0], reverse(back(reverse(x, context.padding))[0], context.padding)), -1)
        return self.finish(h), context

    def read(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Outputs (B, N, C), and the state (B, parts, C) after the last real row."""
        (network,) = self.networks
        before = None if context.memory is None else context.memory["state"]
        if before is None:
            before = x.new_zeros(x.shape[0], self.parts, self.hidden)
        parts = tuple(part[None].contiguous().to(x.dtype) for part in before.unbind(1))
        if context.padding is None:
            h, after = network(x, parts if self.parts > 1 else parts[0])
            return h, torch.cat(after if self.parts > 1 else (after,)).transpose(0, 1)
        # Only packed rows stop at their ends; one without tokens is read as one of padding and keeps what it had.
        lengths = context.padding.lengths.clamp(min=1).cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        rows, after = network(packed, parts if self.parts > 1 else parts[0])
        h, _ = nn.utils.rnn.pad_packed_sequence(rows, batch_first=True, total_length=x.shape[1])
        state = torch.cat(after if self.parts > 1 else (after,)).transpose(0, 1)
        return h, torch.where((context.padding.lengths > 0)[:, None, None], state, before.to(state.dtype))

    @property
    def parts(self) -> int:
        """How many vectors a state has."""
        return 2 if issubclass(self.cell, nn.LSTM) else 1


def computable(x: Tensor) -> AbstractContextManager[Any]:
    """Where torch's networks can read x: not in half precision on a CPU, which has them of some sizes only."""
    half = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.float16
    return full_precision(x) if half and x.device.type == "cpu" else nullcontext()


def draw_gates(network: nn.RNNBase) -> None:
    """Draw the weights of all layers gate by gate: recurrent ones orthogonal, others Xavier-uniform, biases zero."""
    for name, parameter in network.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            continue
        for gate in parameter.data.chunk(parameter.shape[0] // network.hidden_size):
            (nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_)(gate)
