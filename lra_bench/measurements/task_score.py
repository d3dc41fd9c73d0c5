"""Scores that a task computes itself, such as the success rate of roll-outs."""

from __future__ import annotations

import torch
from torch import nn

from lra_bench.contracts import Task, TaskScore, TaskSpec
from lra_bench.statistics.intervals import wilson
from lra_bench.training.evaluation import evaluating


def score_of_task(task: Task, model: nn.Module, batch_size: int, **at: int | str | None) -> TaskScore | None:
    """Return the score of ``Task.score``, None if the task defines none; ``at`` are ``length`` and ``variant``."""
    with evaluating(model), torch.inference_mode():
        return task.score(model, batch_size=batch_size, **at)  # type: ignore[arg-type]


def interval_of_task(own: TaskScore, spec: TaskSpec) -> tuple[float | None, float | None]:
    """Return Wilson's 95 % confidence interval of an accuracy over the trials; None for other metrics."""
    return wilson(round(own.score * own.n), own.n) if spec.metric == "accuracy" else (None, None)
