"""Mixture of experts: feed-forward networks of which every token uses a few."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from lra_bench.contracts import UserError

from .feedforward import GATED, activation, inner_width, linear
from .kernels.dropout import Dropout
from .mixer import Context


class Experts(nn.Module):
    """Mixture of ``count`` feed-forward networks, of which each token uses the ``top_k`` with the largest weights.

    Shazeer et al. 2017, arXiv 1701.06538; Lepikhin et al. 2020, arXiv 2006.16668 (two experts, whose weights are
    divided by their sum); Fedus et al. 2021, arXiv 2101.03961 (one expert, multiplied by its weight). x (B, N, E) ->
    (B, N, E). Weights are a softmax over experts of a linear map of the token. Tokens are sorted by expert, and each
    expert processes its tokens in one product: O(B N top_k E F) time, and results do not depend on the other tokens.

    Two losses are added in training mode. The balance loss is ``balance`` · count · Σ_e f_e P_e with the share f_e of
    tokens whose largest weight is that of expert e, and the mean weight P_e; it is ``balance`` if both are uniform. The
    z loss is ``z_loss`` times the mean of the squared logarithm of the sum of exponentiated logits. Both are computed
    for every sequence, over the positions that are not padding, and averaged over sequences, so that they do not depend
    on how a batch is divided among ranks.

    Code: tensorflow/mesh@da90793:mesh_tensorflow/transformer/moe.py (Switch Transformer).

    Deviations from the papers: experts have no capacity, so no token is left out; the second expert is always used; the
    noise of the router is that of the Switch Transformer, uniform and without learned scale, and Shazeer et al.'s
    losses of importance and load are replaced by the balance loss; a sequence is a group of tokens, unlike in GShard.

    Raises ``UserError`` if an option is out of range.

    Args:
        width: Number of features E.
        hidden: Hidden width F of an expert, before the reduction for gated activations.
        kind: Activation, as in ``FeedForward``.
        dropout: Dropout probability of the hidden features.
        count: Number of experts.
        top_k: Number of experts that a token uses.
        balance: Weight of the balance loss.
        z_loss: Weight of the z loss.
        jitter: In training mode the input of the router is multiplied by uniform numbers in [1 − jitter, 1 + jitter].
    """

    loss_name: ClassVar[str] = "experts"
    not_decayed = ("before_bias", "after_bias")

    def __init__(
        self,
        width: int,
        hidden: int,
        kind: str,
        dropout: float,
        *,
        count: int,
        top_k: int,
        balance: float,
        z_loss: float,
        jitter: float,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= count:
            raise UserError(f"backbone.experts.top_k={top_k}: must be at least 1 and at most count={count}")
        self.top_k, self.balance, self.z_loss, self.jitter = top_k, balance, z_loss, jitter
        self.router = linear(width, count, bias=False)
        inner = inner_width(hidden, kind)
        before = [linear(width, 2 * inner if kind in GATED else inner) for _ in range(count)]
        after = [linear(inner, width) for _ in range(count)]
        self.before, self.before_bias = _stacked(before)
        self.after, self.after_bias = _stacked(after)
        self.activation, self.drop = activation(kind), Dropout(dropout)

    @property
    def inactive_parameters(self) -> int:
        """Number of parameters that one token does not use."""
        count = len(self.before)
        experts = sum(p.numel() for p in (self.before, self.before_bias, self.after, self.after_bias))
        return experts // count * (count - self.top_k)

    def forward(self, x: Tensor, context: Context) -> tuple[Tensor, Context]:
        """Return the output for x (B, N, E), and the context with the losses in training mode."""
        inputs = x
        if self.training and self.jitter:
            inputs = x * torch.empty_like(x).uniform_(1 - self.jitter, 1 + self.jitter)
        logits = self.router(inputs)
        logits = logits.float() if logits.dtype.itemsize < 4 else logits
        weights = logits.softmax(-1)
        gates, chosen = weights.topk(self.top_k, -1)
        if self.top_k > 1:
            gates = gates / gates.sum(-1, keepdim=True)
        outputs = self._run(x.unsqueeze(-2).expand(*chosen.shape, -1).flatten(0, -2), chosen.flatten())
        y = (outputs.unflatten(0, chosen.shape) * gates.unsqueeze(-1).to(outputs.dtype)).sum(-2)
        if self.training:
            context = context.add_loss(self.loss_name, self._loss(logits, weights, chosen[..., 0], context))
        return y, context

    def _run(self, x: Tensor, chosen: Tensor) -> Tensor:
        """Return the outputs of the experts ``chosen`` (T,) for x (T, E)."""
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=len(self.before)).tolist()
        parts = [
            self.drop(self.activation(torch.addmm(self.before_bias[e], part, self.before[e]))) @ self.after[e]
            + self.after_bias[e]
            for e, part in enumerate(x[order].split(counts))
        ]
        return torch.cat(parts)[order.argsort()]

    def _loss(self, logits: Tensor, weights: Tensor, first: Tensor, context: Context) -> Tensor:
        """Return the sum of the weighted balance and z losses of logits and weights (B, N, count)."""
        count = weights.shape[-1]
        valid = logits.new_ones(logits.shape[:2]) if context.padding is None else context.padding.valid.to(logits)
        tokens = valid.sum(1, keepdim=True).clamp(min=1)
        chosen = nn.functional.one_hot(first, count).to(weights) * valid.unsqueeze(-1)
        share = chosen.sum(1) / tokens
        mean = (weights * valid.unsqueeze(-1)).sum(1) / tokens
        balance = count * (share * mean).sum(-1).mean()
        z_loss = ((logits.logsumexp(-1).square() * valid).sum(1, keepdim=True) / tokens).mean()
        return self.balance * balance + self.z_loss * z_loss


def _stacked(layers: list[nn.Linear]) -> tuple[nn.Parameter, nn.Parameter]:
    """Return the weights (count, inputs, outputs) and biases (count, outputs) of linear layers."""
    weights = torch.stack([layer.weight.detach().mT for layer in layers])
    return nn.Parameter(weights), nn.Parameter(torch.stack([layer.bias.detach() for layer in layers]))
