"""All figures at once: interrupted, with a process killed, or with one that cannot be drawn, nothing else is lost."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

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


def whole(folder: Path) -> bool:
    """Whether each file is one, to its end."""
    ends = {".pdf": b"%%EOF\n", ".png": b"IEND\xaeB`\x82", ".csv": b"\n"}
    return all(path.read_bytes().endswith(ends[path.suffix]) for path in folder.iterdir())


def of_group(group: int) -> list[int]:
    """The processes of a process group that still run."""
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


def begun(folder: Path, parent: int) -> Iterator[Path]:
    """What another process than ``parent`` is writing."""
    for path in folder.glob(".*"):
        if not path.name.startswith(f".{parent}."):
            yield path


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.skipif(hardware.usable_cpus() < 2, reason="one processor draws alone")
def test_ctrl_c_in_the_middle_leaves_whole_files_and_no_process(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert large_results.fill(folder.results, SYSTEMS, TASKS) >= pool.WORTHWHILE_RECORDS
    process = folder.start("plot")
    drawn = folder.results / "figures"
    until = time.monotonic() + 120
    while not any(begun(drawn, process.pid)):
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "Traceback" not in told
    while of_group(process.pid):  # one of Python's own ends a moment after its parent
        assert time.monotonic() < until
        time.sleep(0.05)
    assert not list(drawn.glob(".*")) and whole(drawn)
    assert not list(drawn.glob("learning_curves*.pdf"))  # it was in the middle


@pytest.mark.usefixtures("two_processes")
def test_figures_of_a_killed_process_are_drawn_by_the_other_which_says_so_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = set(multiprocessing.active_children())
    with closing(pool.draw_all(study(), tmp_path, names=FEW)) as outcomes:
        found = [next(outcomes)]
        (helper,) = set(multiprocessing.active_children()) - before
        assert helper.pid is not None
        (tmp_path / f".{helper.pid}.0-ranks-quick.pdf").write_text("%PDF")  # what it had begun
        os.kill(helper.pid, signal.SIGKILL)
        found += outcomes
    assert sorted(name for name, _ in found) == sorted(FEW)
    assert all(not isinstance(outcome, Exception) and len(outcome) >= 3 for _, outcome in found)
    told = [line for line in capfd.readouterr().err.splitlines() if "second process" in line]
    how = "ended by signal 9"
    assert len(told) == 1
    assert re.fullmatch(rf"plot \w+: the second process {how}; this one draws the rest alone", told[0])
    assert set(multiprocessing.active_children()) == before
    assert not list(tmp_path.glob(".*")) and whole(tmp_path)


@pytest.mark.usefixtures("two_processes")
def test_a_caller_that_stops_leaves_no_process(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = set(multiprocessing.active_children())
    outcomes = pool.draw_all(study(), tmp_path, names=FEW)
    next(outcomes)
    assert set(multiprocessing.active_children()) > before
    outcomes.close()
    assert set(multiprocessing.active_children()) == before
    assert "second process" not in capfd.readouterr().err
    assert not list(tmp_path.glob(".*")) and whole(tmp_path)


@pytest.mark.usefixtures("two_processes")
def test_two_processes_draw_what_one_does_to_the_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for processes in (2, 1):
        monkeypatch.setattr(pool, "usable_cpus", lambda processes=processes: processes)
        folder = tmp_path / str(processes)
        assert len(list(pool.draw_all(study(), folder, names=FEW))) == len(FEW)
        found.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found[0] == found[1]


def test_a_figure_that_cannot_be_written_is_named_and_the_others_are_drawn(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    large_results.fill(folder.results, SYSTEMS[:3], TASKS[:1])
    drawn = folder.results / "figures"
    (drawn / "ranks-quick.pdf").mkdir(parents=True)
    done = folder.run("plot", check=False)
    assert done.returncode == 2
    assert "plot ranks: --output" in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("ranks could not be drawn, as told above; the other figures are")
    # Losses by position belong to a task that is not among these.
    assert {path.name.split("-")[0] for path in drawn.glob("*.csv")} == {*figures.FIGURES} - {
        "ranks",
        "loss_by_position",
        "score_vs_length",
    }


def test_any_other_mistake_in_a_figure_is_told_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mistaken(name: str, *arguments: object) -> list[Path]:
        if name == "ranks":
            raise ValueError("no such thing")
        return figures.render(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pool, "render", mistaken)
    made = study()
    found = dict(pool.draw_all(made, tmp_path, names=FEW))
    assert made == []  # their memory is needed for drawing
    assert str(found.pop("ranks")) == "ValueError: no such thing"
    assert all(not isinstance(outcome, Exception) for outcome in found.values())


@pytest.mark.parametrize("kind", [ValueError, UserError, None])
def test_ctrl_c_ends_drawing_when_a_library_hides_it(
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
    monkeypatch.setattr(signals, "_heeded", [-math.inf])
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        list(pool.draw_all(study(), tmp_path, names=FEW))
    assert signal.getsignal(signal.SIGINT) is before
