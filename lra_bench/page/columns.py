"""The columns of measured tables, and what each means in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from lra_bench.leaderboard.formatting import spoken
from lra_bench.leaderboard.wide import RETENTION

from .table_cells import Column, Direction

KEPT = f"retention_{RETENTION}"
VARIANT = Column("variant", "variant", "model, and what differs from its file", "text", "ascending")
HARDWARE = Column("hardware", "hardware", "the machine that ran it; costs compare within it alone", "text", "ascending")
STATUS = Column(
    "status", "status", "how seeds ended that did not end well, and where the step benchmark did", "number", "ascending"
)
OVER = Column("over", "over", "what the interval is over: seeds from two on, else test examples", "text", "ascending")
COMPARABLE = Column(
    "comparable",
    "comparable",
    "protocol unchanged, and the body within 10 % of the transformer's parameters; empty where that was not run",
)
PARAMETERS = Column(
    "parameters",
    "parameters",
    "of the body, those that one token uses; without embeddings, position tables and head",
    first="ascending",
)
AVERAGES = (
    Column("avg5", "avg5", "mean of the five tasks without Path-X, only where all were run"),
    Column("avg6_fail50", "avg6 fail50", "the same with Path-X, which counts 50 % where it failed"),
)


def better_end(metric: str | None) -> Direction:
    """The order that begins with the best: shares from above, bits from below."""
    return "ascending" if metric == "bits_per_character" else "descending"


def unit_of(metric: str | None) -> str:
    """The unit in which a score is shown."""
    return "bits per character" if metric == "bits_per_character" else "%"


def task_column(label: str, metric: str | None) -> Column:
    """The scores of a task."""
    interval = f"mean over seeds with the wider half of its 95 % interval, in {unit_of(metric)}"
    return Column(label, label, f"score on {label}, {interval}; bold: ties with the best", first=better_end(metric))


def relative_columns(at: str) -> Sequence[Column]:
    """What a variant costs over all tasks; ``at`` is the length at which it was timed, where all share one."""
    return (
        Column(
            "relative_speed", f"relative speed {at}".strip(),
            "training step against the transformer on the same hardware, at one length and batch", machine=True,
        ),
        Column(
            "relative_memory", "relative memory", "peak memory of that step against the transformer's",
            first="ascending", machine=True,
        ),
        Column(
            "time_exponent", "time exponent", "a of time ~ length^a, training step, mean over tasks", first="ascending",
            machine=True,
        ),
        Column(
            KEPT, f"skill kept {RETENTION}",
            "skill at four times the training length over skill at the training length, mean over tasks with skill",
        ),
    )  # fmt: skip


def score_columns(metric: str | None, floor_name: str, ratios: Sequence[str]) -> Sequence[Column]:
    """The columns of one task's scores; ``floor_name`` where all rows have the same."""
    first, unit = better_end(metric), unit_of(metric)
    named = f"{spoken(floor_name)} floor" if floor_name else "floor"
    return (
        Column("rank", "rank", "place by score within task, protocol and data; see ties", first="ascending"),
        VARIANT,
        Column("score", "score", f"mean over seeds that ended well, with its 95 % interval, in {unit}", first=first),
        Column(
            "interval", "interval", "the score with its 95 % interval on one axis; the tick is the floor", first=first
        ),
        Column("ties", "ties", "rows that share a letter were not told apart; none: fewer than 3 seeds", "text",
               "ascending"),
        Column("floor", named, f"what a rule without a model reaches on the same rows, in {unit}", first=first),
        *(
            Column(f"score_{ratio}", ratio.replace("x", "×"),
                   f"score on rows {ratio.replace('x', ' times')} as long as those trained on, in {unit}", first=first)
            for ratio in ratios
        ),
    )  # fmt: skip


def cost_columns(at: str) -> Sequence[Column]:
    """What training and inference cost on one task; ``at`` is the length of the step benchmark."""
    return (
        Column("training_tokens_per_second", "run tokens/s", "real tokens per second of the training run",
               machine=True),
        Column("train_tokens_per_second", f"step tokens/s {at}".strip(),
               "step benchmark, training, at the longest length that most rows measured", machine=True),
        Column("inference_tokens_per_second", f"inference tokens/s {at}".strip(),
               "step benchmark, inference, at the same length", machine=True),
        Column("train_peak_allocated_bytes", f"step memory {at}".strip(),
               "peak of allocated memory of a training step, GPU", first="ascending", machine=True),
        Column("train_peak_resident_growth_bytes", f"RSS growth {at}".strip(),
               "growth of resident memory of a training step, CPU", first="ascending", machine=True),
        Column("train_time_exponent", "time exponent", "a of time ~ length^a, training step", first="ascending",
               machine=True),
    )  # fmt: skip
