"""A self-contained HTML page with the tables of a results folder, its charts, and the details of each row."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from importlib import metadata, resources
from pathlib import Path
from typing import Any

import pandas as pd

from lra_bench.figures.palette import WHITE, contrast, look, mixed
from lra_bench.records.machines import combine_machines
from lra_bench.records.schema import Record
from lra_bench.statistics.paired import CLAIM_SEEDS, MIN_SEEDS
from lra_bench.tables.export import NO_RECORDS, write_files
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.summary import default_protocol

from .facts import details
from .rows import Places
from .tables import protocols, published_tables

FILE = "leaderboard.html"
SCRIPTS = [  # each uses names of earlier ones
    f"{name}.js"
    for name in ["dom", "state", "chart", "costs", "answer", "scatter", "details", "table", "compare", "page"]
]
DARK_GROUND = "#15181c"
READABLE = 4.5  # minimum contrast ratio of text in WCAG 2.2


def page(records: Sequence[Record], frames: Mapping[str, pd.DataFrame], if_empty: str = NO_RECORDS) -> str:
    """Return the page as HTML from the records and every layout of them; it shows ``if_empty`` if there are none."""
    records = combine_machines(records)
    families = {record.key.model: "other" for record in records}
    families |= {record.key.model: record.capability.get("family", "other") for record in records if record.capability}
    board = frames["long"]
    places = Places(board, records, families, model_classes(families))
    boards = protocols(records, board, frames["wide"], default_protocol(records), places) if records else []
    data = {
        "protocols": boards,
        "published": published_tables(frames["published"]),
        "cells": details(records, board, places.look),
        "minSeeds": MIN_SEEDS,
        "claimSeeds": CLAIM_SEEDS,
    }
    return document(
        text_of("page.html.j2"),
        text_of("page.css") + rules(families),
        '"use strict";\n(async () => {\n' + "\n".join(text_of(name) for name in SCRIPTS) + "})();\n",
        board=boards[0] if boards else None,
        published_note=LAYOUTS["published"].note,
        data=packed(data),
        if_empty=if_empty,
        count=len(records),
        last=max((record.finished_at for record in records), default="")[:10],
    )


def document(template: str, style: str, script: str = "", **values: Any) -> str:
    """Return a self-contained HTML page from a template, which escapes all values.

    The template receives ``values``, style and script with their hashes for the content security policy, the icon and
    the version of lra-bench.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(template).render(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        icon=base64.b64encode(text_of("icon.svg").encode()).decode(),
        version=metadata.version("lra-bench"),
        **values,
    )


def write_page(
    records: Sequence[Record], frames: Mapping[str, pd.DataFrame], folder: Path, if_empty: str = NO_RECORDS
) -> Path:
    """Write the ``page`` to ``folder`` atomically and return its path. Raises ``UserError`` if it cannot be written."""
    [path] = write_files({FILE: page(records, frames, if_empty)}, folder)
    return path


def model_classes(families: Mapping[str, str]) -> dict[str, str]:
    """Return the CSS class of each model's colour, from a mapping of models to families."""
    return {model: f"m{number}" for number, model in enumerate(sorted(families))}


def rules(families: Mapping[str, str]) -> str:
    """Return the CSS rules of these classes: colours of the figures, lightened for the dark theme."""
    colours = {name: look(model, families[model]).colour for model, name in model_classes(families).items()}
    return "".join(f".{name}{{--own:light-dark({colour},{lightened(colour)})}}\n" for name, colour in colours.items())


def lightened(colour: str, ground: str = DARK_GROUND) -> str:
    """Return ``colour`` mixed with white until it is readable on ``ground``; darker colours become lighter."""
    wanted = max(READABLE, (READABLE + contrast(colour, WHITE)) / 2)
    lighter = (mixed(colour, 255, share / 100) for share in range(0, 101, 5))
    return next((each for each in lighter if contrast(each, ground) >= wanted), WHITE)


def packed(data: Any) -> str:
    """Return JSON values compressed by zlib, in base64; browsers unpack them with ``DecompressionStream``."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def text_of(name: str, package: str = __package__) -> str:
    """Return the text of a file of a package, by default of this one."""
    return (resources.files(package) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
