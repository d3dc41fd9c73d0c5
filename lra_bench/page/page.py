"""A self-contained HTML page with all tables of a results folder and the details of each row."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.contracts import UserError
from lra_bench.records.schema import STATUSES, Record
from lra_bench.runtime.files import replacing, why
from lra_bench.tables.cell import EMPTY
from lra_bench.tables.column import Shown
from lra_bench.tables.export import NO_RECORDS
from lra_bench.tables.formatting import readable, rows_of
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.overview import task_labels
from lra_bench.tables.summary import default_protocol

from . import colours
from .answers import answers
from .details import details
from .published import TRACK, published_tables
from .rows import Places, Table
from .tables import task_table, wide_tables

if TYPE_CHECKING:
    import pandas as pd

FILE = "leaderboard.html"
SCRIPTS = ("dom.js", "sort.js", "filter.js", "chart.js", "details.js", "page.js")


@dataclass(frozen=True)
class Track:
    """The tables of one protocol, or those of published results."""

    id: str
    title: str
    tables: Sequence[Table]
    runs: int = 0


def page(records: Sequence[Record], frames: Mapping[str, pd.DataFrame], if_empty: str = NO_RECORDS) -> str:
    """Return the page as HTML from the records and the data of every layout made from them.

    ``if_empty`` is the sentence shown if there are no records, without a full stop.
    """
    import jinja2

    families = {record.key.model: "other" for record in records}
    families |= {record.key.model: record.capability.get("family", "other") for record in records if record.capability}
    looks = colours.model_classes(families)
    board = frames["long"]
    places = Places(board, families, looks)
    default = default_protocol(records) if records else TRACK
    tracks = [
        *sorted(_tracks(records, frames, places), key=lambda track: track.id != default),
        Track(TRACK, LAYOUTS["published"].title, published_tables(frames["published"])),
    ]
    sources = {name: _text(name) for name in ("page.html.j2", "page.css", *SCRIPTS)}
    style = sources["page.css"] + colours.rules(families)
    script = '"use strict";\n(() => {\n' + "\n".join(sources[name] for name in SCRIPTS) + "})();\n"
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=jinja2.DictLoader(sources),
    )  # fmt: skip
    return environment.get_template("page.html.j2").render(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        icon=base64.b64encode(_text("icon.svg").encode()).decode(),
        tracks=tracks,
        default=default,
        answers=answers(board, default, places) if records else [],
        measured=[track for track in tracks if track.id != TRACK],
        choices={
            "track": [(track.id, track.title) for track in tracks],
            "task": [(task, task) for task in sorted({record.key.task for record in records})],
            "hardware": [(machine, machine) for machine in sorted({record.machine for record in records})],
            "family": [(family, readable(family)) for family in colours.family_classes(families.values())],
        },
        families=colours.family_classes(families.values()),
        columns=_columns(tracks),
        statuses=STATUSES,
        notes=[LAYOUTS[name].note for name in ("wide", "long")],
        published_note=LAYOUTS["published"].note,
        data=details(records, board, places.look),
        empty=EMPTY,
        if_empty=if_empty,
        elsewhere=TRACK,
        count=len(records),
        last=max((record.finished_at for record in records), default="")[:10],
        version=metadata.version("lra-bench"),
    )


def write_page(
    records: Sequence[Record], frames: Mapping[str, pd.DataFrame], folder: Path, if_empty: str = NO_RECORDS
) -> Path:
    """Write the ``page`` to ``folder`` atomically and return its path. Raises ``UserError`` if it cannot be written."""
    path = folder / FILE
    try:
        with replacing(path) as temporary:
            temporary.write_text(page(records, frames, if_empty), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--results {folder}: {why(error)}; choose another folder with --results") from error
    return path


def _tracks(records: Sequence[Record], frames: Mapping[str, pd.DataFrame], places: Places) -> list[Track]:
    """Return one track per protocol, with a table of all tasks followed by one table per task."""
    board, overview = frames["long"], frames["wide"]
    tracks = []
    for protocol, rows in overview.groupby("protocol", sort=False) if len(overview) else []:
        own = board[board["protocol"] == protocol]
        own = own.assign(label=task_labels(own))
        floors = rows_of(rows[rows["kind"] == "floor"])
        tables = [*wide_tables(rows, places)]
        for number, (label, members) in enumerate(own.groupby("label", sort=False)):
            tables.append(task_table(members.drop(columns="label"), str(label), floors, places, number))
        runs = sum(record.key.protocol == protocol for record in records)
        tracks.append(Track(str(protocol), str(protocol), tables, runs))
    return tracks


def _columns(tracks: Sequence[Track]) -> list[Shown]:
    """Return the columns of all measured tables without duplicates, for the list of columns on the page."""
    found = {
        column.key: column
        for track in tracks if track.id != TRACK
        for table in track.tables
        for column in table.columns
    }  # fmt: skip
    return list(found.values())


def _text(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
