"""Drawing all figures with two processes: interruption, a killed process, and figures that raise errors."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from lra_bench import figures
from lra_bench.contracts import UserError
from lra_bench.figures import pool
from lra_bench.records.schema import Record
from lra_bench.runtime import hardware, signals
from tests.support import large_results
from tests.support.command import Folder
from tests.support.record_factory import make_record

SYSTEMS = ("transformer", "bag_of_tokens", "performer", "local", "linformer", "luna", "fnet", "linear", "star", "gmlp")
TASKS = ("listops", "text", "retrieval", "image", "pathfinder", "recall")
FEW = ("ranks", "heat_map", "score_vs_growth", "extrapolation")


@pytest.fixture
def two_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "usable_cpus", lambda: 2)
    monkeypatch.setattr(pool, "WORTHWHILE_RECORDS", 1)


def study() -> list[Record]:
    return [make_record(model) for model in ("transformer", "performer", "local")]


def complete(folder: Path) -> bool:
    """Return whether every file is complete."""
    ends = {".pdf": b"%%EOF\n", ".png": b"IEND\xaeB`\x82", ".csv": b"\n"}
    return all(path.read_bytes().endswith(ends[path.suffix]) for path in folder.iterdir())


def of_group(group: int) -> list[int]:
    """Return the running processes of a process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(its_group) == group and state != "Z":
                found.append(int(entry.name))
    return found


def temporary_files(folder: Path, parent: int) -> Iterator[Path]:
    """Yield the temporary files of processes other than ``parent``."""
    for path in folder.glob(".*"):
        if not path.name.startswith(f".{parent}."):
            yield path


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="requires /proc")
@pytest.mark.skipif(hardware.usable_cpus() < 2, reason="with one CPU, no second process is started")
def test_ctrl_c_leaves_complete_files_and_no_process(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert large_results.fill(folder.results, SYSTEMS, TASKS) >= pool.WORTHWHILE_RECORDS
    process = folder.start("plot")
    drawn = folder.results / "figures"
    until = time.monotonic() + 120
    while not any(temporary_files(drawn, process.pid)):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    messages, _ = process.communicate(timeout=60)
    assert process.returncode == 130, messages
    assert "Traceback" not in messages
    while of_group(process.pid):  # Python's resource tracker ends shortly after its parent
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not list(drawn.glob(".*")) and complete(drawn)
    assert not list(drawn.glob("learning_curves*.pdf"))  # in the middle of the list, not drawn before the interruption


@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
def test_figures_of_a_killed_process_are_drawn_by_the_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = set(multiprocessing.active_children())
    compute = pool._data_by_protocol
    messages: list[str] = []
    reported = threading.Event()

    def killing(name: str, records: list[Record]) -> list[pd.DataFrame]:
        if name == FEW[0]:  # nothing has been drawn
            (helper,) = set(multiprocessing.active_children()) - before
            assert helper.pid is not None
            (tmp_path / f".{helper.pid}.0-ranks-quick.pdf").write_text("%PDF")  # a partial file
            os.kill(helper.pid, signal.SIGKILL)
        else:  # the first figure was sent to the killed process
            assert reported.wait(60)
        return compute(name, records)

    def say(message: str) -> None:
        messages.append(message)
        reported.set()

    monkeypatch.setattr(pool, "_data_by_protocol", killing)
    monkeypatch.setattr(pool, "say", say)
    found = list(pool.draw_all(study(), tmp_path, names=FEW))
    assert sorted(name for name, _ in found) == sorted(FEW)
    assert all(not isinstance(outcome, Exception) and len(outcome) >= 3 for _, outcome in found)
    expected = f"plot {FEW[0]}: the second process ended by signal 9; this process draws the remaining figures"
    assert messages == [expected]
    assert set(multiprocessing.active_children()) == before
    assert not list(tmp_path.glob(".*")) and complete(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
def test_closing_the_iterator_leaves_no_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(multiprocessing.active_children())
    outcomes = pool.draw_all(study(), tmp_path, names=FEW)
    next(outcomes)
    assert set(multiprocessing.active_children()) > before
    outcomes.close()
    assert set(multiprocessing.active_children()) == before
    assert "second process" not in capfd.readouterr().err
    assert not list(tmp_path.glob(".*")) and complete(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("two_processes")
def test_a_figure_is_drawn_while_the_data_of_the_next_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait_for_the_first(name: str, records: list[Record]) -> pd.DataFrame:
        until = time.monotonic() + 120
        while name == FEW[1] and not list(tmp_path.glob(f"{FEW[0]}*.csv")) and time.monotonic() < until:
            time.sleep(0.01)
        computed[name] = bool(list(tmp_path.glob(f"{FEW[0]}*.csv")))
        return figures.tabulate(name, records)

    computed: dict[str, bool] = {}
    monkeypatch.setattr(pool, "tabulate", wait_for_the_first)
    names = [name for name, _ in pool.draw_all(study(), tmp_path, names=FEW)]
    assert sorted(names) == sorted(FEW) and computed[FEW[1]]


@pytest.mark.usefixtures("two_processes")
def test_two_processes_and_one_process_write_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for processes in (2, 1):
        monkeypatch.setattr(pool, "usable_cpus", lambda processes=processes: processes)
        folder = tmp_path / str(processes)
        assert len(list(pool.draw_all(study(), folder, names=FEW))) == len(FEW)
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1]


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
    # The records lack memory, adaptive depth, searches, pairs, and tasks of loss_by_position, middle_phase, abilities.
    assert {path.name.split("-")[0] for path in drawn.glob("*.csv")} == {*figures.FIGURES} - {
        "ranks",
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
    def failing_render(name: str, *arguments: object) -> list[Path]:
        if name == "ranks":
            raise ValueError("no such thing")
        return figures.render(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "render", failing_render)
    made = study()
    found = dict(pool.draw_all(made, tmp_path, names=FEW))
    assert made == []  # the records are released before drawing
    assert str(found.pop("ranks")) == "ValueError: no such thing"
    assert all(not isinstance(outcome, Exception) for outcome in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("kind", [ValueError, UserError, None])
def test_ctrl_c_ends_drawing_if_a_library_catches_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[Exception] | None
) -> None:
    def interrupted(*arguments: object) -> list[Path]:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        if kind:
            raise kind("a half-written file cannot be closed")
        return []

    monkeypatch.setattr(pool, "render", interrupted)
    monkeypatch.setattr(signals, "_last_request", [-math.inf])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(pool.draw_all(study(), tmp_path, names=FEW))
    assert signal.getsignal(signal.SIGINT) is before
