"""Records: round trips, versions, atomic writing, merging."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock

from lra_bench.contracts import UserError
from lra_bench.records import store, tables, upgrades
from lra_bench.records.check import check_store
from lra_bench.records.imports import import_folder
from lra_bench.records.key import CellKey
from lra_bench.records.parquet import open_table
from lra_bench.records.schema import STATUSES, Record
from lra_bench.records.upgrades import upgrade
from tests.support.record_factory import make_curves, make_predictions, make_record

STORED = Path(__file__).parents[1] / "support" / "stored_records"


def raw_record() -> dict:
    return json.loads(json.dumps(make_record().to_dict()))


def test_round_trip_through_json_keeps_everything() -> None:
    record = make_record(differences={"model.mixer.features": 64}, position="rope")
    assert Record.from_dict(upgrade(json.loads(json.dumps(record.to_dict())))) == record


def test_a_results_folder_may_have_any_name(tmp_path: Path) -> None:
    root = tmp_path / "a #=,([{'\"é数*?~%41: ${b}\\"
    path = store.write(make_record(), root, make_curves(), make_predictions())
    assert path.is_relative_to(root) and [record.path for record in store.load_all(root)] == [path]


def test_a_record_that_could_not_be_read_again_names_the_field() -> None:
    record = make_record()
    assert record.fault() == ""
    assert record.training is not None
    record.training["lowest_validation_loss"] = math.nan
    assert record.fault() == "record: training.lowest_validation_loss should be a valid number, is None"


@pytest.mark.parametrize("status", sorted(set(STATUSES) - {"ok"}))
def test_unfinished_cells_have_records(status: str, tmp_path: Path) -> None:
    record = make_record(status=status)
    assert store.load(store.write(record, tmp_path)) == record
    assert record.score() is None


@pytest.mark.parametrize("version", [*upgrades.UPGRADES, upgrades.SCHEMA_VERSION])
def test_a_stored_file_of_every_version_loads(version: int) -> None:
    record = store.load(STORED / f"version{version}.json")
    assert record.schema_version == upgrades.SCHEMA_VERSION
    assert record.score() == 0.3815
    assert record.variant_name == "performer · features=64 · rope"
    assert record.extrapolation is not None and record.extrapolation["points"][-1]["status"] == "out_of_memory"


def test_a_stored_record_keeps_its_sections() -> None:
    record = store.load(STORED / "version9.json")
    assert [point["compile"]["graphs"] for point in record.speed if point["compile"]] == [2]
    assert {point["static_bytes"] for point in record.speed if point["status"] == "ok"} == {800_000}
    assert record.flops["ceiling_per_second"] == 1e11
    assert record.search is not None and record.search["rates"][-1]["loss"] is None
    assert (record.hash_version, record.restriction) == (2, {"from_length": 0, "row_length": 500})
    assert record.margins["majority"]["low"] == 0.189
    assert record.state is not None and record.state["points"][0]["state_bytes"] == 73_744
    assert record.memory is not None and [point["memory_length"] for point in record.memory["points"]] == [0, 128]
    depths = record.adaptive_depth
    assert depths is not None and [point["mean_depth"] for point in depths["points"]] == [1.0, 2.5, 2.2]
    assert [point["label"] for point in record.slices if point["slicing"] == "operator"] == ["MIN", "MAX", "MED", "SM"]
    assert record.rungs["two_levels"] == 0.719
    assert record.minimal_pairs is not None and [point["n"] for point in record.minimal_pairs["points"]] == [100, 100]


def test_older_records_have_no_rungs_and_no_minimal_pairs() -> None:
    old = store.load(STORED / "version8.json")
    assert old.rungs == {} and old.minimal_pairs is None


def test_every_older_version_has_an_upgrade() -> None:
    assert sorted(upgrades.UPGRADES) == list(range(min(upgrades.UPGRADES), upgrades.SCHEMA_VERSION))


def test_upgrades_are_applied_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "SCHEMA_VERSION", 3)
    monkeypatch.setitem(upgrades.UPGRADES, 1, lambda raw: {**raw, "trail": ["one"]})
    monkeypatch.setitem(upgrades.UPGRADES, 2, lambda raw: {**raw, "trail": [*raw["trail"], "two"]})
    assert upgrade({"schema_version": 1}) == {"schema_version": 3, "trail": ["one", "two"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": upgrades.SCHEMA_VERSION + 1}, "upgrade lra-bench"),
        ({"schema_version": None}, "not an lra-bench record"),
        ({"schema_version": 0}, "is not supported; the oldest is 8"),
        ({"status": "okay"}, "status 'okay' is unknown"),
        ({"started_at": 12}, "started_at should be a valid string, is 12"),
        ({"attempt": True}, "attempt should be a valid integer, is True"),
        ({"speed": [{"mode": "train"}]}, r"speed\.0\.length is missing"),
        ({"metrics": {"test": {"accuracy": 0.5}}}, r"metrics\.test\.loss is missing"),
        ({"metrics": []}, "metrics should be a valid dictionary"),
        ({"parameters": 3}, "parameters should be a valid dictionary"),
        ({"key": {"task": "listops"}}, r"key\.model is missing"),
        ({"environment": {"hardware": {"matmul_flops_per_second": []}, "software": {}}}, "should be a valid number"),
        ({"key": None}, "key should be a valid dictionary, is None"),
        ({"surprise": 1}, "surprise is not a field"),
    ],
)
def test_an_invalid_field_is_named(change: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Record.from_dict(upgrade(raw_record() | change))


def nested(levels: int) -> object:
    value: object = 1
    for _ in range(levels):
        value = {"a": value}
    return value


DAMAGED: dict[str, tuple[dict, str]] = {
    "text as a rate": (
        {"training": {"tokens_per_second": "fast"}},
        "training.tokens_per_second should be a valid number, is 'fast'",
    ),
    "a list as seconds": ({"training": {"train_seconds": []}}, "training.train_seconds should be a valid number"),
    "a number as a family": ({"capability": {"family": 3}}, "capability.family should be a valid string"),
    "a mapping as growth": ({"capability": {"growth": {}}}, "capability.growth should be a valid number"),
    "true as a number of steps": ({"training": {"steps": True}}, "steps should be a valid integer, is True"),
    "a fraction of a step": ({"training": {"steps": 1.0}}, "training.steps should be a valid integer, is 1.0"),
    "a number as truth": (
        {"code": {"version": "1", "git_sha": None, "git_dirty": 0}},
        "code.git_dirty should be a valid bool",
    ),
    "an integer that is too large": ({"training": {"steps": 10**400}}, "training.steps should be less than"),
    "a float that is too large": ({"wall_seconds": 1e300}, "wall_seconds should be less than or equal"),
    "a section that is text": ({"config": {"task": "listops"}}, "config.task should be a valid dictionary"),
    "a deep configuration": ({"config": {"model": nested(900)}}, "config.model is nested more than 100 levels deep"),
    "deep differences": (
        {"variant": {"label": "x", "differences": {"a": nested(99)}, "position": None}},
        "variant.differences is nested more than 100 levels deep",
    ),
    "half a character": ({"reason": "\ud800"}, "reason contains a lone surrogate"),
    "half a character in a list": ({"last_lines": ["fine", "\udfff"]}, "last_lines.1 contains a lone surrogate"),
    "half a character as a name": ({"floors": {"\ud800": 0.1}}, "a name in floors contains a lone surrogate"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_part_of_a_record_is_named(damage: str, tmp_path: Path) -> None:
    change, message = DAMAGED[damage]
    good = store.write(make_record(), tmp_path)
    good.with_name("seed1.json").write_text(
        json.dumps({**raw_record(), "key": {**raw_record()["key"], "seed": 1}, **change})
    )
    messages: list[str] = []
    assert [record.key.seed for record in store.load_all(tmp_path, messages.append)] == [0]
    assert len(messages) == 1 and "seed1.json" in messages[0] and message in messages[0], messages
    (readable,) = (found for found in check_store(tmp_path) if found.what == "readable")
    assert readable.ok is False and message in readable.found


def test_a_number_that_overflows_is_rejected() -> None:
    content = json.dumps(make_record(wall_seconds=0.125).to_dict()).replace("0.125", "1e999", 1)
    with pytest.raises(UserError, match="wall_seconds should be a finite number, is inf"):
        store.read(content.encode(), "here")


@pytest.mark.parametrize("change", [{"speed": [{}] * 2000}, {"growth": {str(number): {} for number in range(2000)}}])
def test_thousands_of_errors_need_no_memory(change: dict) -> None:
    raw = raw_record() | change
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=r"\.0\.\w+ is missing"):
            Record.from_dict(raw)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_nesting_is_detected_despite_brackets_in_strings(encoding: str) -> None:
    deep, shallow = '"a"', '"a"'
    for _ in range(300):
        deep = '["]", "\\"[", ' + deep + ', "["]'
    for _ in range(30):
        shallow = '{"[[[": "{", "b": ' + shallow + "}"
    for text, refused in ((deep, True), (shallow, False)):
        content = json.dumps({**raw_record(), "config": {"own": "HERE"}}).replace('"HERE"', text).encode(encoding)
        if refused:
            with pytest.raises(UserError, match=r"config\.own is nested more than 100 levels deep"):
                store.read(content, "here")
        else:
            assert store.read(content, "here").config["own"]["[[["] == "{"


def test_additional_fields_are_kept() -> None:
    change = {
        "training": {"own": "text"},
        "capability": {"own": [1]},
        "config": {"own": nested(90), "task": {"a": "😀"}},
    }
    record = store.read(json.dumps({**raw_record(), **change}).encode(), "here")
    assert {name: getattr(record, name) for name in change} == change


def test_control_characters_are_replaced(tmp_path: Path) -> None:
    nasty = "a\x1b]0;title\x07 b\u202ec\u2066d\x7fe\x9bf\rg\nh\ti"
    shown = "a\ufffd]0;title\ufffd b\ufffdc\ufffdd\ufffde\ufffdf\ufffdg\nh\ti"
    change = {
        "reason": nasty,
        "last_lines": [nasty],
        "variant": {"label": nasty, "differences": {nasty: nasty}, "position": None},
        "environment": {"hardware": {nasty: [nasty]}, "software": {}},
    }
    for ascii_only in (True, False):
        content = json.dumps({**raw_record(), **change}, ensure_ascii=ascii_only)
        record = store.read(content.encode(), "here")
        assert record.reason == record.last_lines[0] == record.variant["label"] == shown
        assert record.variant["differences"] == {shown: shown}
        assert record.environment["hardware"] == {shown: [shown]}
    made = make_record(reason=nasty, last_lines=["\ud800"], differences={nasty: 1})
    written = store.load(store.write(made, tmp_path))
    assert written.reason == shown and written.last_lines == ["\ufffd"]
    assert list(written.variant["differences"]) == [shown]


@pytest.mark.parametrize("name", sorted(raw_record()))
def test_a_missing_field_is_named(name: str) -> None:
    raw = raw_record()
    del raw[name]
    with pytest.raises(UserError, match=name):
        Record.from_dict(upgrade(raw))


@pytest.mark.parametrize("part", ["../up", "a/b", "", ".hidden", "with space", "x" * 101, None])
def test_key_parts_are_safe_as_folders(part: str) -> None:
    with pytest.raises(UserError, match="model="):
        CellKey("listops", part, "cpu", "quick", "0a1b2c3d", 0)


@pytest.mark.parametrize("seed", [-1, True, "0", 1.0])
def test_seeds_are_whole_numbers(seed: object) -> None:
    with pytest.raises(UserError, match="seed="):
        CellKey("listops", "local", "cpu", "quick", "0a1b2c3d", seed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("floors", "metric"),
    [({"majority": 5.1, "order_1": 0.9}, "bits_per_character"), ({"majority": 1.0}, None), ({}, None)],
)
def test_floors_that_are_no_accuracies_determine_the_metric_of_a_record_without_a_score(
    floors: dict[str, float], metric: str | None
) -> None:
    assert make_record(metrics={}, floors=floors).metric == metric


def test_key_files() -> None:
    key = CellKey("listops", "local", "h200-bf16", "quick", "0a1b2c3d", 3)
    assert str(key.file("json")) == "listops/local/h200-bf16/quick-0a1b2c3d/seed3.json"
    assert str(key) == "listops/local/h200-bf16/quick-0a1b2c3d/seed3"


def test_names_of_variants_differ() -> None:
    names = [
        make_record(differences=differences, position=position).variant_name
        for differences, position in [
            ({}, None),
            ({"model.mixer.features": 64}, None),
            ({"model.mixer.redraw": True, "backbone.dropout": 0.10, "task.window": [1, 2]}, "rope"),
            ({"model.mixer.width": 1, "backbone.width": 2}, None),
        ]
    ]
    assert names == [
        "performer",
        "performer · features=64",
        "performer · redraw=true · dropout=0.1 · window=[1,2] · rope",
        "performer · model.mixer.width=1 · backbone.width=2",
    ]


def test_values_that_are_not_finite_become_null_and_numpy_becomes_json(tmp_path: Path) -> None:
    record = make_record(
        wall_seconds=np.float32(2.5),
        floors={"majority": math.nan, "other": -math.inf, "good": np.float64(0.25)},
        config={"array": np.arange(2), "path": Path("/x"), "tuple": (1, np.int64(2)), "flag": np.bool_(True)},
    )
    path = store.write(record, tmp_path)
    text = path.read_text()
    raw = json.loads(text, parse_constant=pytest.fail)
    assert raw["floors"] == {"majority": None, "other": None, "good": 0.25}
    assert raw["config"] == {"array": [0, 1], "path": "/x", "tuple": [1, 2], "flag": True}
    assert raw["wall_seconds"] == 2.5
    assert store.load(path).best_floor() == ("good", 0.25)


def test_tables_round_trip_and_are_removed_with_their_attempt(tmp_path: Path) -> None:
    record, curves, predictions = make_record(), make_curves(), make_predictions()
    path = store.write(record, tmp_path, curves, predictions)
    loaded = store.load(path)
    assert set(loaded.artifacts) == {"curves", "predictions"}
    pd.testing.assert_frame_equal(tables.curves(loaded), curves)
    pd.testing.assert_frame_equal(tables.predictions(loaded), predictions)
    names = [file.name for file in path.parent.iterdir()]
    assert sorted(names) == sorted(["seed0.json", *loaded.artifacts.values()])
    store.write(make_record(status="failed", attempt=2), tmp_path)
    assert [file.name for file in path.parent.iterdir()] == ["seed0.json"]
    assert tables.curves(store.load(path)) is None


def test_find(tmp_path: Path) -> None:
    record = make_record()
    assert store.find(record.key, tmp_path) is None
    store.write(record, tmp_path)
    assert store.find(record.key, tmp_path) == record


def test_results_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_BENCH_RESULTS", raising=False)
    assert store.results_root(None) == tmp_path / "results"
    monkeypatch.setenv("LRA_BENCH_RESULTS", "/elsewhere")
    assert store.results_root(None) == Path("/elsewhere")
    assert store.results_root("here") == tmp_path / "here"


def test_an_unwritable_folder_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for attempt in (
        lambda: store.check_writable(tmp_path / "file"),
        lambda: store.write(make_record(), tmp_path / "file"),
    ):
        with pytest.raises(UserError, match="choose another folder with --results"):
            attempt()


def test_check_writable_leaves_nothing_behind(tmp_path: Path) -> None:
    store.check_writable(tmp_path / "new")
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()]


def test_a_full_disk_does_not_damage_the_earlier_record(tmp_path: Path) -> None:
    record = make_record()
    path = store.write(record, tmp_path, make_curves())
    before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(UserError, match="--results"):
            store.write(make_record(attempt=2), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == before


def test_a_killed_writer_does_not_damage_the_record(tmp_path: Path) -> None:
    """The JSON file is loadable after a kill at any moment."""
    program = (
        "import sys; from pathlib import Path\n"
        "from tests.support.record_factory import *; from lra_bench.records import store, tables\n"
        "print('ready', flush=True)\n"
        "for attempt in range(10**6): store.write(make_record(attempt=attempt), Path(sys.argv[1]), make_curves())"
    )
    path = tmp_path / "runs" / make_record().key.file("json")
    for pause in (0.02, 0.05, 0.11):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            deadline = time.monotonic() + 20
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep(pause)
            child.kill()
        assert tables.curves(store.load(path)) is not None
    assert len(store.load_all(tmp_path)) == 1


def test_a_broken_or_misplaced_file_is_named_and_left_out(tmp_path: Path) -> None:
    good = store.write(make_record(), tmp_path)
    good.with_name("seed1.json").write_text(good.read_text()[:500])
    good.with_name("seed2.json").write_bytes(good.read_bytes())
    good.with_name("seed3.json").write_text("[]")
    messages: list[str] = []
    assert [record.key.seed for record in store.load_all(tmp_path, messages.append)] == [0]
    assert len(messages) == 3
    assert all(f"seed{seed}.json" in line for seed, line in zip((1, 2, 3), messages, strict=True))
    assert "wrong place" in messages[1]


def test_an_absent_folder_holds_no_records(tmp_path: Path) -> None:
    assert store.load_all(tmp_path / "nowhere") == []


@pytest.mark.slow
@pytest.mark.alone
def test_two_thousand_records_load_within_seconds(tmp_path: Path) -> None:
    text = json.dumps(make_record().to_dict())
    for seed in range(2000):
        path = tmp_path / "runs" / make_record(model=f"m{seed % 100}", seed=seed).key.file("json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace('"performer"', f'"m{seed % 100}"', 1).replace('"seed": 0', f'"seed": {seed}', 1))
    began = time.process_time()
    assert len(store.load_all(tmp_path)) == 2000
    assert time.process_time() - began < 4


def test_import_keeps_the_better_record_of_each_cell(tmp_path: Path) -> None:
    own, theirs = tmp_path / "ours", tmp_path / "theirs"
    store.write(make_record(seed=0), own)
    store.write(make_record(seed=1), own)
    store.write(make_record(seed=2, status="interrupted"), own)
    store.write(make_record(seed=0, attempt=2), theirs, make_curves())
    store.write(make_record(seed=1, attempt=2, status="diverged"), theirs)
    store.write(make_record(seed=2), theirs)
    store.write(make_record(seed=3), theirs, make_curves(), make_predictions())
    store.write(make_record(seed=4, status="diverged"), own)
    store.write(make_record(seed=4, status="interrupted", attempt=2), theirs)
    broken = theirs / "runs" / "seed9.json"
    broken.write_text("{")
    done = import_folder(theirs, own)
    assert (done.added, done.replaced, done.kept) == (1, 2, 2)
    assert len(done.broken) == 1 and "seed9.json" in done.broken[0]
    records = {record.key.seed: record for record in store.load_all(own)}
    assert {seed: (record.attempt, record.status) for seed, record in records.items()} == {
        0: (2, "ok"),
        1: (1, "ok"),
        2: (1, "ok"),
        3: (1, "ok"),
        4: (1, "diverged"),
    }
    assert tables.curves(records[0]) is not None
    assert tables.predictions(records[3]) is not None
    again = import_folder(theirs, own)
    assert (again.added, again.replaced, again.kept) == (0, 0, 5)


def not_regular_files(folder: Path, name: str, content: bytes) -> Iterator[tuple[str, str]]:
    """Replace the file ``name`` by objects that are not regular files and by a damaged file, one at a time.

    Yields the kind of object and the expected message.
    """
    path = folder / name
    (folder / "aside").write_bytes(content)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    yield "pipe", "it is not a regular file"
    path.unlink()
    path.symlink_to("aside")
    yield "link", "it is a link"
    path.unlink()
    path.symlink_to("/dev/zero")
    yield "link to a device", "it is a link"
    path.unlink()
    path.mkdir()
    yield "folder", "it is not a regular file"
    path.rmdir()
    with socket.socket(socket.AF_UNIX) as bound, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        bound.bind(name)
    yield "socket", "it is not a regular file"
    path.unlink()
    path.write_bytes(content[:-9])
    yield "damaged", "cannot be read"


def imported(theirs: Path, own: Path) -> tuple[str, list[str]]:
    """Run the import command in a subprocess with a timeout; return its stdout and the lines of stderr."""
    command = [sys.executable, "-m", "lra_bench.cli.main", "results", "import", str(theirs), "--results", str(own)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout, done.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["record", "curves", "predictions"])
def test_import_skips_files_that_are_not_regular(name: str, tmp_path: Path) -> None:
    record = make_record()
    path = store.write(record, tmp_path / "theirs", make_curves(), make_predictions())
    store.write(make_record(seed=1), tmp_path / "theirs")
    file = path.name if name == "record" else record.artifacts[name]
    content = (path.parent / file).read_bytes()
    for kind, messages in not_regular_files(path.parent, file, content):
        own = tmp_path / f"ours {kind}"
        printed, lines = imported(tmp_path / "theirs", own)
        assert printed.endswith(" 1 left out\n") and len(lines) == 1, (kind, printed, lines)
        assert file in lines[0] and messages in lines[0], (kind, lines)
        found = store.load_all(own)
        assert [each.key.seed for each in found] == ([1] if name == "record" else [0, 1])
        assert name == "record" or set(found[0].artifacts) == {"curves", "predictions"} - {name}


@pytest.mark.parametrize(
    ("limit", "most", "messages"),
    [
        ("store.LARGEST_BYTES", 9000, r"seed0\.json: .* too large"),
        ("store.LARGEST_TABLE_BYTES", 1000, r"curves-\w+\.parquet: .* too large"),
        ("parquet.LARGEST_ROWS", 50, r"curves-\w+\.parquet: declares 100 rows"),
    ],
)
def test_files_that_are_too_large_are_not_imported(
    limit: str, most: int, messages: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(make_record(), tmp_path / "theirs", make_curves())
    monkeypatch.setattr(f"lra_bench.records.{limit}", most)
    done = import_folder(tmp_path / "theirs", tmp_path / "ours")
    assert len(done.broken) == 1 and re.search(messages, done.broken[0]), done.broken
    assert done.added == (0 if limit == "store.LARGEST_BYTES" else 1)


def test_tables_without_numeric_columns_are_not_imported(tmp_path: Path) -> None:
    curves = make_curves().assign(step="text")
    store.write(make_record(), tmp_path / "theirs", curves, make_predictions().drop(columns="target"))
    done = import_folder(tmp_path / "theirs", tmp_path / "ours")
    assert [line.partition(": ")[2] for line in done.broken] == [
        "column step is not numeric; left out",
        "has no column target; left out",
    ]
    (record,) = store.load_all(tmp_path / "ours")
    assert done.added == 1 and record.artifacts == {}


def test_a_table_with_two_columns_of_one_name_is_not_read(tmp_path: Path) -> None:
    table = pa.table([[1], [2]], names=["step", "step"])
    pq.write_table(table, tmp_path / "table.parquet")
    with pytest.raises(UserError, match="has the column step twice"), open_table(tmp_path / "table.parquet", "it", []):
        pass


def test_import_reads_files_before_it_acquires_the_write_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / "ours"
    for seed in range(3):
        store.write(make_record(seed=seed), theirs, make_curves(), make_predictions())
    real_open, opened = os.open, []

    def watched(path: Any, *arguments: Any, **options: Any) -> int:
        if str(theirs) in str(path):
            opened.append(Path(path).name)
            with FileLock(own / store.LOCKS / ".writing.lock", timeout=0):  # raises if the lock is held
                pass
        return real_open(path, *arguments, **options)

    (own / store.LOCKS).mkdir(parents=True)
    monkeypatch.setattr(os, "open", watched)
    assert import_folder(theirs, own).added == 3
    assert len(opened) == 9


def test_import_of_an_empty_folder_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no record"):
        import_folder(tmp_path, tmp_path / "ours")


def test_a_record_in_memory_keeps_its_values_after_writing(tmp_path: Path) -> None:
    record = make_record()
    path = store.write(record, tmp_path, make_curves())
    assert record.path == path
    assert store.load(path) == record
    assert replace(record, attempt=2) != record


def test_reading_records_imports_no_heavy_library() -> None:
    program = (
        "import sys, lra_bench.records.schema, lra_bench.records.store, lra_bench.records.environment\n"
        "heavy = {'torch', 'pandas', 'numpy', 'datasets', 'matplotlib', 'scipy', 'wandb', 'pyarrow'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONSAFEPATH": "1"})


def test_an_unfinished_attempt_does_not_replace_a_finished_one(tmp_path: Path) -> None:
    finished = store.keep_best(make_record(), tmp_path)
    cut = replace(finished, status="interrupted", reason="by a test", attempt=2)
    assert store.keep_best(cut, tmp_path) is not cut
    assert store.find(finished.key, tmp_path) == finished
    better = replace(finished, attempt=3)
    assert store.keep_best(better, tmp_path) is better
    assert store.find(finished.key, tmp_path) == better
