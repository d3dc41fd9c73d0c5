"""Tables of published results for the page: one unranked table per source."""

from __future__ import annotations

import pandas as pd

from lra_bench.contracts.measurement import Column, Display
from lra_bench.tables.column import Context, Shown
from lra_bench.tables.published import printed_tables

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
    found = []
    for place, (title, printed, legend) in enumerate(printed_tables(frame)):
        rows = []
        for row in printed:
            cells = {"variant" if name == "model" else name: encoded(cell) for name, cell in row.items() if cell}
            name = row["model"].text
            rows.append({"id": digest((title, name)), "kind": "published", "name": name, "cells": cells})
        names = ["variant", *(name for name in printed[0] if name != "model")]
        columns = [described(Shown(_column(name), Context())) for name in names]
        found.append(table(f"published-{place}", title, columns, [("published", "", rows)], legend))
    return found


def _column(name: str) -> Column:
    help, heading = HELP.get(name, f"score on {name}, as printed"), {"variant": "model"}.get(name, name)
    if name in WORDS:
        return Column(name=name, help=help, display=Display(heading, kind="text", first="ascending"))
    return Column(name=name, help=help, display=Display(heading.replace("_", " ")))
