"""What changed between two checkouts: their records cell by cell, and their profiles in pairs."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from lra_bench.config.search import options_of
from lra_bench.contracts import UserError
from lra_bench.profiling.comparison.ratios import geometric_mean
from lra_bench.records.profiles import ProfileRow, StoredProfile, load_profiles
from lra_bench.records.schema import EDITED, Record, variant_name
from lra_bench.records.store import existing_root, load_all
from lra_bench.runtime.safe_text import printable

from .condition import NAMES, Condition, Interval
from .formatting import BITS

POINTS = 100
"""Points per unit of a score: a point is 1 % of accuracy or 0.01 bits per character."""

NO_OPTIONS = json.dumps([{}, None, {}])

ProfileRows = Mapping[tuple[Any, ...], ProfileRow]
"""Rows of one system in a profile by mode, length and batch."""


class MatchedCell(NamedTuple):
    """Identity of a cell in both checkouts: its key with the changed options instead of the hash.

    ``options`` contains the changed options as JSON, ``system`` is the name of the variant, and ``seed`` is None for a
    system that was only profiled.
    """

    task: str
    protocol: str
    hardware: str
    system: str
    options: str
    seed: int | None

    def __str__(self) -> str:
        seed = "" if self.seed is None else f", seed {self.seed}"
        return f"{self.system} on {self.task} ({self.protocol}, {self.hardware}{seed})"


@dataclass(frozen=True)
class Change:
    """The change of one cell from the base to the head.

    Attributes:
        cell: The cell.
        values: Values by name in ``NAMES``: the difference of scores in points, negative if the head is worse, and
            ratios of the head to the base; None if unknown.
        missing: ``base`` or ``head`` if this folder lacks the cell, otherwise empty.
        note: Why the score is unknown, empty if it is known.
        fails: Whether the condition holds, or the cell has failed in the head only.
    """

    cell: MatchedCell
    values: Mapping[str, Interval | None]
    missing: str = ""
    note: str = ""
    fails: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the change as values for JSON."""
        values = {name: each and each._asdict() for name, each in self.values.items()}
        own = {name: value for name, value in self.cell._asdict().items() if name != "options"}
        return {**own, **values, "missing": self.missing, "note": self.note, "fails": self.fails}


def changes(base: Path, head: Path | None, condition: Condition | None) -> list[Change]:
    """Return the changes of all cells and profiled systems from one results folder to another, sorted by cell.

    If a cell has several records, for example of two versions of its code, the latest is used.

    Raises:
        UserError: If a folder does not exist, if the folders share no cell, or if a value of the condition is known in
            no cell, so that nothing would be tested.
    """
    if not base.is_dir():
        raise UserError(f"--base {base}: there is no such folder; name the results folder of the other checkout")
    sides = [_Side(base), _Side(existing_root(head))]
    found = []
    for cell in sorted(sides[0].cells | sides[1].cells, key=lambda each: tuple(map(str, each))):
        change = _change(cell, *sides)
        fails = change.fails or (condition is not None and condition.holds(change.values) is True)
        found.append(replace(change, fails=fails))
    both = [each for each in found if not each.missing]
    if not both:
        raise UserError(
            f"--base {base}: has no cell in common with --results {sides[1].root}; measure both checkouts with the "
            "same options on the same machine"
        )
    names = [name for name in NAMES if condition and name in condition.names]
    unknown = [name for name in names if not any(each.values[name] for each in both)]
    if condition and unknown and not any(each.fails for each in both):
        how = "bench" if unknown[0] in ("score", "parameters") else "profile"
        raise UserError(
            f'--fail-if "{condition.text}": {unknown[0]} is known in no cell of both folders; run lra-bench {how} '
            f"with --results {base} and --results {sides[1].root}"
        )
    return found


