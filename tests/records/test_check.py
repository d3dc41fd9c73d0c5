"""Check of a results folder: no findings for a valid folder, one for each kind of damage."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lra_bench.records import check, store
from lra_bench.tables.published import check_published
from tests.support.record_factory import make_curves, make_record


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for seed in range(3):
        store.write(make_record("local", seed=seed), tmp_path, make_curves())
    return tmp_path


def problems(root: Path) -> dict[str, str]:
    return {finding.what: finding.found for finding in check.check_store(root) if finding.ok is False}


def json_of(root: Path, seed: int) -> Path:
    return root / "runs" / make_record("local", seed=seed).key.file("json")


def test_a_valid_folder_has_no_problems(results: Path) -> None:
    findings = {finding.what: finding.found for finding in check.check_store(results)}
    assert problems(results) == {}
    assert findings["records"].startswith("3 in") and "version" in findings["records"]
    assert findings["curves and predictions"] == "all 3 present and unchanged"
    assert "6 files" in findings["size"]
    assert problems(results / "nothing") == {}


def test_an_old_version_loads_and_is_counted(results: Path) -> None:
    old = Path(__file__).parents[1] / "support" / "stored_records" / "version8.json"
    record = store.load(old)
    target = results / "runs" / record.key.file("json")
    target.parent.mkdir(parents=True)
    shutil.copyfile(old, target)
    found = next(finding.found for finding in check.check_store(results) if finding.what == "records")
    assert "version 8: 1" in found


def unreadable(root: Path) -> None:
    json_of(root, 0).write_text("{")


def with_newer_version(root: Path) -> None:
    path = json_of(root, 0)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": 999}))


def misplaced(root: Path) -> None:
    json_of(root, 0).rename(json_of(root, 7))


def duplicated(root: Path) -> None:
    shutil.copyfile(json_of(root, 0), json_of(root, 7))


def without_curves(root: Path) -> None:
    next(json_of(root, 0).parent.glob("seed0.curves-*.parquet")).unlink()


def with_leftovers(root: Path) -> None:
    json_of(root, 0).with_name(".123-seed0.json").write_text("")


@pytest.mark.parametrize(
    ("damage", "what", "named"),
    [
        (unreadable, "readable", "seed0.json"),
        (with_newer_version, "readable", "upgrade lra-bench"),
        (misplaced, "paths", "seed7.json"),
        (duplicated, "duplicates", "seed7.json"),
        (without_curves, "curves and predictions", "seed0.curves-"),
        (with_leftovers, "other files", ".123-seed0.json"),
    ],
)
def test_damage_is_reported(results: Path, damage: Callable[[Path], None], what: str, named: str) -> None:
    damage(results)
    assert named in problems(results)[what]


def test_large_files_are_reported_and_long_lists_are_shortened(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "LARGE_BYTES", 100)
    monkeypatch.setattr(check, "SHOWN", 2)
    assert "very large" in problems(results)["size"] and "and 4 more" in problems(results)["size"]


def test_files_that_disappear_during_the_check_are_left_out(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate another process that removes a temporary file and tables during the check."""
    temporary = results / "runs" / ".1234.0123456789abcdef0123456789abcdef-seed1.json"
    temporary.write_text("{}")
    load = check._load

    def load_and_remove(paths: list[Path], broken: list[str]) -> object:
        loaded = load(paths, broken)
        for path in (temporary, *results.rglob("*.parquet")):
            path.unlink()
        return loaded

    monkeypatch.setattr(check, "_load", load_and_remove)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    found = {finding.what: finding for finding in check.check_store(results)}
    assert found["curves and predictions"].ok and found["size"].ok


def test_a_record_that_is_replaced_during_the_check_is_read_again(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = check._load

    def load_and_replace(paths: list[Path], broken: list[str]) -> object:
        loaded = load(paths, broken)
        store.write(make_record("local", seed=1), results, make_curves().assign(attempt=2))
        return loaded

    monkeypatch.setattr(check, "_load", load_and_replace)
    assert not problems(results)


def test_the_command_exits_with_1_on_a_problem(results: Path, tmp_path: Path) -> None:
    def command() -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "lra_bench.cli.main", "results", "check", "--results", str(results)]
        return subprocess.run(program, capture_output=True, text=True, check=False)

    valid = command()
    assert valid.returncode == 0 and "published numbers: " in valid.stdout, valid.stderr
    unreadable(results)
    broken = command()
    assert broken.returncode == 1 and "PROBLEM readable" in broken.stdout


def test_published_numbers_without_a_source_are_a_problem(tmp_path: Path) -> None:
    assert check_published().ok
    (tmp_path / "x.csv").write_text("model\nA\n")
    assert check_published(tmp_path).ok is False
