"""Scores of a model over rows, with what paired tests need of every row."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lra_bench.contracts import NOT_SCORED, Batch, Output, TaskSpec
from lra_bench.data.batches import Rows, evaluation_batches
from lra_bench.data.windows import cut_all
from lra_bench.progress import bar
from lra_bench.runtime.hardware import Hardware

from .parallel import ALONE, Group


@dataclass(frozen=True)
class Evaluation:
    """Score and loss over ``n`` scored targets, and per row: prediction, target, targets correct, loss in nats.

    ``loss`` is the mean in nats; ``score`` follows the task's metric. ``mean_tokens`` is the mean length of the rows.
    In language modelling a row is a window, or whatever equal part of the text its figures are summed over.
    """

    score: float
    loss: float
    n: int
    mean_tokens: float
    prediction: np.ndarray
    target: np.ndarray
    correct: np.ndarray
    row_loss: np.ndarray
    scored: np.ndarray


@contextmanager
def evaluating(model: nn.Module, sharded: bool = False) -> Iterator[None]:
    """Evaluation mode without gradients; the mode of ``model`` is put back afterwards.

    What FSDP2 gathers of a ``sharded`` model stays for training, so it must not be made in inference mode.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad() if sharded else torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def evaluate(
    model: nn.Module,
    rows: Rows,
    spec: TaskSpec,
    hardware: Hardware,
    batch_size: int,
    description: str,
    places: int | None = None,
    group: Group = ALONE,
) -> Evaluation:
    """Evaluate every row once, in batches that do not depend on how many ranks of ``group`` share them.

    In language modelling documents are cut into windows of the training length that do not overlap, each read without
    memory: every token but a document's first is scored once. ``places`` stops after as many scored tokens, or up to a
    window more.
    """
    language = spec.kind == "language_modeling"
    windows = cut_all(rows.lengths, spec.train_length, places) if language else None
    lengths, unit = (rows.lengths, "rows") if windows is None else (windows.lengths, "windows")
    turns = group.turns(-(-len(lengths) // batch_size))
    own = sum(min(batch_size, len(lengths) - turn * batch_size) for turn in turns)
    if windows is None:
        batches = evaluation_batches(rows, batch_size, turns=turns)
    else:
        batches = windows.batches(rows, batch_size, turns)
    gathered: list[tuple[np.ndarray, Tensor]] = []
    with evaluating(model, group.sharded), bar(own, description, unit=unit) as advance:
        for indices, batch in batches:
            batch = batch.to(hardware.device)
            with hardware.autocast():
                output = model(batch)
            gathered.append((indices, _row_figures(output, batch)))
            advance(len(indices))
    order = np.concatenate([indices for indices, _ in gathered])
    found = torch.cat([values for _, values in gathered], dim=1).cpu().numpy()
    figures = np.empty((5, len(lengths)))
    for where, values in group.gather((order, found)):
        figures[:, where] = values
    return summarise(figures, spec, float(np.mean(lengths)))


def target_figures(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Of every target, (B,) or (B, N): its loss in nats, 0 where it is not scored, and whether it was predicted."""
    logits = output.logits.float() if output.logits.dtype.itemsize < 4 else output.logits
    targets = batch.targets
    losses = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=NOT_SCORED, reduction="none"
    ).view_as(targets)
    return losses, logits.argmax(-1) == targets


def _row_figures(output: Output, batch: Batch) -> Tensor:
    """Per row: prediction, target (both −1 where tokens have their own), correct targets, loss sum, scored targets."""
    losses, correct = target_figures(output, batch)
    targets, scored = batch.targets, batch.targets != NOT_SCORED
    if targets.dim() == 1:
        columns = [output.logits.argmax(-1), targets, correct, losses, scored]
    else:
        none = targets.new_full((targets.shape[0],), -1)
        columns = [none, none, correct.sum(1), losses.sum(1), scored.sum(1)]
    return torch.stack([column.double() for column in columns])


def summarise(figures: np.ndarray, spec: TaskSpec, mean_tokens: float) -> Evaluation:
    """The evaluation of (5, R) figures: per row prediction, target, correct targets, loss sum and scored targets."""
    prediction, target, correct, losses, scored = figures
    n = int(scored.sum())
    # Summed in row order, so that the figure does not depend on how rows were batched.
    loss = float(losses.sum() / n)
    score = float(correct.sum() / n) if spec.metric == "accuracy" else loss / math.log(2)
    return Evaluation(
        score=score,
        loss=loss,
        n=n,
        mean_tokens=mean_tokens,
        prediction=prediction.astype(np.int64),
        target=target.astype(np.int64),
        correct=correct,
        row_loss=losses,
        scored=scored.astype(np.int64),
    )
