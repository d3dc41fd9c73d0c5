"""Length extrapolation: evaluate a trained model on sequences shorter and longer than those of its training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn

from lra_bench.config.schema import Measure
from lra_bench.contracts import Task, TaskScore, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.records.sections import Margin
from lra_bench.records.skill import skill, strongest, zero_skill
from lra_bench.records.status import failure
from lra_bench.runtime.hardware import Hardware, first_line
from lra_bench.runtime.limits import is_lost_device
from lra_bench.statistics.blocks import block_interval
from lra_bench.statistics.intervals import paired_gain, wilson, wilson_over_rows
from lra_bench.training.evaluation import Evaluation, evaluate, evaluating

from .contexts import CONTEXT_VARIANTS, Region, evaluate_context, loss_by_position, region_of
from .knobs import select_knobs, with_knob
from .points import ExtrapolationPoint, PositionBin, Scored

if TYPE_CHECKING:
    from lra_bench.contracts import FloorRows


class PointKey(NamedTuple):
    """Identifies a point: the variant of its rows, the knob, and its length as ratio and in tokens.

    ``knob`` is empty if no knob is set. ``ratio`` is the length divided by the training length.
    """

    variant: str
    knob: str
    ratio: float
    length: int


@dataclass
class Measured:
    """Points of length curves, as in the record, with their evaluations, and losses by position."""

    points: list[ExtrapolationPoint] = field(default_factory=list)
    evaluations: dict[PointKey, Evaluation] = field(default_factory=dict)
    by_position: list[PositionBin] = field(default_factory=list)


def interval(result: Evaluation, spec: TaskSpec) -> tuple[float, float]:
    """Compute the 95 % confidence interval of a score over its rows.

    Accuracy with one target per row: Wilson's interval. Accuracy with a target per token: Wilson's interval with an
    effective sample size, because the tokens of a row are not independent. Bits per character: moving-block bootstrap,
    because the rows are consecutive windows.
    """
    if spec.metric != "accuracy":
        return block_interval(result.row_loss / np.log(2), result.scored)
    if spec.per_token:
        return wilson_over_rows(result.correct, result.scored)
    return wilson(round(float(result.correct.sum())), result.n)


def scores(result: Evaluation, spec: TaskSpec) -> Scored:
    """Return the number of scored targets, the score, the loss, and the ends of the interval of the score."""
    low, high = interval(result, spec)
    return {"n": result.n, "score": result.score, "loss": result.loss, "low": low, "high": high}


def score_of_task(task: Task, model: nn.Module, batch_size: int, **at: int | str | None) -> TaskScore | None:
    """Return the result of ``Task.score``, None if the task has no such method; ``at``: ``length`` and ``variant``."""
    with evaluating(model), torch.inference_mode():
        return task.score(model, batch_size=batch_size, **at)  # type: ignore[arg-type]


def interval_of_task(own: TaskScore, spec: TaskSpec) -> tuple[float | None, float | None]:
    """Return Wilson's 95 % confidence interval of an accuracy over the trials; None for other metrics."""
    return wilson(round(own.score * own.n), own.n) if spec.metric == "accuracy" else (None, None)


def margins(result: Evaluation, floors: FloorRows, spec: TaskSpec) -> dict[str, Margin]:
    """Return the improvement of an accuracy over each floor, paired by row; empty if the floors of rows are unknown."""
    if spec.metric != "accuracy":
        return {}
    found: dict[str, Margin] = {}
    for name, correct in floors.items():
        if len(correct) != len(result.correct):
            raise ValueError(f"{spec.name}: floor {name} has {len(correct):,} rows, the split {len(result.correct):,}")
        difference, low, high = paired_gain(result.correct, correct, result.scored)
        found[name] = {"difference": difference, "low": low, "high": high}
    return found


def check_options(model: nn.Module, task: Task, options: Measure) -> None:
    """Raise ``UserError`` if requested variants or knobs do not exist, before anything is run."""
    _variants(task, options)
    select_knobs(model, options.extrapolation_knobs)


