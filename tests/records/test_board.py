"""A board is refused if a file, a record or a score of it was changed, and a record of it is never lost."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lra_bench.cli import main
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.board import BOARD, overwritten, read_board, write_board
from lra_bench.records.check import check_store
from lra_bench.records.packed import RECORDS
from lra_bench.records.packing import pack
from lra_bench.records.reference import CHECKOUT
from tests.support.record_factory import make_curves, make_predictions, make_record

ROWS = 50
TEST = {"accuracy": 17 / ROWS, "loss": 2.0, "n": ROWS, "low": 0.2, "high": 0.5}


def add(root: Path, *seeds: int, **changes: object) -> None:
    """Write records whose test scores are those of their predictions."""
    predictions = make_predictions(ROWS).assign(loss=2.0, scored=1)
    for seed in seeds:
        record = make_record(seed=seed, metrics={"test": {**TEST, **changes}})
        store.write(record, root, make_curves(), predictions)


@pytest.fixture
def board(tmp_path: Path) -> Path:
    root = tmp_path / "board"
    add(root, 0, 1)
    pack(root)
    return root


def problems(root: Path) -> dict[str, str]:
    return {finding.what: finding.found for finding in check_store(root) if finding.ok is False}


def change(root: Path, old: str, new: str) -> None:
    text = (root / RECORDS).read_text()
    assert old in text
    (root / RECORDS).write_text(text.replace(old, new))


def better_score(root: Path) -> None:
    change(root, '"accuracy":0.34', '"accuracy":0.43')


def another_status(root: Path) -> None:
    change(root, '"status":"ok"', '"status":"diverged"')


def other_curves(root: Path) -> None:
    path = next(root.glob("curves-*.parquet"))
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def missing_predictions(root: Path) -> None:
    next(root.glob("predictions-*.parquet")).unlink()


def missing_digests(root: Path) -> None:
    (root / BOARD).unlink()


def digests_of_another_file(root: Path) -> None:
    (root / BOARD).write_text((root / BOARD).read_text().replace(RECORDS, "../secrets.json"))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (better_score, "accuracy is 0.43, that of its predictions 0.34"),
        (another_status, f"{RECORDS} has sha256 "),
        (other_curves, "has sha256 "),
        (missing_predictions, "is missing"),
        (missing_digests, "lra-bench results pack writes it"),
        (digests_of_another_file, "../secrets.json is no file of a board"),
    ],
)
def test_a_changed_board_is_a_problem(board: Path, damage: Callable[[Path], None], words: str) -> None:
    assert problems(board) == {}
    damage(board)
    found = problems(board)
    assert words in " ".join(found.values()) and "board" in found


def test_a_score_that_is_not_that_of_its_predictions_is_a_problem_after_packing_too(tmp_path: Path) -> None:
    add(tmp_path, 0)
    add(tmp_path, 1, accuracy=0.5)
    pack(tmp_path)
    [what] = problems(tmp_path)
    assert what == "scores"


def test_records_are_overwritten_unless_all_are_contained_unchanged(board: Path, tmp_path: Path) -> None:
    larger = tmp_path / "larger"
    add(larger, 0, 1, 2)
    pack(larger)
    assert list(overwritten(board, larger)) == list(overwritten(board, board)) == []
    assert [key.rpartition("/")[2] for key in overwritten(larger, board)] == ["seed2"]
    changed = tmp_path / "changed"
    add(changed, 0)
    store.write(make_record(seed=1, metrics={"test": TEST}), changed, make_curves().assign(train_loss=1.0))
    pack(changed)
    assert [key.rpartition("/")[2] for key in overwritten(board, changed)] == ["seed1"]


def test_board_json_states_schema_number_and_digests(board: Path) -> None:
    content = read_board(board)
    assert (content["schema_version"], content["records"]) == (9, 2)
    names = sorted(name.partition("-")[0] for name in content["sha256"])
    assert names == ["curves", "predictions", RECORDS]
    (board / BOARD).write_text(json.dumps({**content, "records": "2"}))
    with pytest.raises(UserError, match=r"board.json: records should be a valid integer, is '2'"):
        read_board(board)


@pytest.mark.parametrize("path", sorted((CHECKOUT / "results" / "reference").glob(f"**/{RECORDS}")), ids=str)
def test_committed_boards_have_the_digests_of_their_files(path: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(path.parent, tmp_path / "copy", ignore=shutil.ignore_patterns("trials"))
    digests = (copy / BOARD).read_text()
    write_board(copy)
    assert (copy / BOARD).read_text() == digests


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted((CHECKOUT / "results" / "reference").glob(f"**/{RECORDS}")), ids=str)
def test_committed_boards_have_no_problems(path: Path) -> None:
    assert problems(path.parent) == {}


def test_the_command_ends_with_code_1_if_a_board_was_changed(
    board: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def code() -> object:
        monkeypatch.setattr(sys, "argv", ["lra-bench", "results", "check", "--results", str(board)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        return ended.value.code or 0

    assert code() == 0
    better_score(board)
    capsys.readouterr()
    assert code() == 1
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("PROBLEM")]
    assert [line.split()[1] for line in lines] == ["board:", "scores:"]
