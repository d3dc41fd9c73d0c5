"""Evaluate a model on rows, with the per-row results that paired significance tests need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from lra_bench.contracts import NOT_SCORED, Batch, Output, TaskSpec
from lra_bench.data.batches import Rows, evaluation_batches
from lra_bench.data.streams import DocumentStreams
from lra_bench.data.windows import Windows, cut_all
from lra_bench.progress import bar
from lra_bench.runtime.hardware import Hardware

from .loss import absolute_errors, is_scored
from .parallel import ALONE, Group
from .prefetch import ahead_of


@dataclass(frozen=True)
class Evaluation:
    """Score and loss over ``n`` scored targets, with arrays (R,) of per-row results.

    ``loss`` is the mean in nats; ``score`` is the task's metric: accuracy, otherwise bits per scored target.
    ``mean_tokens`` is the mean length of the rows. Per row, ``prediction`` and ``target`` are classes, or −1 if each
    token has its own target; ``correct`` is the number of correct targets, ``row_loss`` the sum of the losses in nats,
    ``scored`` the number of scored targets. ``target_correct`` (T,) is whether each scored target is predicted
    correctly, in the order of rows and positions; None unless it was requested. In language modelling a row is a
    window, or another part of the text of fixed size over which results are summed.
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
    target_correct: np.ndarray | None = None


@contextmanager
def evaluating(model: nn.Module, sharded: bool = False) -> Iterator[None]:
    """Switch ``model`` to evaluation mode and disable gradients; the previous mode is restored when the context exits.

    A ``sharded`` model runs under ``no_grad`` instead of ``inference_mode``: tensors that FSDP2 gathers are used again
    in training and must not be inference tensors.
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
    each_target: bool = False,
    stream: bool = False,
    observe: Callable[[np.ndarray, Batch, Output], None] | None = None,
) -> Evaluation:
    """Evaluate every row once.

    In language modelling documents are cut into windows of the training length that do not overlap: every token except
    the first of each document is scored once. With ``stream`` the windows of a document are read in order, and the
    memory of the model is passed on from each to the next; otherwise each is evaluated without memory.

    Args:
        model: The model; it is switched to evaluation mode during the evaluation.
        rows: The rows of a split.
        spec: The specification of the task.
        hardware: The device and precision.
        batch_size: Rows or windows per batch. Batches do not depend on the number of ranks.
        description: The label of the progress bar.
        places: In language modelling, the number of scored tokens after which to stop, rounded up to entire windows;
            by default all.
        group: The ranks that share the batches. All ranks must call this function, and each returns the same result.
        each_target: Whether to return ``target_correct``; not supported in language modelling.
        stream: Whether models with memory read documents in order; only in language modelling. ``batch_size`` is then
            the number of documents that are read side by side.
        observe: Called with the indices, the batch on the device and the output of every batch that this rank computes.

    Returns:
        The score and loss, with per-row results.
    """
    language = spec.kind == "language_modeling"
    windows = cut_all(rows.lengths, spec.train_length, places) if language else None
    lengths, unit = (rows.lengths, "rows") if windows is None else (windows.lengths, "windows")
    if windows is not None and stream:
        streams = DocumentStreams(windows, batch_size)
        # Groups differ in their number of batches, and FSDP2 gathers weights in each batch.
        turns = list(range(len(streams))) if group.sharded else group.turns(len(streams))
        total = sum(streams.count(turn) for turn in turns)
        batches = _stream_batches(windows, rows, streams, turns)
    else:
        turns = group.turns(-(-len(lengths) // batch_size))
        total = sum(min(batch_size, len(lengths) - turn * batch_size) for turn in turns)
        batches = (
            evaluation_batches(rows, batch_size, turns=turns)
            if windows is None
            else windows.batches(rows, batch_size, turns)
        )
    gathered: list[tuple[np.ndarray, Tensor]] = []
    targets: list[np.ndarray] = []
    memory = None
    with evaluating(model, group.sharded), bar(total, description, unit=unit) as advance:
        for indices, batch in ahead_of(batches, hardware.device):
            begins = "reset" not in batch.extra or bool(batch.extra["reset"].all())
            # Documents that have ended have no row any more; they were the last rows.
            memory = None if begins else tree_map_only(Tensor, lambda kept: kept[: len(indices)], memory)  # noqa: B023
            batch = batch.to(hardware.device)
            with hardware.autocast():
                output = model(batch, memory)
            memory = output.memory
            gathered.append((indices, _row_figures(output, batch)))
            if observe is not None:
                observe(indices, batch, output)
            if each_target:
                targets.extend(_correct_of_rows(output, batch))
            advance(len(indices))
    order = np.concatenate([indices for indices, _ in gathered])
    found = torch.cat([values for _, values in gathered], dim=1).cpu().numpy()
    figures = np.empty((5, len(lengths)))
    of_row: dict[int, np.ndarray] = {}
    for where, values, correct in group.gather((order, found, targets)):
        figures[:, where] = values
        of_row.update(zip(where.tolist(), correct, strict=False))
    result = summarise(figures, spec, float(np.mean(lengths)))
    if not each_target:
        return result
    return replace(result, target_correct=np.concatenate([of_row[row] for row in range(len(lengths))]))


def _stream_batches(
    windows: Windows, rows: Rows, streams: DocumentStreams, turns: Sequence[int]
) -> Iterator[tuple[np.ndarray, Batch]]:
    """Yield indices and batches of the windows of the given groups of documents."""
    for turn in turns:
        for number, indices in enumerate(streams.batches(turn)):
            reset = torch.full((len(indices),), number == 0)
            yield indices, replace(windows.select(indices).batch(rows), extra={"reset": reset})


def target_figures(output: Output, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss in nats of every target, (B,) or (B, N), and whether its prediction is correct.

    The loss of a target that is not scored is 0. Of values, the loss is the absolute error, and none is correct.
    """
    logits = output.logits.float() if output.logits.dtype.itemsize < 4 else output.logits
    targets = batch.targets
    if targets.is_floating_point():
        return absolute_errors(logits, targets).sum(-1), torch.zeros_like(targets[..., 0], dtype=torch.bool)
    losses = F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=NOT_SCORED, reduction="none"
    ).view_as(targets)
    return losses, logits.argmax(-1) == targets


