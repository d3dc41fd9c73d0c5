"""Registry of all table columns: source, description and format of each column, and the views that show it.

A tuple of ``Column`` objects, such as ``LONG``, defines the columns of a layout in the data (CSV, Parquet, JSON), in
this order. A view, such as ``LONG_TEXT``, is a tuple of column names: the columns of a table for readers, in this
order. To add a column, add an entry to the tuple of its layout and its name to the views that show it.

``lra-bench list columns`` prints the descriptions (``help``), and the page shows them for each heading.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from . import column_cells as cells
from .badges import RETENTION, badges_of_all
from .cell import share
from .column import Column
from .formatting import count, exponent, kilobytes, megabytes, percent, source, times
from .naming import modifications
from .over_tasks import all_true, geometric_mean, largest, mean, shared
from .runs import missing_data, repeated_data, section_of, unrestricted_at

PROTOCOL = (
    "name of the protocol, with its version from the second on; it ends in -searched if the learning rate was "
    "searched, because such rows are not comparable with others"
)
SECTION = (
    "ranked; modified if the user changed an option of the protocol; edge if the searched learning rate is at an end "
    "of the grid"
)

timed_number = partial(cells.number, at=True)
"""As ``cells.number``, for values of the step benchmark: followed by the length unless the heading states it."""

LONG = (
    Column(name="task", help="name of the task", run=lambda run: run.record.key.task, seeds="first"),
    Column(
        name="task_version",
        help="version of the task; scores of different versions are not comparable",
        run=lambda run: run.record.data["version"] if run.record.data else None,
        seeds="first",
    ),
    Column(
        name="protocol",
        help=PROTOCOL,
        run=lambda run: run.record.key.protocol,
        seeds="first",
    ),
    Column(
        name="data_lacks",
        help="what the data lacks compared with the full task: missing parts, or information lost by lossy coding "
        "such as JPEG; empty if nothing",
        run=lambda run: missing_data(run.record),
        seeds="first",
    ),
    Column(
        name="data_repeats",
        help="examples that occur in several splits, such as `123 of 25,000 test in train`: a model may have been "
        "trained on them; empty if none, or if they were not counted",
        run=lambda run: repeated_data(run.record),
        seeds="first",
    ),
    Column(
        name="section",
        help=SECTION,
        run=lambda run: section_of(run.record),
        seeds="first",
    ),
    Column(
        name="rank",
        help="rank by score within task, version, protocol and data, among rows with 3 or more seeds; empty if no row "
        "clears the floor in every seed; tables show it for rows that do",
        dtype="Int64",
        heading="rank",
        cell=cells.rank,
        first="ascending",
    ),
    Column(
        name="variant",
        help="model and its differences from the model's configuration file",
        run=lambda run: run.record.variant_name,
        seeds="first",
        heading="variant",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(name="model", help="name of the model", run=lambda run: run.record.key.model, seeds="first"),
    Column(
        name="hardware",
        help="machine on which the row was measured, followed by @ and the name of its reference board if it has one; "
        "speed and memory are comparable only on the same machine",
        run=lambda run: run.record.machine,
        seeds="first",
        heading="hardware",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(
        name="reference",
        help="reference board that the row belongs to, empty for your own rows",
        run=lambda run: run.record.reference,
        seeds="first",
        heading="source",
        left=True,
        text=lambda row, context: source(row["reference"]),
    ),
    Column(name="seeds", help="number of seeds that finished with status ok"),
    Column(
        name="statuses",
        help="number of seeds by status; the page shows statuses other than ok, where the step benchmark failed, and "
        "whether the mechanism restricts nothing",
        key="status",
        heading="status",
        left=True,
        cell=cells.status,
        text=cells.statuses_text,
        first="ascending",
    ),
    Column(
        name="restricts_from",
        help="smallest length in tokens at which the mechanism restricts what a token can attend to; 0 if it is not "
        "attention to tokens at any length; empty if it restricts nothing, or unknown",
        run=lambda run: run.record.restriction["from_length"] if run.record.restriction else None,
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="unrestricted_at",
        help="length of the longest row in tokens if it is below restricts_from, so that full attention is measured; "
        "otherwise empty",
        run=lambda run: unrestricted_at(run.record),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="metric",
        help="accuracy (between 0 and 1) or bits_per_character",
        run=lambda run: run.record.metric,
        seeds="first",
    ),
    Column(
        name="score",
        help="score on the test split, in {unit}; with several seeds their mean; tables show it with its 95 % "
        "confidence interval, or with the scores of the seeds if there are fewer than 5 or if they lie on two levels, "
        "and mark scores at or below the floor",
        run=lambda run: run.record.score(),
        dtype="float64",
        heading="score",
        cell=cells.score_of_seeds,
        text=cells.score_text,
        first="best",
        scale=True,
    ),
    Column(
        name="low",
        help="lower end of the 95 % confidence interval of the score: over examples with one seed, over seeds "
        "(Student's t) with 5 or more on one level, otherwise missing",
        run=lambda run: run.test.get("low"),
    ),
    Column(
        name="high",
        help="upper end of the 95 % confidence interval of the score",
        run=lambda run: run.test.get("high"),
    ),
    Column(name="seed_scores", help="scores of the seeds, in the order of the seeds, separated by spaces"),
    Column(
        name="learned",
        help="number of seeds whose score exceeds the strongest floor by more than its 95 % confidence interval, "
        "paired over the same examples if the record contains that interval",
        dtype="Int64",
    ),
    Column(
        name="two_levels",
        help="whether the scores of the seeds lie on two levels: the largest gap exceeds 10 points (or 10 % of the "
        "floor in bits) and three standard errors",
    ),
    Column(
        name="clears_floor",
        help="whether every seed exceeds the strongest floor by more than its interval and, with an interval over "
        "seeds, the mean does too",
        run=lambda run: run.clears_floor,
    ),
    Column(
        name="best",
        help="whether the row is the best of its ranking or not shown to be worse: only rows with 3 or more seeds that "
        "clear the floor; tables show it in bold",
    ),
    Column(name="against", help="variant that the row is compared with: the reference row of the ranking"),
    Column(name="difference", help="score minus that of the reference row, over the seeds that both have"),
    Column(name="difference_low", help="lower end of the 95 % confidence interval of the difference"),
    Column(name="difference_high", help="upper end of the 95 % confidence interval of the difference"),
    Column(
        name="p_against",
        help="p-value of the difference after Holm's correction for all rows of the ranking; over seeds and examples "
        "with 5 or more shared seeds, over examples with 3 or 4",
        dtype="float64",
    ),
    Column(
        name="verdict",
        help="comparison with the reference row: better or worse (5 or more seeds, significant over seeds and "
        "examples); better or worse in every seed (3 or 4 seeds, p < .01 over examples, no claim about other seeds); "
        "no difference shown; floor not cleared; too few seeds",
        heading="compared with {against}",
        left=True,
        cell=cells.verdict,
        kind="text",
        first="ascending",
        scale=True,
    ),
    Column(
        name="detectable",
        help="true difference from the reference row that a test without correction detects with 80 % power; missing "
        "if it exceeds the scale",
        dtype="float64",
    ),
    Column(
        name="interval",
        help="sampling unit of the confidence interval, in tables headed over: seeds if there are two or more, "
        "otherwise test examples",
        key="over",
        heading="over",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(
        name="floor",
        help="score of the strongest floor (baseline without a model) on the same examples, in {unit}",
        run=lambda run: run.floor[1],
        seeds="mean",
        heading="{floor}",
        cell=cells.floor,
        first="best",
        scale=True,
    ),
    Column(
        name="floor_name",
        help="name of the strongest floor (baseline without a model), which the score is compared with",
        run=lambda run: run.floor[0],
        seeds="first",
    ),
    Column(
        name="skill",
        help="score normalised so that the strongest floor other than a random rule is 0 and a perfect score is 1",
        run=lambda run: run.skill(run.record.score(), run.record.floors),
        seeds="mean",
    ),
    Column(
        name="comparable",
        help="whether the protocol is unmodified and the body parameters are within 10 % of the transformer's; empty "
        "if the transformer was not run",
        heading="comparable with transformer",
        left=True,
        cell=cells.comparable,
    ),
    Column(
        name="searched_lr",
        help="learning rate that the search chose by validation loss, the same for all seeds; edge marks a rate at an "
        "end of the grid; empty if the rate was not searched",
        run=lambda run: run.search.get("chosen_lr"),
        seeds="first",
        dtype="float64",
        heading="searched rate",
        cell=cells.searched_lr,
        first="ascending",
    ),
    Column(
        name="lr_robustness",
        help="share of the learning rates of the grid that reach 90 % of the best validation skill in the search; "
        "empty if the best is not above 0",
        run=lambda run: run.search.get("robustness"),
        seeds="first",
        dtype="float64",
        heading="rates near best",
        cell=cells.number(percent, "lr_robustness"),
    ),
    Column(
        name="search_trials",
        help="number of training runs of the search of the learning rate, shared by all seeds",
        run=lambda run: run.search.get("trial_count"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="search_seconds",
        help="wall-clock time of all trials of the search, seconds",
        run=lambda run: run.search.get("seconds"),
        seeds="first",
        dtype="float64",
    ),
    Column(
        name="parameters_body",
        help="number of trainable parameters of the body, without embeddings, position tables and head",
        run=lambda run: run.parameters.get("body"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="parameters_body_active",
        help="number of trainable body parameters that one token uses, without embeddings, position tables and head",
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
        help="number of trainable parameters",
        run=lambda run: run.parameters.get("total"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="speed_length",
        help="sequence length of the step benchmark in this row, in tokens: the longest of the lengths that the "
        "largest number of runs of the same task, protocol and hardware measured",
        run=lambda run: run.speed_length,
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="modified",
        help="options of the protocol that the user changed, separated by commas; empty if none",
        run=lambda run: ", ".join(run.record.protocol_modified),
        seeds="first",
        heading="modified",
        left=True,
        text=lambda row, context: row["modified_values"],
        kind="text",
    ),
    Column(
        name="modified_values",
        help="options of the protocol that the user changed, with their values; long values are shortened",
        run=lambda run: ", ".join(f"{name}={value}" for name, value in modifications(run.record).items()),
        seeds="first",
    ),
    Column(
        name="hash",
        help="hash of the configuration that determines the results",
        run=lambda run: run.record.key.hash,
        seeds="first",
    ),
    Column(
        name="hash_version",
        help="version of the rules by which the hash was computed; version 1 did not cover defaults in code",
        run=lambda run: run.record.hash_version,
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="wall_seconds",
        help="wall-clock time of all stages of the run, seconds",
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
        help="time spent in training steps, seconds",
        run=lambda run: run.training.get("train_seconds"),
        seeds="mean",
    ),
    Column(
        name="took_off",
        help="number of seeds that took off: three evaluations in a row with validation skill above one half; empty if "
        "unknown for any seed",
        run=lambda run: run.took_off,
        seeds="sum of all",
        dtype="Int64",
    ),
    Column(
        name="takeoff_steps",
        help="training steps until the first of three evaluations in a row with validation skill above one half: the "
        "median over seeds if all took off; otherwise tables show how many did, or – if the only one did not",
        run=lambda run: run.training.get("takeoff_steps"),
        seeds="median of all",
        dtype="float64",
        heading="take-off (steps)",
        cell=cells.take_off,
        first="ascending",
    ),
    Column(
        name="takeoff_seconds",
        help="training time until the take-off, without evaluations, checkpoints and compilation, seconds: the median "
        "over seeds if all took off, otherwise missing",
        run=lambda run: run.training.get("takeoff_seconds"),
        seeds="median of all",
        dtype="float64",
    ),
    Column(
        name="late_loss_change",
        help="change of the lowest validation loss in the last quarter of the training steps, nats: below 0 if the "
        "score would still improve with more steps, 0 if not",
        run=lambda run: run.training.get("late_loss_change"),
        seeds="mean",
        dtype="float64",
        heading="last quarter",
        cell=cells.number("{:+.3f}".format, "late_loss_change"),
        first="ascending",
    ),
    Column(
        name="score_at_half",
        help="validation score after half of the training steps, in {unit}: that of the lowest validation loss so far",
        run=lambda run: run.training.get("score_at_half"),
        seeds="mean",
        dtype="float64",
        heading="half budget",
        cell=lambda row, context: share(row["score_at_half"], context.metric),
        scale=True,
        first="best",
    ),
    Column(
        name="training_tokens_per_second",
        help="throughput of the training run in tokens per second; padding is not counted; empty if other programs "
        "ran at the same time, or if this is unknown",
        run=lambda run: run.tokens_per_second(run.training),
        seeds="mean",
        dtype="float64",
        heading="run tokens/s",
        cell=cells.number(count, "training_tokens_per_second"),
        machine=True,
    ),
    Column(
        name="flops_per_token_forward",
        help="floating point operations of the forward pass per token",
        run=lambda run: run.flops.get("per_token_forward"),
        seeds="mean",
    ),
    Column(
        name="flops_per_token_training",
        help="floating point operations of the forward and the backward pass per token",
        run=lambda run: run.flops.get("per_token_training"),
        seeds="mean",
    ),
    Column(
        name="flops_per_step",
        help="floating point operations of the forward and the backward pass of a training step, for its mean number "
        "of tokens without padding",
        run=lambda run: run.flops_per_step,
        seeds="mean",
    ),
    Column(
        name="joules_per_step",
        help="energy of a training step in the step benchmark, joules",
        run=lambda run: run.record.energy["joules_per_step"] if run.record.energy else None,
        seeds="mean",
    ),
    Column(
        name="train_tokens_per_second",
        help="tokens per second of a training step in the step benchmark, at the longest of the lengths that the "
        "largest number of runs of the same task, protocol and hardware measured; empty if other programs ran at "
        "the same time, or if this is unknown",
        run=lambda run: run.tokens_per_second(run.train),
        seeds="mean",
        dtype="float64",
        heading="step tokens/s {at}",
        cell=timed_number(count, "train_tokens_per_second"),
        machine=True,
    ),
    Column(
        name="train_peak_allocated_bytes",
        help="peak of the memory allocated for tensors on CUDA during a training step, including parameters, "
        "gradients, optimizer state and batch, bytes; missing on a CPU",
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
        help="peak growth of the process's resident memory (RSS) during a training step, bytes; missing on a GPU",
        run=lambda run: run.train.get("peak_resident_growth_bytes"),
        seeds="largest",
        dtype="Int64",
        heading="RSS growth {at}",
        cell=timed_number(megabytes, "train_peak_resident_growth_bytes"),
        first="ascending",
        machine=True,
    ),
    Column(
        name="minimal_pairs",
        help="share of minimal pairs (examples that differ in one element and in their answer) of which both members "
        "are predicted correctly",
        run=lambda run: run.record.minimal_pairs["total"]["score"] if run.record.minimal_pairs else None,
        seeds="mean",
        dtype="float64",
        heading="pairs",
        cell=cells.number(percent, "minimal_pairs"),
    ),
    Column(
        name="state_bytes",
        help="inference state in bytes: all tensors that a causal model passes on to read one more token after as many "
        "tokens as the training length, of one row in float32; empty if the model is bidirectional on the task or has "
        "no form that reads a sequence in parts",
        run=lambda run: run.state_bytes,
        seeds="first",
        dtype="Int64",
        heading="state",
        cell=cells.number(kilobytes, "state_bytes"),
        first="ascending",
    ),
    Column(
        name="train_batch_size",
        help="batch size of a training step in the step benchmark",
        run=lambda run: run.train.get("batch_size"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="train_limit",
        help="status and shortest length at which the step benchmark of training failed, empty if it did not; then "
        "tables show those of inference",
        run=lambda run: run.limit("train"),
        seeds="first",
        heading="ended",
        left=True,
        text=lambda row, context: row["train_limit"] or row["inference_limit"] or "",
    ),
    Column(
        name="inference_tokens_per_second",
        help="tokens per second of a forward pass in the step benchmark, at the same length as a training step",
        run=lambda run: run.tokens_per_second(run.inference),
        seeds="mean",
        dtype="float64",
        heading="inference tokens/s {at}",
        cell=timed_number(count, "inference_tokens_per_second"),
        machine=True,
    ),
    Column(
        name="inference_peak_allocated_bytes",
        help="peak of the memory allocated for tensors on CUDA during a forward pass without gradients, including "
        "parameters and batch, bytes; missing on a CPU",
        run=lambda run: run.inference.get("peak_allocated_bytes"),
        seeds="largest",
        dtype="Int64",
    ),
    Column(
        name="inference_peak_resident_growth_bytes",
        help="peak growth of the process's resident memory (RSS) during a forward pass without gradients, bytes; "
        "missing on a GPU",
        run=lambda run: run.inference.get("peak_resident_growth_bytes"),
        seeds="largest",
        dtype="Int64",
    ),
    Column(
        name="inference_batch_size",
        help="batch size of a forward pass in the step benchmark",
        run=lambda run: run.inference.get("batch_size"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="inference_limit",
        help="status and shortest length at which the step benchmark of inference failed, empty if it did not",
        run=lambda run: run.limit("inference"),
        seeds="first",
    ),
    Column(
        name="train_time_exponent",
        help="growth exponent a of the time of a training step, time ~ length^a",
        run=lambda run: run.growth("train", "time_exponent"),
        seeds="mean",
        heading="time exponent",
        cell=cells.number(exponent, "train_time_exponent"),
        first="ascending",
        machine=True,
    ),
    Column(
        name="inference_time_exponent",
        help="growth exponent a of the time of a forward pass, time ~ length^a",
        run=lambda run: run.growth("inference", "time_exponent"),
        seeds="mean",
    ),
    Column(
        name="relative_speed",
        help="speed of a training step divided by the Transformer's, from one stored profile in which both were timed "
        "alternately; empty without a profile",
        run=lambda run: run.profiled("relative_speed"),
        seeds="first",
        dtype="float64",
    ),
    Column(
        name="spread_of_relative_speed",
        help="half of the width of the 95 % interval of the relative speed, divided by it",
        run=lambda run: run.profiled("spread_of_relative_speed"),
        seeds="first",
        dtype="float64",
    ),
    Column(
        name="relative_memory",
        help="peak memory of a training step divided by the Transformer's, from the same profile",
        run=lambda run: run.profiled("relative_memory"),
        seeds="first",
        dtype="float64",
    ),
    Column(
        name="profile_time_exponent",
        help="growth exponent a of the time of a training step, time ~ length^a, from the same profile",
        run=lambda run: run.profiled("time_exponent"),
        seeds="first",
        dtype="float64",
    ),
    Column(
        name="profile_length",
        help="sequence length in tokens of the relative speed and memory",
        run=lambda run: run.profiled("length"),
        seeds="first",
        dtype="Int64",
    ),
    Column(
        name="profile_kernel",
        help="attention kernel of the Transformer that the relative speed and memory refer to",
        run=lambda run: run.profiled("kernel"),
        seeds="first",
    ),
    Column(
        name="floor_<floor>",
        help="score of the floor (baseline without a model) of this name on the test split",
        run=lambda run, score: score,
        seeds="mean",
    ),
    Column(
        name="score_<ratio>",
        help="score on examples of this multiple of the training length, in {unit}",
        run=lambda run, point: point["score"],
        seeds="mean",
        heading="{part}",
        page_heading="{times}",
        cell=cells.score_at,
        text=cells.score_at_text,
        first="best",
        scale=True,
    ),
    Column(
        name="floor_<ratio>",
        help="score of the floor (baseline without a model) that is strongest on examples of this multiple of the "
        "training length",
        run=lambda run, point: point["floor"],
        seeds="mean",
    ),
    Column(
        name="clears_floor_<ratio>",
        help="whether the score of any seed exceeds the floor at this multiple of the training length by more than its "
        "interval",
        run=lambda run, point: run.clears_floor_at(point),
        seeds="largest",
    ),
    Column(
        name="skill_<ratio>",
        help="skill on examples of this multiple of the training length: score normalised so that the strongest floor "
        "other than a random rule is 0 and a perfect score is 1",
        run=lambda run, point: run.skill(point["score"], point["floors"] or {point["floor_name"]: point["floor"]}),
        seeds="mean",
    ),
    Column(
        name="status_<ratio>",
        help="ok, or the status that explains why there is no score at this multiple of the training length",
        run=lambda run, point: point["status"],
        seeds="first",
    ),
    Column(
        name="area<curve>",
        help="skill at longer lengths divided by skill at the training length, averaged over the logarithm of the "
        "length",
        run=lambda run, curve: curve["area"],
        seeds="mean",
    ),
    Column(
        name="effective_ratio<curve>",
        help="largest multiple of the training length up to which at least half of the skill at the training length is "
        "kept",
        run=lambda run, curve: curve["effective_ratio"],
        seeds="mean",
    ),
    Column(name="reason", help="reasons for statuses other than ok", run=lambda run: run.record.reason),
)
"""Columns of the layout ``long``, which has one row per variant, task, protocol and hardware."""

RUN_ONLY = (
    Column(name="seed", help="random seed of the run", run=lambda run: run.record.key.seed),
    Column(
        name="status",
        help="status of the run: ok, diverged, out_of_memory, timeout, incompatible, failed or interrupted",
        run=lambda run: run.record.status,
    ),
    Column(
        name="finished_at", help="time at which the run finished, UTC, ISO 8601", run=lambda run: run.record.finished_at
    ),
    Column(name="attempt", help="number of the attempt that produced the record", run=lambda run: run.record.attempt),
    Column(name="examples", help="number of scored targets of the test split", run=lambda run: run.test.get("n")),
    Column(
        name="train_memory_exponent",
        help="growth exponent a of the peak memory of a training step, memory ~ length^a",
        run=lambda run: run.growth("train", "memory_exponent"),
    ),
    Column(
        name="inference_memory_exponent",
        help="growth exponent a of the peak memory of a forward pass, memory ~ length^a",
        run=lambda run: run.growth("inference", "memory_exponent"),
    ),
    Column(
        name="family",
        help="family of the system, such as state_space",
        run=lambda run: (run.record.capability or {}).get("family"),
    ),
    Column(
        name="path",
        help="path of the JSON file of the record",
        run=lambda run: str(run.record.path) if run.record.path else None,
    ),
)
"""Further columns of single runs."""

PAGE_ONLY = (
    Column(
        name="score_axis",
        help="score with its 95 % confidence interval on an axis shared by all rows; the dashed tick marks the floor",
        key="interval",
        heading="interval",
        cell=cells.axis,
        first="best",
    ),
)
"""Columns that are shown on the page only and are not in the data."""

WIDE = (
    Column(name="protocol", help=PROTOCOL),
    Column(name="section", help=SECTION),
    Column(name="kind", help="measured, or floor (a baseline without a model)"),
    Column(
        name="variant",
        help="model and its differences from the model's configuration file",
        heading="variant",
        left=True,
        text=cells.named_kind,
        kind="text",
        first="ascending",
    ),
    Column(name="model", help="name of the model"),
    Column(
        name="modified",
        help="options of the protocol that the user changed, separated by commas; empty if none",
        heading="modified",
        left=True,
        kind="text",
    ),
    Column(
        name="hardware",
        help="machine on which the row was measured; speed and memory are comparable only on the same machine",
        heading="hardware",
        left=True,
        kind="text",
        first="ascending",
    ),
    Column(
        name="reference",
        help="reference board that the row belongs to, empty for your own rows",
        heading="source",
        left=True,
        text=lambda row, context: source(row["reference"]),
    ),
    Column(name="metric_<task>", help="metric of this task: accuracy (between 0 and 1) or bits_per_character"),
    Column(
        name="mean_skill",
        help="mean over the tasks of the table of the score normalised so that the strongest floor is 0 and a perfect "
        "score is 1, without tasks that are not scored by accuracy and tasks that are not learned at this budget; rows "
        "are sorted by it",
        tasks=mean,
        of="skill_<task>",
        of_accuracies=True,
        dtype="float64",
        heading="mean skill",
        cell=cells.number(percent, "mean_skill"),
    ),
    Column(
        name="score_<task>",
        help="score on this task in {unit}, the mean over seeds; tables show it with the distance to the farther end "
        "of its 95 % confidence interval (±), or with the scores of the seeds if there are fewer than 5 or if they lie "
        "on two levels, mark scores at or below the floor, and print it in bold if the row is the best or not shown to "
        "be worse",
        dtype="float64",
        key="{part}",
        heading="{part}{remark}",
        cell=cells.task_score,
        first="best",
    ),
    Column(
        name="low_<task>", help="lower end of the 95 % confidence interval of the score on this task", dtype="float64"
    ),
    Column(
        name="high_<task>", help="upper end of the 95 % confidence interval of the score on this task", dtype="float64"
    ),
    Column(name="seeds_<task>", help="number of seeds that finished this task with status ok", dtype="Int64"),
    Column(name="seed_scores_<task>", help="scores of the seeds on this task, separated by spaces"),
    Column(
        name="learned_<task>",
        help="number of seeds that exceed the strongest floor of this task by more than their interval",
        dtype="Int64",
    ),
    Column(name="two_levels_<task>", help="whether the scores of the seeds on this task lie on two levels"),
    Column(
        name="best_<task>",
        help="whether the row is the best on this task, or not shown to be worse, and clears the floor",
    ),
    Column(name="skill_<task>", help="score on this task normalised so that the strongest floor is 0", dtype="float64"),
    Column(
        name="searched_lr_<task>",
        help="learning rate that the search chose on this task; empty if it was not searched",
        dtype="float64",
    ),
    Column(
        name="parameters_<task>",
        help="number of trainable body parameters that one token uses on this task, without embeddings, position "
        "tables and head",
        dtype="Int64",
    ),
    Column(
        name="status_<task>",
        help="on this task: statuses of seeds that are not ok, lengths at which the step benchmark failed, and lengths "
        "without a score",
    ),
    Column(
        name="comparable_<task>",
        help="whether the protocol of this task is unmodified and the body parameters are within 10 % of the "
        "transformer's on it",
    ),
    Column(
        name=f"retention_{RETENTION}_<task>",
        help="skill at four times the training length of this task divided by skill at the training length; empty if "
        "not every seed clears the floor",
        dtype="float64",
    ),
    Column(
        name="relative_speed_<task>",
        help="speed of a training step on this task divided by the Transformer's, from one profile in which both were "
        "timed alternately; empty without a profile",
        dtype="float64",
    ),
    Column(
        name="spread_of_relative_speed_<task>",
        help="half of the width of the 95 % interval of the relative speed on this task, divided by it",
        dtype="float64",
    ),
    Column(
        name="relative_memory_<task>",
        help="peak memory of a training step on this task divided by the Transformer's, from the same profile",
        dtype="float64",
    ),
    Column(
        name="profile_time_exponent_<task>",
        help="growth exponent a of the time of a training step on this task, time ~ length^a, from the same profile",
        dtype="float64",
    ),
    Column(
        name="profile_length_<task>",
        help="sequence length in tokens of the relative speed and memory on this task",
        dtype="Int64",
    ),
    Column(
        name="profile_kernel_<task>",
        help="attention kernel of the Transformer that the relative speed and memory on this task refer to",
    ),
    *(
        column
        for name, help in (
            ("avg5", "mean accuracy over listops, text, retrieval, image and pathfinder, if all five were run"),
            (
                "avg6_fail50",
                "mean accuracy over the tasks of avg5 and Path-X, if all were run; Path-X is 50 % if all its seeds "
                "diverged or ran out of memory or time",
            ),
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
            Column(
                name=f"{name}_low",
                help=f"lower end of the 95 % confidence interval of {name} over seeds",
                dtype="float64",
            ),
            Column(
                name=f"{name}_high",
                help=f"upper end of the 95 % confidence interval of {name} over seeds",
                dtype="float64",
            ),
            Column(
                name=f"{name}_seeds",
                help=f"number of seeds of {name}, if all its tasks have the same seeds",
                dtype="Int64",
            ),
        )
    ),
    Column(
        name="relative_speed",
        help="speed of a training step divided by the Transformer's, from one profile in which both were timed "
        "alternately, geometric mean over the profiled tasks; ~ marks a spread above 5 %; empty without a profile",
        tasks=geometric_mean,
        dtype="float64",
        heading="relative speed {at}",
        cell=cells.relative_speed,
        machine=True,
    ),
    Column(
        name="spread_of_relative_speed",
        help="half of the width of the 95 % interval of the relative speed, divided by it; the largest over tasks",
        tasks=largest,
        dtype="float64",
    ),
    Column(
        name="relative_memory",
        help="peak memory of a training step divided by the Transformer's, from the same profile, geometric mean over "
        "the profiled tasks",
        tasks=geometric_mean,
        dtype="float64",
        heading="relative memory {at}",
        cell=cells.number(times, "relative_memory"),
        first="ascending",
        machine=True,
    ),
    Column(
        name="profile_length",
        help="sequence length in tokens of relative_speed and relative_memory, if it is the same for all tasks",
        tasks=shared,
        dtype="Int64",
    ),
    Column(
        name="profile_kernel",
        help="attention kernel of the Transformer that relative_speed and relative_memory refer to, if it is the same "
        "for all tasks",
        tasks=shared,
    ),
    Column(
        name="profile_time_exponent",
        help="growth exponent a of the time of a training step, time ~ length^a, from the same profile, mean over the "
        "profiled tasks",
        tasks=mean,
        dtype="float64",
        heading="time exponent",
        cell=cells.number(exponent, "profile_time_exponent"),
        first="ascending",
        machine=True,
    ),
    Column(
        name=f"retention_{RETENTION}",
        help="skill at four times the training length divided by skill at the training length, mean over tasks that "
        "are scored by accuracy and whose score has a confidence interval entirely better than the floor",
        tasks=mean,
        of_accuracies=True,
        dtype="float64",
        heading=f"skill kept {RETENTION}",
        cell=cells.number(percent, f"retention_{RETENTION}"),
    ),
    Column(
        name="parameters",
        help="number of trainable body parameters that one token uses, without embeddings, position tables and head; "
        "on each task in the order of the columns if they differ",
        tasks=largest,
        dtype="Int64",
        heading="parameters",
        cell=cells.parameters,
        first="ascending",
    ),
    Column(
        name="comparable",
        help="whether the protocol is unmodified and the body parameters are within 10 % of the transformer's; empty "
        "if the transformer was not run",
        tasks=all_true,
        heading="comparable with transformer",
        left=True,
        cell=cells.comparable,
    ),
    Column(
        name="status",
        help="statuses of seeds that are not ok, lengths at which the step benchmark failed, and lengths without a "
        "score, with the tasks concerned unless all are",
        tasks=badges_of_all,
        heading="status",
        left=True,
        cell=cells.status_of_tasks,
        text=lambda row, context: row["status"] or "",
        first="ascending",
    ),
)
"""Columns of the layout ``wide``, which has one row per variant, protocol and hardware with all tasks."""

LENGTHS = (
    Column(
        name="length_variant",
        help="method by which examples of this length were generated, or their context was provided",
    ),
    Column(name="knob", help="model option that was set for this evaluation only, as option=value; empty if none"),
    Column(name="ratio", help="length divided by the training length"),
    Column(name="length", help="length of the longest example, tokens"),
    Column(name="status", help="ok, or the status that explains why there is no score"),
    Column(name="reason", help="reason for the status in words"),
    Column(name="metric", help="accuracy (between 0 and 1) or bits_per_character"),
    Column(name="score", help="score on examples of this length"),
    Column(name="low", help="lower end of the 95 % confidence interval of the score over examples"),
    Column(name="high", help="upper end of the 95 % confidence interval of the score over examples"),
    Column(name="n", help="number of scored targets"),
    Column(name="floor_name", help="name of the floor (baseline without a model) that the score is compared with"),
    Column(name="floor", help="score of the floor on the same examples"),
    Column(name="skill", help="score normalised so that the floor is 0 and a perfect score is 1"),
)
"""Columns of ``load_records(table="lengths")`` that follow those of ``IDENTITY``."""

SLICES = (
    Column(name="slicing", help="property by which the scored targets of the test split are divided, such as length"),
    Column(name="label", help="values of the property in this slice, such as 8–15"),
    Column(name="metric", help="accuracy (between 0 and 1)"),
    Column(name="score", help="score on the targets of the slice"),
    Column(name="low", help="lower end of the 95 % confidence interval of the score over examples"),
    Column(name="high", help="upper end of the 95 % confidence interval of the score over examples"),
    Column(name="n", help="number of scored targets"),
    Column(name="floor_name", help="name of the strongest floor (baseline without a model) on these targets"),
    Column(name="floor", help="score of the floor on the same targets"),
    Column(name="skill", help="score normalised so that the floor is 0 and a perfect score is 1"),
)
"""Columns of ``load_records(table="slices")`` that follow those of ``IDENTITY``."""

SPEED = (
    Column(
        name="mode", help="train (a training step) or inference (a forward pass without gradients), called a step below"
    ),
    Column(name="length", help="sequence length, tokens"),
    Column(name="batch_size", help="batch size, number of sequences per step"),
    Column(name="status", help="ok, or the status that explains why there is no time"),
    Column(name="reason", help="reason for the status in words"),
    Column(name="n", help="number of timed steps"),
    Column(name="median_seconds", help="median time of a step, seconds"),
    Column(name="p10_seconds", help="10th percentile of the time of a step, seconds"),
    Column(name="p90_seconds", help="90th percentile of the time of a step, seconds"),
    Column(name="tokens_per_second", help="tokens per second of a step"),
    Column(
        name="peak_allocated_bytes",
        help="peak of the memory allocated for tensors on CUDA during a step, bytes; missing on a CPU",
    ),
    Column(
        name="peak_resident_growth_bytes",
        help="peak growth of the process's resident memory (RSS) during a step, bytes; missing on a GPU",
    ),
)
"""Columns of ``load_records(table="speed")`` that follow those of ``IDENTITY``."""

IDENTITY = (
    "task", "task_version", "protocol", "modified", "data_lacks", "model", "variant", "hardware", "reference", "hash",
    "hash_version", "seed",
)  # fmt: skip
"""Columns that identify a run; the first columns of each table of ``load_records``."""

RUNS = (
    *IDENTITY, "status", "reason", "finished_at", "metric", "score", "low", "high", "examples", "loss",
    "validation_score", "searched_lr", "lr_robustness", "search_trials", "search_seconds", "floor_name", "floor",
    "parameters_total", "parameters_body", "parameters_body_active", "train_seconds", "took_off", "takeoff_steps",
    "takeoff_seconds", "training_tokens_per_second", "wall_seconds", "flops_per_token_forward", "joules_per_step",
    "train_time_exponent", "inference_time_exponent", "train_memory_exponent", "inference_memory_exponent",
    "minimal_pairs", "state_bytes", "family", "path",
)  # fmt: skip
"""Columns of ``load_records(table="runs")``."""

LONG_TEXT = (
    "rank", "variant", "reference", "score", "floor", "interval", "verdict", "score_<ratio>", "minimal_pairs",
    "statuses", "searched_lr", "lr_robustness", "takeoff_steps", "late_loss_change", "score_at_half",
    "parameters_body_active", "comparable", "hardware", "training_tokens_per_second", "train_tokens_per_second",
    "inference_tokens_per_second", "train_peak_allocated_bytes", "train_peak_resident_growth_bytes", "state_bytes",
    "train_limit", "modified",
)  # fmt: skip
"""View of ``LONG`` in text: terminal, Markdown and LaTeX."""

LONG_TERMINAL = (
    "rank", "variant", "score", "statuses", "verdict", "floor", "score_<ratio>", "modified", "searched_lr",
    "takeoff_steps", "parameters_body_active", "training_tokens_per_second",
)  # fmt: skip
"""First columns of a terminal, most important ones first; those of ``LONG_TEXT`` follow. Some may not fit."""

LONG_PAGE = (
    "rank", "variant", "score", "score_axis", "floor", "verdict", "score_<ratio>", "minimal_pairs", "statuses",
    "searched_lr", "lr_robustness", "takeoff_steps", "late_loss_change", "score_at_half", "interval", "comparable",
    "parameters_body_active", "hardware", "training_tokens_per_second", "train_tokens_per_second",
    "inference_tokens_per_second", "train_peak_allocated_bytes", "train_peak_resident_growth_bytes", "state_bytes",
)  # fmt: skip
"""View of ``LONG`` on the page: the table of one task."""

WIDE_TEXT = (
    "variant", "reference", "mean_skill", "score_<task>", "avg5", "avg6_fail50", "status", "comparable",
    "relative_speed", "relative_memory", "profile_time_exponent", f"retention_{RETENTION}", "parameters", "hardware",
    "modified",
)  # fmt: skip
"""View of ``WIDE`` in text: terminal, Markdown and LaTeX."""

WIDE_PAGE = tuple(name for name in WIDE_TEXT if name not in ("reference", "modified"))
"""View of ``WIDE`` on the page: the table of all tasks."""


def pick(columns: Iterable[Column], names: Iterable[str]) -> list[Column]:
    """Return the columns with these names, in the order of the names. Raises ``KeyError`` for an unknown name."""
    known = {column.name: column for column in columns}
    return [known[name] for name in names]


def of_runs(names: Iterable[str]) -> list[Column]:
    """Return the columns with these names from ``LONG`` and ``RUN_ONLY``."""
    return pick((*LONG, *RUN_ONLY), names)
