"""Inference state: the bytes that a causal model passes on to read one more token."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lra_bench.config.schema import CellConfig
from lra_bench.contracts import Batch, Readable, TaskSpec, UserError
from lra_bench.evaluation.memory_lengths import state_bytes
from lra_bench.records.sections import State, StatePoint

from .bench import model_at
from .scaling import exponent, fields
from .synthetic import spec_at, synthetic_batch

PART = 128
"""Tokens that are read at a time; the state does not depend on it, the time and the memory of reading do."""
LIMIT_SECONDS = 10.0
NO_STEPS = "the model has no form that reads a sequence in parts"


def measure_state(
    config: CellConfig, spec: TaskSpec, lengths: Iterable[int], limit_seconds: float = LIMIT_SECONDS
) -> State:
    """Measure the record's ``state`` section at the training length and at ``lengths``, in tokens.

    An untrained model reads one row of random inputs on the CPU in single precision, in parts, and the tensors that it
    passes on are counted at each length. Lengths that are not reached within ``limit_seconds``, or that the model does
    not support, are left out. If the model has no such form, there are no points, and the reason says why.
    """
    wanted = sorted({spec.train_length, *lengths})
    state: State = {"train_length": spec.train_length, "points": [], "reason": ""}
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            model, longest = _longest_model(config, spec, wanted)
            if reason := _refusal(model):
                return {**state, "reason": reason}
            points = _points(model, spec_at(spec, longest), [n for n in wanted if n <= longest], limit_seconds)
            state["points"].extend(points)
    except Exception as error:  # a model that cannot be read can still be timed
        state["reason"] = (str(error).strip() or type(error).__name__).splitlines()[0]
    return state


def state_growth(state: State) -> dict[str, float | None]:
    """Return the growth exponent a of the state, bytes ~ length^a, with its interval; None below three points."""
    points = state["points"]
    fit = exponent([point["length"] for point in points], [point["state_bytes"] for point in points])
    return fields("state", fit)


def _longest_model(config: CellConfig, spec: TaskSpec, lengths: Sequence[int]) -> tuple[nn.Module, int]:
    """Return the model for the longest of the lengths that it supports, and that length.

    Raises ``UserError`` if it supports none.
    """
    refused: UserError | None = None
    for length in reversed(lengths):
        try:
            return model_at(config, spec, length).float().eval(), length
        except UserError as error:
            refused = error
    raise refused or UserError(NO_STEPS)


def _refusal(model: nn.Module) -> str | None:
    """Return why the state cannot be measured, None if it can."""
    return model.refuses_steps() if isinstance(model, Readable) else NO_STEPS


def _points(model: Any, spec: TaskSpec, lengths: Sequence[int], limit_seconds: float) -> Iterator[StatePoint]:
    """Read up to each length in turn and yield the bytes of the state there."""
    batch = synthetic_batch(spec, 1, lengths[-1], "cpu")
    inputs = batch.inputs[:, 0] if spec.kind == "matching" else batch.inputs
    memory, start, started = None, 0, time.perf_counter()
    for length in lengths:
        while start < length:
            stop = min(start + PART, length)
            _, memory = model.read(_part(inputs, spec, start, stop), memory)
            start = stop
            if time.perf_counter() - started > limit_seconds:
                return
        yield {"length": length, "state_bytes": state_bytes(memory)}


def _part(inputs: Tensor, spec: TaskSpec, start: int, stop: int) -> Batch:
    """Return tokens ``start`` to ``stop`` of one row as a batch."""
    part = inputs[:, start:stop]
    name = "tokens" if spec.vocabulary_size is not None else "values"
    lengths = torch.tensor([stop - start])
    return Batch(lengths=lengths, targets=torch.zeros(1, dtype=torch.long), **{name: part})  # type: ignore[arg-type]
