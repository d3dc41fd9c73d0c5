"""Torch's recurrent networks, whose gates depend on the state, so that positions are computed sequentially."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..kernels.recurrent import recurrent
from ..mixer import Context
from .recurrence import Recurrence, reverse


class Network(Recurrence):
    """Base class of mixers with one layer of ``cell`` in each direction: x (B, N, E) -> (B, N, E).

    Recurrent weights are initialised orthogonal, the others Xavier-uniform, biases to zero.

    Args:
        width: Number of features E.
        heads: Not used; the state is not split into heads.
        hidden: State size of both directions together; by default ``share`` times the width, which gives about as many
            parameters as attention. Must be at least 1.
        **common: Arguments of ``Mixer``.
    """

    cell: ClassVar[type[nn.LSTM] | type[nn.GRU]]
    share: ClassVar[tuple[float, float]]
    """Default state size as a fraction of the width: causal, bidirectional."""

    def __init__(self, width: int, heads: int, *, hidden: int | None = None, **common: Any) -> None:
        causal = bool(common.get("causal", False))
        if hidden is None:
            hidden = 2 * max(1, round(self.share[not causal] * width / 2))
        if hidden < 1:
            raise UserError(f"model.mixer.hidden={hidden}: must be at least 1")
        super().__init__(width, heads, inner=hidden, **common)
        size = hidden if self.causal else hidden // 2
        networks = [self.cell(width, size, batch_first=True) for _ in range(1 if self.causal else 2)]
        for network in networks:
            self.begin(network)
        self.networks, self.hidden = nn.ModuleList(networks), size

    def begin(self, network: nn.RNNBase) -> None:
        """Initialise the weights of one direction."""
        draw_gates(network)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Run the network in each direction and project the outputs."""
        if context.padding is not None:
            x = context.padding.zero(x)
        if self.causal:
            h, state = self.read(x, context)
            context = self.remember(context, state=state)
        else:
            forward, backward = self.networks
            reversed_h, _ = recurrent(backward, reverse(x, context.padding))
            h = torch.cat((recurrent(forward, x)[0], reverse(reversed_h, context.padding)), -1)
        return self.finish(h), context

    def read(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """Run the causal network; return outputs (B, N, C) and the state (B, parts, C) after the last token."""
        (network,) = self.networks
        before = None if context.memory is None else context.memory["state"]
        if before is None:
            before = x.new_zeros(x.shape[0], self.parts, self.hidden)
        parts = tuple(part[None].contiguous().to(x.dtype) for part in before.unbind(1))
        if context.padding is None:
            h, after = recurrent(network, x, parts if self.parts > 1 else parts[0])
            return h, torch.cat(after if self.parts > 1 else (after,)).transpose(0, 1)
        # Packed sequences end at their lengths. An empty one is read with length 1, and its state is restored below.
        lengths = context.padding.lengths_on_host().clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        outputs, after = recurrent(network, packed, parts if self.parts > 1 else parts[0])
        h, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True, total_length=x.shape[1])
        state = torch.cat(after if self.parts > 1 else (after,)).transpose(0, 1)
        return h, torch.where((context.padding.lengths > 0)[:, None, None], state, before.to(state.dtype))

    @property
    def parts(self) -> int:
        """Number of vectors in a state: 2 for an LSTM (h and c), 1 for a GRU."""
        return 2 if issubclass(self.cell, nn.LSTM) else 1


def draw_gates(network: nn.RNNBase) -> None:
    """Initialise all layers gate by gate: recurrent weights orthogonal, others Xavier-uniform, biases zero."""
    for name, parameter in network.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            continue
        for gate in parameter.data.chunk(parameter.shape[0] // network.hidden_size):
            (nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_)(gate)