def extrapolate(
    model: nn.Module,
    task: Task,
    options: Measure,
    hardware: Hardware,
    known: Evaluation | None = None,
    *,
    attempt: int = 1,
    longest: int | None = None,
    known_score: TaskScore | None = None,
) -> Measured:
    """Evaluate trained weights at every length of ``measure.extrapolation_ratios``, in every requested variant.

    In language modelling the length of the context varies, and every point has the same scored tokens. For other tasks
    all variants have the same examples at the training length, so that point is measured only in the first variant.
    Knobs have an effect only beyond the training length and are measured only there and in the first variant. A point
    that cannot be measured has status and reason.

    Args:
        model: The trained model, on the device.
        task: The task.
        options: Ratios, variants, knobs and batch size of the evaluation.
        hardware: The device and precision.
        known: The test result at the training length, if it was measured before; it is used instead of measuring this
            point again. Not used in language modelling, in which the points are scored on other tokens than the test.
        attempt: The number of the attempt, stored in every point.
        longest: In language modelling, the scored tokens are chosen such that a context of this many tokens precedes
            each of them. By default the longest context of the ratios; a re-evaluation passes a longer one to score the
            same tokens as the existing points. Not used for other tasks.
        known_score: The score that the task computed itself at the training length, if it was computed before.

    Returns:
        The points, their evaluations, and losses by position.

    Raises:
        UserError: If a requested variant or knob does not exist.
    """
    ratios = options.extrapolation_ratios
    language = task.spec.kind == "language_modeling"
    longest = longest or round(task.spec.train_length * max(ratios, default=1))
    measuring = _Measuring(model, task, options, hardware, known, attempt, longest, known_score)
    for number, variant in enumerate(_variants(task, options)):
        for knob in ["", *(select_knobs(model, options.extrapolation_knobs) if number == 0 else [])]:
            for ratio in ratios:
                if (knob and ratio <= 1) or (ratio == 1 and number and not language):
                    continue
                measuring.measure(PointKey(variant, knob, ratio, round(task.spec.train_length * ratio)))
    return measuring.found


