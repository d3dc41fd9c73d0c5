"""The stages of measuring a cell. Each stage writes its section of the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from torch import nn

from lra_bench.checks.battery import check_before_training
from lra_bench.checks.subject import located, users_modules
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.search import is_trial
from lra_bench.contracts import Prepared, TaskScore, TaskSpec
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.checks import check_split
from lra_bench.data.digest import settings_digest
from lra_bench.data.examples import repeats
from lra_bench.data.windows import cut_all
from lra_bench.evaluation.budgets import evaluate_depths
from lra_bench.evaluation.extrapolation import PointKey, check_options, extrapolate, interval, margins
from lra_bench.evaluation.memory_lengths import evaluate_memory_lengths
from lra_bench.evaluation.minimal_pairs import score_pairs
from lra_bench.evaluation.slices import slice_scores
from lra_bench.evaluation.task_score import interval_of_task, parts_of_task, score_of_task
from lra_bench.profiling.flops import forward_flops
from lra_bench.profiling.profile import profile
from lra_bench.records.curves import strongest
from lra_bench.records.extrapolation import attempt_now, section
from lra_bench.records.machines import CEILING
from lra_bench.records.schema import Record
from lra_bench.records.sections import Capability, Parameters, Restriction, Training
from lra_bench.runtime.garbage import restore_collections
from lra_bench.runtime.memory import peak_memory
from lra_bench.tracking.tracker import tracker
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.evaluation import Evaluation, evaluate
from lra_bench.training.loop import Fit, selected_value, train
from lra_bench.training.optimizer import hinted_rates
from lra_bench.training.torchrun import train_in_group

if TYPE_CHECKING:
    from lra_bench.contracts import Task
    from lra_bench.runtime.hardware import Hardware

    from .cell import Cell


class Incompatible(Exception):
    """Raised if the model does not support the task; the message is the reason."""


class Stages:
    """The stages of one cell.

    ``measure`` runs all stages. If the cell uses several processes, all of them train; every other stage runs in this
    process only.

    Args:
        record: The record to fill.
        cell: The cell to measure.
        hardware: Hardware of all processes of the cell.
        alone: Hardware of this process.
        results: The results folder.
        folder: The checkpoint folder of the cell.
        report: Function that is called with the name of each stage when it starts.
    """

    def __init__(
        self,
        record: Record,
        cell: Cell,
        hardware: Hardware,
        alone: Hardware,
        results: Path,
        folder: Path,
        report: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.record, self.cell, self.results = record, cell, results
        self.group, self.hardware = hardware, alone
        self.config = cell.config
        self.checkpoints = Checkpoints(folder, self.config.hardware.checkpoint_seconds)
        self.tracker = tracker(self.config.tracker)
        self.report = report
        self.stage = "starting"
        self.validation_floor: tuple[str | None, float | None] = (None, None)
        self.curves: pd.DataFrame | None = None
        self.predictions: pd.DataFrame | None = None
        self.own_score: TaskScore | None = None

    @property
    def stage(self) -> str:
        """Name of the current stage."""
        return self._stage

    @stage.setter
    def stage(self, stage: str) -> None:
        self._stage = stage
        self.report(stage)

    def measure(self) -> None:
        """Run all stages in order; of a trial of a search only those up to the training."""
        task, rows = self._prepare()
        model = self._build(task)
        self.tracker.start(self.record.config, self.record.key, self.results)
        fit = self._train(model, rows, task)
        if is_trial(self.config):
            return
        self._finish(model, rows)
        test = self._test(model, rows, task, fit)
        self._remember(model, rows, task)
        self._limit_depth(model, task)
        self._profile(task)
        self._extrapolate(model, task, test)

    def close(self) -> None:
        """Send the record to the tracker, also if the cell failed."""
        self.tracker.finish(self.record, self.curves)

    def _prepare(self) -> tuple[Task, dict[str, Rows]]:
        self.stage = "preparing data"
        task = build_task(self.config)
        task.prepare(Cache())
        rows = {}
        for name in ("train", "validation", "test"):
            check_split(task.split(name), task.spec, name)
            rows[name] = Rows(task.split(name), task.spec)
        provenance = task.provenance()
        self.record.data = {
            "task": task.spec.name,
            "version": task.spec.version,
            "fingerprint": self.cell.fingerprint,
            "source": provenance.source,
            "licence": provenance.licence,
            "citation": provenance.citation,
            "checksums": dict(provenance.checksums),
            "partial": provenance.partial,
            "lossy": provenance.lossy,
            "rows": {name: len(part) for name, part in rows.items()},
            "repeats": self._repeats(task, provenance.checksums),
        }
        self.record.floors = dict(task.floors("test"))
        self.record.rungs = dict(task.rungs("test"))
        self.validation_floor = _validation_floor(task, rows["validation"], self.config.train.validation_tokens)
        return task, rows

    def _repeats(self, task: Task, checksums: Mapping[str, str]) -> dict[str, int]:
        """Return the numbers of examples that occur in several splits; none in a text, which is one example."""
        if task.spec.kind == "language_modeling":
            return {}
        splits = {name: task.split(name) for name in ("train", "validation", "test")}
        key = settings_digest(self.cell.fingerprint, dict(checksums))
        counts = Cache().note(f"{task.spec.name}-repeats", key, lambda: repeats(splits))
        return {names: int(count) for names, count in counts.items()}

    def _build(self, task: Task) -> nn.Module:
        self.stage = "building the model"
        with located(self.config):
            model: nn.Module = build_model(self.config, task.spec)
        self.record.capability = _capability(model)
        self.record.parameters = parameter_parts(model)
        supports = getattr(model, "supports", None)
        if supports is not None and (reason := supports(task.spec)):
            raise Incompatible(reason)
        if users_modules(self.config) and _can_be_checked(model, task.spec):
            causal = bool(getattr(model, "causal", task.spec.direction == "causal"))
            missing = check_before_training(self.config, task.spec, causal, self.hardware.device)
            self.record.parameters["without_gradient"] = missing
        self.record.restriction = _restriction(model, task.spec)
        check_options(model, task, self.config.measure)
        if self.record.search is not None:
            train, search = self.config.train, self.config.search
            hints = hinted_rates(model, train.lr, train.state_lr, search.protocol_lr)
            self.record.search = {**self.record.search, "hints": hints}
        return model

    def _train(self, model: nn.Module, rows: dict[str, Rows], task: Task) -> Fit:
        self.stage = f"training at {task.spec.train_length:,} tokens, batch {self.config.train.batch_size}"
        restore_collections()
        name, floor = self.validation_floor
        if self.group.strategy != "none":
            fit, peaks = train_in_group(self.config, self.group, self.checkpoints, self.tracker.log, floor)
            memory: dict[str, Any] = {**largest(peaks), "peak_by_rank": peaks}
        else:
            self.hardware.place(model)
            with peak_memory(self.hardware.device) as peak:
                fit = train(
                    model, rows, task.spec, self.config, self.hardware, self.checkpoints, self.tracker.log, floor=floor
                )
            memory = peak.as_dict()
        self.curves = _curves(fit)
        of_floor = {"validation_floor": floor, "validation_floor_name": name}
        self.record.training = cast(Training, {**fit.figures, **of_floor, **memory})
        return fit

    def _finish(self, model: nn.Module, rows: dict[str, Rows]) -> None:
        self.stage = "finishing"
        self.checkpoints.load_best(self.hardware.place(model))
        finish = getattr(model, "finish", None)
        if finish is not None:
            finish(rows["train"], rows["validation"])

    def _test(self, model: nn.Module, rows: dict[str, Rows], task: Task, fit: Fit) -> Evaluation:
        self.stage = "testing"
        batch_size = self.config.measure.evaluation_batch_size
        stream = self.config.train.order == "stream"
        validation = evaluate(
            model,
            rows["validation"],
            task.spec,
            self.hardware,
            batch_size,
            "Validation, reloaded",
            self.config.train.validation_tokens,
            stream=stream,
        )
        each_target = task.spec.kind != "language_modeling"  # for the slices
        test = evaluate(
            *(model, rows["test"], task.spec, self.hardware, batch_size, "Test"),
            each_target=each_target,
            stream=stream,
        )
        self.record.metrics = {
            "validation": _metric(validation, task),  # type: ignore[dict-item]
            "test": _metric(test, task),  # type: ignore[dict-item]
        }
        self.record.margins = margins(test, task.floor_rows("test"), task.spec)
        self.own_score = own = score_of_task(task, model, batch_size)
        if own is None:
            self.record.slices = slice_scores(task, test, self.record.attempt)
        else:
            self.record.margins = {}
            low, high = interval_of_task(own, task.spec)
            # The score of predictions and targets is kept next to that of the task.
            self.record.metrics["test_targets"] = self.record.metrics["test"]
            scored = {task.spec.metric: own.score, "n": own.n, "low": low, "high": high}
            self.record.metrics["test"] = {**self.record.metrics["test"], **scored}  # type: ignore[typeddict-item]
            self.record.slices = parts_of_task(own, task.spec, self.record.attempt)
        self.record.minimal_pairs = score_pairs(model, task, self.hardware, batch_size, self.record.attempt)
        assert self.record.training is not None
        # Other codebases have tested weights other than the best. A change of 0 shows that the best ones were loaded.
        change = selected_value(validation, task.spec) - fit.state.best_value
        self.record.training["validation_change_on_reload"] = change
        self.predictions = predictions_table({_whole_test(task): test})
        return test

    def _remember(self, model: nn.Module, rows: dict[str, Rows], task: Task) -> None:
        self.stage = "evaluating memory lengths"
        options = self.config.measure
        self.record.memory = evaluate_memory_lengths(
            *(model, rows["test"], task.spec, options.memory_lengths, self.hardware, options.evaluation_batch_size),
            attempt=self.record.attempt,
        )

    def _limit_depth(self, model: nn.Module, task: Task) -> None:
        self.stage = "evaluating budgets of depth"
        options = self.config.measure
        self.record.adaptive_depth = evaluate_depths(
            *(model, task, self.hardware, options.evaluation_batch_size, forward_flops if options.flops else None),
            attempt=self.record.attempt,
        )

    def _profile(self, task: Task) -> None:
        self.stage = "measuring speed and memory"
        measured = profile(self.config, task.spec, self.group)
        self.record.speed = measured["speed"]
        self.record.growth = measured["growth"]
        self.record.state = measured["state"]
        self.record.flops = measured["flops"]
        self.record.energy = measured["energy"]
        if measured["flops"] is not None:
            self.record.environment["hardware"][CEILING] = measured["flops"]["ceiling_per_second"]

    def _extrapolate(self, model: nn.Module, task: Task, test: Evaluation) -> None:
        self.stage = "evaluating other lengths"
        found = extrapolate(
            *(model, task, self.config.measure, self.hardware, test),
            attempt=self.record.attempt,
            known_score=self.own_score,
        )
        record = self.record
        attempt = attempt_now(record.attempt, self.hardware.slug, record.environment["hardware"], record.code)
        record.extrapolation = section(
            task.spec.train_length, found.points, found.by_position, [attempt], task.spec.higher_is_better
        )
        self.predictions = predictions_table({_whole_test(task): test, **found.evaluations})


def largest(peaks: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the largest value over ranks for each kind of peak; None if the value of a rank is unknown."""
    found = {kind: [peak[kind] for peak in peaks] for kind in peaks[0]}
    return {kind: None if None in values else max(filter(None, values), default=0) for kind, values in found.items()}


