"""A model whose choices learn from its own success."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, Batch, Output, UserError

from ..backbone import SequenceModel
from ..mixer import Context

CHANCES = "sac"  # what mixers hand on: log chances (B,) of what they chose by chance, summed over layers


class ReinforcedModel(SequenceModel):
    """The usual stack, in training with the loss of REINFORCE, Williams 1992, on the chances that its mixers hand on.

    −(R − b) log p, averaged over rows, where a row's reward R is the mean log-likelihood of its targets and the
    baseline b is a moving mean of rewards over about ``baseline_steps`` steps. Its gradient reaches only what made p.
    """

    rewards: Tensor

    def __init__(self, *, baseline_steps: int = 100, **options: Any) -> None:
        super().__init__(**options)
        if baseline_steps < 1:
            raise UserError(f"backbone.baseline_steps={baseline_steps}: must be at least 1")
        self.baseline_steps = baseline_steps
        self.register_buffer("rewards", torch.zeros(2))  # moving sum and count

    def forward(self, batch: Batch, memory: Any = None) -> Output:
        """As ``SequenceModel``, with the loss and the statistics of the choices."""
        output = super().forward(batch, memory)
        losses = dict(output.losses)
        chances = losses.pop(CHANCES, None)
        if chances is None or not self.training:
            return output._replace(losses=losses)
        reward = row_rewards(output.logits.detach(), batch.targets)
        found = torch.stack((reward.sum(), reward.new_tensor(float(len(reward)))))
        total, count = self.rewards if self.rewards[1] > 0 else found
        chances = chances.view(len(reward), -1).sum(1)  # two documents of a pair were chosen for one answer
        losses[CHANCES] = ((total / count - reward) * chances).mean()
        statistics = {**output.statistics, str(self.statistics_name): {"rewards": found}}
        return output._replace(losses=losses, statistics=statistics)

    def after_step(self, step: int, statistics: Mapping[str, Tensor]) -> None:
        """Move the baseline."""
        if statistics:
            self.rewards.lerp_(statistics["rewards"].to(self.rewards.dtype), 1 / self.baseline_steps)

    def _run(self, batch: Batch, memory: Any) -> tuple[Tensor, Context, Any]:
        x, context, memory = super()._run(batch, memory)
        if CHANCES in context.carry:
            context = context.add_loss(CHANCES, context.carry[CHANCES])
        return x, context, memory


def row_rewards(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean log-likelihood (B,) of each row's scored targets, 0 where it has none."""
    logits = logits.float() if logits.dtype.itemsize < 4 else logits
    flat = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=NOT_SCORED, reduction="none")
    scored = (targets != NOT_SCORED).view(len(targets), -1)
    return -flat.view(len(targets), -1).sum(1) / scored.sum(1).clamp(min=1)
