"""Fields of the record's section on other lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from lra_bench.records.sections import Margin

POINT_STATUSES: Mapping[str, str] = {
    "ok": "measured",
    "undefined": "the task or the model does not support the length, with the reason",
    "out_of_memory": "the device or the machine had too little memory",
    "not_finite": "the model's outputs became infinite or not a number",
    "failed": "an error ended the evaluation, with its first line",
}
"""Meaning of each status of a point."""


class Scored(TypedDict):
    """The test score of ``n`` targets, with their mean loss in nats and the 95 % confidence interval of the score."""

    n: int
    score: float
    loss: float
    low: float | None
    high: float | None


class _PartsOfPoint(TypedDict, total=False):
    parts: dict[str, dict[str, float]]


class ExtrapolationPoint(_PartsOfPoint):
    """The score of the trained model on test data of another length.

    ``measurements.lengths.Lengths.points`` describes the other fields.

    Attributes:
        mean_tokens: Mean number of tokens of the examples.
        loss: The loss in nats.
        floors: All floors by name.
        margins: Improvement of the score over the strongest floor, paired by row; empty if the rows are not known.
        drift: Statistics of the examples that should not depend on length, see ``Task.drift``.
        parts: Parts of a score that the task computes itself, see ``TaskScore.parts``; absent if there are none, and at
            the training length, where they are slices.
        retention: ``skill`` divided by the skill at the training length.
        attempt: Number of the attempt in which the point was measured.
        status: One of ``POINT_STATUSES``.
    """

    variant: str
    knob: str
    ratio: float
    length: int
    mean_tokens: float | None
    n: int
    score: float | None
    loss: float | None
    low: float | None
    high: float | None
    floor: float | None
    floor_name: str | None
    floors: dict[str, float]
    margins: dict[str, Margin]
    drift: dict[str, float]
    skill: float | None
    retention: float | None
    attempt: int
    status: str
    reason: str


class CurveSummary(TypedDict):
    """Summary of one curve; undefined values are None.

    Attributes:
        variant: Variant of the curve's points.
        knob: Knob of the curve's points.
        train_skill: Skill at the training length.
        area: Mean retention over log2(ratio) from 1 to ``area_to_ratio``.
        area_to_ratio: The last ratio before the first length without a score.
        effective_ratio: The largest measured ratio up to which, from 1 on, all retentions are at least one half.
        effective_ratio_is_lower_bound: Whether no larger ratio was measured.
        failures: Ratios of points that are not ``ok``, by status.
        reason: Why values are undefined.
    """

    variant: str
    knob: str
    train_skill: float | None
    area: float | None
    area_to_ratio: float | None
    effective_ratio: float | None
    effective_ratio_is_lower_bound: bool
    failures: dict[str, list[float]]
    reason: str


class PositionBin(TypedDict):
    """A language model's loss on the ``n`` tokens that are predicted from ``first`` to ``last`` tokens of context."""

    knob: str
    ratio: float
    length: int
    first: int
    last: int
    n: int
    bits_per_character: float


class Attempt(TypedDict):
    """Time and machine of the measurement of points; ``hardware`` is its short name, ``machine`` the details."""

    attempt: int
    measured_at: str
    hardware: str
    machine: dict[str, Any]
    version: str
    git_sha: str | None


class Extrapolation(TypedDict):
    """Scores at lengths other than the training length, in tokens."""

    train_length: int
    points: list[ExtrapolationPoint]
    summary: list[CurveSummary]
    by_position: list[PositionBin]
    attempts: list[Attempt]
