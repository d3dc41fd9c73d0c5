"""Fields of the record's section on other lengths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

POINT_STATUSES: Mapping[str, str] = {
    "ok": "measured",
    "undefined": "task or model has no such length, with the reason",
    "out_of_memory": "the device or the machine had too little memory",
    "not_finite": "the model's outputs became infinite or not a number",
    "failed": "an error ended the evaluation, with its first line",
}


class ExtrapolationPoint(TypedDict):
    """The trained model's score on data made for ``length`` = ``ratio`` × the training length, its longest row.

    ``variant`` names the way in which those rows were made, or a language model's context was varied; ``knob`` the
    option of the model that was set for this evaluation alone (``position.scaling=yarn``), empty for none.
    ``floor`` is the task's headline floor on the same rows, ``floors`` are all of them; ``drift`` tells how rows differ
    from those of training in what should stay. ``skill`` is the score above the floor as a share of what is left above
    it, ``retention`` that skill as a share of the one at the training length; ``loss`` in nats. ``attempt`` points to
    one of the section's.
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
    drift: dict[str, float]
    skill: float | None
    retention: float | None
    attempt: int
    status: str
    reason: str


class CurveSummary(TypedDict):
    """What one curve amounts to; None where that cannot be said, for the ``reason``.

    ``area`` is the mean retention over log2 of the ratio from 1 to ``area_to_ratio``, the last before a length without
    a score. ``effective_ratio`` is the largest measured ratio that keeps half of the skill, as all measured ones from 1
    to it do; a lower bound where no larger one was measured. ``failures`` are ratios by status.
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
    """A language model's loss on the ``n`` tokens predicted after ``first`` to ``last`` tokens of a context."""

    knob: str
    ratio: float
    length: int
    first: int
    last: int
    n: int
    bits_per_character: float


class Attempt(TypedDict):
    """When and where some of the points were measured: ``hardware`` is the short name, ``machine`` the details."""

    attempt: int
    measured_at: str
    hardware: str
    machine: dict[str, Any]
    version: str
    git_sha: str | None


class Extrapolation(TypedDict):
    """Scores on other lengths than the one trained on, in tokens."""

    train_length: int
    points: list[ExtrapolationPoint]
    summary: list[CurveSummary]
    by_position: list[PositionBin]
    attempts: list[Attempt]
