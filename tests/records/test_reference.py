"""Reference boards: shown next to the user's records, marked as such, and never used as the user's results."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from lra_bench import load_records
from lra_bench.contracts import UserError
from lra_bench.figures.curves import best
from lra_bench.figures.lengths import extrapolation
from lra_bench.figures.variants import labels, places
from lra_bench.grid.plan import plan
from lra_bench.page.page import page
from lra_bench.records import environment, reference, store
from lra_bench.records.imports import import_folder
from lra_bench.records.packed import RECORDS, packed
from lra_bench.records.packing import pack
from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.comparison import compare
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.naming import find_variant
from lra_bench.tables.table import leaderboard
from tests.support.command import TINY, Folder
from tests.support.page_records import data_of
from tests.support.record_factory import make_curves, make_predictions, make_record, make_speed

ROOT = Path(__file__).resolve().parents[2]
CELL = [*TINY, "model=performer"]


def host(**changes):
    return {"hardware": {**environment.host(), **changes}, "software": {}}


@pytest.fixture
def user_and_board(tmp_path):
    """Return the user's records, those of a board with the same hardware name, and the folder of both."""
    own, board = tmp_path / "results", tmp_path / "reference" / "board"
    for model in ("performer", "transformer"):
        store.write(make_record(model), own, make_curves())
    for model in ("performer", "transformer", "local"):
        for seed in range(3):
            fast = make_speed(1.0, 1e-6, False, {})
            store.write(make_record(model, seed=seed, accuracy=0.9, speed=fast), board, make_curves())
    return store.load_all(own), reference.load_reference(tmp_path / "reference", own), tmp_path


def test_folder_of_boards_by_option_variable_and_checkout(monkeypatch, tmp_path):
    monkeypatch.delenv("LRA_BENCH_REFERENCE", raising=False)
    assert reference.reference_root() == ROOT / "results" / "reference"
    names = [name for name, _ in reference.boards(reference.reference_root())]
    assert names == sorted(path.parent.name for path in (ROOT / "results" / "reference").glob("*/records.jsonl"))
    monkeypatch.setattr(reference, "CHECKOUT", tmp_path)  # as in a wheel
    assert reference.reference_root() is None
    (tmp_path / "boards").mkdir()
    monkeypatch.setattr(reference, "INSTALLED", tmp_path / "boards")
    assert reference.reference_root() == tmp_path / "boards"
    assert reference.load_reference(None) == []
    monkeypatch.setenv("LRA_BENCH_REFERENCE", str(tmp_path))
    assert reference.reference_root() == tmp_path
    assert reference.reference_root("none") is None
    with pytest.raises(UserError, match=r"--reference .*/absent: no such folder"):
        reference.reference_root(tmp_path / "absent")


def test_only_records_of_boards_are_committed():
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no checkout with git here")
    folders = {tuple(Path(line).parts[:2]) for line in listed.stdout.splitlines()}
    assert folders == {("results", "reference"), ("results", "published")}
    ignored = subprocess.run(["git", "check-ignore", "results/runs/listops/x.json"], cwd=ROOT, capture_output=True)
    assert ignored.returncode == 0
    boards = reference.boards(ROOT / "results" / "reference")
    records = reference.load_reference(ROOT / "results" / "reference")
    assert len(records) == sum(len(list(packed(folder))) for _, folder in boards) > 150


def test_a_cell_with_a_record_of_the_board_still_has_to_run(tmp_path, monkeypatch):
    results, boards = tmp_path / "results", tmp_path / "reference"
    monkeypatch.setenv("LRA_BENCH_REFERENCE", str(boards))
    (planned,) = plan(CELL, results)
    own = dataclasses.replace(make_record(), key=planned.cell.key, environment=host())
    store.write(own, boards / "board")
    (planned,) = plan(CELL, results)
    assert planned.status == "to run"
    store.write(own, results)
    (planned,) = plan(CELL, results)
    assert planned.status in ("stale", "done")


