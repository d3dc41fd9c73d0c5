"""Gated recurrent unit."""

from __future__ import annotations

from torch import nn

from ..mixer import MixerSpec
from .network import Network


class GRU(Network):
    """Gated recurrent unit.

    h_t = (1 − z) ⊙ n + z ⊙ h_(t−1), n = tanh(W x_t + r ⊙ U h_(t−1)), with gates r and z of x_t and h_(t−1). Cho et al.
    2014, arXiv 1406.1078, with r applied after U, as in cuDNN. x (B, N, E) -> (B, N, E). O(N E^2) time, in N sequential
    steps; O(N E) memory. ``hidden`` as in ``Network``.
    """

    spec = MixerSpec(
        family="recurrent",
        paper="Learning Phrase Representations using RNN Encoder-Decoder for Statistical Machine Translation",
        arxiv="1406.1078",
        causal="exact",
        memory=True,
    )
    cell = nn.GRU
    share = (0.7, 0.8)