def parameter_parts(model: nn.Module) -> Parameters:
    """Return the number of parameters by part of the model.

    If the model defines no ``parameter_parts``, the tables of its ``nn.Embedding`` modules count as embeddings and all
    other parameters as body.
    """
    count_parts = getattr(model, "parameter_parts", None)
    if count_parts is not None:
        return cast(Parameters, count_parts())
    total = sum(parameter.numel() * (1 + parameter.is_complex()) for parameter in model.parameters())
    tables = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Embedding))
    body = total - tables
    return {"total": total, "body": body, "body_active": body, "embeddings": tables, "positions": 0, "head": 0}


def _can_be_checked(model: nn.Module, spec: TaskSpec) -> bool:
    """Return whether a model runs without a preparation, on single sequences."""
    network_of_pairs = spec.kind == "matching" and getattr(model, "mixers", None) is None
    return not (network_of_pairs or isinstance(model, Prepared))


def _restriction(model: nn.Module, spec: TaskSpec) -> Restriction | None:
    """Return the length from which the model restricts attention, None if its class does not define it."""
    restricts_from = getattr(model, "restricts_from", None)
    if restricts_from is None:
        return None
    try:
        return {"from_length": restricts_from(), "row_length": spec.train_length}
    except NotImplementedError:
        return None


