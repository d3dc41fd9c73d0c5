"""The stages of measuring a cell. Each stage writes its section of the record."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from torch import nn

from lra_bench.checks.battery import check_before_training
from lra_bench.checks.subject import is_users, located
from lra_bench.config.measurements import measurements
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.pretraining import check_options, has_objective, pretrains
from lra_bench.config.search import is_trial, reference_lr
from lra_bench.contracts import Prepared
from lra_bench.data.batches import Rows
from lra_bench.data.cache import Cache
from lra_bench.data.checks import check_split
from lra_bench.data.digest import settings_digest
from lra_bench.data.examples import repeats
from lra_bench.data.windows import cut_all
from lra_bench.measurements.extrapolation import PointKey, interval, interval_of_task, margins, score_of_task
from lra_bench.measurements.length_curves import attempt_now
from lra_bench.measurements.parameters import ParameterCounts
from lra_bench.measurements.points import Attempt
from lra_bench.measurements.restriction import Restricted
from lra_bench.measurements.subject import Context, Subject
from lra_bench.records.machines import CEILING
from lra_bench.records.schema import Record
from lra_bench.records.skill import strongest
from lra_bench.runtime.garbage import restore_collections
from lra_bench.runtime.memory import peak_memory
from lra_bench.tracking.mirror import tracker
from lra_bench.training.checkpoint import Checkpoints
from lra_bench.training.evaluation import Evaluation, evaluate
from lra_bench.training.loop import Fit, selected_value, train
from lra_bench.training.optimizer import hinted_rates
from lra_bench.training.pretraining import constant_floor, input_rows, load_pretrained, pretrain, section
from lra_bench.training.ranks import train_in_group
from lra_bench.training.sampling import training_rows

if TYPE_CHECKING:
    from lra_bench.contracts import Task
    from lra_bench.runtime.hardware import Hardware

    from .cell import Cell

SPLITS = ("train", "validation", "test")


class Incompatible(Exception):
    """Raised if the model does not support the task; the message is the reason."""


class Stages:
    """The stages of one cell.

    ``measure`` runs all stages. If the cell uses several processes, all of them train; every other stage runs in this
    process only.

    Args:
        record: The record to fill.
        cell: The cell to measure.
        group: Hardware of all processes of the cell.
        hardware: Hardware of this process.
        results: The results folder.
        folder: The checkpoint folder of the cell.
        report: Function that is called with the name of each stage when it starts.
    """

    def __init__(
        self,
        record: Record,
        cell: Cell,
        group: Hardware,
        hardware: Hardware,
        results: Path,
        folder: Path,
        report: Callable[[str], None] = lambda stage: None,
    ) -> None:
        self.record, self.cell, self.results = record, cell, results
        self.group, self.hardware = group, hardware
        self.config = cell.config
        # A run can be continued on other hardware, after its checkpoint was copied to the folder of the other key.
        without_hardware = str(replace(cell.key, hardware="any"))
        self.checkpoints = Checkpoints(folder, self.config.hardware.checkpoint_seconds, cell=without_hardware)
        self.tracker = tracker(self.config.tracker)
        self.report = report
        self.stage = ""
        self._begin("starting")
        self.validation_floor: tuple[str | None, float | None] = (None, None)
        self.curves: pd.DataFrame | None = None
        self.predictions: pd.DataFrame | None = None
        self.measurements = [each(self.config.measure) for each in measurements().values()]

    def _begin(self, stage: str) -> None:
        if stage != self.stage:
            self.stage = stage
            self.report(stage)

    def measure(self) -> None:
        """Run all stages in order; of a trial of a search only those up to the training."""
        task, rows = self._prepare()
        model = self._build(task)
        self.tracker.start(self.record.config, self.record.key, self.results)
        if has_objective(self.config):
            self._pretrain(model, rows, task)
        if pretrains(self.config) and self.group.strategy == "none":  # otherwise the ranks load the weights
            load_pretrained(model, task.spec, self.config, self.checkpoints)
        fit = self._train(model, rows, task)
        if is_trial(self.config):
            return
        self._finish(model, rows)
        self._measure(self._test(model, rows, task, fit))

    def close(self) -> None:
        """Send the record to the tracker, also if the cell failed."""
        self.tracker.finish(self.record, self.curves)

    def _prepare(self) -> tuple[Task, dict[str, Rows]]:
        self._begin("preparing data")
        task = build_task(self.config)
        task.prepare(Cache())
        for name in SPLITS:
            check_split(task.split(name), task.spec, name)
        rows = training_rows(task, self.config.train)
        rows |= {name: Rows(task.split(name), task.spec) for name in SPLITS[1:]}
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
            "rows": {name: len(rows[name]) for name in SPLITS},
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
        splits = {name: task.split(name) for name in SPLITS}
        key = settings_digest(self.cell.fingerprint, dict(checksums))
        counts = Cache().note(f"{task.spec.name}-repeats", key, lambda: repeats(splits))
        return {names: int(count) for names, count in counts.items()}

    def _build(self, task: Task) -> nn.Module:
        self._begin("building the model")
        with located(self.config):
            model: nn.Module = build_model(self.config, task.spec)
        capability = getattr(model, "capability", None)
        self.record.capability = None if capability is None else capability.as_dict()
        self.record.parameters = ParameterCounts.of(model)
        supports = getattr(model, "supports", None)
        if supports is not None and (reason := supports(task.spec)):
            raise Incompatible(reason)
        network_of_pairs = task.spec.kind == "matching" and getattr(model, "mixers", None) is None
        needs_preparation = isinstance(model, Prepared)
        if is_users(self.config) and not network_of_pairs and not needs_preparation:
            causal = bool(getattr(model, "causal", task.spec.direction == "causal"))
            missing = check_before_training(self.config, task.spec, causal, self.hardware.device)
            self.record.parameters["without_gradient"] = missing
        self.record.restriction = Restricted.of(model, task.spec)
        for measurement in self.measurements:
            measurement.check(Subject(self.config, task, model))
        if self.record.search is not None:
            train = self.config.train
            hints = hinted_rates(model, train.lr, train.state_lr, reference_lr(self.config))
            self.record.search = {**self.record.search, "hints": hints}
        return model

    def _pretrain(self, model: nn.Module, rows: dict[str, Rows], task: Task) -> None:
        """Pretrain the network, whose selected weights are then in the checkpoints."""
        self._begin(f"pretraining ({self.config.pretrain.name})")
        check_options(self.config, task.spec)
        inputs = input_rows(rows, self.config, task.spec)
        floor = constant_floor(inputs["validation"], self.config.measure.evaluation_batch_size)
        restore_collections()
        if self.group.strategy != "none":
            fit, _ = train_in_group(
                self.config, self.group, self.checkpoints, lambda step, values: None, pretraining=True
            )
        else:
            self.hardware.place(model)
            fit = pretrain(model, rows, task.spec, self.config, self.hardware, self.checkpoints)
        self.record.add_section("pretraining", section(fit, self.config, task.spec, len(inputs["train"]), floor))

    def _train(self, model: nn.Module, rows: dict[str, Rows], task: Task) -> Fit:
        self._begin(f"training at {task.spec.train_length:,} tokens, batch {self.config.train.batch_size}")
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
        self.record.training = {**fit.figures, **of_floor, **memory}
        return fit

    def _finish(self, model: nn.Module, rows: dict[str, Rows]) -> None:
        self._begin("finishing")
        assert self.record.training is not None
        self.record.training["best_weights_sha256"] = self.checkpoints.load_best(self.hardware.place(model))
        finish = getattr(model, "finish", None)
        if finish is not None:
            finish(rows["train"], rows["validation"])

    def _test(self, model: nn.Module, rows: dict[str, Rows], task: Task, fit: Fit) -> Subject:
        self._begin("testing")
        batch_size = self.config.measure.evaluation_batch_size
        run, stream = (task.spec, self.hardware, batch_size), self.config.train.order == "stream"
        places = self.config.train.validation_tokens
        validation = evaluate(model, rows["validation"], *run, "Validation, reloaded", places, stream=stream)
        each_target = task.spec.kind != "language_modeling"  # for the slices
        test = evaluate(model, rows["test"], *run, "Test", each_target=each_target, stream=stream)
        self.record.metrics = {
            "validation": _metric(validation, task),  # type: ignore[dict-item]
            "test": _metric(test, task),  # type: ignore[dict-item]
        }
        self.record.margins = margins(test, task.floor_rows("test"), task.spec)
        own = score_of_task(task, model, batch_size)
        if own is not None:
            self.record.margins = {}
            low, high = interval_of_task(own, task.spec)
            # The score of predictions and targets is kept next to that of the task.
            self.record.metrics["test_targets"] = self.record.metrics["test"]
            scored = {task.spec.metric: own.score, "n": own.n, "low": low, "high": high}
            self.record.metrics["test"] = {**self.record.metrics["test"], **scored}  # type: ignore[typeddict-item]
        assert self.record.training is not None
        # Other codebases have tested weights other than the best. A change of 0 shows that the best ones were loaded.
        change = selected_value(validation, task.spec) - fit.state.best_value
        self.record.training["validation_change_on_reload"] = change
        self.predictions = predictions_table({_whole_test(task): test})
        return Subject(self.config, task, model, rows, test, own)

    def _measure(self, subject: Subject) -> None:
        """Run all measurements and add their sections to the record."""
        record, batch_size = self.record, self.config.measure.evaluation_batch_size
        context = Context(self.hardware, self.group, record.attempt, batch_size, self._attempt)
        for measurement in self.measurements:
            if not measurement.stage or any(getattr(subject, each) is None for each in measurement.needs):
                continue
            self._begin(measurement.stage)
            section = measurement.measure(subject, context)
            for name in measurement.sections or (measurement.name,):
                record.add_section(name, section[name] if measurement.sections else section)
        if record.flops is not None:
            record.environment["hardware"][CEILING] = record.flops["ceiling_per_second"]
        assert subject.test is not None
        self.predictions = predictions_table({_whole_test(subject.task): subject.test, **context.evaluations})

    def _attempt(self) -> Attempt:
        record = self.record
        return attempt_now(record.attempt, self.hardware.slug, record.environment["hardware"], record.code)


def largest(peaks: Sequence[Mapping[str, int | None]]) -> dict[str, int | None]:
    """Return the largest value over ranks for each kind of peak; None if the value of a rank is unknown."""
    found = {kind: [peak[kind] for peak in peaks] for kind in peaks[0]}
    return {kind: None if None in values else max(filter(None, values), default=0) for kind, values in found.items()}


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
