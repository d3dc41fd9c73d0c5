"""The self-pretraining of a cell as a section of the record, which the stage that pretrains the network fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypedDict

from lra_bench.contracts.measurement import Column, Measurement, listed

from .steps import training_flops


class Validation(TypedDict):
    """An evaluation on the validation split: loss, and accuracy, which is None for values."""

    step: int
    loss: float
    accuracy: float | None


class Pretraining(TypedDict):
    """Pretraining of a network on the inputs of its task.

    Attributes:
        objective: ``masked`` or ``causal``.
        loss: ``cross-entropy`` in nats, or ``absolute error`` of values.
        probability: Probability with which a position was hidden; None for the next input.
        rows: Number of rows that the network was trained on; each document of a pair is one.
        steps: Number of optimizer steps.
        selected_step: Step of the weights with which training began.
        seconds: Time spent in these steps, seconds.
        evaluation_seconds: Time spent in evaluations, seconds.
        tokens_seen: Number of tokens of these steps, without padding.
        validation_loss: Lowest loss on the scored inputs of the validation split.
        floor_loss: Lowest loss of a constant prediction on the same inputs: the entropy of their distribution, or the
            mean absolute deviation from their median.
        validation_accuracy: Accuracy of the evaluation with the lowest loss; None for values.
        floor_accuracy: Accuracy of the most frequent token; None for values.
        validations: All evaluations.
        final_weights_sha256: Digest of the weights after the last step.
    """

    objective: str
    loss: str
    probability: float | None
    rows: int
    steps: int
    selected_step: int
    seconds: float | None
    evaluation_seconds: float | None
    tokens_seen: int
    validation_loss: float
    floor_loss: float
    validation_accuracy: float | None
    floor_accuracy: float | None
    validations: list[Validation]
    final_weights_sha256: str


def objective_of(config: Mapping[str, Any]) -> str:
    """Return the objective of pretraining in the configuration of a record, empty without pretraining."""
    name = str((config.get("pretrain") or {}).get("name", "none"))
    return "" if name == "none" else name


class PretrainingRun(Measurement):
    """Objective, steps, times and losses of the self-pretraining of a cell."""

    name = "pretraining"
    title = "Pretraining"
    Result = Pretraining
    columns = (
        Column(
            name="pretraining",
            help="objective of self-pretraining on the inputs of the training split, masked or causal; record if the "
            "weights of another record were loaded; empty without pretraining",
            run=lambda run: objective_of(run.record.config),
        ),
        Column(
            name="pretraining_steps",
            help="steps of self-pretraining; those of training are not counted",
            source="pretraining.steps",
            dtype="Int64",
        ),
        Column(
            name="pretraining_seconds",
            help="time spent in the steps of self-pretraining, seconds; train_seconds does not contain it",
            source="pretraining.seconds",
            seeds="mean",
            dtype="float64",
        ),
        Column(
            name="pretraining_flops",
            help="floating point operations of the forward and the backward passes of self-pretraining; train_flops "
            "does not contain them",
            run=lambda run: training_flops(run, "pretraining.tokens_seen"),
            seeds="mean",
            dtype="float64",
        ),
        Column(
            name="pretraining_loss",
            help="lowest validation loss of self-pretraining: cross-entropy in nats, or absolute error of values",
            source="pretraining.validation_loss",
            seeds="mean",
            dtype="float64",
        ),
        Column(
            name="pretraining_floor",
            help="lowest validation loss of a constant prediction in self-pretraining",
            source="pretraining.floor_loss",
            seeds="mean",
            dtype="float64",
        ),
    )

    @classmethod
    def facts(cls, section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield all measurements except the single evaluations."""
        yield "pretraining", listed({name: value for name, value in section.items() if name != "validations"})
