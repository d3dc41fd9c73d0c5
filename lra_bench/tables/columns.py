"""Registry of all table columns: source, description and format of each column, and the views that show it.

A tuple of ``Column`` objects, such as ``LONG``, defines the columns of a layout in the data (CSV, Parquet, JSON), in
this order; names of measurements are replaced with the columns that these declare. A view, such as ``LONG_TEXT``, is a
tuple of column names: the columns of a table for readers, in this order. The columns of measurements that neither name
are added by ``long``, ``view`` and ``recorded``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

from lra_bench.config.measurements import measurements
from lra_bench.contracts.measurement import Column, Display, Measurement, columns
from lra_bench.records.schema import STATUSES

from . import column as cells
from .cell import RETENTION
from .naming import modifications
from .runs import missing_data, repeated_data, section_of

LONG: tuple[Column | str, ...] = (
    Column("task", "name of the task", "key.task"),
    Column("task_version", "version of the task; scores of different versions are not comparable", "data.version"),
    Column(
        name="protocol",
        help="name of the protocol, with its version from the second on; it ends in -searched if the learning rate was "
        "searched, in -optuna if other options were, because such rows are not comparable with others",
        source="key.protocol",
    ),
    Column(
        name="data_lacks",
        help="missing parts of the data, or information lost by lossy coding such as JPEG; empty if nothing",
        run=lambda run: missing_data(run.record),
    ),
    Column(
        name="data_repeats",
        help="examples that occur in several splits, such as `123 of 25,000 test in train`; empty if none, or if they "
        "were not counted",
        run=lambda run: repeated_data(run.record),
    ),
    Column(
        name="section",
        help="ranked; masked, causal or record for a pretrained system (pretrain); modified if the user changed "
        "an option of the protocol; edge if the searched learning rate is at an end of the grid",
        run=lambda run: section_of(run.record),
    ),
    Column(
        name="rank",
        help="rank by score within task, version, protocol and data, among rows with 3 or more seeds; empty if no "
        "row clears the floor in every seed; tables show it for rows that do",
        dtype="Int64",
        display=Display("rank", cell=cells.rank, first="ascending"),
    ),
    Column(
        name="variant",
        help="model and its differences from the model's configuration file",
        source="variant_name",
        display=Display("variant", page_heading="system", left=True, kind="text"),
    ),
    Column("model", "name of the model", "key.model"),
    Column("label", "label of the model, with the differences from the model's configuration file", "label"),
    Column(
        name="hardware",
        help="machine on which the row was measured, or the number of machines on which its seeds were measured, "
        "followed by @ and the name of its reference board if it has one; speed and memory are comparable only on "
        "the same machine",
        source="machine",
        display=Display("hardware", left=True, kind="text"),
    ),
    Column(
        name="reference",
        help="reference board that the row belongs to, empty for your own rows",
        source="reference",
        display=Display("source", left=True, text=lambda row, _: row["reference"] and f"reference {row['reference']}"),
    ),
    Column("seeds", "number of seeds that finished with status ok"),
    Column(
        name="statuses",
        help="number of seeds by status; the page shows statuses other than ok, where the step benchmark failed, and "
        "whether the mechanism restricts nothing",
        display=Display(
            "status", left=True, cell=cells.status, text=cells.statuses_text, key="status", first="ascending"
        ),
    ),
    "restriction",
    Column("metric", "accuracy (between 0 and 1) or bits_per_character", "metric"),
    Column(
        name="score",
        help="score on the test split, in {unit}; with several seeds their mean; tables show it with its 95 % "
        "confidence interval, or with the scores of the seeds if there are fewer than 5 or if they lie on two "
        "levels, and mark scores not shown to exceed the floor",
        run=lambda run: run.record.score(),
        dtype="float64",
        display=Display("score", cell=cells.score_of_seeds, text=cells.score_text, first="best", scale=True),
    ),
    Column(
        name="low",
        help="lower end of the 95 % confidence interval of the score: over examples with one seed, over seeds "
        "(Student's t) with 5 or more on one level, otherwise missing",
        source="test.low",
        dtype="float64",
    ),
    Column("high", "upper end of the 95 % confidence interval of the score", "test.high", dtype="float64"),
    Column("seed_scores", "scores of the seeds, in the order of the seeds, separated by spaces"),
    Column("learned", "number of seeds whose score exceeds the floor by more than its interval", dtype="Int64"),
    Column(
        name="two_levels",
        help="whether the scores of the seeds lie on two levels: the largest gap exceeds 10 points (or 10 % of the "
        "floor in bits) and three standard errors",
    ),
    Column(
        name="clears_floor",
        help="whether every seed has learned and, with an interval over seeds, the mean exceeds the floor too",
        source="clears_floor",
    ),
    *columns(
        {
            "best": "whether the row is the best of its ranking, or tested and not shown to be worse: only rows with 3 "
            "or more seeds that clear the floor; tables show it in bold",
            "against": "variant that the row is compared with: the reference row of the ranking; `no pretraining` if a "
            "pretrained system is compared with the same system without it",
        },
    ),
    Column(
        name="difference",
        help="score minus that of the reference row, over the seeds that both have; tables show it for pretrained "
        "systems, whose reference row is the same system without pretraining, with its 95 % confidence interval",
        display=Display("gain", cell=cells.gain, scale=True),
    ),
    *columns(
        {
            "difference_low": "lower end of the 95 % confidence interval of the difference",
            "difference_high": "upper end of the 95 % confidence interval of the difference",
        }
    ),
    Column(
        name="p_against",
        help="p-value of the difference after Holm's correction for all rows of the ranking; over seeds and examples "
        "with 5 or more shared seeds, over examples with 3 or 4",
        dtype="float64",
    ),
    Column(
        name="verdict",
        help="comparison with the reference row: better or worse (5 or more seeds, significant over seeds and "
        "examples); better or worse in every seed (3 or 4 seeds, p < .01 over examples, no claim about other "
        "seeds); no difference shown; floor not cleared; too few seeds",
        display=Display("compared with {against}", left=True, cell=cells.verdict, kind="text", scale=True),
    ),
    Column(
        name="detectable",
        help="true difference from the reference row that a test without correction detects with 80 % power; missing "
        "if it exceeds the scale",
        dtype="float64",
    ),
    Column(
        name="interval",
        help="sampling unit of the confidence interval: seeds if there are two or more, otherwise test examples",
        display=Display("over", left=True, key="over", kind="text"),
    ),
    Column(
        name="floor",
        help="score of the strongest floor (baseline without a model) on the same examples, in {unit}",
        run=lambda run: run.floor[1],
        seeds="mean",
        dtype="float64",
        display=Display("{floor}", cell=cells.floor, first="best", scale=True),
    ),
    Column("floor_name", "name of the strongest floor (baseline without a model)", run=lambda run: run.floor[0]),
    Column(
        name="skill",
        help="score normalised so that the strongest floor other than a random rule is 0 and a perfect score is 1",
        run=lambda run: run.skill(run.record.score(), run.record.floors),
        seeds="mean",
        dtype="float64",
    ),
    Column(
        name="comparable",
        help="whether the protocol is unmodified and the body parameters are within 10 % of the transformer's; empty "
        "if the transformer was not run",
        tasks="all true",
        display=Display("comparable with transformer", left=True, cell=cells.comparable),
    ),
    "search",
    "parameters",
    Column(
        name="speed_length",
        help="length of the step benchmark in tokens: the longest of those that most runs of the same task, protocol "
        "and hardware measured",
        source="speed_length",
        dtype="Int64",
    ),
    Column(
        name="modified",
        help="options of the protocol that the user changed, separated by commas; empty if none",
        run=lambda run: ", ".join(run.record.protocol_modified),
        display=Display("modified", left=True, text=lambda row, context: row["modified_values"], kind="text"),
    ),
    Column(
        name="modified_values",
        help="options of the protocol that the user changed, with their values; long values are shortened",
        run=lambda run: ", ".join(f"{name}={value}" for name, value in modifications(run.record).items()),
    ),
    Column("hash", "hash of the configuration that determines the results", "key.hash"),
    Column("hash_version", "version of the rules by which the hash was computed", "hash_version", dtype="Int64"),
    Column("wall_seconds", "wall-clock time of all stages of the run, seconds", "wall_seconds", seeds="mean"),
    Column("loss", "mean loss on the test split, nats", "test.loss", seeds="mean"),
    Column(
        name="validation_score",
        help="score on the validation split; shown in tables of text for rows without a test score, such as trials",
        run=lambda run: run.record.score("validation"),
        seeds="mean",
        display=Display("validation", cell=cells.validation),
    ),
    "training",
    "speed",
    Column(
        name="relative_speed",
        help="speed of a training step divided by the Transformer's, from one stored profile in which both were timed "
        "alternately; empty without a profile; ~ marks a spread above 5 %",
        source="profiled.relative_speed",
        tasks="geometric mean",
        dtype="float64",
        display=Display("relative speed {at}", cell=cells.relative_speed, machine=True),
    ),
    Column(
        name="spread_of_relative_speed",
        help="half of the width of the 95 % interval of the relative speed, divided by it",
        source="profiled.spread_of_relative_speed",
        tasks="largest",
        dtype="float64",
    ),
    Column(
        name="relative_memory",
        help="peak memory of a training step divided by the Transformer's, from the same profile",
        source="profiled.relative_memory",
        tasks="geometric mean",
        dtype="float64",
        display=Display("relative memory {at}", "{:.2f}×", first="ascending", machine=True),
    ),
    Column(
        name="profile_time_exponent",
        help="growth exponent a of the time of a training step, time ~ length^a, from the same profile",
        source="profiled.time_exponent",
        tasks="mean",
        dtype="float64",
        display=Display("time exponent", "{:.2f}", first="ascending", machine=True),
    ),
    Column("profile_length", "length of the profile in tokens", "profiled.length", tasks="shared", dtype="Int64"),
    Column("profile_kernel", "attention kernel of the profile's Transformer", "profiled.kernel", tasks="shared"),
    Column(
        name="profile_inference_seconds",
        help="time of a forward pass per sequence at the same length, from the same profile, seconds",
        source="profiled.inference_seconds",
        dtype="float64",
    ),
    Column(
        name="floor_<floor>",
        help="score of the floor (baseline without a model) of this name on the test split",
        run=lambda run, score: score,
        seeds="mean",
    ),
    "extrapolation",
    Column("reason", "reasons for statuses other than ok", "reason"),
)
"""Columns of the layout ``long``, which has one row per variant, task, protocol and hardware."""

RUN_ONLY = (
    Column("seed", "random seed of the run", "key.seed"),
    Column("status", f"status of the run: {', '.join(STATUSES)}", "status"),
    Column("finished_at", "time at which the run finished, UTC, ISO 8601", "finished_at"),
    Column("attempt", "number of the attempt that produced the record", "attempt"),
    Column("examples", "number of scored targets of the test split", "test.n"),
    *(
        Column(
            name=f"{mode}_memory_exponent",
            help=f"growth exponent a of the peak memory of a {step}, memory ~ length^a",
            source=f"growth.{mode}.memory_exponent",
        )
        for mode, step in (("train", "training step"), ("inference", "forward pass"))
    ),
    Column("family", "family of the system, such as state_space", "capability.family"),
    Column("path", "path of the JSON file of the record", run=lambda run: run.record.path and str(run.record.path)),
)
"""Further columns of single runs."""

PAGE_ONLY = (
    Column(
        name="score_axis",
        help="score with its 95 % confidence interval on an axis shared by all rows; the dashed tick marks the floor",
        display=Display("interval", cell=cells.axis, key="interval", first="best"),
    ),
)
"""Columns that are shown on the page only and are not in the data."""


def _as_in_long(name: str, **display: Any) -> Column:
    """Return a column of ``LONG``, with changes to its display."""
    [found] = [column for column in LONG if isinstance(column, Column) and column.name == name]
    return replace(found, display=replace(found.display, **display))


def _of_task(name: str, **changes: Any) -> Column:
    """Return a column of ``LONG`` as one that a wide table has for each task."""
    found = _as_in_long(name)
    changes = {"tasks": None, "run": None, "seeds": "first", "display": Display(), **changes}
    return replace(found, name=f"{name}_<task>", help=f"on this task: {found.help}", source="", **changes)


def _over_tasks(name: str) -> Column:
    """Return a column of ``LONG`` as one that a wide table combines over its tasks."""
    found = _as_in_long(name)
    ending = "empty if tasks differ" if found.tasks == "shared" else f"{found.tasks} over the profiled tasks"
    return replace(found, help=f"{found.help}; {ending}", source="")


def _average(name: str, help: str) -> tuple[Column, ...]:
    """Return the columns of an average over tasks, with its interval and the number of seeds."""
    cell, text = partial(cells.average, name), partial(cells.average_text, name)
    display = Display(name, page_heading=name.replace("_", " "), cell=cell, text=text)
    end = f"end of the 95 % confidence interval of {name} over seeds"
    seeds = f"number of seeds of {name}, if all its tasks have the same seeds"
    return (
        Column(name, help, dtype="float64", display=display),
        *columns({f"{name}_low": f"lower {end}", f"{name}_high": f"upper {end}"}, dtype="float64"),
        Column(f"{name}_seeds", seeds, dtype="Int64"),
    )


WIDE = (
    *map(_as_in_long, ("protocol", "section")),
    Column("kind", "measured, or floor (a baseline without a model)"),
    _as_in_long("variant", text=lambda row, _: row["variant"] + ("" if row["kind"] == "measured" else " (floor)")),
    *map(_as_in_long, ("model", "label")),
    _as_in_long("modified", text=None),
    *map(_as_in_long, ("hardware", "reference")),
    *map(_of_task, ("metric", "hardware")),
    Column(
        name="mean_skill",
        help="mean over the tasks of the table of the score normalised so that the strongest floor is 0 and a "
        "perfect score is 1, without tasks that are not scored by accuracy and tasks that are not learned at "
        "this budget; rows are sorted by it",
        tasks="mean",
        of="skill_<task>",
        of_accuracies=True,
        dtype="float64",
        display=Display("mean skill", "percent"),
    ),
    Column(
        name="score_<task>",
        help="score on this task in {unit}, the mean over seeds; tables show it with the distance to the farther end "
        "of its 95 % confidence interval (±), or with the scores of the seeds if there are fewer than 5 or if "
        "they lie on two levels, mark scores not shown to exceed the floor, and print it in bold if the row is the "
        "best or not shown to be worse",
        dtype="float64",
        display=Display("{part}{remark}", cell=cells.task_score, key="{part}", first="best"),
    ),
    *map(_of_task, ("low", "high")),
    _of_task("seeds", dtype="Int64"),
    *map(_of_task, ("statuses", "seed_scores", "learned", "two_levels", "best", "floor", "skill")),
    Column("searched_lr_<task>", "learning rate that the search chose on this task, if any", dtype="float64"),
    Column("parameters_<task>", "number of body parameters that one token uses on this task", dtype="Int64"),
    Column("status_<task>", "badges of this task, see status"),
    _of_task("comparable"),
    Column(
        name=f"retention_{RETENTION}_<task>",
        help="skill at four times the training length of this task divided by skill at the training length; empty if "
        "not every seed clears the floor",
        dtype="float64",
    ),
    *map(_of_task, ("relative_speed", "spread_of_relative_speed", "relative_memory", "profile_time_exponent")),
    *map(_of_task, ("profile_length", "profile_kernel")),
    *_average("avg5", "mean accuracy over listops, text, retrieval, image and pathfinder, if all five were run"),
    *_average(
        "avg6_fail50",
        "mean accuracy over the tasks of avg5 and Path-X, if all were run; Path-X is 50 % if all its seeds diverged or "
        "ran out of memory or time",
    ),
    *map(_over_tasks, ("relative_speed", "spread_of_relative_speed", "relative_memory")),
    *map(_over_tasks, ("profile_length", "profile_kernel", "profile_time_exponent")),
    Column(
        name=f"retention_{RETENTION}",
        help="skill at four times the training length divided by skill at the training length, mean over tasks that "
        "are scored by accuracy and whose score has a confidence interval entirely better than the floor",
        tasks="mean",
        of_accuracies=True,
        dtype="float64",
        display=Display(f"skill kept {RETENTION}", "percent"),
    ),
    Column(
        name="parameters",
        help="number of trainable body parameters that one token uses, without embeddings, position tables and head; "
        "on each task in the order of the columns if they differ",
        tasks="largest",
        dtype="Int64",
        display=Display("parameters", cell=cells.parameters, first="ascending"),
    ),
    _as_in_long("comparable"),
    Column(
        name="status",
        help="statuses of seeds that are not ok, lengths at which the step benchmark failed, and lengths without a "
        "score, with the tasks concerned unless all are",
        display=Display(
            "status", left=True, cell=cells.status, text=lambda row, _: str(row["status"] or ""), first="ascending"
        ),
    ),
)
"""Columns of the layout ``wide``, which has one row per variant, protocol and hardware with all tasks."""

IDENTITY = (
    "task", "task_version", "protocol", "modified", "data_lacks", "model", "variant", "hardware", "reference", "hash",
    "hash_version", "seed",
)  # fmt: skip
"""Columns that identify a run. They come first in every table of ``load_records``."""

RUNS = (
    *IDENTITY, "status", "reason", "finished_at", "metric", "score", "low", "high", "examples", "loss",
    "validation_score", "searched_lr", "lr_robustness", "search_trials", "search_seconds", "floor_name", "floor",
    "parameters_total", "parameters_body", "parameters_body_active", "train_seconds", "took_off", "takeoff_steps",
    "takeoff_seconds", "training_tokens_per_second", "wall_seconds", "flops_per_token_forward", "joules_per_step",
    "train_time_exponent", "inference_time_exponent", "train_memory_exponent", "inference_memory_exponent",
    "family", "path",
)  # fmt: skip
"""Columns of ``load_records(table="runs")``."""

LONG_TEXT = (
    "rank", "variant", "reference", "score", "validation_score", "floor", "interval", "verdict", "difference",
    "score_<ratio>", "statuses", "searched_lr", "lr_robustness", "takeoff_steps", "late_loss_change", "score_at_half",
    "parameters_body_active", "comparable", "hardware", "training_tokens_per_second", "train_tokens_per_second",
    "inference_tokens_per_second", "train_peak_allocated_bytes", "train_peak_resident_growth_bytes",
    "train_limit", "modified",
)  # fmt: skip
"""View of ``LONG`` in text: terminal, Markdown and LaTeX."""

LONG_TERMINAL = (
    "rank", "variant", "score", "validation_score", "statuses", "verdict", "difference", "floor", "score_<ratio>",
    "modified", "searched_lr", "takeoff_steps", "parameters_body_active", "training_tokens_per_second",
)  # fmt: skip
"""First columns of a terminal, most important ones first; those of ``LONG_TEXT`` follow. Some may not fit."""

LONG_PAGE = (
    "rank", "variant", "score", "score_axis", "floor", "verdict", "difference", "score_<ratio>", "statuses",
    "searched_lr", "lr_robustness", "takeoff_steps", "late_loss_change", "score_at_half", "interval", "comparable",
    "parameters_body_active", "hardware", "training_tokens_per_second", "train_tokens_per_second",
    "inference_tokens_per_second", "train_peak_allocated_bytes", "train_peak_resident_growth_bytes",
)  # fmt: skip
"""View of ``LONG`` on the page: the table of one task."""

WIDE_TEXT = (
    "variant", "reference", "mean_skill", "score_<task>", "avg5", "avg6_fail50", "status", "relative_speed",
    "relative_memory", "profile_time_exponent", f"retention_{RETENTION}", "parameters", "comparable", "hardware",
    "modified",
)  # fmt: skip
"""View of ``WIDE`` in the terminal and Markdown."""

WIDE_PAGE = tuple(name for name in WIDE_TEXT if name not in ("reference", "modified"))
"""View of ``WIDE`` on the page: the table of all tasks."""


def pick(columns: Iterable[Column], names: Iterable[str]) -> list[Column]:
    """Return the columns with these names, in the order of the names. Raises ``KeyError`` for an unknown name."""
    known = {column.name: column for column in columns}
    return [known[name] for name in names]


def of_runs(names: Iterable[str]) -> list[Column]:
    """Return the columns with these names from ``long`` and ``RUN_ONLY``."""
    return pick((*long(), *RUN_ONLY), names)


def long() -> tuple[Column, ...]:
    """Return the columns of the layout ``long``: ``LONG`` with those of all measurements."""
    return _long(LONG, tuple(measurements().values()))


def view(names: Sequence[str]) -> list[str]:
    """Return the names of a view of ``LONG``, with the columns with a heading of measurements that it does not name."""
    return _with_others(
        names, measurements().values(), lambda column: column.shown_after if column.display.heading else None
    )


def recorded() -> list[Column]:
    """Return the columns of ``load_records``: those of ``RUNS``, and of measurements that it does not name."""
    names = _with_others(RUNS, measurements().values(), lambda column: None if column.repeats else column.after)
    return of_runs(names)


@lru_cache(maxsize=8)
def _long(entries: Sequence[Column | str], classes: Sequence[type[Measurement]]) -> tuple[Column, ...]:
    own = {
        each.name: [
            column if column.source or column.run else replace(column, source=f"{each.name}.{column.name}")
            for column in each.columns
        ]
        for each in classes
    }
    parts = [own[entry] if isinstance(entry, str) else [entry] for entry in entries]
    known = {column.name: column for part in (*own.values(), *parts) for column in part}
    names = _with_others([column.name for part in parts for column in part], classes, lambda column: column.after)
    return tuple(known[name] for name in names)


def _with_others(
    names: Sequence[str], classes: Iterable[type[Measurement]], after: Callable[[Column], Sequence[str] | None]
) -> list[str]:
    """Return the names with those of the columns of measurements that they do not contain.

    Each is inserted after the first of the names that ``after`` returns, or after the column before it; not at all if
    the result is None.
    """
    found = list(names)
    for each in classes:
        last = len(found) - 1
        for column in () if any(column.name in names for column in each.columns) else each.columns:
            if (places := after(column)) is not None:
                last = next((found.index(name) for name in places if name in found), last) + 1
                found.insert(last, column.name)
    return found