def _correct_of_rows(output: Output, batch: Batch) -> list[np.ndarray]:
    """Return for each row which of its scored targets are correct."""
    targets = batch.targets.reshape(len(batch.targets), -1)
    correct = (output.logits.argmax(-1).view_as(targets) == targets).cpu().numpy()
    scored = (targets != NOT_SCORED).cpu().numpy()
    return [row[mask] for row, mask in zip(correct, scored, strict=True)]


def _row_figures(output: Output, batch: Batch) -> Tensor:
    """Return figures (5, B): per row prediction, target, correct targets, sum of losses in nats, scored targets.

    Prediction and target are −1 if each token has its own target.
    """
    losses, correct = target_figures(output, batch)
    targets, scored = batch.targets, is_scored(batch.targets)
    if targets.is_floating_point():
        targets, scored = targets[..., 0], scored.sum(-1)
    if targets.dim() == 1:
        columns = [output.logits.argmax(-1), targets, correct, losses, scored]
    else:
        none = targets.new_full((targets.shape[0],), -1)
        columns = [none, none, correct.sum(1), losses.sum(1), scored.sum(1)]
    return torch.stack([column.double() for column in columns])


def summarise(figures: np.ndarray, spec: TaskSpec, mean_tokens: float) -> Evaluation:
    """Compute the evaluation of figures (5, R): prediction, target, correct targets, sum of losses, scored targets."""
    prediction, target, correct, losses, scored = figures
    n = int(scored.sum())
    # Sum in row order, so that the result does not depend on the batches.
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
