"""The card of a model: a self-contained HTML page of its records, which prints on A4."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd

from lra_bench.figures import figure
from lra_bench.figures.layout import Sheet, svg
from lra_bench.figures.speed_vs_length import speed_vs_length
from lra_bench.figures.style import COLUMN_INCHES, style
from lra_bench.page.charts import drawn
from lra_bench.page.page import document, text_of
from lra_bench.profiling.comparison.run import Profile
from lra_bench.records.machines import combine_machines
from lra_bench.records.schema import Record
from lra_bench.runtime.findings import Finding
from lra_bench.runtime.safe_text import printable
from lra_bench.statistics.paired import MIN_SEEDS
from lra_bench.tables import columns as registry
from lra_bench.tables.claims import REFERENCE, key_of, place_of, rankings
from lra_bench.tables.column import Shown
from lra_bench.tables.comparison import verdict
from lra_bench.tables.formatting import Section, rows_of, score
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.naming import select
from lra_bench.tables.overview import systems
from lra_bench.tables.pair_tests import NO_DIFFERENCE
from lra_bench.tables.profile import tables
from lra_bench.tables.runs import Run, section_of
from lra_bench.tables.sections import long_context

FIGURES = {
    "abilities": "Abilities",
    "extrapolation": "Score over length",
    "minimal_pairs": "Minimal pairs of ListOps",
}
"""Figures of records, with their headings."""
SHOWN = {
    "score": "score", "floor": "strongest floor", "score_4x": "at 4× the length", "takeoff_steps": "take-off (steps)",
    "minimal_pairs": "minimal pairs", "state_bytes": "state", "parameters_body_active": "parameters",
}  # fmt: skip
"""Columns of the table of results, with their headings."""
FEWEST = 2
"""Fewest tasks of a row of a board in the table of systems and tasks."""
LEFT_OUT = ("parameters", "hardware", "comparable with transformer", "modified")
"""Columns of that table that a card leaves out."""
PROFILED = ("steps per second", "peak memory", "inference state", "growth")
"""Beginnings of the titles of the tables of a profile that a card contains."""
GROUPS = {"better": "Better", "worse": "Worse", NO_DIFFERENCE: "No difference shown", "": "No claim"}


class Claim(NamedTuple):
    """A sentence on a task: its group, a key of ``GROUPS``, and what ``Ranking.compare`` supports."""

    group: str
    task: str
    sentence: str


class Picture(NamedTuple):
    """A figure: heading, caption, and the URLs of its pages as SVG."""

    heading: str
    caption: str
    sources: Sequence[str]


def card(
    cells: Sequence[Record],
    absent: Mapping[str, str],
    records: Sequence[Record],
    rivals: Sequence[str],
    findings: Sequence[Finding],
    profile: Profile | None,
    commands: Mapping[str, str],
    entries: str,
) -> str:
    """Return the card as HTML.

    Args:
        cells: The records of the model's cells.
        absent: Reasons why a task has no record, by task.
        records: All records, of the user and of the boards.
        rivals: Models that figures show next to the model and the Transformer.
        findings: The results of the check of the model.
        profile: The profile of the model, None without one.
        commands: Commands by what they do.
        entries: BibTeX entries.
    """
    first = cells[0]
    measured = [record for record in cells if record.status != "incompatible"]
    tasks = list(dict.fromkeys(record.key.task for record in measured or cells))
    chosen = select(records, tasks, first.key.protocol)
    names = (REFERENCE, *rivals)
    own = {record.key for record in cells}
    others = on_one_machine(r for r in chosen if r.reference or (r.key.model in names and r.key not in own))
    seeds = sorted({record.key.seed for record in cells})
    shown = [*measured, *(record for record in others if record.variant_name in names)]
    reasons = {record.key.task: record.reason for record in cells if record.status == "incompatible"}
    not_measured: dict[str, list[str]] = {}
    for task, reason in {**reasons, **absent}.items():
        not_measured.setdefault(printable(reason), []).append(task)
    return document(
        text_of("card.html.j2", __package__),
        text_of("page.css") + text_of("card.css", __package__),
        title=printable(Run(first).label),
        first=first,
        variant=printable(first.variant_name),
        seeds=seeds,
        last=max(record.finished_at for record in cells)[:10],
        findings=findings,
        wrong=[finding for finding in findings if finding.ok is False],
        groups=GROUPS,
        claims=claims(cells, chosen),
        least=MIN_SEEDS,
        results=results(measured, others),
        not_measured=not_measured,
        systems=wide(measured, others),
        pictures=[*pictures(FIGURES, measured, shown, others), *speed(profile, shown)],
        profile=[
            (title, rows)
            for title, rows in (tables(profile) if profile else ())
            if rows and title.rpartition(" · ")[2].startswith(PROFILED)
        ],
        warnings=profile.warnings if profile else [],
        commands=commands,
        entries=printable(entries),
    )


def on_one_machine(records: Iterable[Record]) -> list[Record]:
    """Return the records of the section ``ranked``, for each variant of a task those of one machine.

    It is the first in sorted order, as in ``rankings``.
    """
    chosen = (record for record in combine_machines(records) if section_of(record) == "ranked")
    ranked = sorted(chosen, key=lambda record: (record.reference, record.key))
    first: dict[tuple[str, str], str] = {}
    for record in ranked:
        first.setdefault((record.key.task, record.key.hash), record.machine)
    return [record for record in ranked if record.machine == first[record.key.task, record.key.hash]]


def claims(cells: Sequence[Record], records: Sequence[Record]) -> list[Claim]:
    """Return a sentence for each task on which the model and the Transformer have enough seeds, otherwise none.

    The comparisons are those of ``Ranking`` over all ``records``, as in ``lra-bench compare``.
    """
    found = rankings(records)
    sentences = []
    for record in {record.key.task: record for record in cells}.values():
        ranking, key = found.get(place_of(record)), key_of(record)
        against = ranking.reference() if ranking is not None else None
        if ranking is None or against == key or not {against, key} <= {*ranking.with_seeds()}:
            continue
        assert against is not None
        pair = ranking.compare(key, against)
        a, b = (printable(ranking.entries[each].name) for each in (key, against))
        group = pair.verdict_of_a.removesuffix(" in every seed")
        scores = f"{a} {score(pair.score_a, pair.metric)}, {b} {score(pair.score_b, pair.metric)}"
        sentences.append(Claim(group if group in GROUPS else "", pair.task, f"{scores}; {verdict(pair, a, b)}"))
    return sentences


def results(cells: Sequence[Record], others: Sequence[Record]) -> Section:
    """Return the table of results: one row per task, with the score of the Transformer."""
    board = LAYOUTS["long"].make([*cells, *others])
    known = {column.named("4x"): column for column in registry.long()}
    keys = {(record.key.task, record.key.model, record.key.hash) for record in cells}
    rows = rows_of(board)
    table: list[dict[str, str]] = []
    for row in rows:
        if (row["task"], row["model"], row["hash"]) not in keys or row["reference"]:
            continue
        same = [other for other in rows if (other["task"], other["task_version"]) == (row["task"], row["task_version"])]
        context, _ = long_context(same)
        texts = {
            heading: Shown(known[name], replace(context, part="4x")).text(row) if row.get(name) is not None else ""
            for name, heading in SHOWN.items()
        }
        if row["took_off"] == 0:
            texts[SHOWN["takeoff_steps"]] = "–"
        theirs = next((each for each in same if each["variant"] == REFERENCE and each["score"] is not None), None)
        reference = Shown(known["score"], context).text(theirs) if theirs and row["model"] != REFERENCE else ""
        status = "" if row["score"] is not None else str(row["reason"] or "no score")
        table.append({"task": row["task"], **texts, "transformer": reference, "remark": status})
    order = list(dict.fromkeys(record.key.task for record in cells))
    table.sort(key=lambda row: order.index(row["task"]))
    found = pd.DataFrame(table)
    return Section("Results", found.loc[:, (found != "").any()].map(printable))


def wide(cells: Sequence[Record], others: Sequence[Record]) -> list[Section]:
    """Return the tables of systems and tasks: the model, and the rows of the boards with ``FEWEST`` tasks or more."""
    tasks: dict[str, set[str]] = {}
    for record in others:
        tasks.setdefault(record.variant_name, set()).add(record.key.task)
    several = [record for record in others if len(tasks[record.variant_name]) >= FEWEST]
    layout = LAYOUTS["wide"]
    sections = layout.sections(systems(layout.make([*cells, *several])), short=True)
    return [
        replace(each, table=each.table.drop(columns=[name for name in LEFT_OUT if name in each.table]).map(printable))
        for each in sections
    ]


def pictures(
    names: Mapping[str, str], cells: Sequence[Record], shown: Sequence[Record], boards: Sequence[Record]
) -> Iterator[Picture]:
    """Yield the figures of records that have data: the abilities with all rows of boards, others with ``shown``."""
    for name, heading in names.items():
        found = figure(name)
        records = [*cells, *boards] if name == "abilities" else shown
        if name == "minimal_pairs":
            records = [record for record in records if record.key.task == "listops"]
        if (usable := drawn(records, found)) and not (data := found.table(usable)).empty:
            with style("sans-serif"):
                yield _picture(heading, found.caption, found.draw(data, COLUMN_INCHES))


def speed(profile: Profile | None, records: Sequence[Record]) -> Iterator[Picture]:
    """Yield the figure of time and memory over length of a profile."""
    if profile is not None:
        names = {r.key.model: (Run(r).label, (r.capability or {}).get("family", "other")) for r in records}
        data = speed_vs_length.of_profile(profile, names)
        with style("sans-serif"):
            sheets = speed_vs_length.draw(data, COLUMN_INCHES)
            yield _picture("Speed and memory over length", speed_vs_length.caption, sheets)


def _picture(heading: str, caption: str, sheets: Iterable[Sheet]) -> Picture:
    pages = [svg(page) for sheet in sheets for page in sheet.pages]
    sources = [f"data:image/svg+xml;base64,{base64.b64encode(page).decode()}" for page in pages]
    return Picture(heading, caption.partition("\n\n")[2] or caption, sources)
