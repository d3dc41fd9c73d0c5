"""Compare measured scores with the range of scores that papers report for the same model, task and set-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas as pd

from lra_bench.records.schema import Record

from .formatting import Section
from .published import load_published
from .runs import section_of, seed_score

PROTOCOL = "small"
"""The protocol whose sizes and recipe are those of Xiong et al. 2021 (arXiv 2102.03902)."""
SOURCES = ("nystromformer", "skyformer", "flashattention", "mega")
"""Files of published numbers whose authors trained models in the set-up of Xiong et al. themselves."""
COLUMNS = ("task", "model", "protocol", "hardware", "scores", "score", "band_low", "band_high", "sources", "outcome")


def reproduction(records: Iterable[Record]) -> pd.DataFrame:
    """Return one row per model, task and hardware measured under ``small``, with the band of published accuracies.

    ``scores`` are the accuracies of the seeds in percent, as text, and ``score`` is their mean. The band goes from the
    lowest to the highest accuracy that the files ``SOURCES`` contain for the name of the model, without numbers that a
    source quotes from another. ``outcome`` is ``inside`` if the mean of the seeds lies in the band, otherwise by how
    many points it lies ``above`` or ``below``. Models without a published number, with other options, and modified
    protocols are left out.
    """
    bands = published_bands()
    seeds: dict[tuple[str, str, str, str], list[float]] = {}
    for record in records:
        key, label = record.key, "" if record.variant["differences"] else str(record.variant["label"])
        searched = key.protocol != key.unsearched_protocol
        shown = record.status == "ok" and key.protocol_name == PROTOCOL and not searched
        if shown and section_of(record) == "ranked" and (label, key.task) in bands:
            row = (key.task, label, key.protocol, key.hardware)
            seeds.setdefault(row, []).append(100 * seed_score(record).score)
    rows: list[tuple[Any, ...]] = []
    for (task, label, *place), scores in sorted(seeds.items()):
        values = bands[label, task]
        low, high, mean = min(values), max(values), sum(scores) / len(scores)
        points = max(low - mean, mean - high)
        outcome = "inside" if points <= 0 else f"{points:.1f} points {'below' if mean < low else 'above'}"
        each = ", ".join(f"{score:.1f}" for score in scores)
        rows.append((task, label, *place, each, mean, low, high, len(values), outcome))
    return pd.DataFrame(rows, columns=[*COLUMNS])


def published_bands(sources: Sequence[str] = SOURCES) -> dict[tuple[str, str], list[float]]:
    """Return the accuracies in percent that ``sources`` report, by name of the model and task."""
    frame = load_published()
    own = frame[frame["file"].isin(sources) & (frame["metric"] == "accuracy") & frame["value"].notna()]
    own = own[~own["flags"].str.contains("second-hand")]
    return {(str(model), str(task)): [*group["value"]] for (model, task), group in own.groupby(["model", "task"])}


def reproduction_sections(frame: pd.DataFrame) -> Iterator[Section]:
    """Yield one table per task from the data of the layout ``reproduction``."""
    for (task, protocol), group in frame.groupby(["task", "protocol"], sort=False):
        bands = [
            f"{row['band_low']:.1f} to {row['band_high']:.1f} ({row['sources']})" for row in group.to_dict("records")
        ]
        table = group.assign(score=group["scores"], published=bands).reset_index(drop=True)
        yield Section(f"{task} · {protocol}", table[["model", "score", "published", "outcome", "hardware"]])
