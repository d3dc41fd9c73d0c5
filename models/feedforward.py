"""Position-wise feed-forward network of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from .kernels.dropout import Dropout

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
}
GATED: dict[str, Callable[[], nn.Module]] = {
    "swiglu": nn.SiLU,
    "geglu": nn.GELU,
    "reglu": nn.ReLU,
    "glu": nn.Sigmoid,
    "liglu": nn.Identity,
}


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
    """Return the activation of that name; a gated one halves the number of features."""
    return Gate(GATED[name]()) if name in GATED else ACTIVATIONS[name]()


def inner_width(hidden: int, kind: str) -> int:
    """Return the hidden width of an activation ``kind``: 2/3 of ``hidden`` for gated ones, otherwise ``hidden``."""
    return max(1, round(hidden * 2 / 3)) if kind in GATED else hidden


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """Return a linear layer with Xavier-uniform weights and a zero bias, or none, like the projections of mixers."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class FeedForward(nn.Sequential):
    """Linear layers with an activation and dropout between them: (..., width) to (..., outputs).

    Gated activations (Shazeer 2020, arXiv 2002.05202) need two projections in front. Their width is 2/3 of ``hidden``,
    as in the paper, so that the number of parameters is the same. Deviation from the paper: the layers have biases.

    Args:
        width: Number of input features.
        hidden: Hidden width, or the widths of several hidden layers.
        kind: Name of the activation, a key of ``ACTIVATIONS`` or ``GATED``.
        dropout: Dropout probability of the hidden features.
        outputs: Number of output features; by default ``width``.
    """

    def __init__(
        self,
        width: int,
        hidden: int | Sequence[int],
        kind: str,
        dropout: float,
        outputs: int | None = None,
    ) -> None:
        layers: list[nn.Module] = []
        inputs = width
        for size in [hidden] if isinstance(hidden, int) else hidden:
            inner = inner_width(size, kind)
            before = linear(inputs, 2 * inner if kind in GATED else inner)
            layers += [before, activation(kind), Dropout(dropout)]
            inputs = inner
        super().__init__(*layers, linear(inputs, outputs or width))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network to each vector of x (..., width)."""
        y: Tensor = super().forward(x)
        return y
