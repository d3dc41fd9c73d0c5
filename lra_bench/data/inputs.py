"""The inputs of a split as examples of self-pretraining: hidden inputs to restore, or the next input to predict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from lra_bench.contracts import NOT_SCORED, Batch, TaskSpec

from .batches import Rows, ShuffledBatches
from .columns import Integers

EVALUATION = -1
"""Step of batches that are evaluated: the hidden positions of a row are the same in all evaluations."""

_STREAM = 0x6D61736B
"""Number that separates the random numbers of hidden positions from those of other uses of the seed."""


def hidden_positions(
    seed: int, step: int, row: int, length: int, probability: float, span: int = 1
) -> NDArray[np.bool_]:
    """Return which positions of a row are hidden at a step, (length,); a pure function of its arguments.

    With ``span`` 1 each position is hidden independently. Otherwise ``length * probability / span`` spans, rounded
    down, are hidden, which do not overlap; all such sets of spans are equally likely.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed, step + 1, row])))
    if span == 1:
        return np.asarray(generator.random(length) < probability)
    count = int(length * probability / span)
    # Each span is drawn as one place, and then takes ``span`` positions.
    places = np.sort(generator.choice(length - count * (span - 1), count, replace=False))
    starts = places + np.arange(count) * (span - 1)
    hidden = np.zeros(length, dtype=np.bool_)
    hidden[(starts[:, None] + np.arange(span)).ravel()] = True
    return hidden


class InputRows(Rows):
    """The examples of a split without their targets: each document is a row, and its inputs are its targets.

    With a ``probability`` positions are hidden, and the targets are their inputs. A hidden token is replaced by the id
    after the last one of the vocabulary. Hidden values are set to 0, and one more channel is 1 at hidden positions and
    0 at others. Without a probability the target of a position is the next input. Targets of other positions, and of
    padding, are ``NOT_SCORED``, or not a number if they are values.

    Args:
        rows: The rows of the split.
        spec: The specification of the objective (``config.pretraining.phase_spec``).
        probability: Probability with which a position is hidden, None for the next input.
        span: Length of hidden spans.
        seed: Seed of the hidden positions.
        count: Number of examples of the split that are used, from its start; None for all.
    """

    def __init__(
        self,
        rows: Rows,
        spec: TaskSpec,
        probability: float | None,
        span: int = 1,
        seed: int = 0,
        count: int | None = None,
    ) -> None:
        self.spec, self.inputs, self._targets = spec, rows.inputs.by_document(count), None
        self.probability, self.span, self.seed = probability, span, seed

    def batch(self, indices: ArrayLike, multiple: int = 64, step: int = EVALUATION) -> Batch:
        """Return rows as a padded batch, as ``Rows.batch``, with the hidden positions of a step."""
        plain = super().batch(indices, multiple)
        real = torch.arange(plain.width) < plain.lengths[:, None]
        if self.probability is None:
            following = real.roll(-1, 1)
            following[:, -1] = False
            return replace(plain, targets=_targets(plain.inputs.roll(-1, 1), following))
        hidden = torch.zeros_like(real)
        for place, (row, length) in enumerate(zip(plain.extra["row"].tolist(), plain.lengths.tolist(), strict=True)):
            found = hidden_positions(self.seed, step, row, length, self.probability, self.span)
            hidden[place, :length] = torch.from_numpy(found)
        return _hide(plain, hidden, self.spec)

    def _targets_of(self, rows: Integers, width: int) -> NDArray[np.int64]:
        """Return no targets, because ``batch`` makes them from the inputs."""
        return np.full((len(rows), width), NOT_SCORED, dtype=np.int64)


def _hide(batch: Batch, hidden: Tensor, spec: TaskSpec) -> Batch:
    """Return a batch in which the positions ``hidden`` (B, N) are hidden and are its targets."""
    targets = _targets(batch.inputs, hidden)
    if batch.tokens is not None:
        assert spec.vocabulary_size is not None
        return replace(batch, tokens=batch.tokens.masked_fill(hidden, spec.vocabulary_size), targets=targets)
    assert batch.values is not None
    places = hidden[..., None]
    values = torch.cat([batch.values.masked_fill(places, 0), places.to(batch.values.dtype)], -1)
    return replace(batch, values=values, targets=targets)


def _targets(inputs: Tensor, scored: Tensor) -> Tensor:
    """Return the tokens (B, N) or values (B, N, C) at the scored positions (B, N) as targets."""
    if inputs.dim() == scored.dim():
        return inputs.masked_fill(~scored, NOT_SCORED)
    return inputs.masked_fill(~scored[..., None], float("nan"))


class InputBatches(ShuffledBatches):
    """Training batches of ``InputRows`` in random order, whose hidden positions depend on the step."""

    def __call__(self, step: int) -> Batch:
        """Return the batch of one step."""
        assert isinstance(self.rows, InputRows)
        return self.rows.batch(self.indices(step), step=step)
