"""How a trained model's score holds on sequences shorter and longer than those it was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from lra_bench.config.schema import Measure
from lra_bench.contracts import Task, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.records.curves import skill
from lra_bench.records.points import ExtrapolationPoint, PositionBin
from lra_bench.runtime.hardware import Hardware
from lra_bench.statistics.intervals import bootstrap, wilson, wilson_over_rows
from lra_bench.training.evaluation import Evaluation, evaluate

from .by_position import loss_by_position
from .contexts import CONTEXT_VARIANTS, Region, evaluate_context, region_of
from .knobs import chosen, turned


class Place(NamedTuple):
    """Where a point stands: how its rows were made, what was set for it, its length as ratio and in tokens."""

    variant: str
    knob: str
    ratio: float
    length: int


@dataclass
class Measured:
    """Points of length curves, as in the record, the evaluations behind them by place, and losses by position."""

    points: list[ExtrapolationPoint] = field(default_factory=list)
    evaluations: dict[Place, Evaluation] = field(default_factory=dict)
    by_position: list[PositionBin] = field(default_factory=list)


def interval(result: Evaluation, spec: TaskSpec) -> tuple[float, float]:
    """The 95 % interval of a score over its rows: Wilson for accuracy, bootstrap otherwise."""
    if spec.metric != "accuracy":
        return bootstrap(result.row_loss / np.log(2), result.scored, seed=0)
    if spec.per_token:
        return wilson_over_rows(result.correct, result.scored)
    return wilson(round(float(result.correct.sum())), result.n)


def check_asked(model: nn.Module, task: Task, options: Measure) -> None:
    """Raise ``UserError`` where variants or knobs are asked for that task or model has not, before anything is run."""
    _variants(task, options)
    chosen(model, options.extrapolation_knobs)


def extrapolate(
    model: nn.Module,
    task: Task,
    options: Measure,
    hardware: Hardware,
    known: Evaluation | None = None,
    *,
    attempt: int = 1,
    longest: int | None = None,
) -> Measured:
    """Evaluate frozen weights at every ratio of the training length, in every way that the task has to vary it.

    Knobs are tried in the first variant and beyond the training length, where alone they matter. ``known`` is the test
    at the training length itself, which is the same in every variant and stands in the first. In language modelling it
    is the context that varies, every point has the same scored tokens, and ``longest`` is the longest context to find
    them for, by default that of the ratios.
    A point that cannot be measured carries its status and reason. Raises ``UserError`` where a variant or knob is asked
    for that there is not.
    """
    ratios = options.extrapolation_ratios
    language = task.spec.kind == "language_modeling"
    measuring = _Measuring(model, task, options, hardware, known, attempt, longest)
    for number, variant in enumerate(_variants(task, options)):
        for knob in ["", *(chosen(model, options.extrapolation_knobs) if number == 0 else [])]:
            for ratio in ratios:
                if (knob and ratio <= 1) or (ratio == 1 and number and not language):
                    continue
                measuring.measure(Place(variant, knob, ratio, round(task.spec.train_length * ratio)))
    return measuring.found


class _Measuring:
    """Measures place after place and gathers what it finds."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        options: Measure,
        hardware: Hardware,
        known: Evaluation | None,
        attempt: int,
        longest: int | None,
    ) -> None:
        self.model, self.task, self.hardware, self.known, self.attempt = model, task, hardware, known, attempt
        self.options = options
        self.longest = longest or round(task.spec.train_length * max(self.options.extrapolation_ratios, default=1))
        self.found = Measured()
        self._region: Region | None = None
        self._rows_known: dict[tuple[str, int], dict[str, Any]] = {}

    def measure(self, place: Place) -> None:
        """The point at one place, whatever becomes of it."""
        try:
            with turned(self.model, place.knob):
                result = self._evaluated(place)
        except UserError as error:
            self._leave(place, "undefined", error)
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            self._leave(place, "out_of_memory", error)
            if self.hardware.device.type == "cuda":
                torch.cuda.empty_cache()
        except (RuntimeError, IndexError, ValueError) as error:
            # torch raises a plain RuntimeError where the CPU's allocator finds no memory.
            self._leave(place, "out_of_memory" if "allocate memory" in str(error) else "failed", error)
        else:
            self._take(place, result)

    def _take(self, place: Place, result: Evaluation) -> None:
        spec = self.task.spec
        if not np.isfinite(result.loss):
            bad = int((~np.isfinite(result.row_loss)).sum())
            self._leave(place, "not_finite", f"the loss of {bad:,} of {len(result.row_loss):,} rows is not finite")
            return
        low, high = interval(result, spec)
        about = self._about_rows(place)
        self.found.evaluations[place] = result
        self.found.points.append(
            {
                "variant": place.variant,
                "knob": place.knob,
                "ratio": place.ratio,
                "length": place.length,
                "mean_tokens": result.mean_tokens,
                "n": result.n,
                "score": result.score,
                "loss": result.loss,
                "low": low,
                "high": high,
                "floor": about["floor"],
                "floor_name": about["floor_name"],
                "floors": about["floors"],
                "drift": about["drift"],
                "skill": skill(result.score, about["floor"], spec.higher_is_better),
                "retention": None,
                "attempt": self.attempt,
                "status": "ok",
                "reason": "",
            }
        )

    def _leave(self, place: Place, status: str, reason: object) -> None:
        first_line = (str(reason).strip() or type(reason).__name__).splitlines()[0]
        self.found.points.append(
            {
                "variant": place.variant,
                "knob": place.knob,
                "ratio": place.ratio,
                "length": place.length,
                "mean_tokens": None,
                "n": 0,
                "score": None,
                "loss": None,
                "low": None,
                "high": None,
                "floor": None,
                "floor_name": None,
                "floors": {},
                "drift": {},
                "skill": None,
                "retention": None,
                "attempt": self.attempt,
                "status": status,
                "reason": first_line,
            }
        )

    def _about_rows(self, place: Place) -> dict[str, Any]:
        """Floors and drift of the rows at a place, the same for every knob."""
        at = place.variant, place.length
        if at not in self._rows_known:
            task, length = self.task, None if place.ratio == 1 else place.length
            if self._region is not None:
                floors, drift = dict(task.floors_between("test", self._region.spans)), {}
            else:
                floors = dict(task.floors("test", length, place.variant))
                drift = dict(task.drift("test", length, place.variant))
            floor = floors.get(task.headline_floor)
            self._rows_known[at] = {
                "floor": floor,
                "floor_name": task.headline_floor if floor is not None else None,
                "floors": floors,
                "drift": drift,
            }
        return self._rows_known[at]

    def _evaluated(self, place: Place) -> Evaluation:
        if self.task.spec.kind == "language_modeling":
            return self._evaluated_context(place)
        return self.known if place.ratio == 1 and self.known is not None else self._evaluated_rows(place)

    def _evaluated_rows(self, place: Place) -> Evaluation:
        task, length = self.task, place.length
        if refused := task.supports_length(length, place.variant) or _refuses(self.model, length):
            raise UserError(refused)
        rows = Rows(task.split("test", None if place.ratio == 1 else length, place.variant), task.spec)
        # As many tokens at once as at the training length, so that memory does not decide what can be measured.
        batch_size = max(1, round(self.options.evaluation_batch_size * min(1.0, task.spec.train_length / length)))
        return evaluate(self.model, rows, task.spec, self.hardware, batch_size, _told(f"Length {length:,}", place))

    def _evaluated_context(self, place: Place) -> Evaluation:
        rows, batch_size = Rows(self.task.split("test"), self.task.spec), self.options.evaluation_batch_size
        if self._region is None:
            self._region = region_of(rows, self.longest, self.options.extrapolation_tokens)
        if refused := _refuses(self.model, place.length):
            raise UserError(refused)
        read = evaluate_context(
            *(self.model, rows, self._region, place.variant, place.length, self.hardware, batch_size),
            _told(f"Context {place.length:,}", place),
        )
        if read.seen is not None and place.ratio >= 1:
            self._bin_losses(place, read.losses, read.seen)
        return read.evaluation

    def _bin_losses(self, place: Place, losses: Any, seen: Any) -> None:
        for first, last, n, bits in loss_by_position(losses, seen, place.length, self.task.spec.train_length):
            self.found.by_position.append(
                {
                    "knob": place.knob,
                    "ratio": place.ratio,
                    "length": place.length,
                    "first": first,
                    "last": last,
                    "n": n,
                    "bits_per_character": bits,
                }
            )


def _variants(task: Task, options: Measure) -> Sequence[str]:
    asked: Sequence[str] | None = options.extrapolation_variants
    known = CONTEXT_VARIANTS if task.spec.kind == "language_modeling" else task.variants
    for name in asked or ():
        if name not in known:
            raise UserError(
                f"measure.extrapolation_variants={name}: {task.spec.name} can be varied by {', '.join(known)}"
            )
    return known if asked is None else asked


def _refuses(model: nn.Module, length: int) -> str | None:
    ask = getattr(model, "supports_length", None)
    return ask(length) if ask else None


def _told(what: str, place: Place) -> str:
    """What a bar says of a place."""
    return ", ".join(filter(None, (what, place.variant, place.knob)))
