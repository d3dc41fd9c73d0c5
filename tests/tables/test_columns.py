"""The registry of columns: all tables are built from it, and a new column requires one entry."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import pandas as pd
import pytest

import lra_bench
from lra_bench.contracts.measurement import Column
from lra_bench.page.page import page
from lra_bench.records import store
from lra_bench.records.schema import Record
from lra_bench.tables import columns as registry
from lra_bench.tables import export
from lra_bench.tables.column import Context, Shown, find_column, in_order, values
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.query import column_list, documented, tables
from lra_bench.tables.runs import Run
from lra_bench.tables.table import leaderboard
from tests.support.page_records import table_of
from tests.support.record_factory import make_record

GUIDE = Path(__file__).parents[2] / "docs" / "leaderboard.md"
TABLE_COLUMNS = {"long": registry.long(), "wide": registry.WIDE}
VIEWS = {
    "long text": ((*registry.long(), *registry.PAGE_ONLY), registry.view(registry.LONG_TEXT)),
    "long page": ((*registry.long(), *registry.PAGE_ONLY), registry.view(registry.LONG_PAGE)),
    "wide text": (registry.WIDE, registry.WIDE_TEXT),
    "wide page": (registry.WIDE, registry.WIDE_PAGE),
}


@pytest.fixture
def records() -> list[Record]:
    """Return records of several models, two machines, a failed seed, a modified protocol, and a task in bits."""
    bits = {"bits_per_character": 1.5, "loss": 1.04, "n": 900, "low": 1.4, "high": 1.6}
    return [
        *(make_record(model, "listops", seed) for model in ("transformer", "performer") for seed in range(3)),
        make_record("local", "listops", hardware="h200-bf16", status="out_of_memory"),
        make_record("local", "text", protocol_modified=["train.lr"], speed_failures={16384: "out_of_memory"}),
        make_record("local", "enwik8", metrics={"test": bits}, floors={"unigram": 5.0}),
    ]


def test_names_are_unique_and_help_texts_are_one_sentence() -> None:
    helps = [documented(table) for table in tables()]
    for columns in (registry.long(), registry.WIDE, registry.RUN_ONLY):
        helps.append({column.name: Shown(column, Context()).help for column in columns})
        assert len(helps[-1]) == len(columns)
    for help_text in (text for each in helps for text in each.values()):
        assert help_text and help_text[0] not in string.ascii_uppercase.replace("R", "")
        assert not help_text.endswith(".") and "{" not in help_text


@pytest.mark.parametrize("view", VIEWS)
def test_columns_of_views_have_a_heading_and_a_unique_key(view: str) -> None:
    columns, names = VIEWS[view]
    picked = registry.pick(columns, names)
    assert all(column.display.heading for column in picked)
    keys = [Shown(column, Context(part="2x")).key for column in picked]
    assert len(keys) == len(set(keys))


@pytest.mark.parametrize("layout", TABLE_COLUMNS)
def test_data_columns_are_declared_and_ordered(layout: str, records: list[Record]) -> None:
    frame = LAYOUTS[layout].make(records)
    assert [name for name in frame if find_column(TABLE_COLUMNS[layout], str(name)) is None] == []
    assert list(frame) == in_order(TABLE_COLUMNS[layout], frame)
    declared = {column.name for column in TABLE_COLUMNS[layout] if not column.repeats}
    assert declared <= set(frame)
    assert list(LAYOUTS[layout].make([])) == [c.name for c in TABLE_COLUMNS[layout] if not c.repeats]


def test_find_column_matches_names_of_repeated_columns() -> None:
    expected = {
        "floor_name": "floor_name",
        "floor_majority": "floor_<floor>",
        "floor_bag_of_bytes": "floor_<floor>",
        "floor_2x": "floor_<ratio>",
        "floor_0.5x_filler": "floor_<ratio>",
        "clears_floor": "clears_floor",
        "clears_floor_2x": "clears_floor_<ratio>",
        "score_8x": "score_<ratio>",
        "area": "area<curve>",
        "area_filler": "area<curve>",
    }
    found = {name: find_column(registry.long(), name) for name in expected}
    assert {name: column.name for name, column in found.items() if column} == expected
    assert find_column(registry.long(), "nothing") is None


def test_values_of_seeds_are_combined_as_declared() -> None:
    runs = [make_record("local", seed=seed, wall_seconds=float(seconds)) for seed, seconds in enumerate((10, 20, 60))]
    for record, peak in zip(runs, (5, 9, 7), strict=True):
        for point in record.speed:
            point["peak_resident_growth_bytes"] = peak
    [row] = leaderboard(runs).to_dict("records")
    assert (row["wall_seconds"], row["train_peak_resident_growth_bytes"], row["hash"]) == (30, 9, "0a1b2c3d")
    assert row["seeds"] == 3 and "seed" not in row


@pytest.mark.slow
def test_the_example_column_of_the_guide_is_in_every_table(
    tmp_path: Path, records: list[Record], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GUIDE.read_text(encoding="utf-8").partition("## Add a column")[2]
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found
    column = eval(found[1], vars(registry))
    assert isinstance(column, Column)
    monkeypatch.setattr(registry, "LONG", (*registry.LONG, column))
    for view in ("LONG_TEXT", "LONG_PAGE", "RUNS"):
        monkeypatch.setattr(registry, view, (*getattr(registry, view), column.name))

    frames = {name: layout.make(records) for name, layout in LAYOUTS.items()}
    assert frames["long"]["data_wait_share"].dropna().eq(0.01).all()
    for kind in ("terminal", "markdown"):
        shown = " ".join(export.render(frames["long"], kind, 400).split())
        assert "wait" in shown and re.search(r"\b1 ?\\?%", shown.replace("~", " "))
    written = export.write(frames["long"], tmp_path)
    assert [path.suffix for path in written] == [".md", ".csv", ".json", ".parquet"]
    csv, rows, parquet = (
        pd.read_csv(written[1]), json.loads(written[2].read_text()), pd.read_parquet(written[3])
    )  # fmt: skip
    for values_of in (csv["data_wait_share"], parquet["data_wait_share"], [row["data_wait_share"] for row in rows]):
        assert sorted(value for value in values_of if value == value and value is not None)[0] == 0.01
    shown_on_page = table_of(page(records, frames), "quick", "listops")["columns"]
    [on_page] = [each for each in shown_on_page if each["key"] == "data_wait_share"]
    assert (on_page["kind"], on_page["first"], on_page["machine"]) == ("number", "ascending", True)
    assert on_page["help"] == column.help

    for record in records:
        store.write(record, tmp_path)
    assert lra_bench.load_records(tmp_path, reference="none")["data_wait_share"].dropna().eq(0.01).all()


def test_column_list_contains_descriptions() -> None:
    listed = column_list()
    assert {row["table"] for row in listed} == {
        "leaderboard --layout long",
        "leaderboard --layout wide",
        *(f'load_records(table="{name}")' for name in tables()),
    }
    [peak] = [row for row in listed if row["name"] == "peak_allocated_bytes"]
    assert "CUDA" in peak["description"]


def test_a_run_without_results_has_every_column() -> None:
    record = make_record(status="failed", data=None, parameters=None, flops=None, energy=None, speed=[], growth={})
    row = values(Run(record), (*registry.long(), *registry.RUN_ONLY))
    assert row["status"] == "failed" and row["score"] is None and row["parameters_body"] is None
    assert row["train_tokens_per_second"] is None and row["train_limit"] is None
