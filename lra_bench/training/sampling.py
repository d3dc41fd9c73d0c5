"""Training examples and their order, with shorter examples first (length warm-up)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lra_bench.config.schema import Train
from lra_bench.contracts import Batch, TaskSpec, UserError
from lra_bench.data.batches import Rows, ShuffledBatches
from lra_bench.data.inputs import InputBatches, InputRows
from lra_bench.data.streams import StreamBatches
from lra_bench.data.windows import RandomWindows

if TYPE_CHECKING:
    from lra_bench.contracts import Task

Batches = Callable[[int], Batch]
"""Function that returns the batch of a step."""


def full_length(spec: TaskSpec, train: Train) -> int:
    """Return the length of training examples without length warm-up; in language modelling that of the windows."""
    return (train.window if spec.kind == "language_modeling" else None) or spec.train_length


def split_of(length: int) -> str:
    """Return the name of the training examples of a shorter length."""
    return f"train@{length}"


def check_warmup(task: Task, train: Train) -> None:
    """Raise ``UserError`` if the task does not support ``train.length_warmup``.

    Each length must be below the full length. In language modelling ``train.order`` must not be ``stream``; other tasks
    must support each length.
    """
    language = task.spec.kind == "language_modeling"
    if train.length_warmup and language and train.order == "stream":
        raise UserError(
            "train.length_warmup: the windows of a stream have one length; set train.order=shuffled, or leave out the "
            "length warm-up"
        )
    for length, _ in train.length_warmup or ():
        option, longest = f"train.length_warmup: {length:,} tokens", full_length(task.spec, train)
        if length >= longest:
            raise UserError(f"{option} are not below the training length of {task.spec.name}, {longest:,}")
        if not language and (reason := task.supports_length(length)):
            raise UserError(f"{option}: {reason}")


def training_rows(task: Task, train: Train) -> dict[str, Rows]:
    """Return the training examples as ``train``, and shorter ones for each length of ``train.length_warmup``.

    The key of shorter examples is ``split_of(length)``. Language modelling has none, because it uses shorter windows of
    the same text. Raises ``UserError`` as ``check_warmup`` does.
    """
    check_warmup(task, train)
    lengths = [length for length, _ in train.length_warmup or () if task.spec.kind != "language_modeling"]
    return {
        "train": Rows(task.split("train"), task.spec),
        **{split_of(length): Rows(task.split("train", length), task.spec) for length in lengths},
    }


def training_batches(rows: Mapping[str, Rows], train: Train, seed: int) -> Batches:
    """Return the function that returns the batch of each training step.

    Length warm-up (Li et al. 2021, arXiv 2108.06084): the steps of ``train.length_warmup`` use shorter examples, and
    their batches are larger so that they contain about as many tokens. Pretraining does not use it.

    Args:
        rows: The examples as returned by ``training_rows``.
        train: The recipe.
        seed: Seed of the order of the examples.
    """
    own = rows["train"]
    full = batches_of(own, train, seed)
    if isinstance(own, InputRows) or not train.length_warmup:
        return full
    stages = []
    for length, steps in train.length_warmup:
        size = train.batch_size * full_length(own.spec, train) // length
        shorter = replace(train, batch_size=size, window=length)
        stages.append((steps, batches_of(rows.get(split_of(length), own), shorter, seed)))

    def in_stages(step: int) -> Batch:
        for steps, batches in stages:
            if step < steps:
                return batches(step)
            step -= steps
        return full(step)

    return in_stages


def batches_of(rows: Rows, train: Train, seed: int) -> Batches:
    """Return the batches of examples of one length in the order ``train.order``.

    In language modelling, ``stream`` is the order of the documents. In other tasks an example is a whole document, so
    ``stream`` and ``shuffled`` are the same.
    """
    if isinstance(rows, InputRows):
        return InputBatches(rows, train.batch_size, seed)
    window = full_length(rows.spec, train)
    if rows.spec.kind == "language_modeling" and train.order == "stream":
        return StreamBatches(rows, train.batch_size, window, seed)
    if rows.spec.kind == "language_modeling" and int(rows.lengths.max()) > window:
        return RandomWindows(rows, train.batch_size, window, seed)
    return ShuffledBatches(rows, train.batch_size, seed)
