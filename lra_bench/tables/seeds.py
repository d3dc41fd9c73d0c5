"""The aggregation over seeds that tables, figures, the page and trackers share; its rows have typed values.

Scores of seeds are numbers, statuses are counts, limits and badges are objects. ``str`` of such a value is its text,
which files and tables of text contain (``printed``).
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lra_bench.contracts.measurement import Rule
from lra_bench.statistics.seeds import SeedScore, summarise_seeds

SUMMARY = ("score", "low", "high", "learned", "two_levels", "clears_floor")


class Scores(tuple[float, ...]):
    """The scores of the seeds of a row, in the order of the seeds; as text with six digits, separated by spaces."""

    def __str__(self) -> str:
        return " ".join(f"{score:.6g}" for score in self)


class Statuses(dict[str, int]):
    """The number of seeds by status, the most frequent first; as text ``3 ok, 1 diverged``."""

    def __str__(self) -> str:
        return ", ".join(f"{count} {status}" for status, count in self.items())


def over_seeds(points: pd.DataFrame, by: Sequence[str], rules: Mapping[str, Rule] | None = None) -> pd.DataFrame:
    """Return one row per group of ``by`` with its seeds combined.

    Args:
        points: One row per seed, with the columns of ``by``, ``seed``, ``score``, ``low``, ``high``, ``metric`` and, if
            known, ``floor``, ``clears_floor``, ``status`` and ``reason``.
        by: The columns that identify a row.
        rules: How further columns are combined. By default numbers are averaged, and other columns have the value that
            all seeds share.

    Returns:
        The rows, sorted by ``by``. Only seeds with status ok count, or without a column ``status`` those with a score;
        if there is none, all seeds do. ``seeds`` is their number, 0 if there is none. ``score``, ``low``, ``high``,
        ``learned``, ``two_levels`` and ``clears_floor`` are those of ``SeedSummary``. ``seed_scores`` are ``Scores``,
        ``statuses`` are ``Statuses``. ``interval`` is what ``low`` and ``high`` are computed over: ``examples`` with
        one seed, ``seeds``, or ``each`` if several seeds have no common interval.
    """
    frame = points.sort_values([*by, "seed"]).reset_index(drop=True)
    own = [str(name) for name in frame if name not in (*by, "seed", *SUMMARY)]
    numeric = [name for name in own if pd.api.types.is_numeric_dtype(frame[name])]
    chosen: dict[str, Rule] = {name: "mean" if name in numeric else "shared" for name in own}
    chosen |= {name: rule for name, rule in (rules or {}).items() if name in own}
    values = {str(name): frame[name].tolist() for name in frame}
    groups = frame.groupby(list(by), dropna=False).indices.values()
    found = [_row(values, by, chosen, [int(place) for place in places]) for places in groups]
    rows = pd.DataFrame(found, columns=None if found else [*by, *chosen, *SUMMARY, "seeds", "seed_scores", "interval"])
    means = [name for name in numeric if chosen[name] == "mean"]
    return rows.astype(dict.fromkeys((*means, "low", "high"), "float64"))


def _row(
    values: Mapping[str, list[Any]], by: Sequence[str], rules: Mapping[str, Rule], places: Sequence[int]
) -> dict[str, Any]:
    """Return the row of the seeds at the indices ``places`` of each column."""
    if "status" in values:
        done = [place for place in places if values["status"][place] == "ok"]
    else:
        done = [place for place in places if is_known(values["score"][place])]
    used = done or places
    row = {name: values[name][places[0]] for name in by}
    row |= {name: combine(rule, [values[name][place] for place in used]) for name, rule in rules.items()}
    row["seeds"] = len(done)
    if "status" in values:
        row["statuses"] = Statuses(Counter(values["status"][place] for place in places).most_common())
    if "reason" in rules:  # the reasons of the seeds that did not finish
        row["reason"] = "; ".join(dict.fromkeys(reason for place in places if (reason := values["reason"][place])))
    scored = [place for place in done if is_known(values["score"][place])]
    if not scored:
        return row | dict.fromkeys(SUMMARY) | {"two_levels": False, "seed_scores": Scores(), "interval": None}
    unknown = [None] * len(values["score"])
    columns = [values.get(name, unknown) for name in ("score", "low", "high", "clears_floor")]
    seeds = [SeedScore(*(known(column[place]) for column in columns)) for place in scored]
    floor = combine("mean", [values.get("floor", unknown)[place] for place in scored])
    found = summarise_seeds(seeds, values["metric"][scored[0]] != "bits_per_character", floor)
    return {
        **row,
        **{name: getattr(found, name) for name in SUMMARY},
        "seed_scores": Scores(seed.score for seed in seeds),
        "interval": "examples" if len(seeds) == 1 else "each" if found.low is None else "seeds",
    }


def combine(rule: Rule, values: Sequence[Any]) -> Any:
    """Combine values, such as those of the seeds of a row; None if no value is known."""
    found = [value for value in values if is_known(value)]
    if not found or (rule.endswith("of all") and len(found) < len(values)):
        return None
    match rule:
        case "all true":
            return False if False in found else True if len(found) == len(values) else None
        case "geometric mean":
            return math.exp(math.fsum(map(math.log, found)) / len(found))
        case "median of all":
            return statistics.median(found)
        case "sum of all":
            return sum(found)
        case "largest":
            return max(found)
        case "mean":
            return math.fsum(found) / len(found)
        case "shared":
            return found[0] if all(value == found[0] for value in found) else None
    return found[0]


def known(value: Any) -> Any:
    """Return a value, None if it is missing."""
    return value if is_known(value) else None


def is_known(value: Any) -> bool:
    """Return whether a value is neither None nor NaN."""
    return value is not None and value == value


def printed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table for files, in which typed values are replaced by their texts."""

    def text(value: Any) -> Any:
        return str(value) if isinstance(value, tuple | Mapping) else value

    return frame.assign(**{str(name): own.map(text) for name, own in frame.items() if own.dtype == object})
