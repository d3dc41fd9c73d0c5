"""Evaluating a record's best weights again adds points to the record and loses none."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from safetensors.torch import load_file, save_file

from lra_bench.cells import reevaluate as module
from lra_bench.cells.reevaluate import reevaluate
from lra_bench.contracts import UserError
from lra_bench.records import store, tables
from tests.support.command import TINY, Folder
from tests.support.malformed import command
from tests.support.record_factory import make_record

CELL = [*TINY, "model=transformer", "position=rope", "tracker=none", "train.steps=4", "task.extrapolation_rows=24"]
RATIOS = ["measure.extrapolation_ratios=[0.5,1,2]", "measure.extrapolation_knobs=[]"]


@pytest.fixture(scope="module")
def measured(forks, tmp_path_factory):
    """Return a folder with one small cell, measured at 50, 100 and 200 tokens."""
    folder = Folder(tmp_path_factory.mktemp("evaluate"))
    forks.command(folder, "bench", *CELL, *RATIOS)
    return folder


@pytest.fixture
def cell(measured, monkeypatch):
    """Yield the record's path; afterwards restore the files of its folder to their state after training."""
    monkeypatch.setenv("LRA_BENCH_CACHE", str(measured.cache))
    (path,) = measured.results.glob("runs/*/*/*/*/seed*.json")
    files = {file: file.read_bytes() for file in path.parent.iterdir()}
    yield path
    for file, content in files.items():
        file.write_bytes(content)


def digests(path):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in path.parent.iterdir()}


def best_weights(measured):
    (path,) = measured.cache.glob("checkpoints/**/best.safetensors")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_new_lengths_and_knobs_are_added_to_the_record_as_an_attempt(measured, cell):
    before, files, weights = json.loads(cell.read_text()), digests(cell), best_weights(measured)
    section, points = reevaluate(cell, [50, 120], ["position.scaling=yarn"], "cpu")
    after = json.loads(cell.read_text())
    found = [(p["knob"], p["length"], p["attempt"], p["status"]) for p in after["extrapolation"]["points"]]
    assert found == [("", 50, 2, "ok"), ("", 100, 1, "ok"), ("", 120, 2, "ok"), ("", 200, 1, "ok"),
                    ("position.scaling=yarn", 120, 2, "ok")]  # fmt: skip
    assert json.loads(json.dumps(section)) == after["extrapolation"]
    assert [(p["knob"], p["length"]) for p in points] == [("", 50), ("", 120), ("position.scaling=yarn", 120)]
    old = {p["length"]: p for p in before["extrapolation"]["points"]}
    for point in after["extrapolation"]["points"]:
        if point["length"] in old and not point["knob"]:
            assert point["score"] == old[point["length"]]["score"]
    attempts = after["extrapolation"]["attempts"]
    assert [attempt["attempt"] for attempt in attempts] == [1, 2] and after["attempt"] == 2
    assert attempts[1]["hardware"].startswith("cpu-") and attempts[1]["machine"]["processor"]
    assert len(after["extrapolation"]["summary"]) == 2
    changed = {"attempt", "extrapolation", "artifacts"}
    assert {name for name in after if after[name] != before[name]} == changed
    now = digests(cell)
    old_table = before["artifacts"]["predictions"]
    assert {name for name in files if files[name] != now.get(name)} == {"seed0.json", old_table}
    assert set(now) - set(files) == {after["artifacts"]["predictions"]} and old_table not in now
    assert best_weights(measured) == weights


def test_a_record_without_slices_and_pairs_gets_them_if_its_training_length_is_evaluated(cell):
    raw = json.loads(cell.read_text())
    assert raw["slices"] and raw["minimal_pairs"]["points"]
    cell.write_text(json.dumps({**raw, "slices": [], "minimal_pairs": None}))
    reevaluate(cell, [120])
    assert store.load(cell).slices == [] and store.load(cell).minimal_pairs is None
    reevaluate(cell)
    assert store.load(cell).slices == [{**point, "attempt": 3} for point in raw["slices"]]
    assert store.load(cell).minimal_pairs == {**raw["minimal_pairs"], "attempt": 3}
    reevaluate(cell)
    assert {point["attempt"] for point in store.load(cell).slices} == {3}


