"""Tables of published results for the page: one unranked table per source."""

from __future__ import annotations

import re

import pandas as pd

from lra_bench.contracts.measurement import Column, Display
from lra_bench.tables.cell import Cell, word
from lra_bench.tables.column import Context, Shown
from lra_bench.tables.formatting import Section
from lra_bench.tables.published_table import published_sections

from .rows import Json, described, digest, encoded, table

WORDS = ("variant", "printed average", "flags", "quotes")
HELP = {
    "variant": "name of the model in the source",
    "avg5": "mean accuracy over the five tasks without Path-X, computed from the row",
    "avg6_fail50": "mean accuracy over the six tasks including Path-X, which counts as 50 % if it failed",
    "printed average": "average as printed in the source",
    "flags": "reasons why the numbers are not directly comparable",
    "quotes": "arXiv id of the original source of second-hand numbers",
}


def published_tables(frame: pd.DataFrame) -> list[Json]:
    """Return the tables of the published layout, in its order."""
    return [_table(place, section) for place, section in enumerate(published_sections(frame))]


def _table(place: int, section: Section) -> Json:
    shown = section.table.rename(columns={"model": "variant"})
    names = ["variant", *(str(name) for name in shown if name != "variant")]
    columns = [described(Shown(_column(name), Context())) for name in names]
    rows = []
    for row in shown.to_dict("records"):
        cells = {name: encoded(cell) for name in names if (cell := _cell(name, row[name]))}
        own = {"id": digest((section.title, row["variant"])), "kind": "published", "name": row["variant"]}
        rows.append({**own, "cells": cells})
    return table(f"published-{place}", section.title, columns, [("published", "", rows)], section.remark)


def _column(name: str) -> Column:
    help, heading = HELP.get(name, f"score on {name}, as printed"), {"variant": "model"}.get(name, name)
    if name in WORDS:
        return Column(name=name, help=help, display=Display(heading, kind="text", first="ascending"))
    return Column(name=name, help=help, display=Display(heading.replace("_", " ")))


def _cell(name: str, shown: str) -> Cell:
    if name in WORDS:
        return word(shown)
    printed = re.match(r"[\d.]+", shown)
    return Cell(shown, float(printed[0])) if printed else Cell(shown)
