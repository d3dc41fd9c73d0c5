"""Base class of losses on heads: one scalar per layer and batch."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import Context, HeadMixer


class HeadLoss(nn.Module):
    """Auxiliary loss that each layer multiplies by ``weight`` and adds under ``name`` during training.

    A subclass defines ``loss``. ``of_weights`` states that it needs attention weights. Raises ``UserError`` if the
    ``mixer`` does not expose its heads or, if needed, its attention weights, or if ``weight`` is negative.
    """

    name: ClassVar[str]
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(self, *, mixer: HeadMixer, weight: float, of_weights: bool) -> None:
        super().__init__()
        kind = type(mixer)
        # A class that overrides forward or attend may no longer expose what its base class exposes.
        if not _defines_both(kind, "forward", "shows_heads") or not kind.shows_heads:
            raise UserError(
                f"model.mixer.head_losses={self.name}: {kind.__name__} does not expose its heads; leave the loss out, "
                "or choose another mixer, such as model=transformer"
            )
        if of_weights and (
            kind.use_weights is HeadMixer.use_weights or not _defines_both(kind, "attend", "use_weights")
        ):
            raise UserError(
                f"model.mixer.head_losses={self.name}: {kind.__name__} has no attention weights to expose; leave "
                "the loss out, or choose a mixer with full attention, such as model=transformer"
            )
        if weight < 0:
            raise UserError(f"model.mixer.head_losses.weight={weight}: must not be negative")
        self.weight = weight

    def forward(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Context:
        """Return the context with the loss added; ``attend`` computed o (B, H, N, D) from q, k and v."""
        return context.add_loss(self.name, self.weight * self.loss(mixer, o, q, k, v, context))

    def loss(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Return the scalar loss, before it is multiplied by its weight."""
        raise NotImplementedError(f"{type(self).__name__} defines no loss")


def mean_of_tokens(x: Tensor, counted: Tensor | None) -> Tensor:
    """Return the mean over sequences of the mean of x (B, N) over the ``counted`` tokens (B, N), None for all tokens.

    The value for a batch is thus the mean over its micro-batches, weighted by their numbers of sequences.
    """
    if counted is None:
        return x.mean()
    return (x.where(counted, 0).sum(-1) / counted.sum(-1).clamp(min=1)).mean()


def _defines_both(kind: type, method: str, other: str) -> bool:
    """Return whether the class that defines ``method`` for ``kind`` also defines ``other``."""
    return other in next(vars(each) for each in kind.__mro__ if method in vars(each))