def test_predictions_of_new_points_are_added_to_the_old_ones(cell):
    before = tables.predictions(store.load(cell))
    reevaluate(cell, [50, 120], ["position.scaling=yarn"])
    after = tables.predictions(store.load(cell))
    counts = after.groupby(["knob", "length"]).size().to_dict()
    assert counts == {("", 50): 24, ("", 100): 64, ("", 120): 24, ("", 200): 24, ("position.scaling=yarn", 120): 24}
    kept = after[after["length"] != 120].sort_values(["length", "row"], ignore_index=True)
    pd.testing.assert_frame_equal(kept, before.sort_values(["length", "row"], ignore_index=True))


def test_predictions_without_a_knob_column_are_read_as_having_no_knob(cell):
    record = store.load(cell)
    table = cell.with_name(record.artifacts["predictions"])
    tables.predictions(record).drop(columns="knob").to_parquet(table)
    reevaluate(cell, [120])
    assert set(tables.predictions(store.load(cell))["knob"]) == {""}


@pytest.mark.parametrize("levels", range(6))
def test_a_record_can_be_named_relative_to_any_folder(cell, monkeypatch, levels):
    """Test every folder from that of the record up to the results folder, also with ``..`` in the path."""
    folder = cell.parents[levels]
    monkeypatch.chdir(folder)
    for path in (cell.relative_to(folder), Path("..", folder.name, cell.relative_to(folder))):
        record = store.load(path)
        record.attempt += 1
        store.amend(record)
        assert store.load(cell).attempt == record.attempt
    assert tables.predictions(store.load(cell)) is not None


@pytest.mark.parametrize("where", ["record.json", "seed0.json", "a/b/c/record.json"])
def test_amending_a_copy_of_a_record_changes_only_the_copy(cell, tmp_path, monkeypatch, where):
    before = digests(cell)
    monkeypatch.chdir(tmp_path)
    Path(where).parent.mkdir(parents=True, exist_ok=True)
    Path(where).write_bytes(cell.read_bytes())
    record = store.load(Path(where))
    store.amend(replace(record, attempt=9, path=record.path))
    assert store.load(tmp_path / where).attempt == 9 and digests(cell) == before


def test_the_command_works_in_the_folder_of_the_record(measured, cell, monkeypatch):
    monkeypatch.chdir(cell.parent)
    for name, value in measured.environment.items():
        monkeypatch.setenv(name, value)
    code, errors = command("evaluate", cell.name, "--lengths", "120")
    assert code == 0 and "Added 1 points to" in errors, errors
    assert [point["length"] for point in json.loads(cell.read_text())["extrapolation"]["points"]].count(120) == 1


def test_without_write_no_file_changes(cell):
    files = digests(cell)
    section, points = reevaluate(cell, [120], write=False)
    assert digests(cell) == files
    assert [p["length"] for p in points] == [120]
    assert 120 in [p["length"] for p in section["points"]]


def test_default_lengths_are_the_training_length_or_with_knobs_the_longer_lengths(cell):
    _, points = reevaluate(cell, write=False)
    test = json.loads(cell.read_text())["metrics"]["test"]
    assert [(p["length"], p["score"]) for p in points] == [(100, test["accuracy"])]
    _, points = reevaluate(cell, knobs=["ALL"], write=False)
    assert {p["length"] for p in points} == {200}
    assert [p["knob"] for p in points] == [
        "", *(f"position.scaling={kind}" for kind in ("linear", "ntk", "yarn")), "model.mixer.log_n=true",
    ]  # fmt: skip


def test_an_impossible_length_gives_a_point_with_a_reason(cell):
    _, points = reevaluate(cell, [100_000])
    (point,) = points
    assert point["status"] == "undefined" and "random trees" in point["reason"]
    assert json.loads(cell.read_text())["extrapolation"]["summary"][0]["failures"] == {"undefined": [1000.0]}


