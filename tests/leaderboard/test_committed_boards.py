"""Commands that read records, over a part of the committed boards: no warnings, and output that fits a screen."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from lra_bench.cli import main
from lra_bench.leaderboard.summary import MOST_LINES

BOARDS = Path(__file__).parents[2] / "results" / "reference"
CELL = "listops/performer"
WITH_TESTS = ("lstm", "transformer", "performer")
"""Models of which all seeds are compared on ListOps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy two cells of each task of each board, all seeds of ``WITH_TESTS``, and a record as the user's own."""
    root = tmp_path_factory.mktemp("boards")
    cells: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(BOARDS.glob("*/runs/*/*/*/*/seed0.json")):
        cells.setdefault((path.parts[-7], path.parts[-5]), []).append(path.parent)
    own = [each for each in cells["quick", "listops"] if each.parts[-3] in WITH_TESTS]
    for each in {*own, *(each for members in cells.values() for each in members[:2])}:
        shutil.copytree(each, root / "reference" / each.relative_to(BOARDS))
    cell = next(each for each in own if each.parts[-3] == "performer")
    (target := root / "runs" / cell.relative_to(BOARDS / "quick" / "runs")).mkdir(parents=True)
    for path in cell.glob("seed0.*"):
        shutil.copy(path, target)
    return root


def printed(folder: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    words = [*command.split(), "--results", str(folder)]
    if not command.startswith("results"):
        monkeypatch.setenv("LRA_BENCH_REFERENCE", str(folder / "reference"))
    monkeypatch.setattr(sys, "argv", ["lra-bench", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()  # warnings are errors in tests
    out, err = capsys.readouterr()
    assert not ended.value.code and "Warning" not in err, err
    return out


@pytest.mark.parametrize(
    "command",
    [
        *("leaderboard --write", "leaderboard --all", "leaderboard --json", "leaderboard --format html"),
        *(f"leaderboard --layout {layout}" for layout in ("wide", "published", "reproduction")),
        *("compare lstm transformer --task listops", "plot heat_map --task listops", f"show {CELL}"),
        *("results list", "results check"),
    ],
)
def test_commands_that_read_records_warn_of_nothing(folder: Path, command: str, monkeypatch, capsys) -> None:
    assert printed(folder, command, monkeypatch, capsys)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_leaderboard_fits_a_screen(folder: Path, width: int, monkeypatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = printed(folder, "leaderboard", monkeypatch, capsys).splitlines()
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= width
    assert next(line for line in lines if line.startswith("listops")).endswith("*performer 45.6 (1)")
    text = printed(folder, "leaderboard --task listops", monkeypatch, capsys)
    assert max(map(len, text.splitlines())) <= width and "continued" not in text and text.count("─\n") == 1
    assert "listops · quick-v2 · accuracy in % · floor 41.8 (root operator and digits)" in text
    assert "*performer" in text and "Left out:" in text and "--all shows them" in " ".join(text.split())
