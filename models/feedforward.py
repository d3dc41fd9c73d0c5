"""Position-wise feed-forward network of a block."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from lra_bench.contracts import UserError

from .kernels.dropout import Dropout

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}
GATED: dict[str, Callable[[], nn.Module]] = {"swiglu": nn.SiLU, "geglu": nn.GELU, "reglu": nn.ReLU}


class Gate(nn.Module):
    """Gated activation: activation(a) · b, with the features split into halves a and b, (..., 2C) to (..., C)."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Apply the gate to x (..., 2C)."""
        gate, value = x.chunk(2, -1)
        gated: Tensor = self.activation(gate) * value
        return gated


def activation(name: str) -> nn.Module:
    """Return the activation of that name; a gated one halves the number of features.

    Raises ``UserError`` if the name is unknown.
    """
    if name in GATED:
        return Gate(GATED[name]())
    if name not in ACTIVATIONS:
        raise UserError(f"backbone.activation={name}: must be one of {', '.join([*ACTIVATIONS, *GATED])}")
    return ACTIVATIONS[name]()


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer with Xavier-uniform weights and a zero bias, or none, like the projections of mixers."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class FeedForward(nn.Sequential):
    """Two linear layers with an activation and dropout between them: (..., width) to (..., outputs).

    Gated activations (Shazeer 2020, arXiv 2002.05202) need two projections in front. Their width is 2/3 of ``hidden``,
    as in the paper, so that the number of parameters is the same. Deviation from the paper: the layers have biases.

    Args:
        width: Number of input features.
        hidden: Hidden width.
        kind: Name of the activation, a key of ``ACTIVATIONS`` or ``GATED``.
        dropout: Dropout probability of the hidden features.
        outputs: Number of output features; by default ``width``.
    """

    def __init__(self, width: int, hidden: int, kind: str, dropout: float, outputs: int | None = None) -> None:
        inner = max(1, round(hidden * 2 / 3)) if kind in GATED else hidden
        before = linear(width, 2 * inner if kind in GATED else inner)
        super().__init__(before, activation(kind), Dropout(dropout), linear(inner, outputs or width))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each vector of x (..., width)."""
        y: Tensor = super().forward(x)
        return y