@pytest.mark.slow
def test_a_record_of_another_machine_does_not_count_and_is_kept(tmp_path, capsys):
    (planned,) = plan(CELL, tmp_path)
    data = {**make_record().data, "version": "1"}
    machines = {"here": host(), "there": host(cores_logical=96, cores_physical=48)}
    records = {
        name: dataclasses.replace(
            make_record(accuracy=0.5), key=planned.cell.key, environment=machine, data=data,
            code={**make_record().code, "version": environment.package_version()},
        )
        for name, machine in machines.items()
    }  # fmt: skip
    store.write(records["here"], tmp_path)
    (planned,) = plan(CELL, tmp_path)
    assert (planned.status, planned.reason) == (
        "done",
        "measured here on 2026-11-20 09:05 UTC (ok); --rerun all measures it again",
    )
    store.write(records["there"], tmp_path, make_curves(), make_predictions())
    (planned,) = plan(CELL, tmp_path)
    assert planned.status == "to run"
    assert "another machine" in planned.reason and "96 cores" in planned.reason

    interrupted = dataclasses.replace(records["here"], status="interrupted", metrics={})
    assert store.keep_best(interrupted, tmp_path) is interrupted
    kept, written = sorted(store.load_all(tmp_path), key=lambda record: record.status, reverse=True)
    assert (written.status, written.key) == ("interrupted", planned.cell.key)
    assert kept.key.hardware.startswith(f"{planned.cell.key.hardware}-") and kept.score() == 0.5
    assert all(kept.path.with_name(name).exists() for name in kept.artifacts.values()) and len(kept.artifacts) == 2
    assert str(kept.key) in capsys.readouterr().err


def test_a_worse_record_of_another_machine_does_not_replace_its_better_one(tmp_path, capsys):
    ok = dataclasses.replace(make_record(accuracy=0.5), environment=host())
    other = dataclasses.replace(ok, environment=host(cores_logical=96, cores_physical=48))
    store.keep_best(ok, tmp_path)
    store.keep_best(other, tmp_path)
    store.keep_best(dataclasses.replace(ok, status="failed", metrics={}, attempt=2), tmp_path)
    capsys.readouterr()
    store.keep_best(other, tmp_path)
    better = store.find(store.key_of_machine(ok), tmp_path)
    assert (better.status, better.score()) == ("ok", 0.5)
    message = capsys.readouterr().err
    assert "was moved" not in message
    assert "failed" in message and f"its better record {better.key} is kept" in message