@dataclass
class _Measuring:
    """Measures points and collects the results in ``found``; ``longest`` is that of ``extrapolate``, in tokens."""

    model: nn.Module
    task: Task
    options: Measure
    hardware: Hardware
    known: Evaluation | None
    attempt: int
    longest: int
    known_score: TaskScore | None
    found: Measured = field(default_factory=Measured)
    _lost: str = ""
    _region: Region | None = None
    _row_details: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)

    def measure(self, key: PointKey) -> None:
        """Measure one point and add it; errors are stored as status and reason.

        After an error that ends the CUDA context, later points are not tried; they get the status ``failed``.
        """
        if self._lost:
            self._add(key, "failed", self._lost)
            return
        try:
            with with_knob(self.model, key.knob):
                result = self._evaluate(key)
                own = self._score_of_task(key)
        except (UserError, RuntimeError, MemoryError, IndexError, ValueError) as error:
            status, reason = failure(error)
            self._add(key, "undefined" if status == "incompatible" else status, reason)
            if is_lost_device(error):
                self._lost = f"not measured: the GPU failed at {key.length:,} tokens ({first_line(error)})"
        else:
            self._add_result(key, result, own)
            return
        if self.hardware.device.type == "cuda" and not self._lost:
            torch.cuda.empty_cache()  # outside the except block: the traceback references tensors

    def _add_result(self, key: PointKey, result: Evaluation, own: TaskScore | None) -> None:
        """Add the point of an evaluation, with the score ``own`` of the task if it computes one.

        A loss that is not finite is a failure.
        """
        spec = self.task.spec
        if not np.isfinite(result.loss):
            bad = int((~np.isfinite(result.row_loss)).sum())
            self._add(key, "not_finite", f"the loss of {bad:,} of {len(result.row_loss):,} rows is not finite")
            return
        found: dict[str, Any] = {**scores(result, spec)}
        if own is not None:
            low, high = interval_of_task(own, spec)
            found |= {"n": own.n, "score": own.score, "low": low, "high": high}
            if own.parts and key.ratio != 1:
                found["parts"] = own.parts
        details = dict(self._details_of_rows(key))
        floor_rows, floors, higher = details.pop("floor_rows"), details["floors"], spec.higher_is_better
        self.found.evaluations[key] = result
        self._add(
            key,
            mean_tokens=result.mean_tokens,
            margins={} if own is not None else margins(result, floor_rows, spec),
            skill=skill(found["score"], zero_skill(floors, higher), higher),
            **found,
            **details,
        )

    def _add(self, key: PointKey, status: str = "ok", reason: str = "", **found: Any) -> None:
        """Add a point, without a score unless ``found`` contains it."""
        point: ExtrapolationPoint = {
            **key._asdict(),  # type: ignore[typeddict-item]
            "mean_tokens": None,
            "n": 0,
            "score": None,
            "loss": None,
            "low": None,
            "high": None,
            "floor": None,
            "floor_name": None,
            "floors": {},
            "margins": {},
            "drift": {},
            "skill": None,
            "retention": None,  # computed by ``length_curves.with_retentions`` once all points are known
            "attempt": self.attempt,
            "status": status,
            "reason": reason,
            **found,
        }
        self.found.points.append(point)

    def _details_of_rows(self, key: PointKey) -> dict[str, Any]:
        """Return floors (baselines without a model) and drift of the rows of a point.

        They do not depend on the knob and are computed once per variant and length. In language modelling the floors
        are those of the scored tokens, and there is no drift, because all contexts are scored on the same text.
        """
        at = key.variant, key.length
        if at not in self._row_details:
            task, length = self.task, None if key.ratio == 1 else key.length
            if self._region is not None:
                window = key.length if key.variant == "context" else None
                floors, drift = dict(task.floors_between("test", self._region.spans, window)), {}
                floor_rows: FloorRows = {}
            else:
                floors = dict(task.floors("test", length, key.variant))
                floor_rows = task.floor_rows("test", length, key.variant)
                drift = dict(task.drift("test", length, key.variant))
            name, score = strongest(floors, task.spec.higher_is_better) or (None, None)
            self._row_details[at] = {
                "floor": score,
                "floor_name": name,
                "floors": floors,
                "floor_rows": {floor: correct for floor, correct in floor_rows.items() if floor == name},
                "drift": drift,
            }
        return self._row_details[at]

    def _score_of_task(self, key: PointKey) -> TaskScore | None:
        """Return the score that the task computes itself at one point, None if it computes none."""
        if key.ratio == 1 and self.known_score is not None:
            return self.known_score
        length = None if key.ratio == 1 else key.length
        batch_size = self.options.evaluation_batch_size
        return score_of_task(self.task, self.model, batch_size, length=length, variant=key.variant)

    def _evaluate(self, key: PointKey) -> Evaluation:
        """Evaluate the model at one point; raises ``UserError`` if task or model do not support the length."""
        task, length = self.task, key.length
        if task.spec.kind == "language_modeling":
            return self._evaluate_context(key)
        if key.ratio == 1 and self.known is not None:
            return self.known
        if reason := task.supports_length(length, key.variant) or _unsupported(self.model, length):
            raise UserError(reason)
        rows = Rows(task.split("test", None if key.ratio == 1 else length, key.variant), task.spec)
        # Batches of longer rows have as many tokens as at the training length, to limit memory.
        batch_size = max(1, round(self.options.evaluation_batch_size * min(1.0, task.spec.train_length / length)))
        return evaluate(
            *(self.model, rows, task.spec, self.hardware, batch_size, _label(f"Length {length:,}", key)),
            each_target=key.ratio == 1,  # for the slices
        )

    def _evaluate_context(self, key: PointKey) -> Evaluation:
        """Evaluate a language model with another context; raises ``UserError`` if it is not supported."""
        rows, batch_size = Rows(self.task.split("test"), self.task.spec), self.options.evaluation_batch_size
        if self._region is None:
            self._region = region_of(rows, self.longest, self.options.extrapolation_tokens)
        if reason := _unsupported(self.model, key.length):
            raise UserError(reason)
        result = evaluate_context(
            *(self.model, rows, self._region, key.variant, key.length, self.hardware, batch_size),
            _label(f"Context {key.length:,}", key),
        )
        # ``seen`` is None except in the variant ``context``.
        if result.seen is not None and key.ratio >= 1:
            at: dict[str, Any] = {"knob": key.knob, "ratio": key.ratio, "length": key.length}
            for found in loss_by_position(result.losses, result.seen, key.length, self.task.spec.train_length):
                values = zip(("first", "last", "n", "bits_per_character"), found, strict=True)
                self.found.by_position.append(cast(PositionBin, {**at, **dict(values)}))
        return result.evaluation


def _variants(task: Task, options: Measure) -> Sequence[str]:
    """Return the requested variants, by default all of the task; raises ``UserError`` if one does not exist."""
    requested: Sequence[str] | None = options.extrapolation_variants
    known = CONTEXT_VARIANTS if task.spec.kind == "language_modeling" else task.variants
    for name in requested or ():
        if name not in known:
            raise UserError(
                f"measure.extrapolation_variants={name}: not a variant of {task.spec.name}; "
                f"choose from {', '.join(known)}"
            )
    return known if requested is None else requested


def _unsupported(model: nn.Module, length: int) -> str | None:
    """Return the reason why the model does not support rows of ``length`` tokens, None if it does."""
    check = getattr(model, "supports_length", None)
    return check(length) if check else None


def _label(description: str, key: PointKey) -> str:
    """Return the label of the progress bar of a point."""
    return ", ".join(filter(None, (description, key.variant, key.knob)))
