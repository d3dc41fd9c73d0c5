"""Sequence model trained with REINFORCE on the sampled choices of its mixers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, Batch, Output, UserError

from ..backbone import SequenceModel
from ..mixer import Context

KEY = "sac"
"""Key of the carry and name of the loss: log-probability (B,) of the sampled choices, summed over layers."""


class ReinforcedModel(SequenceModel):
    """``SequenceModel`` with the REINFORCE loss of Williams 1992 in training, for mixers that sample choices.

    The loss is −(R − b) log p, averaged over sequences. The reward R of a sequence is the mean log-likelihood of its
    targets, p the probability of the choices, and b a moving average of rewards over about ``baseline_steps`` steps.
    The gradient of this loss reaches only the parameters that determine p. Raises ``UserError`` if ``baseline_steps``
    is below 1.
    """

    rewards: Tensor

    def __init__(self, *, baseline_steps: int = 100, **options: Any) -> None:
        super().__init__(**options)
        if baseline_steps < 1:
            raise UserError(f"backbone.baseline_steps={baseline_steps}: must be at least 1")
        self.baseline_steps = baseline_steps
        self.register_buffer("rewards", torch.zeros(2))  # moving sum and count

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """Return the output of ``SequenceModel``, in training with the REINFORCE loss and the statistics of rewards."""
        output = super().forward(batch, memory)
        losses = dict(output.losses)
        log_probability = losses.pop(KEY, None)
        if log_probability is None or not self.training:
            return output._replace(losses=losses)
        reward = row_rewards(output.logits.detach(), batch.targets)
        current = torch.stack((reward.sum(), reward.new_full((), len(reward))))
        total, count = torch.where(self.rewards[1] > 0, self.rewards, current)
        log_probability = log_probability.view(len(reward), -1).sum(1)  # two documents of a pair share one reward
        losses[KEY] = ((total / count - reward) * log_probability).mean()
        statistics = {**output.statistics, str(self.statistics_name): {"rewards": current}}
        return output._replace(losses=losses, statistics=statistics)

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Update the moving average of rewards."""
        if statistics:
            self.rewards.lerp_(statistics["rewards"].to(self.rewards.dtype), 1 / self.baseline_steps)

    def _run(self, batch: Batch, memory: Any, keeps_memory: bool = False) -> tuple[Tensor, Context, Any]:
        """Run the layers and pass the log-probability from the carry to the losses, where ``forward`` reads it."""
        x, context, memory = super()._run(batch, memory, keeps_memory)
        if KEY in context.carry:
            context = context.add_loss(KEY, context.carry[KEY])
        return x, context, memory


def row_rewards(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean log-likelihood (B,) of the scored targets of each sequence, 0 if it has none."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=NOT_SCORED, reduction="none")
    scored = (targets != NOT_SCORED).view(len(targets), -1)
    return -flat.view(len(targets), -1).sum(1) / scored.sum(1).clamp(min=1)
