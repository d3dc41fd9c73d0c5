"""The position-wise feed-forward network of a block."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from lra_bench.contracts import UserError

from .kernels.dropout import Dropout

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"gelu": nn.GELU, "relu": nn.ReLU, "silu": nn.SiLU}
GATED: dict[str, Callable[[], nn.Module]] = {"swiglu": nn.SiLU, "geglu": nn.GELU, "reglu": nn.ReLU}


class Gate(nn.Module):
    """The first half of the channels through an activation, times the second: (..., 2C) to (..., C)."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Gate each row by itself."""
        gate, value = x.chunk(2, -1)
        gated: Tensor = self.activation(gate) * value
        return gated


def activation(name: str) -> nn.Module:
    """The activation of that name, which halves the channels where it is gated; ``UserError`` where there is none."""
    if name in GATED:
        return Gate(GATED[name]())
    if name not in ACTIVATIONS:
        raise UserError(f"backbone.activation={name}: is none of {', '.join([*ACTIVATIONS, *GATED])}")
    return ACTIVATIONS[name]()


def linear(inputs: int, outputs: int, bias: bool = True) -> nn.Linear:
    """A linear layer with Xavier-uniform weights and zero bias or none, as in the projections of mixers."""
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


class FeedForward(nn.Sequential):
    """Two linear layers with an activation between: (..., width) to (..., outputs), by default width again.

    Gated activations (Shazeer 2020, arXiv 2002.05202) take two layers before them, of 2/3 of the ``hidden`` width, as
    that paper has it, so that the number of parameters stays. Deviates: these layers keep their biases.
    """

    def __init__(self, width: int, hidden: int, kind: str, dropout: float, outputs: int | None = None) -> None:
        inner = max(1, round(hidden * 2 / 3)) if kind in GATED else hidden
        before = linear(width, 2 * inner if kind in GATED else inner)
        super().__init__(before, activation(kind), Dropout(dropout), linear(inner, outputs or width))

    def forward(self, x: Tensor) -> Tensor:
        """Transform each row by itself."""
        y: Tensor = super().forward(x)
        return y