def _capability(model: nn.Module) -> Capability | None:
    capability = getattr(model, "capability", None)
    return cast(Capability, capability.as_dict()) if capability is not None else None


def _validation_floor(task: Task, rows: Rows, tokens: int | None) -> tuple[str | None, float | None]:
    """Return name and score of the strongest floor on the targets of the validation split that are scored in training.

    In language modelling these are the first ``tokens``. If the task has no floors of parts of a split, the floors are
    those of the entire split.
    """
    floors: Mapping[str, float] = {}
    if task.spec.kind == "language_modeling" and tokens is not None:
        length = task.spec.train_length
        floors = task.floors_between("validation", cut_all(rows.lengths, length, tokens).spans, length)
    return strongest(floors or task.floors("validation"), task.spec.higher_is_better) or (None, None)


def _metric(result: Evaluation, task: Task) -> dict[str, Any]:
    low, high = interval(result, task.spec)
    return {task.spec.metric: result.score, "loss": result.loss, "n": result.n, "low": low, "high": high}


def _curves(fit: Fit) -> pd.DataFrame:
    """Return a table with one row per step; validation columns are empty between evaluations."""
    columns = ["train_loss", "learning_rate", "gradient_norm", "tokens_seen"]
    curve = pd.DataFrame(fit.state.curve, columns=columns)
    curve.insert(0, "step", range(1, len(curve) + 1))
    validations = pd.DataFrame(fit.state.validations, columns=["step", "validation_loss", "validation_score"])
    return curve.merge(validations, on="step", how="left")


def _whole_test(task: Task) -> PointKey:
    """Return the key of the full test split among the evaluations at other lengths."""
    return PointKey(task.variants[0], "", 1.0, task.spec.train_length)


def predictions_table(evaluations: Mapping[PointKey, Evaluation]) -> pd.DataFrame:
    """Return a table with one row per example, length, variant of that length and knob, as paired tests need it."""
    return pd.concat(
        [
            pd.DataFrame(
                {
                    "variant": key.variant,
                    "knob": key.knob,
                    "length": np.int64(key.length),
                    "row": np.arange(len(result.correct)),
                    "prediction": result.prediction,
                    "target": result.target,
                    "correct": result.correct,
                    "loss": result.row_loss,
                    "scored": result.scored,
                }
            )
            for key, result in evaluations.items()
        ],
        ignore_index=True,
    )