class _Side:
    """The contents of a results folder.

    Attributes:
        records: The latest record of each cell.
        profiles: Rows of each profile of a system, oldest first.
        cells: All cells, and the profiled systems without one.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.records: dict[MatchedCell, Record] = {}
        records = load_all(root)
        for record in sorted(records, key=lambda each: (each.finished_at, each.key)):
            self.records[_matched(record)] = record
        of_hash = {(record.key.task, record.key.hash): _matched(record) for record in records}
        self.profiles: dict[MatchedCell, list[ProfileRows]] = {}  # oldest first
        for profile in load_profiles(root, broken=lambda message: None):  # ``load_all`` has reported the broken ones
            for cell, rows in _systems(profile, of_hash).items():
                self.profiles.setdefault(cell, []).append(rows)
        of_cells = {cell._replace(seed=None) for cell in self.records}
        self.cells = {*self.records, *(self.profiles.keys() - of_cells)}


def _matched(record: Record) -> MatchedCell:
    key, differences = record.key, {**record.variant["differences"]}
    differences.pop(EDITED, None)
    values = options_of(record.config, record.protocol_modified)
    options = json.dumps([differences, record.variant["position"], values], sort_keys=True)
    name = variant_name(key.model, {**differences, **values}, record.variant["position"])
    return MatchedCell(key.task, key.protocol, key.hardware, name, options if options != NO_OPTIONS else "", key.seed)


def _systems(
    profile: StoredProfile, of_hash: Mapping[tuple[str, str], MatchedCell]
) -> Mapping[MatchedCell, ProfileRows]:
    """Return the rows of each system by mode, length and batch, without those of the baselines."""
    found: dict[MatchedCell, dict[tuple[Any, ...], ProfileRow]] = {}
    hardware = profile.path.parent.name
    for row in profile.rows:
        if row.get("baseline"):
            continue
        name = row["variant"].removesuffix(f" · {EDITED}")
        own = MatchedCell(profile.task, profile.protocol, hardware, name, "", None)
        cell = of_hash.get((profile.task, row["hash"]), own)._replace(hardware=hardware, seed=None)
        batch = row["batch_policy"], row["batch_size"] if row["batch_policy"] == "fixed" else None
        found.setdefault(cell, {}).setdefault((row["mode"], row["length"], *batch), row)
    return found


def _change(cell: MatchedCell, base: _Side, head: _Side) -> Change:
    values: dict[str, Interval | None] = dict.fromkeys(NAMES)
    lacking = [name for name, side in (("base", base), ("head", head)) if cell not in side.cells]
    if lacking:
        return Change(cell, values, missing=lacking[0])
    system = cell._replace(seed=None)
    values |= _costs(base.profiles.get(system, ()), head.profiles.get(system, ()))
    if cell.seed is None:
        return Change(cell, values)
    before, after = base.records[cell], head.records[cell]
    if before.status != after.status:
        return Change(cell, values, note=f"{before.status}, now {after.status}", fails=before.status == "ok")
    values["parameters"] = _exact(_ratio(*((each.parameters or {}).get("total") for each in (after, before))))
    fingerprints = {each.data["fingerprint"] for each in (before, after) if each.data}
    if len(fingerprints) > 1:
        return Change(cell, values, note="the data differ")
    old, new = before.score(), after.score()
    if old is None or new is None or before.metric != after.metric:
        return Change(cell, values, note="no score")
    values["score"] = _exact(POINTS * (old - new if after.metric == BITS else new - old))
    return Change(cell, values)


def _exact(value: float | None) -> Interval | None:
    return None if value is None else Interval(value, value, value)


def _ratio(own: float | None, other: float | None) -> float | None:
    return own / other if own is not None and other else None


def _costs(base: Sequence[ProfileRows], head: Sequence[ProfileRows]) -> dict[str, Interval]:
    """Return the ratios of costs: medians over pairs of profiles, the latest of both checkouts and so on backwards.

    The ratio of a pair is the geometric mean over lengths and batches. The interval extends from the lowest to the
    highest end of the pairs.
    """
    of_pairs: dict[str, list[Interval]] = {}
    for before, after in zip(reversed(base), reversed(head), strict=False):
        steps, inference = ([*_shared(before, after, mode)] for mode in ("train", "inference"))
        memory = geometric_mean(_ratio(new.get("peak_bytes"), old.get("peak_bytes")) for old, new in steps)
        own = {"speed": _speed(steps), "inference_speed": _speed(inference), "memory": _exact(memory)}
        for name, ratio in own.items():
            of_pairs.setdefault(name, []).extend([ratio] if ratio else [])
    return {
        name: Interval(statistics.median(r.value for r in own), min(r.low for r in own), max(r.high for r in own))
        for name, own in of_pairs.items()
        if own
    }


def _shared(base: ProfileRows, head: ProfileRows, mode: str) -> Iterator[tuple[ProfileRow, ProfileRow]]:
    """Yield the rows of a mode that were measured in both profiles."""
    for key, row in base.items():
        if key[0] == mode and key in head and row["status"] == head[key]["status"] == "ok":
            yield row, head[key]


def _speed(rows: Iterable[tuple[ProfileRow, ProfileRow]]) -> Interval | None:
    """Return the ratio of speeds of two profiles, each relative to the Transformer in the same profile.

    Its relative spread is the mean over rows of the root of the sum of both squared spreads.
    """
    ratios, spreads = [], []
    for old, new in rows:
        spread = [each["spread_of_speed_ratio_default"] for each in (old, new)]
        ratio = _ratio(new["speed_ratio_default"], old["speed_ratio_default"])
        if ratio and None not in spread and old["default_backend"] == new["default_backend"]:
            ratios.append(ratio)
            spreads.append(math.hypot(*filter(None, spread)))
    if (mean := geometric_mean(ratios)) is None:
        return None
    spread_of_mean = statistics.mean(spreads)
    return Interval(mean, mean / (1 + spread_of_mean), mean * (1 + spread_of_mean))


def rows(found: Sequence[Change]) -> list[dict[str, str]]:
    """Return the changes as a table: text by heading, without columns that are the same or empty in all rows."""
    table = [
        {
            "task": change.cell.task,
            "protocol": change.cell.protocol,
            "hardware": change.cell.hardware,
            "system": change.cell.system,
            "seed": "" if change.cell.seed is None else str(change.cell.seed),
            "score": _points(change.values["score"]),
            **{name.replace("_", " "): _times(change.values[name]) for name in NAMES[1:]},
            "result": _result(change),
        }
        for change in found
    ]
    several = {name for name in ("protocol", "hardware") if len({row[name] for row in table}) > 1}
    shown = [name for name in table[0] if name in several or name not in ("protocol", "hardware")]
    return [{name: row[name] for name in shown if any(each[name] for each in table)} for row in table]


def _points(score: Interval | None) -> str:
    return "" if score is None else f"{score.value:+.2f}" if score.value else "equal"


def _result(change: Change) -> str:
    if change.missing:
        return f"missing in the {change.missing}"
    return ("FAILS" if change.fails else "ok") + (f" ({change.note})" if change.note else "")


def verdict(found: Sequence[Change], condition: Condition | None) -> str:
    """Return the number of rows that fail, and the cells that one folder lacks, as sentences."""
    failed, missing = sum(each.fails for each in found), [each for each in found if each.missing]
    count = f"{failed} of {len(found) - len(missing)} rows fail{'' if condition is None else f': {condition.text}'}."
    return "\n".join([count, *(f"Missing in the {each.missing}: {each.cell}." for each in missing)])


def markdown(found: Sequence[Change], condition: Condition | None) -> str:
    """Return the changes as Markdown, for a comment or the summary of a pull request."""
    import pandas as pd

    table = pd.DataFrame(rows(found)).map(lambda cell: printable(cell).replace("|", "\\|"))
    lines = verdict(found, condition).splitlines()
    return "\n\n".join([table.to_markdown(index=False, disable_numparse=True), *map(printable, lines)]) + "\n"


def _times(ratio: Interval | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio.value:.2f}×" + (f" [{ratio.low:.2f}, {ratio.high:.2f}]" if ratio.low < ratio.high else "")
