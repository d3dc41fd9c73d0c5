"""Gates in place of residual sums, as in GTrXL."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

BIAS = 2.0
"""Initial bias of the gates, which favours the residual stream."""


class _Gate(nn.Module):
    """A gate g(x, y) of the residual stream x and the output y of a branch, (B, N, E) each."""

    maps: int
    biased: bool
    bias: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(self.maps, width, width))
        for each in self.weight.unbind():
            nn.init.xavier_uniform_(each)
        bias = nn.Parameter(torch.full((width,), BIAS)) if self.biased else None
        self.register_parameter("bias", bias)


class InputGate(_Gate):
    """σ(W x) · x + y. The paper gives it no bias, so that it begins near x / 2 + y."""

    maps, biased = 1, False

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum."""
        return torch.sigmoid(x @ self.weight[0]) * x + y


class OutputGate(_Gate):
    """x + σ(W x − b) · y."""

    maps, biased = 1, True

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum."""
        return x + torch.sigmoid(x @ self.weight[0] - self.bias) * y


class HighwayGate(_Gate):
    """z · x + (1 − z) · y with z = σ(W x + b)."""

    maps, biased = 1, True

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum."""
        return torch.lerp(y, x, torch.sigmoid(x @ self.weight[0] + self.bias))


class SigmoidTanhGate(_Gate):
    """x + σ(W y − b) · tanh(U y)."""

    maps, biased = 2, True

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum."""
        return x + torch.sigmoid(y @ self.weight[0] - self.bias) * torch.tanh(y @ self.weight[1])


class GRUGate(_Gate):
    """(1 − z) · x + z · h with r = σ(W_r y + U_r x), z = σ(W_z y + U_z x − b) and h = tanh(W_g y + U_g (r · x))."""

    maps, biased = 6, True

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum."""
        reset_y, update_y, new_y, reset_x, update_x, new_x = self.weight
        reset = torch.sigmoid(y @ reset_y + x @ reset_x)
        update = torch.sigmoid(y @ update_y + x @ update_x - self.bias)
        return torch.lerp(x, torch.tanh(y @ new_y + (reset * x) @ new_x), update)


GATES: dict[str, Callable[[int], nn.Module]] = {
    "input": InputGate,
    "output": OutputGate,
    "highway": HighwayGate,
    "sigmoid_tanh": SigmoidTanhGate,
    "gru": GRUGate,
}


class GatedResidual(nn.Module):
    """Gate of GTrXL in place of the residual sum x + y: g(x, ReLU(y)), (B, N, E).

    Parisotto et al. 2019, arXiv 1910.06764, with the norm in front of each branch (identity map reordering), where the
    ReLU keeps two linear maps from following each other. Weights are Xavier-uniform, the bias b, one number per
    feature, begins at 2.

    Args:
        kind: A key of ``GATES``.
        width: Number of features E.
    """

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.gate = GATES[kind](width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the gated sum of x and the branch output y."""
        gated: Tensor = self.gate(x, torch.relu(y))
        return gated