def test_memory_sizes_of_a_machine_may_differ_slightly():
    here = environment.host()
    assert environment.same_host(here, {**here, "memory_bytes": int(here["memory_bytes"] * 0.97)})
    assert not environment.same_host(here, {**here, "memory_bytes": here["memory_bytes"] // 2})
    assert environment.same_host(here, {"processor": here["processor"]})
    assert not environment.same_host(here, {"processor": "another"})


def test_rows_are_separate_per_source(user_and_board):
    own, others, _ = user_and_board
    board = leaderboard([*own, *others])
    rows = board.set_index(["variant", "reference"])
    assert rows.loc[("performer", ""), "seeds"] == 1
    assert rows.loc[("performer", "board"), "seeds"] == 3
    assert rows.loc[("performer", ""), "score"] < 0.5 < rows.loc[("performer", "board"), "score"]
    assert rows.loc[("performer", "board"), "hardware"] == "cpu-epyc-2t@board"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("layout", ["long", "wide"])
@pytest.mark.parametrize("format", ["terminal", "markdown"])
def test_tables_mark_records_of_boards(user_and_board, layout, format):
    own, others, _ = user_and_board
    text = export.render(LAYOUTS[layout].make([*own, *others]), format, 200, layout)
    lines = [line for line in text.splitlines() if "local" in line]
    mark = "@board" if (layout, format) == ("wide", "terminal") else "reference board"
    assert lines and mark in lines[0]
    assert "source" not in export.render(LAYOUTS[layout].make(own), format, 200, layout).replace("The source names", "")


def test_page_figures_and_data_frames_mark_records_of_boards(user_and_board, monkeypatch):
    own, others, folder = user_and_board
    records = [*own, *others]
    html = page(records, {name: each.make(records) for name, each in LAYOUTS.items()})
    [protocol] = data_of(html)["protocols"]
    for table in (protocol["systems"], protocol["tasks"][0]):
        measured = [row for body in table["bodies"] for row in body["rows"] if row["kind"] == "measured"]
        assert [row["own"] for row in measured].count(False) == 3 and any(row["own"] for row in measured)
    assert set(labels(places(records))) == {
        "Performer", "Transformer", "Performer (reference)", "Transformer (reference)", "Local (reference)",
    }  # fmt: skip
    frame = load_records(folder / "results", reference=folder / "reference")
    assert frame["reference"].value_counts().to_dict() == {"board": 9, "": 2}
    assert len(load_records(folder / "results", reference="none")) == 2


@pytest.mark.parametrize(
    "change", [lambda text: text.replace('"accuracy":0.9,', '"accuracy":0.95,'), lambda text: "", None]
)
def test_a_board_that_was_changed_after_packing_is_reported(tmp_path, change):
    board = tmp_path / "boards" / "changed"
    store.write(make_record(accuracy=0.9), board, make_curves())
    pack(board)
    messages: list[str] = []
    assert len(reference.load_reference(tmp_path / "boards", broken=messages.append)) == 1 and not messages
    file = board / RECORDS
    before = file.read_text()
    if change:
        file.write_text(change(before))
        assert file.read_text() != before
    else:
        file.unlink()
        file.symlink_to("/dev/zero")
    reference.load_reference(tmp_path / "boards", broken=messages.append)
    assert str(file) in messages[0] and "numbers may be wrong or missing" in messages[0]


def test_a_name_refers_to_the_users_variant_first(user_and_board):
    own, others, _ = user_and_board
    records = [*own, *others]
    assert {record.reference for record in find_variant(records, "performer", "A")[1]} == {""}
    assert {record.reference for record in find_variant(records, "performer reference", "A")[1]} == {"board"}
    assert {record.reference for record in find_variant(records, "local", "A")[1]} == {"board"}
    local = next(record for record in others if record.key.model == "local")
    modified = dataclasses.replace(local, protocol_modified=["train.steps"])
    assert modified not in find_variant([*others, modified], "local", "A")[1]
    a, b, _ = compare(records, "performer", "performer reference")
    assert (a, b) == ("performer", "performer · reference")


def test_a_results_folder_that_is_a_board_is_not_its_own_reference(user_and_board):
    _, _, folder = user_and_board
    assert reference.load_reference(folder / "reference", folder / "reference" / "board") == []


@pytest.mark.slow
def test_commands_show_the_reference_next_to_the_results(tmp_path, forks):
    folder = Folder(tmp_path / "work", LRA_BENCH_REFERENCE=str(tmp_path / "reference"))
    board = tmp_path / "reference" / "board"
    for seed in range(3):
        store.write(make_record("transformer", seed=seed, protocol="smoke"), board)
    arguments = [text for text in CELL if not text.startswith("measure")]
    done = forks.command(folder, "bench", *arguments, "measure.speed_lengths=[]", "tracker=none")
    table = done.stdout.partition("Compared with the reference boards")[2]
    scores = table.partition("Next steps:")[0]
    assert " transformer " in scores and "*performer" in scores and "* your rows." in scores
    again = forks.command(folder, "bench", *arguments, "measure.speed_lengths=[]", "tracker=none")
    assert "measured here on" in again.stderr and "--rerun all measures it again" in again.stderr
    assert (
        "transformer" not in forks.command(folder, "leaderboard", "--reference", "none", "--protocol", "smoke").stdout
    )
    forks.command(folder, "plot", "heat_map", "--protocol", "smoke")
    csv = pd.read_csv(next((folder.results / "figures").glob("heat_map*.csv")))
    assert set(csv["reference"].fillna("")) == {"", "board"}
    refused = forks.command(folder, "evaluate", str(board), check=False)
    assert refused.returncode == 2
    shutil.rmtree(folder.results / "figures")
    path = next(board.rglob("seed0.json"))
    refused = forks.command(folder, "evaluate", str(path), check=False)
    assert refused.returncode == 2 and "reference board" in refused.stderr
    assert json.loads(path.read_text())["attempt"] == 1


def test_a_record_does_not_store_where_it_came_from():
    record = make_record()
    record.reference = "board"
    assert Record.from_dict(record.to_dict()).reference == ""


def test_importing_a_record_of_another_machine_keeps_both(tmp_path):
    for name, machine in (("here", host()), ("there", host(cores_logical=96, cores_physical=48))):
        store.write(make_record(environment=machine), tmp_path / name, make_curves(), make_predictions())
    done = import_folder(tmp_path / "there", tmp_path / "here")
    assert (done.added, done.replaced, done.kept, done.broken) == (1, 0, 0, [])
    first, second = store.load_all(tmp_path / "here")
    assert second.key.hardware.startswith(f"{first.key.hardware}-")
    assert all(second.path.with_name(name).exists() for name in second.artifacts.values())
    assert import_folder(tmp_path / "there", tmp_path / "here").kept == 1


def test_curves_of_the_user_come_before_those_of_boards(tmp_path):
    """The eight highlighted curves are the user's, even if the curves of the board are better."""
    own = [make_record(f"m{number}", accuracy=0.2) for number in range(8)]
    for number in range(8):
        store.write(make_record(f"r{number}", accuracy=0.9), tmp_path / "board")
    rows = extrapolation.table([*own, *reference.load_reference(tmp_path)])
    rows = rows.assign(label=labels(rows))
    assert set(best(rows, extrapolation)) == {f"M{number}" for number in range(8)}
