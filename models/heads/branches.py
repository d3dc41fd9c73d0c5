"""Merging of heads by branches: each head has its own feed-forward network, and their outputs are weighted."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError
from lra_bench.options.backbone import ACTIVATION

from ..feedforward import activation


class WeightedBranches(nn.Module):
    """Merge of heads as Σ_i α_i FFN_i(κ_i W_i head_i), with positive weights α and κ that each sum to one.

    Ahmed et al. 2017, arXiv 1711.02132 (Weighted Transformer). Maps heads (B, N, H·D) to (B, N, E); used with
    ``backbone.feed_forward=false``, because each branch has its own network. O(N H E (D + F)) time. With one head it is
    an output projection followed by a feed-forward network.

    Deviations from the paper: weights are a softmax, instead of being projected on the simplex after every step; they
    are trained at the learning rate of the other parameters until the last step.

    Raises ``UserError`` if the hidden width or the activation is wrong.

    Args:
        heads: Number of heads H.
        head_dim: Number of features per head D.
        width: Number of features E.
        hidden: Hidden width F of the network of a branch; by default 2E / H, so that all of them have as many
            parameters as one network of the usual width 2E.
        kind: Activation of the networks.
    """

    not_decayed = ("before_bias", "after_bias")
    revision: ClassVar[int] = 1
    """Part of the hash of cells. Raise it if the class computes something else from the same arguments."""

    def __init__(self, *, heads: int, head_dim: int, width: int, hidden: int | None = None, kind: str = "relu") -> None:
        super().__init__()
        hidden = max(1, 2 * width // heads) if hidden is None else hidden
        if hidden < 1:
            raise UserError(f"model.mixer.merge.hidden={hidden}: must be at least 1")
        if violated := ACTIVATION.violated("model.mixer.merge.kind", kind):
            raise UserError(violated)
        self.activation = activation(kind)
        self.outputs = _uniform(heads, head_dim, width)
        self.before, self.before_bias = _uniform(heads, width, hidden), nn.Parameter(torch.zeros(heads, 1, hidden))
        self.after, self.after_bias = _uniform(heads, hidden, width), nn.Parameter(torch.zeros(heads, 1, width))
        self.input_logits, self.output_logits = nn.Parameter(torch.zeros(heads)), nn.Parameter(torch.zeros(heads))

    def forward(self, x: Tensor) -> Tensor:
        """Merge heads (B, N, H·D) to (B, N, E)."""
        heads = len(self.outputs)
        split = x.unflatten(-1, (heads, -1)).flatten(0, 1).transpose(0, 1)
        inputs, outputs = (
            logits.softmax(0).to(x.dtype)[:, None, None] for logits in (self.input_logits, self.output_logits)
        )
        branches = inputs * (split @ self.outputs)
        branches = self.activation(branches @ self.before + self.before_bias) @ self.after + self.after_bias
        return (outputs * branches).sum(0).unflatten(0, x.shape[:2])


def _uniform(heads: int, rows: int, columns: int) -> nn.Parameter:
    """Return Xavier-uniform matrices (heads, rows, columns)."""
    bound = (6 / (rows + columns)) ** 0.5
    return nn.Parameter(torch.empty(heads, rows, columns).uniform_(-bound, bound))
