"""Inference state: the size of the tensors that a causal model keeps between tokens."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from lra_bench.contracts import Batch, Readable, TaskSpec, UserError
from lra_bench.contracts.measurement import Column, Display, Measurement, ScoreOver

if TYPE_CHECKING:
    from torch import nn

    from lra_bench.config.schema import CellConfig

    from .subject import Context, Subject

PART = 128
"""Tokens that are read at a time; the state does not depend on it, the time and the memory of reading do."""
LIMIT_SECONDS = 10.0
NO_STEPS = "the model has no form that reads a sequence in parts"


class StatePoint(TypedDict):
    """Bytes of the inference state after ``length`` tokens."""

    length: int
    state_bytes: int


class State(TypedDict):
    """Inference state: all tensors that a causal model keeps between tokens, for one row in float32.

    It contains the recurrent state, or the keys and values, of all layers, and the number of tokens read so far; not
    the mean over tokens that some output heads compute. ``train_length`` is the training length in tokens. ``points``
    is empty if the model is bidirectional on the task or has no form that reads a sequence in parts; ``reason`` then
    says which, otherwise it is empty.
    """

    train_length: int
    points: list[StatePoint]
    reason: str


def trained_bytes(state: State) -> int | None:
    """Return the bytes after as many tokens as the training length, None if unknown."""
    return next((p["state_bytes"] for p in state["points"] if p["length"] == state["train_length"]), None)


class InferenceState(Measurement):
    """Size of the inference state of a causal model in bytes, at the lengths of the step benchmark."""

    name = "state"
    stage = "measuring speed and memory"
    needs = ()
    Result = State
    columns = (
        Column(
            name="state_bytes",
            help="inference state in bytes: all tensors that a causal model passes on to read one more token after as "
            "many tokens as the training length, of one row in float32; empty if the model is bidirectional on the "
            "task or has no form that reads a sequence in parts",
            run=lambda run: run.record.state and trained_bytes(run.record.state),
            after=("minimal_pairs",),
            shown_after=("train_peak_resident_growth_bytes",),
            seeds="first",
            dtype="Int64",
            display=Display("state", "kilobytes", first="ascending"),
        ),
    )
    figures = (
        ScoreOver(
            name="score_vs_state",
            help="Score over the bytes of the inference state: the memory that recall costs.",
            values={"state_bytes": trained_bytes, "state_length": lambda state: state["train_length"]},
            label="state in bytes, length {state_length}",
            missing="without an inference state",
            remedy="run lra-bench bench on a causal task, or with backbone.causal=true",
            logarithmic=True,
        ),
    )

    def measure(self, subject: Subject, context: Context) -> State:
        """Measure an untrained model of the same configuration."""
        from lra_bench.profiling.types import lengths_of

        lengths = lengths_of(subject.config.measure, context.hardware.device.type)
        return self.at_lengths(subject.config, subject.task.spec, lengths)

    @staticmethod
    def at_lengths(
        config: CellConfig, spec: TaskSpec, lengths: Iterable[int], limit_seconds: float = LIMIT_SECONDS
    ) -> State:
        """Measure the state at the training length and at ``lengths``, in tokens.

        An untrained model reads one row of random inputs on the CPU in single precision, in parts, and the tensors that
        it passes on are counted at each length. Lengths that are not reached within ``limit_seconds``, or that the
        model does not support, are left out. If the model has no such form, there are no points, and the reason says
        why.
        """
        import torch

        from lra_bench.profiling.synthetic import spec_at
        from lra_bench.records.status import failure

        wanted = sorted({spec.train_length, *lengths})
        state: State = {"train_length": spec.train_length, "points": [], "reason": ""}
        try:
            with torch.random.fork_rng(devices=[]), torch.inference_mode():
                model, longest = _longest_model(config, spec, wanted)
                if reason := model.refuses_steps() if isinstance(model, Readable) else NO_STEPS:
                    return {**state, "reason": reason}
                points = _points(model, spec_at(spec, longest), [n for n in wanted if n <= longest], limit_seconds)
                state["points"].extend(points)
        except Exception as error:  # a model that cannot be read can still be timed
            _, state["reason"] = failure(error)
        return state

    @staticmethod
    def growth(state: State) -> dict[str, float | None]:
        """Return the growth exponent a of the state, bytes ~ length^a, with its interval; None below three points."""
        from lra_bench.profiling.scaling import exponent, fields

        points = state["points"]
        fit = exponent([point["length"] for point in points], [point["state_bytes"] for point in points])
        return fields("state", fit)


def _longest_model(config: CellConfig, spec: TaskSpec, lengths: Sequence[int]) -> tuple[nn.Module, int]:
    """Return the model for the longest of the lengths that it supports, and that length.

    Raises ``UserError`` if it supports none.
    """
    from lra_bench.profiling.bench import model_at

    refused: UserError | None = None
    for length in reversed(lengths):
        try:
            return model_at(config, spec, length).float().eval(), length
        except UserError as error:
            refused = error
    raise refused or UserError(NO_STEPS)


def _points(model: Any, spec: TaskSpec, lengths: Sequence[int], limit_seconds: float) -> Iterator[StatePoint]:
    """Read one row up to each length in turn and yield the bytes of the state there."""
    import torch

    from lra_bench.profiling.synthetic import synthetic_batch

    from .memory_lengths import state_bytes

    batch = synthetic_batch(spec, 1, lengths[-1], "cpu")
    inputs = batch.inputs[:, 0] if spec.kind == "matching" else batch.inputs
    name, targets = "tokens" if spec.vocabulary_size is not None else "values", torch.zeros(1, dtype=torch.long)
    memory, start, started = None, 0, time.perf_counter()
    for length in lengths:
        while start < length:
            stop = min(start + PART, length)
            part: Any = {name: inputs[:, start:stop], "lengths": torch.tensor([stop - start])}
            _, memory = model.read(Batch(**part, targets=targets), memory)
            start = stop
            if time.perf_counter() - started > limit_seconds:
                return
        yield {"length": length, "state_bytes": state_bytes(memory)}
