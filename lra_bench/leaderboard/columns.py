"""Every column of the tables: where it comes from, what it means, how it is shown, and which views show it.

A new column is one entry here, and its name in the views that show it. The order of entries is that of the data (CSV,
Parquet, JSON); the order of names in a view is that of a table for readers.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from lra_bench.records.curves import skill

from . import column_cells as cells
from .badges import RETENTION, badges_of_all
from .column import Column
from .formatting import count, exponent, megabytes, percent, score_with_interval, source, times
from .over_tasks import all_comparable, body_sizes, geometric_mean, mean, retention, timed_length
from .runs import missing_data

timed_number = partial(cells.number, at=True)

LONG = (
    Column(name="task", help="the task", run=lambda run: run.record.key.task, seeds="first"),
    Column(
        name="task_version",
        help="version of the task; other versions do not compare",
        run=lambda run: run.record.data["version"] if run.record.data else None,
        seeds="first",
    ),
    Column(name="protocol", help="the protocol", run=lambda run: run.record.key.protocol, seeds="first"),
    Column(
        name="data_lacks",
        help="what the data lacks against the whole task, empty if nothing",
        run=lambda run: missing_data(run.record),
        seeds="first",
    ),
    Column(name="section", help="ranked, or modified if the user changed the protocol"),
    Column(
        name="rank",
        help="rank by score within task, protocol and data; see ties",
        dtype="Int64",
        heading="rank",
        cell=cells.number(count, "rank"),
        first="ascending",
    ),
    Column(
        name="variant",
        help="model, and what differs from its file",
        run=lambda run: run.record.variant_name,
        seeds="first",
        heading="variant",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(name="model", help="the model", run=lambda run: run.record.key.model, seeds="first"),
    Column(
        name="hardware",
        help="the machine that ran it, with @ and the name of a reference board; costs compare within it alone",
        run=lambda run: run.record.machine,
        seeds="first",
        heading="hardware",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(
        name="reference",
        help="the reference board that the row belongs to, empty for your own",
        run=lambda run: run.record.reference,
        seeds="first",
        heading="source",
        left=True,
        text=lambda row, context: source(row["reference"]),
    ),
    Column(name="seeds", help="number of seeds that ended well"),
    Column(
        name="statuses",
        help="how seeds ended that did not end well, and where the step benchmark did",
        key="status",
        heading="status",
        left=True,
        cell=cells.status,
        text=lambda row, context: "" if row["statuses"] == f"{row['seeds']} ok" else row["statuses"],
        first="ascending",
    ),
    Column(
        name="metric",
        help="accuracy (a share) or bits_per_character",
        run=lambda run: run.record.metric,
        seeds="first",
    ),
    Column(
        name="score",
        help="score on the test split, with its 95 % interval, in {unit}; in tables the mean over seeds",
        run=lambda run: run.record.score(),
        dtype="float64",
        heading="score",
        cell=cells.score_with_seeds,
        text=lambda row, context: score_with_interval(row, context.metric),
        first="best",
    ),
    Column(name="low", help="lower end of the score's 95 % interval", run=lambda run: run.test.get("low")),
    Column(name="high", help="upper end of the score's 95 % interval", run=lambda run: run.test.get("high")),
    Column(
        name="interval",
        help="what the interval is over: seeds if there are two or more, else test examples",
        key="over",
        heading="over",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(
        name="floor",
        help="score of a rule without a model on the same rows, in {unit}",
        run=lambda run: run.floor[1],
        seeds="mean",
        heading="{floor}",
        cell=cells.floor,
        first="best",
    ),
    Column(
        name="floor_name",
        help="the rule without a model beside the score",
        run=lambda run: run.floor[0],
        seeds="first",
    ),
    Column(
        name="skill",
        help="score above the floor as a share of what is left above it",
        run=lambda run: skill(run.record.score(), run.floor[1], run.record.higher_is_better),
        seeds="mean",
    ),
    Column(
        name="comparable",
        help="protocol unchanged, and the body within 10 % of the transformer's parameters; empty if that was not run",
        heading="comparable",
        left=True,
        cell=cells.comparable,
    ),
    Column(
        name="parameters_body",
        help="trainable numbers without embeddings, position tables and head",
        run=lambda run: run.parameters.get("body"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="parameters_body_active",
        help="trainable numbers that one token uses, without embeddings, position tables and head",
        run=lambda run: run.parameters.get("body_active"),
        seeds="first",
        dtype="Int64",
        key="parameters",
        heading="parameters",
        cell=cells.number(count, "parameters_body_active"),
        first="ascending",
    ),
    Column(
        name="parameters_total",
        help="trainable numbers",
        run=lambda run: run.parameters.get("total"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="speed_rank",
        help="rank by training tokens per second of the step benchmark, within one hardware",
        dtype="Int64",
    ),
    Column(
        name="speed_length",
        help="tokens per row of the step benchmark in this row: the longest length that most rows measured",
        run=lambda run: run.speed_length,
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="modified",
        help="keys of the protocol that the user changed, with commas; empty if none",
        run=lambda run: ", ".join(run.record.protocol_modified),
        seeds="first",
        heading="modified",
        left=True,
        kind="text",
    ),
    Column(name="hash", help="hash of what decides the numbers", run=lambda run: run.record.key.hash, seeds="first"),
    Column(
        name="wall_seconds",
        help="seconds of the whole cell",
        run=lambda run: run.record.wall_seconds,
        seeds="mean",
    ),
    Column(name="loss", help="mean loss on the test split, nats", run=lambda run: run.test.get("loss"), seeds="mean"),
    Column(
        name="validation_score",
        help="score on the validation split",
        run=lambda run: run.record.score("validation"),
        seeds="mean",
    ),
    Column(
        name="train_seconds",
        help="seconds of training steps",
        run=lambda run: run.training.get("train_seconds"),
        seeds="mean",
    ),
    Column(
        name="training_tokens_per_second",
        help="tokens per second of the training run, without padding",
        run=lambda run: run.training.get("tokens_per_second"),
        seeds="mean",
        dtype="float64",
        heading="run tokens/s",
        cell=cells.number(count, "training_tokens_per_second"),
        machine=True,
    ),
    Column(
        name="flops_per_token_forward",
        help="floating point operations per token, forward",
        run=lambda run: run.record.flops["per_token_forward"] if run.record.flops else None,
        seeds="mean",
    ),
    Column(
        name="joules_per_step",
        help="energy of a training step, joules",
        run=lambda run: run.record.energy["joules_per_step"] if run.record.energy else None,
        seeds="mean",
    ),
    Column(
        name="train_tokens_per_second",
        help="tokens per second of the step benchmark, training, at the longest length that most rows measured",
        run=lambda run: run.train.get("tokens_per_second"),
        seeds="mean",
        dtype="float64",
        heading="step tokens/s {at}",
        cell=timed_number(count, "train_tokens_per_second"),
        machine=True,
    ),
    Column(
        name="train_peak_allocated_bytes",
        help="peak of the memory that the CUDA allocator handed out during a training step, parameters and optimizer "
        "state included; missing on a CPU",
        run=lambda run: run.train.get("peak_allocated_bytes"),
        seeds="largest",
        dtype="Int64",
        heading="step memory {at}",
        cell=timed_number(megabytes, "train_peak_allocated_bytes"),
        first="ascending",
        machine=True,
    ),
    Column(
        name="train_peak_resident_growth_bytes",
        help="growth of the process's resident memory during a training step; missing on a GPU",
        run=lambda run: run.train.get("peak_resident_growth_bytes"),
        seeds="largest",
        dtype="Int64",
        heading="RSS growth {at}",
        cell=timed_number(megabytes, "train_peak_resident_growth_bytes"),
        first="ascending",
        machine=True,
    ),
    Column(
        name="train_batch_size",
        help="rows of a step of the benchmark, training",
        run=lambda run: run.train.get("batch_size"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="train_limit",
        help="how and at which length the step benchmark failed first, training; readers see that of inference if "
        "training did not fail",
        run=lambda run: run.limit("train"),
        seeds="first",
        heading="ended",
        left=True,
        text=lambda row, context: row["train_limit"] or row["inference_limit"] or "",
    ),
    Column(
        name="inference_tokens_per_second",
        help="tokens per second of the step benchmark, inference, at the same length",
        run=lambda run: run.inference.get("tokens_per_second"),
        seeds="mean",
        dtype="float64",
        heading="inference tokens/s {at}",
        cell=timed_number(count, "inference_tokens_per_second"),
        machine=True,
    ),
    Column(
        name="inference_peak_allocated_bytes",
        help="as of training, of a forward pass without gradients; missing on a CPU",
        run=lambda run: run.inference.get("peak_allocated_bytes"),
        seeds="largest",
        dtype="Int64",
    ),
    Column(
        name="inference_peak_resident_growth_bytes",
        help="as of training, of a forward pass without gradients; missing on a GPU",
        run=lambda run: run.inference.get("peak_resident_growth_bytes"),
        seeds="largest",
        dtype="Int64",
    ),
    Column(
        name="inference_batch_size",
        help="rows of a step of the benchmark, inference",
        run=lambda run: run.inference.get("batch_size"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="inference_limit",
        help="how and at which length the step benchmark failed first, inference",
        run=lambda run: run.limit("inference"),
        seeds="first",
    ),
    Column(
        name="train_time_exponent",
        help="a of time ~ length^a, training step",
        run=lambda run: run.growth("train", "time_exponent"),
        seeds="mean",
        heading="time exponent",
        cell=cells.number(exponent, "train_time_exponent"),
        first="ascending",
        machine=True,
    ),
    Column(
        name="inference_time_exponent",
        help="a of time ~ length^a, inference",
        run=lambda run: run.growth("inference", "time_exponent"),
        seeds="mean",
    ),
    Column(
        name="floor_<floor>",
        help="score of a rule without a model on the test split",
        run=lambda run, score: score,
        seeds="mean",
    ),
    Column(
        name="score_<ratio>",
        help="score on rows {times} as long as those trained on, in {unit}",
        run=lambda run, point: point["score"],
        seeds="mean",
        heading="{part}",
        page_heading="{times}",
        cell=cells.score_at,
        text=cells.score_at_text,
        first="best",
    ),
    Column(
        name="floor_<ratio>",
        help="score of the headline floor on rows of that length",
        run=lambda run, point: point["floor"],
        seeds="mean",
    ),
    Column(
        name="skill_<ratio>",
        help="score above the floor as a share of what is left above it, on rows of that length",
        run=lambda run, point: point["skill"],
        seeds="mean",
    ),
    Column(
        name="status_<ratio>",
        help="ok, or why there is no score at that length",
        run=lambda run, point: point["status"],
        seeds="first",
    ),
    Column(
        name="area<curve>",
        help="mean of the skill over the logarithm of the length",
        run=lambda run, curve: curve["area"],
        seeds="mean",
    ),
    Column(
        name="effective_ratio<curve>",
        help="longest length ratio up to which at least half of the skill is kept",
        run=lambda run, curve: curve["effective_ratio"],
        seeds="mean",
    ),
    Column(name="reason", help="why runs ended as they did", run=lambda run: run.record.reason),
    Column(name="score_deviation", help="standard deviation of the score over seeds", dtype="float64"),
    Column(
        name="ties",
        help="rows that share a letter were not told apart; none: fewer than 3 seeds",
        heading="ties",
        kind="text",
        first="ascending",
    ),
    Column(name="detectable", help="true difference of scores that the tests behind ties find with 80 % probability"),
)
"""Columns of the layout ``long``: a row per variant, task, protocol and hardware."""

RUN_ONLY = (
    Column(name="seed", help="the seed", run=lambda run: run.record.key.seed),
    Column(name="status", help="how the run ended; there is a score if it is ok", run=lambda run: run.record.status),
    Column(name="finished_at", help="when it ended, ISO 8601", run=lambda run: run.record.finished_at),
    Column(name="attempt", help="number of the attempt", run=lambda run: run.record.attempt),
    Column(name="examples", help="scored targets", run=lambda run: run.test.get("n")),
    Column(
        name="train_memory_exponent",
        help="a of peak memory ~ length^a, training step",
        run=lambda run: run.growth("train", "memory_exponent"),
    ),
    Column(
        name="inference_memory_exponent",
        help="a of peak memory ~ length^a, inference",
        run=lambda run: run.growth("inference", "memory_exponent"),
    ),
    Column(name="family", help="family of the system", run=lambda run: (run.record.capability or {}).get("family")),
    Column(
        name="path",
        help="the JSON of the record",
        run=lambda run: str(run.record.path) if run.record.path else None,
    ),
)
"""Columns of single runs."""

PAGE_ONLY = (
    Column(
        name="score_axis",
        help="the score with its 95 % interval on one axis; the tick is the floor",
        key="interval",
        heading="interval",
        cell=cells.axis,
        first="best",
    ),
)
"""Columns that the page draws; they are not in the data."""

WIDE = (
    Column(name="protocol", help="the protocol"),
    Column(name="section", help="ranked, or modified if the user changed the protocol"),
    Column(name="kind", help="measured, floor or published"),
    Column(
        name="variant",
        help="model, and what differs from its file",
        heading="variant",
        left=True,
        text=cells.named_kind,
        kind="text",
        first="ascending",
    ),
    Column(name="model", help="the model"),
    Column(
        name="modified",
        help="keys of the protocol that the user changed, with commas; empty if none",
        heading="modified",
        left=True,
        kind="text",
    ),
    Column(
        name="hardware",
        help="the machine that ran it; costs compare within it alone",
        heading="hardware",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(
        name="reference",
        help="the reference board that the row belongs to, empty for your own",
        heading="source",
        left=True,
        text=lambda row, context: source(row["reference"]),
    ),
    Column(name="metric_<task>", help="metric of the task"),
    Column(
        name="score_<task>",
        help="score on {part}, mean over seeds with the wider half of its 95 % interval, in {unit}; bold: ties with "
        "the best",
        dtype="float64",
        key="{part}",
        heading="{part}",
        cell=cells.task_score,
        first="best",
    ),
    Column(name="low_<task>", help="lower end of its 95 % interval", dtype="float64"),
    Column(name="high_<task>", help="upper end of its 95 % interval", dtype="float64"),
    Column(name="seeds_<task>", help="number of seeds that ended well", dtype="Int64"),
    Column(name="ties_<task>", help="rows that share a letter were not told apart"),
    Column(name="status_<task>", help="how seeds ended that did not end well, and where the step benchmark did"),
    Column(
        name="detectable_<task>",
        help="true difference that the tests behind ties find with 80 % probability",
        dtype="float64",
    ),
    *(
        column
        for name, help in (
            ("avg5", "mean of the five tasks without Path-X, only if all were run"),
            ("avg6_fail50", "the same with Path-X, which counts 50 % if it failed"),
        )
        for column in (
            Column(
                name=name,
                help=help,
                dtype="float64",
                heading=name,
                page_heading=name.replace("_", " "),
                cell=cells.average(name),
                text=cells.average_text(name),
            ),
            Column(name=f"{name}_low", help="lower end of its 95 % interval over seeds", dtype="float64"),
            Column(name=f"{name}_high", help="upper end of its 95 % interval over seeds", dtype="float64"),
            Column(name=f"{name}_seeds", help="number of seeds, if all tasks have the same", dtype="Int64"),
        )
    ),
    Column(
        name="relative_speed",
        help="tokens per second of a training step against the transformer on the same hardware, at one length and "
        "batch, geometric mean over tasks",
        tasks=geometric_mean("relative_speed"),
        dtype="float64",
        heading="relative speed {at}",
        cell=timed_number(times, "relative_speed"),
        machine=True,
    ),
    Column(
        name="relative_memory",
        help="peak memory of that step against the transformer's",
        tasks=geometric_mean("relative_memory"),
        dtype="float64",
        heading="relative memory",
        cell=cells.number(times, "relative_memory"),
        first="ascending",
        machine=True,
    ),
    Column(
        name="speed_length",
        help="tokens per row of that step",
        tasks=timed_length,
        dtype="Int64",
    ),
    Column(
        name="time_exponent",
        help="a of time ~ length^a, training step, mean over tasks",
        tasks=lambda rows: mean(row["train_time_exponent"] for row in rows),
        dtype="float64",
        heading="time exponent",
        cell=cells.number(exponent, "time_exponent"),
        first="ascending",
        machine=True,
    ),
    Column(
        name=f"retention_{RETENTION}",
        help="skill at four times the training length over skill at the training length, mean over tasks with skill",
        tasks=lambda rows: mean(map(retention, rows)),
        dtype="float64",
        heading=f"skill kept {RETENTION}",
        cell=cells.number(percent, f"retention_{RETENTION}"),
    ),
    Column(
        name="parameters_min",
        help="trainable numbers that one token uses, without embeddings, position tables and head; the least and the "
        "largest over tasks",
        tasks=lambda rows: min(body_sizes(rows), default=None),
        dtype="Int64",
        key="parameters",
        heading="parameters",
        cell=cells.parameter_range,
        first="ascending",
    ),
    Column(
        name="parameters_max",
        help="the largest of these",
        tasks=lambda rows: max(body_sizes(rows), default=None),
        dtype="Int64",
    ),
    Column(
        name="comparable",
        help="protocol unchanged, and the body within 10 % of the transformer's parameters; empty if that was not run",
        tasks=all_comparable,
        heading="comparable",
        left=True,
        cell=cells.comparable,
    ),
    Column(
        name="status",
        help="how seeds ended that did not end well, and where the step benchmark did",
        tasks=badges_of_all,
        heading="status",
        left=True,
        cell=cells.status_of_tasks,
        text=lambda row, context: row["status"] or "",
        first="ascending",
    ),
    Column(name="citation", help="where a published row was read", heading="citation", left=True, kind="text"),
)
"""Columns of the layout ``wide``: a row per variant, protocol and hardware, with all tasks."""

LENGTHS = (
    Column(name="length_variant", help="how rows of that length were made"),
    Column(name="knob", help="an option of the model that was set for this evaluation alone, empty if none"),
    Column(name="ratio", help="length over the training length"),
    Column(name="length", help="longest row, tokens"),
    Column(name="status", help="ok, or why there is no score"),
    Column(name="reason", help="the same in words"),
    Column(name="metric", help="accuracy (a share) or bits_per_character"),
    Column(name="score", help="score on rows of that length"),
    Column(name="low", help="lower end of its 95 % interval over examples"),
    Column(name="high", help="upper end of its 95 % interval over examples"),
    Column(name="n", help="scored targets"),
    Column(name="floor_name", help="the rule without a model beside the score"),
    Column(name="floor", help="its score on the same rows"),
    Column(name="skill", help="score above the floor as a share of what is left above it"),
)
"""Columns of ``load_records(table="lengths")``, after those of ``IDENTITY``."""

SPEED = (
    Column(name="mode", help="train or inference"),
    Column(name="length", help="tokens in a row"),
    Column(name="batch_size", help="rows in a step"),
    Column(name="status", help="ok, or why there is no time"),
    Column(name="reason", help="the same in words"),
    Column(name="n", help="steps timed"),
    Column(name="median_seconds", help="median time of a step"),
    Column(name="p10_seconds", help="its 10th percentile"),
    Column(name="p90_seconds", help="its 90th percentile"),
    Column(name="tokens_per_second", help="tokens per second of a step"),
    Column(name="peak_allocated_bytes", help="peak of the memory that the CUDA allocator handed out; missing on a CPU"),
    Column(name="peak_resident_growth_bytes", help="growth of the process's resident memory; missing on a GPU"),
)
"""Columns of ``load_records(table="speed")``, after those of ``IDENTITY``."""

IDENTITY = (
    "task", "task_version", "protocol", "modified", "data_lacks", "model", "variant", "hardware", "reference", "hash",
    "seed",
)  # fmt: skip
RUNS = (
    *IDENTITY, "status", "reason", "finished_at", "metric", "score", "low", "high", "examples", "loss",
    "validation_score", "floor_name", "floor", "parameters_total", "parameters_body", "parameters_body_active",
    "train_seconds", "training_tokens_per_second", "wall_seconds", "flops_per_token_forward", "joules_per_step",
    "train_time_exponent", "inference_time_exponent", "train_memory_exponent", "inference_memory_exponent", "family",
    "path",
)  # fmt: skip
"""Columns of ``load_records(table="runs")``."""

LONG_TEXT = (
    "rank", "variant", "reference", "score", "ties", "floor", "interval", "score_<ratio>", "statuses",
    "parameters_body_active", "comparable", "hardware", "training_tokens_per_second", "train_tokens_per_second",
    "inference_tokens_per_second", "train_peak_allocated_bytes", "train_peak_resident_growth_bytes", "train_limit",
    "modified",
)  # fmt: skip
LONG_PAGE = (
    "rank", "variant", "score", "score_axis", "ties", "floor", "score_<ratio>", "statuses", "interval", "comparable",
    "parameters_body_active", "hardware", "training_tokens_per_second", "train_tokens_per_second",
    "inference_tokens_per_second", "train_peak_allocated_bytes", "train_peak_resident_growth_bytes",
    "train_time_exponent",
)  # fmt: skip
WIDE_TEXT = (
    "variant", "reference", "score_<task>", "avg5", "avg6_fail50", "status", "comparable", "relative_speed",
    "relative_memory", "time_exponent", f"retention_{RETENTION}", "parameters_min", "hardware", "modified", "citation",
)  # fmt: skip
WIDE_PAGE = tuple(name for name in WIDE_TEXT if name not in ("reference", "modified", "citation"))
"""Columns that readers see, in text (terminal, markdown, LaTeX) and on the page."""


def pick(columns: Iterable[Column], names: Iterable[str]) -> list[Column]:
    """Return the columns with these names, in this order."""
    known = {column.name: column for column in columns}
    return [known[name] for name in names]


def of_runs(names: Iterable[str]) -> list[Column]:
    """Return the columns with these names from ``LONG`` and ``RUN_ONLY``."""
    return pick((*LONG, *RUN_ONLY), names)
