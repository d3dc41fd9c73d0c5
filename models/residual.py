"""Residual branches with learned scalars, which are zero at the start of training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError
from lra_bench.options.backbone import BlockOptions

from .feedforward import FeedForward
from .mixer import HeadMixer, Mixer

PLAIN = "add"


class Scalars(nn.Module):
    """Learned scalars of a branch, here none: x + F(x)."""

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the branch, given x after the norm in front of it."""
        return x

    def after(self, y: Tensor) -> Tensor:
        """Return the branch, given its output y after dropout."""
        return y


class ReZero(Scalars):
    """Multiply a branch by a learned scalar, initially 0: x + α F(x).

    Bachlechner et al. 2020, arXiv 2003.04887. Shapes are those of the branch. The scalar has no weight decay.
    Code: majumderb/rezero@ff28a73:rezero/transformer/rztx.py.

    Deviation from the authors' code: each branch has its own scalar; there both of a block share one.
    """

    optimizer_hints: ClassVar[Mapping[str, Mapping[str, float]]] = {"scale": {"weight_decay": 0.0}}

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))

    def after(self, y: Tensor) -> Tensor:
        """Return y multiplied by the scalar."""
        return y * self.scale.to(y.dtype)


class Fixup(Scalars):
    """Learned scalars around a branch: s F(x + b) + c, initially F(x).

    Zhang et al. 2019, arXiv 1901.09321. ``initialise_fixup`` initialises the branch. The scalars have no weight decay.
    Code: hongyi-zhang/Fixup@be6a85a:fairseq/fairseq/models/transformer_zero.py.

    Deviations from the paper: scalar biases inside of a branch are left out, because its linear layers have biases, and
    the output head is not initialised with zeros.
    """

    optimizer_hints: ClassVar[Mapping[str, Mapping[str, float]]] = {
        name: {"weight_decay": 0.0} for name in ("scale", "before_bias", "after_bias")
    }

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.before_bias, self.after_bias = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

    def before(self, x: Tensor) -> Tensor:
        """Return x plus a bias."""
        return x + self.before_bias.to(x.dtype)

    def after(self, y: Tensor) -> Tensor:
        """Return y multiplied by the scalar, plus a bias."""
        return y * self.scale.to(y.dtype) + self.after_bias.to(y.dtype)


RESIDUALS: Mapping[str, type[Scalars]] = {PLAIN: Scalars, "rezero": ReZero, "fixup": Fixup}


def check_residual(options: BlockOptions, mixers: Iterable[type[Mixer]]) -> None:
    """Raise ``UserError`` if blocks with these norms and mixers do not support the chosen residual branches."""
    kind = options.residual
    if kind == PLAIN:
        return
    option = f"backbone.residual={kind}"
    if kind == "fixup" and options.norm != "none":
        raise UserError(f"{option}: replaces the norms; set backbone.norm=none")
    if options.norm_place != "pre":
        raise UserError(f"{option}: the sum is not normalised; set backbone.norm_place=pre")
    for mixer in mixers:
        if mixer.spec.block == "self_contained":
            raise UserError(f"{option}: {mixer.__name__} replaces the whole block; leave it out")


def initialise_fixup(blocks: Iterable[Any], branches: int) -> None:
    """Initialise the layers of residual branches for ``Fixup``, in place.

    The last of the m layers of a branch is set to zero, and the weights of the others are multiplied by
    ``branches`` ^ (−1 / (2m − 2)): m is 4 for attention, whose first layers are the projections of queries, keys and
    values, and the number of linear layers for a feed-forward network. Raises ``UserError`` if a branch has other
    layers.

    Args:
        blocks: Residual blocks, each with ``mixer`` and ``feed_forward``, a module or None.
        branches: Number of branches of the network.
    """
    with torch.no_grad():
        for block in blocks:
            mixer, network = block.mixer, block.feed_forward
            last = getattr(mixer, "output", None)
            if not isinstance(mixer, HeadMixer) or not isinstance(last, nn.Linear):
                raise UserError(
                    f"backbone.residual=fixup: {type(mixer).__name__} has no queries, keys and values with a linear "
                    "output projection; set backbone.residual=rezero"
                )
            first = [each for each in (mixer.query, mixer.key, mixer.value) if isinstance(each, nn.Linear)]
            _initialise(first, last, branches, 4)
            if network is None:
                continue
            if not isinstance(network, FeedForward):
                raise UserError(
                    f"backbone.residual=fixup: is not defined for {type(network).__name__}; set residual=rezero"
                )
            *before, last = (each for each in network if isinstance(each, nn.Linear))
            _initialise(before, last, branches, len(before) + 1)


def _initialise(first: Iterable[nn.Linear], last: nn.Linear, branches: int, layers: int) -> None:
    for layer in first:
        layer.weight.mul_(branches ** (-1 / (2 * layers - 2)))
    for parameter in last.parameters():
        parameter.zero_()
