"""How a trained model's score holds on sequences shorter and longer than those it was trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from torch import nn

from lra_bench.contracts import Task, TaskSpec, UserError
from lra_bench.data.batches import Rows
from lra_bench.hardware import Hardware
from lra_bench.leaderboard.statistics import bootstrap, wilson, wilson_over_rows
from lra_bench.records.schema import ExtrapolationPoint
from lra_bench.training.evaluation import Evaluation, evaluate

from .contexts import CONTEXT_VARIANTS, Region, evaluate_context, region_of


@dataclass(frozen=True)
class Extrapolation:
    """The points of a length curve, as in the record, and the evaluations behind them by variant and length."""

    points: list[ExtrapolationPoint]
    evaluations: dict[tuple[str, int], Evaluation]


def interval(result: Evaluation, spec: TaskSpec) -> tuple[float, float]:
    """The 95 % interval of a score over its rows: Wilson for accuracy, bootstrap otherwise."""
    if spec.metric != "accuracy":
        return bootstrap(result.row_loss / np.log(2), result.scored, seed=0)
    if spec.per_token:
        return wilson_over_rows(result.correct, result.scored)
    return wilson(round(float(result.correct.sum())), result.n)


def skill(score: float, floor: float | None, spec: TaskSpec) -> float | None:
    """Score above the floor as a share of what is left above it: 0 at the floor, 1 when perfect."""
    if floor is None or not spec.higher_is_better or floor >= 1:
        return None
    return (score - floor) / (1 - floor)


def extrapolate(
    model: nn.Module, task: Task, config: Mapping[str, Any], hardware: Hardware, known: Evaluation
) -> Extrapolation:
    """Evaluate frozen weights at every ratio of the training length, in every way that the task has to vary it.

    ``known`` is the test at the training length itself, which is the same in every variant and stands in the first. In
    language modelling it is the context that varies, and every point has the same scored tokens and is measured.
    A point that cannot be measured carries its status and reason: ``incompatible`` where task or model has no such
    length, ``out_of_memory``. Raises ``UserError`` where a variant is asked for that the task has not.
    """
    points: list[ExtrapolationPoint] = []
    evaluations: dict[tuple[str, int], Evaluation] = {}
    region = _region(task, config)
    for number, variant in enumerate(_variants(task, config)):
        for ratio in config["measure"]["extrapolation_ratios"]:
            if ratio == 1 and number and region is None:
                continue
            length = round(task.spec.train_length * ratio)
            place: _Place = {"variant": variant, "ratio": ratio, "length": length}
            try:
                if region is not None:
                    result = _evaluate_context(model, task, region, place, config, hardware)
                else:
                    result = known if ratio == 1 else _evaluate_at(model, task, length, variant, config, hardware)
            except UserError as error:
                points.append(_unscored(place, "incompatible", str(error)))
            except (torch.cuda.OutOfMemoryError, MemoryError) as error:
                points.append(_unscored(place, "out_of_memory", str(error).partition("\n")[0]))
            else:
                evaluations[variant, length] = result
                points.append(_scored(place, result, _floors(task, region, place), task))
    return Extrapolation(points, evaluations)


def point_of_test(task: Task, test: Evaluation) -> ExtrapolationPoint:
    """The point of the whole test split at the training length."""
    place: _Place = {"variant": task.variants[0], "ratio": 1.0, "length": task.spec.train_length}
    return _scored(place, test, dict(task.floors("test")), task)


class _Place(TypedDict):
    variant: str
    ratio: float
    length: int


def _variants(task: Task, config: Mapping[str, Any]) -> Sequence[str]:
    asked: Sequence[str] | None = config["measure"]["extrapolation_variants"]
    known = CONTEXT_VARIANTS if task.spec.kind == "language_modeling" else task.variants
    for name in asked or ():
        if name not in known:
            raise UserError(
                f"measure.extrapolation_variants={name}: {task.spec.name} can be varied by {', '.join(known)}"
            )
    return known if asked is None else asked


def _region(task: Task, config: Mapping[str, Any]) -> Region | None:
    """In language modelling, the tokens on which every context is scored."""
    ratios = config["measure"]["extrapolation_ratios"]
    if task.spec.kind != "language_modeling" or not ratios:
        return None
    longest = round(task.spec.train_length * max(ratios))
    return region_of(Rows(task.split("test"), task.spec), longest, config["measure"]["extrapolation_tokens"])


def _floors(task: Task, region: Region | None, place: _Place) -> dict[str, float]:
    if region is not None:
        return dict(task.floors_between("test", region.spans))
    return dict(task.floors("test", None if place["ratio"] == 1 else place["length"], place["variant"]))


def _scored(place: _Place, result: Evaluation, floors: dict[str, float], task: Task) -> ExtrapolationPoint:
    low, high = interval(result, task.spec)
    floor = floors.get(task.headline_floor)
    return {
        **place,
        "status": "ok",
        "reason": "",
        "mean_tokens": result.mean_tokens,
        "n": result.n,
        "score": result.score,
        "loss": result.loss,
        "low": low,
        "high": high,
        "floor": floor,
        "floor_name": task.headline_floor if floor is not None else None,
        "floors": floors,
        "skill": skill(result.score, floor, task.spec),
    }


def _unscored(place: _Place, status: str, reason: str) -> ExtrapolationPoint:
    return {
        **place,
        "status": status,
        "reason": reason,
        "mean_tokens": None,
        "n": 0,
        "score": None,
        "loss": None,
        "low": None,
        "high": None,
        "floor": None,
        "floor_name": None,
        "floors": {},
        "skill": None,
    }


def _evaluate_at(
    model: nn.Module, task: Task, length: int, variant: str, config: Mapping[str, Any], hardware: Hardware
) -> Evaluation:
    refused = task.supports_length(length, variant) or _refuses(model, length)
    if refused:
        raise UserError(refused)
    rows = Rows(task.split("test", length, variant), task.spec)
    # As many tokens at once as at the training length, so that memory does not decide what can be measured.
    batch_size = max(1, round(config["measure"]["evaluation_batch_size"] * min(1.0, task.spec.train_length / length)))
    return evaluate(model, rows, task.spec, hardware, batch_size, f"Length {length:,}, {variant}")


def _evaluate_context(
    model: nn.Module, task: Task, region: Region, place: _Place, config: Mapping[str, Any], hardware: Hardware
) -> Evaluation:
    if refused := _refuses(model, place["length"]):
        raise UserError(refused)
    rows, batch_size = Rows(task.split("test"), task.spec), config["measure"]["evaluation_batch_size"]
    return evaluate_context(model, rows, region, place["variant"], place["length"], hardware, batch_size)


def _refuses(model: nn.Module, length: int) -> str | None:
    ask = getattr(model, "supports_length", None)
    return ask(length) if ask else None