def test_an_interrupted_evaluation_changes_no_file(cell, monkeypatch):
    files = digests(cell)
    evaluate = extrapolation_module().evaluate
    calls = []

    def interrupted(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(*arguments, **options)

    monkeypatch.setattr(extrapolation_module(), "evaluate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reevaluate(cell, [50, 120, 150])
    assert digests(cell) == files and len(calls) == 2
    monkeypatch.undo()


def extrapolation_module():
    from lra_bench.measurements import extrapolation

    return extrapolation


def test_a_concurrent_change_of_the_record_is_kept(cell, monkeypatch):
    """Check that the record is read again under the lock."""
    from lra_bench.cells import locks

    cell_lock = locks.cell_lock

    def after_another(key):
        raw = json.loads(cell.read_text())
        raw["attempt"] = 7
        cell.write_text(json.dumps(raw))
        return cell_lock(key)

    monkeypatch.setattr(locks, "cell_lock", after_another)
    reevaluate(cell, [120])
    assert json.loads(cell.read_text())["attempt"] == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [0]}, r"--lengths 0: must be at least 1"),
        ({"knobs": ["a=b"]}, r"--knobs: the model has no knob a=b; it has position\.scaling=linear"),
        ({"hardware": "gpu"}, r"--hardware gpu: there is no such hardware.*cuda"),
    ],
)
def test_an_invalid_option_is_named(cell, options, message):
    files = digests(cell)
    with pytest.raises(UserError, match=message):
        reevaluate(cell, **options)
    assert digests(cell) == files


@pytest.mark.parametrize("change", [lambda tensor: tensor + 1, lambda tensor: tensor.half()], ids=["values", "type"])
def test_weights_that_were_replaced_are_refused(measured, cell, change):
    (path,) = measured.cache.glob("checkpoints/**/best.safetensors")
    kept = path.read_bytes()
    save_file({name: change(tensor) for name, tensor in load_file(path).items()}, path)
    try:
        with pytest.raises(UserError, match="are not the weights"):
            reevaluate(cell, [50])
    finally:
        path.write_bytes(kept)


def test_weights_that_are_a_pipe_are_refused_without_waiting(measured, cell):
    (path,) = measured.cache.glob("checkpoints/**/best.safetensors")
    kept = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    try:
        with pytest.raises(UserError, match="no kept checkpoint"):
            reevaluate(cell, [50])
    finally:
        path.unlink()
        path.write_bytes(kept)


def test_a_failed_record_has_no_tested_weights(cell):
    cell.write_text(json.dumps({**json.loads(cell.read_text()), "status": "diverged"}))
    with pytest.raises(UserError, match=r"has status diverged, so it has no tested weights; run lra-bench bench"):
        reevaluate(cell, [120])


def test_other_data_is_refused(cell):
    raw = json.loads(cell.read_text())
    raw["data"]["fingerprint"] = "other"
    cell.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"measured on other data .*fingerprint other"):
        reevaluate(cell, [120])


@pytest.mark.slow
def test_the_command_prints_the_points_and_reports_a_missing_checkpoint_in_one_line(measured, cell, forks, tmp_path):
    done = measured.run("evaluate", str(cell), "--lengths", "120", "--no-write")
    assert "children" in done.stdout and "120" in done.stdout and "Nothing written" in done.stderr
    elsewhere = Folder(tmp_path)
    done = forks.command(elsewhere, "evaluate", str(cell), check=False)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("no kept checkpoint of this cell; measure it again with --rerun all")


def test_a_longer_context_changes_the_scored_tokens_so_all_contexts_are_measured_again(capsys):
    record = make_record()
    spec = SimpleNamespace(train_length=500, higher_is_better=False, kind="language_modeling")
    task = SimpleNamespace(spec=spec)
    lengths, _, kept = module._requested(record, task, [3000], [])
    assert lengths == [3000] and [point["length"] for point in kept["points"]] == [250, 500, 1000, 2000, 4000]
    assert capsys.readouterr().err == ""
    lengths, knobs, kept = module._requested(record, task, [8000], ["a=b"])
    assert (lengths, knobs, kept["points"]) == ([250, 500, 1000, 2000, 4000, 8000], ["a=b"], [])
    assert "all contexts are measured again" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"--knobs: the record has no length beyond the 5,000 tokens"):
        spec.train_length = 5000
        module._requested(record, task, [], ["a=b"])
