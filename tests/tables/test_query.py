"""Tidy tables of records: one import, documented columns, complete values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lra_bench
from lra_bench import load_records
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.tables.query import documented, tables, tidy
from tests.support.record_factory import LENGTHS, RATIOS, SLICES, make_pairs, make_pretraining, make_record, make_search


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for record in (make_record("local"), make_record("local", seed=1, status="diverged"), make_record("performer")):
        store.write(record, tmp_path)
    return tmp_path


def test_runs_have_one_row_per_record(results: Path) -> None:
    frame = load_records(results)
    assert list(frame.columns) == list(documented("runs"))
    assert frame.groupby("model")["score"].count().to_dict() == {"local": 1, "performer": 1}
    record = make_record("local")
    first = frame[(frame["model"] == "local") & (frame["seed"] == 0)].iloc[0]
    assert (first["score"], first["floor"], first["train_time_exponent"]) == (record.score(), 0.335, 1.05)
    assert store.load(Path(first["path"])).key == record.key


@pytest.mark.parametrize("table", tables())
def test_runs_have_the_version_of_their_hash(table: str) -> None:
    frame = tidy([make_record("local"), make_record("performer", hash_version=1)], table)
    assert frame.groupby("model")["hash_version"].unique().map(list).to_dict() == {"local": [2], "performer": [1]}
    assert list(frame.columns)[list(frame.columns).index("hash") + 1] == "hash_version"


def test_lengths_and_speed_have_one_row_per_point(results: Path) -> None:
    lengths, speed = load_records(results, "lengths"), load_records(results, "speed")
    assert len(lengths) == 2 * len(RATIOS) and lengths["score"].notna().all()
    assert len(speed) == 3 * 2 * len(LENGTHS)
    assert (lengths["variant"] == lengths["model"]).all() and set(lengths["length_variant"]) == {"redrawn"}
    for name, frame in (("lengths", lengths), ("speed", speed)):
        assert list(frame.columns) == list(documented(name))


def test_slices_have_one_row_per_slicing_and_label(results: Path) -> None:
    frame = load_records(results, "slices")
    assert list(frame.columns) == list(documented("slices"))
    expected = {(slicing, label) for slicing, labels in SLICES.items() for label in labels}
    for model, rows in frame.groupby("model"):
        assert set(zip(rows["slicing"], rows["label"], strict=True)) == expected and len(rows) == len(expected)
        scores = {(point["slicing"], point["label"]): point["score"] for point in make_record(model).slices}
        for row in rows.itertuples():
            assert row.score == scores[row.slicing, row.label]


@pytest.mark.parametrize("table", tables())
def test_every_column_is_filled_and_documented(table: str) -> None:
    made = [make_record("local"), make_record("local", hardware="h200-bf16")]
    for record in made:
        assert record.training is not None
        record.search, record.minimal_pairs = make_search(), make_pairs(0.5)
        record.add_section("pretraining", make_pretraining())
        record.training.update({"takeoff_steps": 300, "takeoff_seconds": 120.0, "takeoff_censored": False})
    frame = tidy(made, table)
    optional = {"joules_per_step", "path"}
    assert set(frame.columns[frame.isna().all()]) <= optional
    assert all(documented(table).values())
    assert list(tidy([], table).columns) == list(documented(table))


def test_unknown_tables_raise_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="runs, lengths, slices, speed"):
        load_records(tmp_path, "points")
    assert load_records(tmp_path).empty


def test_importing_the_package_does_not_import_pandas() -> None:
    code = "import sys, lra_bench; print('pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    with pytest.raises(AttributeError, match="has no attribute 'load_record'"):
        getattr(lra_bench, "load_record")  # noqa: B009
