"""What a loss on heads is: a scalar from what the heads of one layer do to one batch."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from lra_bench.contracts import UserError

from ..mixer import Context, HeadMixer


class HeadLoss(nn.Module):
    """A loss, times ``weight``, that each layer adds under ``name`` while training.

    A variant defines ``loss``. Raises ``UserError`` where the ``mixer`` does not show what the loss looks at.
    """

    name: ClassVar[str]

    def __init__(self, *, mixer: HeadMixer, weight: float, of_weights: bool) -> None:
        super().__init__()
        kind = type(mixer)
        # A class that defines forward, or attend, anew does not thereby show what its base class shows.
        if not _beside(kind, "forward", "shows_heads") or not kind.shows_heads:
            raise UserError(
                f"model.mixer.head_losses={self.name}: {kind.__name__} does not show its heads; leave the loss out, "
                "or choose another mixer, such as model=transformer"
            )
        if of_weights and (kind.use_weights is HeadMixer.use_weights or not _beside(kind, "attend", "use_weights")):
            raise UserError(
                f"model.mixer.head_losses={self.name}: {kind.__name__} has no attention weights to show; leave the "
                "loss out, or choose a mixer of full attention, such as model=transformer"
            )
        if weight < 0:
            raise UserError(f"model.mixer.head_losses.weight={weight}: must not be negative")
        self.weight = weight

    def forward(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Context:
        """The context with the loss added; tensors are what ``attend`` of ``mixer`` took, and found (B, H, N, D)."""
        return context.add_loss(self.name, self.weight * self.loss(mixer, o, q, k, v, context))

    def loss(self, mixer: HeadMixer, o: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """The scalar, before its weight."""
        raise NotImplementedError(f"{type(self).__name__} defines no loss")


def mean_of_tokens(x: Tensor, counted: Tensor | None) -> Tensor:
    """The mean over rows of the batch of the mean over their tokens: x (B, N), ``counted`` (B, N) or None for all.

    So the means of micro-batches, weighed by their rows, are that of the batch.
    """
    if counted is None:
        return x.mean()
    return (x.where(counted, 0).sum(-1) / counted.sum(-1).clamp(min=1)).mean()


def _beside(kind: type, method: str, other: str) -> bool:
    """Whether the class that defines ``method`` for ``kind`` defines ``other`` too."""
    return other in next(vars(each) for each in kind.__mro__ if method in vars(each))
