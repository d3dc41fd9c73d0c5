"""Tables show a median of take-offs only if every seed took off, and never combine numbers of a part of the seeds."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from lra_bench.page.page import page
from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.describe import describe
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.table import leaderboard
from tests.support.page_records import data_of, table_of
from tests.support.record_factory import make_record

OLD = "old"
"""A record from before take-offs were measured."""


def trained(seed: int, steps: int | str | None) -> Record:
    """Return the record of a training of 1,500 steps that took off after ``steps``, None if it did not."""
    record = make_record("local", seed=seed)
    assert record.training is not None
    if steps != OLD:
        found: Any = {
            "steps": 1500,
            "takeoff_steps": steps,
            "takeoff_seconds": None if steps is None else 0.01 * float(steps),
            "takeoff_censored": steps is None,
        }
        record.training.update(found)
    return record


def text(records: list[Record]) -> str:
    """Return the rendered cell of the only row, None if the column is not shown."""
    lines = export.render(leaderboard(records), "markdown").splitlines()
    [heading, _, row] = [line for line in lines if line.startswith("|")][:3]
    cells = dict(zip(*([each.strip() for each in line.split("|")] for line in (heading, row)), strict=True))
    return cells.get("take-off (steps)", "no column")


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("seeds", "shown", "median", "reached"),
    [
        ([1250], "1,250", 1250, 1),
        ([None], "–", None, 0),
        ([100, 1400, 300], "300", 300, 3),
        ([100, 300], "200", 200, 2),
        ([100, None, 300], "2 of 3", None, 2),
        ([None, None, None], "0 of 3", None, 0),
        ([100, OLD, 300], "no column", None, None),
        ([OLD], "no column", None, None),
    ],
)
def test_the_median_is_shown_only_if_all_seeds_took_off(
    seeds: list[Any], shown: str, median: float | None, reached: int | None
) -> None:
    records = [trained(seed, steps) for seed, steps in enumerate(seeds)]
    assert text(records) == shown
    [row] = leaderboard(records).to_dict("records")
    expected = {"takeoff_steps": median, "takeoff_seconds": median and 0.01 * median, "took_off": reached}
    for name, value in expected.items():
        assert pd.isna(row[name]) if value is None else row[name] == pytest.approx(value)
    frames = {name: layout.make(records) for name, layout in LAYOUTS.items()}
    keys = {column["key"] for column in table_of(page(records, frames), "quick", "listops")["columns"]}
    assert ("takeoff_steps" in keys) == (shown != "no column")


def test_a_seed_that_did_not_finish_is_not_counted() -> None:
    assert text([trained(0, 100), trained(1, 300), make_record("local", seed=2, status="diverged")]) == "200"


def test_the_description_of_a_record_states_the_take_off() -> None:
    assert "at step 1,250, after 12.5 s of training" in describe(trained(0, 1250))
    assert "not within 1,500 steps" in describe(trained(0, None))
    assert "take-off" not in describe(trained(0, OLD)) and "takeoff" not in describe(trained(0, 100))


def test_the_details_of_the_page_name_seeds_that_did_not_take_off() -> None:
    records = [trained(0, 100), trained(1, None)]
    html = page(records, {name: layout.make(records) for name, layout in LAYOUTS.items()})
    assert "at step 100, after 1 s of training / not within 1,500 steps" in str(data_of(html)["cells"])
