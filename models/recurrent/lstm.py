"""Long short-term memory."""

from __future__ import annotations

import torch
from torch import nn

from ..mixer import MixerSpec
from .network import Network


class LSTM(Network):
    """Long short-term memory.

    c_t = f ⊙ c_(t−1) + i ⊙ tanh(g), h_t = o ⊙ tanh(c_t), with gates f, i, o and candidate g of x_t and h_(t−1).
    Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000. x (B, N, E) -> (B, N, E). O(N E^2) time,
    in N sequential steps; O(N E) memory. Biases of the forget gates are initialised to one. ``hidden`` as in
    ``Network``.
    """

    spec = MixerSpec(family="recurrent", paper="Long Short-Term Memory", causal="exact", memory=True)
    cell = nn.LSTM
    share = (0.6, 0.68)

    def begin(self, network: nn.RNNBase) -> None:
        """Initialise the weights of one direction, forget gates with a bias of one."""
        super().begin(network)
        open_forget_gates(network)


def open_forget_gates(network: nn.RNNBase) -> None:
    """Set the biases of the forget gates of all layers to one."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.startswith("bias_ih"):
                nn.init.ones_(parameter[network.hidden_size : 2 * network.hidden_size])
