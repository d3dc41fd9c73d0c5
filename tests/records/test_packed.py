"""Packed records are those of the results folder: equal records and tables, in a few files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lra_bench.contracts import UserError
from lra_bench.records import store, tables
from lra_bench.records.check import check_store
from lra_bench.records.environment import host
from lra_bench.records.imports import import_folder
from lra_bench.records.names import find_path
from lra_bench.records.packed import RECORDS
from lra_bench.records.packing import DIGITS, ROUNDED, pack
from lra_bench.records.reference import CHECKOUT, boards
from tests.support.record_factory import make_curves, make_predictions, make_record


@pytest.fixture
def results(tmp_path: Path) -> Path:
    root = tmp_path / "results"
    for seed in range(3):
        curves = make_curves().assign(train_loss=float(seed))
        store.write(make_record(seed=seed), root, curves, make_predictions() if seed != 1 else None)
    store.write(make_record("local", status="diverged"), root)
    return root


def content(root: Path) -> list[tuple[object, ...]]:
    return [
        (replace(record, artifacts={}), tables.curves(record), tables.predictions(record))
        for record in store.load_all(root, pytest.fail)
    ]


def assert_equal(one: list[tuple[object, ...]], other: list[tuple[object, ...]]) -> None:
    assert [record for record, *_ in one] == [record for record, *_ in other]
    for (_, *frames), (_, *others) in zip(one, other, strict=True):
        for frame, expected in zip(frames, others, strict=True):
            if expected is None:
                assert frame is None
            else:
                assert_frame_equal(frame, expected)


def assert_frame_equal(frame: pd.DataFrame | None, expected: pd.DataFrame) -> None:
    """Check a table that may be packed: equal, except that rounded columns may differ by 0.2 %."""
    assert frame is not None and list(frame) == list(expected)
    rounded = [name for name in ROUNDED if name in expected]
    pd.testing.assert_frame_equal(frame.drop(columns=rounded), expected.drop(columns=rounded))
    np.testing.assert_allclose(frame[rounded], expected[rounded], rtol=2**-DIGITS)


def test_packed_records_and_their_tables_equal_the_files(results: Path) -> None:
    before = content(results)
    assert pack(results) == len(before) == 4
    names = sorted(path.name.partition("-")[0] for path in results.iterdir() if path.is_file())
    assert names == ["board.json", "curves", "predictions", RECORDS]
    assert not (results / store.RUNS).exists()
    assert_equal(content(results), before)
    assert all(finding.ok is not False for finding in check_store(results))


def test_a_file_replaces_the_packed_record_of_its_cell_and_is_packed_with_the_others(results: Path) -> None:
    pack(results)
    store.keep_best(make_record(seed=1, attempt=2), results, make_curves())
    store.write(make_record(seed=3), results)
    before = content(results)
    assert [record.attempt for record in store.load_all(results) if record.key.seed == 1] == [2]
    assert pack(results) == len(before) == 5
    assert_equal(content(results), before)
    assert sorted(path.name.partition("-")[0] for path in results.glob("*.parquet")) == ["curves", "predictions"]


def test_packed_records_are_found_by_key_name_and_path(results: Path) -> None:
    key = make_record(seed=2).key
    pack(results)
    found = store.find(key, results)
    assert found is not None and found.key == key
    for text in (str(key), f"{key.hash}/seed2", str(found.path)):
        assert find_path(text, results) == found.path
    assert find_path("local", results) == store.paths(results, "*/local/*/*/*")[0]
    with pytest.raises(UserError, match="matches 3 records"):
        find_path("performer", results)


def test_packed_records_are_imported_with_their_tables(results: Path, tmp_path: Path) -> None:
    before = content(results)
    pack(results)
    assert import_folder(results, tmp_path / "own").added == 4
    assert_equal(content(tmp_path / "own"), before)


def test_a_packed_record_of_another_machine_is_kept_with_its_own_tables(results: Path) -> None:
    there, here = ({"hardware": {**host(), "cores_logical": cores}, "software": {}} for cores in (96, 2))
    store.write(make_record(environment=there), results, make_curves(), make_predictions())
    pack(results)
    new = store.keep_best(make_record(environment=here), results)
    (kept,) = [record for record in store.load_all(results) if record.key.hardware != new.key.hardware]
    assert_frame_equal(tables.curves(kept), make_curves())
    assert_frame_equal(tables.predictions(kept), make_predictions())


def test_packing_packed_records_again_changes_no_byte(results: Path) -> None:
    pack(results)
    before = {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()}
    pack(results)
    assert {path.name: path.read_bytes() for path in results.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("metric", ["accuracy", "bits_per_character"])
def test_only_losses_that_claims_use_are_not_rounded(tmp_path: Path, metric: str) -> None:
    losses = np.random.default_rng(0).exponential(300, 40).astype(np.float32)
    losses[:3] = np.inf, np.nan, 0
    predictions = make_predictions().head(40).assign(loss=losses, length=np.repeat([128, 64], 20))
    metrics = {"test": {metric: 0.5, "loss": 1.0, "n": 40, "low": 0.4, "high": 0.6}}
    store.write(make_record(metrics=metrics), tmp_path, make_curves(), predictions)
    pack(tmp_path)
    (record,) = store.load_all(tmp_path, pytest.fail)
    found = tables.predictions(record)
    assert found is not None
    exact = found["loss"].to_numpy() == losses
    assert exact[3:20].all() == (metric == "bits_per_character") and not exact[20:].all()
    np.testing.assert_allclose(found["loss"], losses, rtol=2**-DIGITS)


@pytest.mark.parametrize("board", [name for name, _ in boards(CHECKOUT / "results" / "reference")])
def test_committed_boards_are_small(board: str) -> None:
    root = CHECKOUT / "results" / "reference" / board
    sizes = [path.stat().st_size for path in (root / RECORDS, *root.glob("*.parquet"))]
    most = {"adaptive_depth": 65_000}.get(board, 60_000)  # its predictions are of 15,000 examples per record
    assert sum(sizes) / (root / RECORDS).read_bytes().count(b"\n") <= most


def test_an_amended_packed_record_becomes_a_file_with_its_tables(results: Path) -> None:
    pack(results)
    record = store.load_all(results)[-1]
    assert record.path is not None and RECORDS in record.path.parts
    curves, predictions = tables.curves(record), make_predictions().head(7)
    record.attempt = 5
    store.amend(record, predictions)
    (amended,) = [each for each in store.load_all(results, pytest.fail) if each.key == record.key]
    assert amended.attempt == 5 and amended.path == results / store.RUNS / record.key.file("json")
    assert curves is not None
    pd.testing.assert_frame_equal(tables.curves(amended), curves)
    pd.testing.assert_frame_equal(tables.predictions(amended), predictions)
    assert pack(results) == 4 and len(store.load_all(results, pytest.fail)) == 4


def test_tables_with_unusual_columns_are_packed(tmp_path: Path) -> None:
    curves = make_curves().assign(train_loss="a text", tokens_seen=pd.array([None, *range(99)], dtype="Int64"))
    curves = curves.assign(step=curves["step"].astype(float), extra=b"0", learning_rate=None)
    store.write(make_record(), tmp_path, curves)
    before = tables.curves(store.load_all(tmp_path)[0])
    pack(tmp_path)
    after = tables.curves(store.load_all(tmp_path, pytest.fail)[0])
    assert before is not None and after is not None
    unrounded = ["train_loss", "step", "tokens_seen", "extra", "learning_rate"]
    pd.testing.assert_frame_equal(after[unrounded], before[unrounded])


def test_a_killed_packing_leaves_every_record(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(results)
    monkeypatch.setattr("lra_bench.records.packing._remove_files", lambda *_: None)
    pack(results)  # ends before the files are removed
    assert_equal(content(results), before)


def test_damage_of_packed_records_is_reported(results: Path) -> None:
    pack(results)
    lines = (results / RECORDS).read_text().splitlines()
    raw = json.loads(lines[0])
    raw["artifacts"] = {"curves": "curves-00000000.parquet#0"}
    (results / RECORDS).write_text("\n".join(["{", json.dumps(raw), lines[1].replace("#1", "#7"), *lines[2:]]))
    (path,) = results.glob("predictions-*.parquet")
    path.write_bytes(path.read_bytes() + b"0")
    messages: list[str] = []
    records = store.load_all(results, messages.append)
    assert len(records) == 4 and len(messages) == 1 and "records.jsonl/line 1" in messages[0]
    assert tables.curves(records[0]) is None
    found = {finding.what: finding.found for finding in check_store(results) if finding.ok is False}
    assert "line 1" in found["readable"]
    assert "curves-00000000.parquet is missing" in found["curves and predictions"]
    assert f"{path} differs from the digest" in found["curves and predictions"]


def test_many_broken_lines_are_few_messages(results: Path) -> None:
    pack(results)
    text = (results / RECORDS).read_text()
    (results / RECORDS).write_text("\n" * 100_000 + text)
    messages: list[str] = []
    assert len(store.load_all(results, messages.append)) == 4
    assert len(messages) == 10
    assert any("line 9:" in message for message in messages)
    assert any("line 10 and 99,990 others:" in message for message in messages)


def test_an_artifact_outside_the_folder_is_refused(results: Path) -> None:
    pack(results)
    text = (results / RECORDS).read_text()
    (results / RECORDS).write_text(text.replace('"curves-', '"../curves-'))
    messages: list[str] = []
    store.load_all(results, messages.append)
    assert messages and all("should name a table of this record" in message for message in messages)


def test_an_empty_folder_is_not_packed(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no record"):
        pack(tmp_path)
