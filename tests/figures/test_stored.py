"""Drawing all figures: interruption, figures that raise errors, and the choice of models."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from lra_bench import figures
from lra_bench.contracts import UserError
from lra_bench.figures.layout import Sheet
from lra_bench.figures.ranks import ranks
from lra_bench.records.schema import Record
from lra_bench.runtime import signals
from tests.support import large_results
from tests.support.command import Folder
from tests.support.record_factory import make_record

SYSTEMS = ("transformer", "bag_of_tokens", "performer", "local", "linformer", "luna", "fnet", "linear", "star", "gmlp")
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "recall")
FEW = ("ranks", "heat_map", "score_vs_growth", "extrapolation")


def study() -> list[Record]:
    return [make_record(model) for model in ("transformer", "performer", "local")]


def complete(folder: Path) -> bool:
    """Return whether every file is complete."""
    ends = {".pdf": b"%%EOF\n", ".png": b"IEND\xaeB`\x82", ".csv": b"\n", ".txt": b".", ".tex": b"}\n"}
    return all(path.read_bytes().endswith(ends[path.suffix]) for path in folder.iterdir())


@pytest.mark.slow
def test_ctrl_c_leaves_complete_files(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    large_results.fill(folder.results, SYSTEMS, TASKS)
    process = folder.start("plot")
    drawn = folder.results / "figures"
    until = time.monotonic() + 120
    while not any(drawn.glob(".*")):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    messages, _ = process.communicate(timeout=60)
    assert process.returncode == 130, messages
    assert "Traceback" not in messages
    assert not list(drawn.glob(".*")) and complete(drawn)
    assert not list(drawn.glob("extrapolation*.pdf"))  # last in the list, not drawn before the interruption


@pytest.mark.slow
def test_a_figure_that_cannot_be_written_is_reported_and_the_others_are_drawn(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    large_results.fill(folder.results, SYSTEMS[:3], TASKS[:1])
    drawn = folder.results / "figures"
    (drawn / "ranks-quick.pdf").mkdir(parents=True)
    done = folder.run("plot", check=False)
    assert done.returncode == 2
    assert "plot ranks: --output" in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith(
        "ranks could not be drawn, see the messages above; all other figures were written"
    )
    # The records lack pretraining, memory, adaptive depth, searches and pairs, and the tasks of loss_by_position,
    # middle_phase and abilities.
    assert {path.name.split("-")[0] for path in drawn.glob("*.csv")} == {*figures.figure_names()} - {
        "ranks",
        "gain",
        "loss_by_position",
        "score_vs_length",
        "score_vs_memory",
        "score_vs_depth",
        "depth_by_slice",
        "abilities",
        "middle_phase",
        "rate_search",
        "minimal_pairs",
    }


@pytest.mark.slow
def test_other_exceptions_are_yielded_with_the_name_of_the_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(data: pd.DataFrame, width: float) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(ranks, "draw", failing)
    found = dict(figures.draw_all(study(), tmp_path, names=FEW))
    assert str(found.pop("ranks")) == "ValueError: no such thing"
    assert all(not isinstance(outcome, Exception) and len(outcome) >= 5 for outcome in found.values())
    assert complete(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ValueError, UserError, None])
def test_ctrl_c_ends_drawing_if_a_library_catches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception] | None
) -> None:
    def interrupted(*arguments: object, **options: object) -> list[Path]:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        if kind:
            raise kind("a half-written file cannot be closed")
        return []

    monkeypatch.setattr(figures, "draw", interrupted)
    monkeypatch.setattr(signals, "_last_request", [-math.inf])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(figures.draw_all(study(), tmp_path, names=FEW))
    assert signal.getsignal(signal.SIGINT) is before


def test_models_select_and_order_the_rows(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    large_results.fill(folder.results, SYSTEMS[:3], TASKS[:2])
    chosen = ("performer", "transformer")
    paths = list(figures.draw_stored("extrapolation", folder.results, "none", models=chosen, output=tmp_path / "drawn"))
    drawn = pd.read_csv(next(path for path in paths if path.suffix == ".csv"))
    assert set(drawn["model"]) == set(chosen)
    names = ["heat_map", "learning_curves"]
    paths = list(figures.draw_stored(",".join(names), folder.results, "none", output=tmp_path / "two"))
    assert {path.name.split("-")[0] for path in paths} == set(names)
    with pytest.raises(UserError, match="plot rank: unknown figure; did you mean ranks"):
        list(figures.draw_stored("heat_map,rank", folder.results, "none"))
    data = figures.tabulate("heat_map", study())
    for order in (["local", "performer", "transformer"], ["transformer", "local", "performer"]):
        tasks = sorted(set(data["task"]), reverse=True)
        [sheet] = figures.figure("heat_map").draw(figures.ordered(data, order, tasks), 7.0)
        [page] = sheet.pages
        assert [tick.get_text().lower() for tick in page.axes[0].get_yticklabels()] == order
        headings = [tick.get_text().partition("\n")[0] for tick in page.axes[0].get_xticklabels()]
        assert headings == [task.replace("_", " ") for task in tasks]
    with pytest.raises(UserError, match="--models perfomer: no record of that model; did you mean performer"):
        list(figures.draw_stored("ranks", folder.results, "none", models=["perfomer"]))


def test_the_names_of_files_are_safe() -> None:
    parts = ("small-v2", "", "cpu epyc.7@board~1 #2")
    assert Sheet(parts, [], pd.DataFrame()).name == "small-v2-cpu-epyc-7-board-1-2"


def test_listing_figures_loads_no_figure() -> None:
    program = (
        "import sys; from lra_bench.figures import figure_names; names = figure_names()\n"
        "assert {'ranks', 'slices', 'score_vs_state'} <= set(names)\n"
        "assert not any(f'lra_bench.figures.{name}' in sys.modules for name in ('curves', 'scatter', 'task_table'))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_tables_and_figures_import_no_library_that_they_do_not_need(tmp_path: Path) -> None:
    table = f"from lra_bench.cli.tables import leaderboard; leaderboard({str(tmp_path)!r}, 'none')"
    figures = "import lra_bench.page.page; from lra_bench.figures import all_figures; all_figures()"
    for made, unneeded in ((table, {"torch", "matplotlib"}), (figures, {"torch"})):
        code = f"import sys; {made}; assert not {unneeded!r} & set(sys.modules), set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)
