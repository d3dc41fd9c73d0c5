"""Commands that read records, over a part of the committed boards: no warnings, and output that fits a screen."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from lra_bench.cli import main
from lra_bench.records import tables
from lra_bench.records.names import find_paths
from lra_bench.records.packed import RECORDS, packed
from lra_bench.records.reference import boards
from lra_bench.records.store import load, write
from lra_bench.tables import table
from lra_bench.tables.summary import MOST_LINES

BOARDS = Path(__file__).parents[2] / "results" / "reference"
CELL = "listops/performer"
WITH_TESTS = ("lstm", "transformer", "performer")
"""Models of which all seeds are compared on ListOps."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy a seed of two cells of each task of each board, all seeds of ``WITH_TESTS``, and a record as the user's."""
    root = tmp_path_factory.mktemp("boards")
    for name, board in boards(BOARDS):
        copy = root / "reference" / name
        copy.mkdir(parents=True)
        for path in (*board.glob("*.parquet"), *board.glob("profiles")):
            (copy / path.name).symlink_to(path)
        cells: dict[str, list[str]] = {}
        lines = []
        for path, line in packed(board).items():
            task, model, *_, seed = path.parts[-5:]
            models = cells.setdefault(task, [])
            tested = name == "board2026" and task == "listops" and model in WITH_TESTS
            if seed == "seed0.json" and (len(models) < 2 or tested):
                models.append(model)
            if tested or (seed == "seed0.json" and model in models):
                lines.append(line)
        (copy / RECORDS).write_bytes(b"\n".join(lines))
    own = load(
        next(path for path in find_paths("listops/performer", BOARDS / "board2026") if path.name == "seed0.json")
    )
    write(own, root, tables.curves(own), tables.predictions(own))
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
    assert "*performer 46.4 (1)" in "\n".join(lines).partition("\nlistops ")[2].partition("\na5 ")[0]
    text = printed(folder, "leaderboard --task listops", monkeypatch, capsys)
    assert max(map(len, text.splitlines())) <= width and "continued" not in text
    assert text.count("─\n") == 3 and re.findall(r"· after pretraining \((\w+)\)", text) == ["masked", "causal"]
    assert "listops · quick-v3 · accuracy in % · floor 54.2 (digits of children)" in text
    assert "*performer" in text and "Left out:" in text and "Use --all to show them" in " ".join(text.split())


@pytest.mark.slow
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
