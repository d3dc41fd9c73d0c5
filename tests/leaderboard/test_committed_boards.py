"""Commands that read records, over a part of the committed boards: no warnings, and output that fits a screen."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from lra_bench.cli import main
from lra_bench.leaderboard import table
from lra_bench.leaderboard.summary import MOST_LINES

BOARDS = Path(__file__).parents[2] / "results" / "reference"
CELL = "listops/performer"
WITH_TESTS = ("lstm", "transformer", "performer")
"""Models of which all seeds are compared on ListOps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy a seed of two cells of each task of each board, all seeds of ``WITH_TESTS``, and a record as the user's."""
    root = tmp_path_factory.mktemp("boards")
    cells: dict[tuple[str, str], list[Path]] = {}
    for path in sorted(BOARDS.glob("*/runs/*/*/*/*/seed0.json")):
        cells.setdefault((path.parts[-7], path.parts[-5]), []).append(path.parent)
    tested = [cell for cell in cells["quick", "listops"] if cell.parts[-3] in WITH_TESTS]
    own = next(cell for cell in tested if cell.parts[-3] == "performer")
    pairs = [(cell, "seed0.*") for members in cells.values() for cell in members[:2]]
    for cell, files in [*pairs, *((cell, "*") for cell in tested)]:
        copy(cell, files, root / "reference" / cell.relative_to(BOARDS))
    copy(own, "seed0.*", root / own.relative_to(BOARDS / "quick"))
    return root


def copy(source: Path, files: str, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in source.glob(files):
        shutil.copy(path, target)


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
        *("leaderboard --write", "leaderboard --all"),
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
    assert "*performer 45.6 (1)" in "\n".join(lines).partition("\nlistops ")[2].partition("\na5 ")[0]
    text = printed(folder, "leaderboard --task listops", monkeypatch, capsys)
    assert max(map(len, text.splitlines())) <= width and "continued" not in text and text.count("─\n") == 1
    assert "listops · quick-v2 · accuracy in % · floor 41.8 (root operator and digits)" in text
    assert "*performer" in text and "Left out:" in text and "--all shows them" in " ".join(text.split())


def test_figures_hide_obsolete_and_modified_rows_unless_asked_for(folder: Path, monkeypatch, capsys) -> None:
    drawn = []
    for options in ("", " --all"):
        printed(folder, f"plot ranks{options}", monkeypatch, capsys)
        drawn.append({path.name for path in (folder / "figures").glob("ranks*.csv")})
    assert drawn[0] < drawn[1] and not any("modified" in name for name in drawn[0])


@pytest.mark.parametrize("options", ["--columns score,foo", "--against foo", "--format foo", "--layout foo"])
def test_wrong_options_of_the_leaderboard_are_refused_before_tables_are_computed(
    folder: Path, options: str, monkeypatch, capsys
) -> None:
    def compute(*arguments: object) -> None:
        raise AssertionError

    monkeypatch.setattr(table, "runs", compute)
    monkeypatch.setattr(sys, "argv", ["lra-bench", "leaderboard", *options.split(), "--results", str(folder)])
    with pytest.raises(SystemExit, match="2"):
        main.main()
    assert "foo" in capsys.readouterr().err
