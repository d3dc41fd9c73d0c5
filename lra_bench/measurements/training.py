"""The training run as a section of the record, which the stage that trains the model fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict

from lra_bench.contracts.measurement import Column, Display, Measurement, listed, merged, number


class Training(TypedDict, total=False):
    """Measurements of the training run; further fields are allowed.

    ``selected_by`` is the validation metric whose best value selected the tested weights, at ``best_step``.
    ``stopped_early`` is whether ``train.stop_at`` ended training before its last step. ``validation_floor`` is the
    score of the strongest floor on the evaluated rows of the validation split. ``take_off`` describes the fields
    ``takeoff_…``, ``late_loss_change`` and ``score_at_half``. ``lowest_validation_loss`` is the lowest of all
    evaluations on the validation split; score and skill ``…_at_lowest_loss`` are those of the same evaluation.
    ``best_weights_sha256`` is the digest of the file of the tested weights. Records of earlier versions lack all of
    these.
    """

    steps: int | None
    selected_by: str
    best_step: int | None
    stopped_early: bool | None
    validation_floor: float | None
    validation_floor_name: str | None
    takeoff_steps: int | None
    takeoff_seconds: float | None
    takeoff_censored: bool | None
    lowest_validation_loss: float
    validation_score_at_lowest_loss: float
    validation_skill_at_lowest_loss: float | None
    late_loss_change: float | None
    score_at_half: float | None
    train_seconds: float | None
    evaluation_seconds: float | None
    tokens_seen: int | None
    tokens_per_second: float | None
    padded_tokens_per_second: float | None
    validation_change_on_reload: float | None
    final_weights_sha256: str
    best_weights_sha256: str


def took_off(run: Any) -> int | None:
    """Return 1 if the training took off, 0 if not, None if unknown."""
    censored = run.find("training.takeoff_censored")
    return None if censored is None else int(not censored)


def score_at_half(run: Any) -> float | None:
    """Return the validation score after half of the steps, None if it is of another kind than the test score."""
    return None if "test_targets" in run.record.metrics else run.find("training.score_at_half")


def _reached(row: Mapping[str, Any], context: Any) -> str | None:
    """Return how many seeds took off, or a dash with one seed, unless all did."""
    reached, seeds = row["took_off"], row["seeds"]
    if reached is None or reached >= seeds:
        return None
    return f"{reached} of {seeds}" if seeds > 1 else "–"


class TrainingRun(Measurement):
    """Steps, times, throughput and take-off of the training run."""

    name = "training"
    title = "Training"
    Result = Training
    columns = (
        Column("train_seconds", "time spent in training steps, seconds", seeds="mean"),
        Column(
            name="train_seconds_alone",
            help="time spent in training steps, seconds; empty if other programs ran at the same time, or if this is "
            "unknown",
            run=lambda run: run.alone(run.record.training or {}, "train_seconds"),
            seeds="mean",
            dtype="float64",
        ),
        Column(
            name="took_off",
            help="number of seeds that took off: three evaluations in a row with validation skill above one half; "
            "empty if unknown for any seed",
            run=took_off,
            seeds="sum of all",
            dtype="Int64",
        ),
        Column(
            name="takeoff_steps",
            help="training steps until the first of three evaluations in a row with validation skill above one half: "
            "the median over seeds if all took off; otherwise tables show how many did, or – if the only one did not",
            seeds="median of all",
            dtype="float64",
            display=Display("take-off (steps)", "{:,.0f}", cell=_reached, first="ascending"),
        ),
        Column(
            name="takeoff_seconds",
            help="training time until the take-off, without evaluations, checkpoints and compilation, seconds: the "
            "median over seeds if all took off, otherwise missing",
            seeds="median of all",
            dtype="float64",
        ),
        Column(
            name="late_loss_change",
            help="change of the lowest validation loss in the last quarter of the training steps, nats: below 0 if the "
            "score would still improve with more steps, 0 if not",
            seeds="mean",
            dtype="float64",
            display=Display("last quarter", "{:+.3f}", first="ascending"),
        ),
        Column(
            name="score_at_half",
            help="validation score after half of the training steps, in {unit}: that of the lowest validation loss so "
            "far; empty if the test score is that of generated answers or roll-outs",
            run=score_at_half,
            seeds="mean",
            dtype="float64",
            display=Display("half budget", first="best", scale=True),
        ),
        Column(
            name="training_tokens_per_second",
            help="throughput of the training run in tokens per second; padding is not counted; empty if other programs "
            "ran at the same time, or if this is unknown",
            run=lambda run: run.alone(run.record.training or {}),
            seeds="mean",
            dtype="float64",
            display=Display("run tokens/s", "{:,.0f}", machine=True),
        ),
    )

    @classmethod
    def facts(cls, section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield all measurements, and when the training took off or that it did not."""
        *rest, (name, reached) = cls._by_name(section).items()
        yield "training", listed(dict(rest))
        if reached:
            yield name, reached

    @classmethod
    def facts_of_seeds(cls, sections: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
        """Return each measurement, combined over seeds."""
        return merged(list(map(cls._by_name, sections)))

    @staticmethod
    def _by_name(section: Mapping[str, Any]) -> dict[str, Any]:
        """Return the measurements with the take-off as one text, which is empty if it is unknown."""
        text = ""
        if section.get("takeoff_censored"):
            text = f"not within {number(section['steps'])} steps"
        elif section.get("takeoff_censored") is not None:
            time = f"{number(section['takeoff_seconds'])} s of training"
            text = f"at step {number(section['takeoff_steps'])}, after {time}"
        return {name: value for name, value in section.items() if not name.startswith("takeoff_")} | {"take-off": text}
