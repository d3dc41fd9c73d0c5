"""SIGINT and SIGTERM at each stage of a cell, sent to the command or to its process group, always leave a record."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil
import pytest

from tests.faults.outcome import left_behind, wait_for, wait_for_step, with_data_of
from tests.faults.test_endings import OPTIONS, own_models
from tests.faults.test_kills import cell_processes
from tests.support.command import TINY, Folder, alive
from tests.support.forks import Forks

CELL, WORKER = "lra_bench.cells.run", "lra_bench.profiling.worker"
LONG = ["train.steps=100000", "train.evaluate_every=100000", "hardware.checkpoint_seconds=0"]
MEASURED = [each for each in TINY if not each.startswith("measure.speed_lengths")]

INT, TERM = signal.SIGINT, signal.SIGTERM
SEQUENCES = [[INT], [INT, 0.05, TERM], [INT, 0.6, TERM], [INT, 2, TERM], [INT, 5, TERM], [TERM]]
TARGETS = {"command": os.kill, "group": os.killpg}
BOTH_TARGETS = pytest.mark.parametrize("target", ["command", pytest.param("group", marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def prepared(forks: Forks, tmp_path_factory) -> Folder:
    """Return a folder whose cache contains the data of the task."""
    folder = Folder(tmp_path_factory.mktemp("prepared"))
    forks.command(folder, "data", "prepare", "listops", "--protocol", "smoke")
    return folder


def in_start_up(process, folder: Folder) -> None:
    """Wait until the process of the cell exists; its imports take seconds."""
    wait_for(lambda: cell_processes(psutil.Process(process.pid), CELL), process)
    time.sleep(0.3)


def in_training(process, folder: Folder) -> None:
    wait_for_step(folder, alive(process), 3)


def in_measuring(process, folder: Folder) -> None:
    wait_for(lambda: cell_processes(psutil.Process(process.pid), WORKER), process)


STAGES: dict[str, tuple[Callable, list[str], str]] = {
    "starting": (in_start_up, [*TINY, *LONG], "starting: "),
    "training": (in_training, [*TINY, *LONG], "training at "),
    "measuring": (in_measuring, [*MEASURED, "measure.speed_lengths=[128,256,512]"], "measuring speed and memory: "),
}


def send(process, sequence: Iterable[float], target: str) -> None:
    """Send signals to the command or to its group, with pauses in seconds between them."""
    for each in sequence:
        if not isinstance(each, signal.Signals):
            time.sleep(each)
        elif process.poll() is None:
            TARGETS[target](process.pid, each)


def assert_interrupted(process, folder: Folder, stage: str, seconds: float = 60) -> None:
    """Check that the command ends with exit code 130 and a record, and that no process remains."""
    try:
        printed, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 130, (process.returncode, printed)
    assert "Traceback" not in printed, printed
    record = folder.record()
    assert record["status"] == "interrupted"
    assert record["reason"].startswith(stage) and "the same command resumes" in record["reason"], record["reason"]
    assert not left_behind(folder)


def stop(prepared: Folder, root: Path, stage: str, sequence: list, target: str, start: Callable = Folder.start) -> None:
    wait, options, reason = STAGES[stage]
    folder = with_data_of(prepared, root)
    process = start(folder, "bench", "model=bag_of_tokens", "tracker=none", *options)
    wait(process, folder)
    send(process, sequence, target)
    assert_interrupted(process, folder, reason)


PLANNING = """
import sys, time
from lra_bench.cli import main
from lra_bench.grid import plan

def slowly(*arguments):
    print("planning", flush=True)
    time.sleep(60)

plan.plan = slowly
sys.argv = ["lra-bench", "bench"]
main.main()
"""


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sequence", [[INT], [TERM], [INT, 0.05, TERM]], ids=str)
def test_a_signal_during_planning_ends_the_command(tmp_path, sequence):
    process = subprocess.Popen(
        [sys.executable, "-c", PLANNING],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "planning\n"
    send(process, sequence, "command")
    printed, _ = process.communicate(timeout=30)
    assert process.returncode == 130 and "Traceback" not in printed, printed
    assert "interrupted; the same command continues" in printed


def sequence_id(sequence: list) -> str:
    return " ".join(str(getattr(each, "name", each)) for each in sequence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "sequence", "target"),
    [
        ("starting", [INT], "group"),
        ("training", [INT], "command"),
    ],
    ids=str,
)
def test_signals_leave_a_record(prepared, tmp_path, stage, sequence, target):
    stop(prepared, tmp_path, stage, sequence, target)


def test_two_signals_in_training_leave_a_record(prepared, forks, tmp_path):
    stop(prepared, tmp_path, "training", [INT, 0.6, TERM], "group", forks.start_command)


@pytest.mark.slow
@pytest.mark.one_in(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sequence", SEQUENCES, ids=sequence_id)
@pytest.mark.parametrize("stage", STAGES)
def test_signals_in_any_order_leave_a_record(prepared, tmp_path, stage, sequence, target):
    stop(prepared, tmp_path, stage, sequence, target)


def faulty(prepared: Folder, root: Path, how: str, forks: Forks):
    """Start a cell that fails in the way ``how``, and wait until it begins to."""
    folder = with_data_of(prepared, root)
    process = forks.start_command(
        folder, "bench", "--config-dir", str(own_models(folder, how)), *OPTIONS, f"model={how}"
    )
    wait_for((root / "started.txt").exists, process)
    return process, folder


@BOTH_TARGETS
@pytest.mark.parametrize(
    "pause", [0.6, pytest.param(2, marks=pytest.mark.slow), pytest.param(5, marks=pytest.mark.slow)]
)
def test_sigterm_after_sigint_does_not_wait_for_the_end_of_a_step(prepared, forks, tmp_path, pause, target):
    process, folder = faulty(prepared, tmp_path, "a_long_step", forks)
    send(process, [INT, pause, TERM], target)
    assert_interrupted(process, folder, "training at ")


@BOTH_TARGETS
def test_signals_do_not_interrupt_writing_a_record(prepared, forks, tmp_path, target):
    folder = with_data_of(prepared, tmp_path)
    own = str(own_models(folder, "a_long_record"))
    process = forks.start_command(folder, "bench", "--config-dir", own, *OPTIONS, *LONG, "model=a_long_record")
    in_training(process, folder)
    TARGETS[target](process.pid, INT)
    wait_for((tmp_path / "started.txt").exists, process)
    send(process, [0.6, TERM, 0.6, TERM], target)
    assert_interrupted(process, folder, "training at ")


@pytest.mark.parametrize("target", [pytest.param("command", marks=pytest.mark.slow), "group"])
def test_a_second_ctrl_c_kills_the_cell_immediately_and_leaves_a_record(prepared, forks, tmp_path, target):
    process, folder = faulty(prepared, tmp_path, "a_long_step", forks)
    send(process, [INT, 0.8], target)
    assert process.poll() is None, "the first signal must wait for the end of the step"
    send(process, [INT], target)
    assert_interrupted(process, folder, "training at ", seconds=30)


@BOTH_TARGETS
def test_ctrl_c_ends_the_step_and_the_same_command_resumes(prepared, forks, tmp_path, target):
    """Check that one Ctrl-C counts once: a second request would end the cell before the step writes its checkpoint."""
    process, folder = faulty(prepared, tmp_path, "a_slow_step", forks)
    assert not list(folder.cache.glob("checkpoints/**/last.pt"))
    send(process, [INT], target)
    assert_interrupted(process, folder, "training at ")
    assert list(folder.cache.glob("checkpoints/**/last.pt"))
    forks.command(folder, "bench", "--config-dir", str(folder.root / "own"), *OPTIONS, "model=a_slow_step")
    assert (folder.record()["status"], folder.record()["attempt"]) == ("ok", 2)


SUPERVISED = """
import os, signal, time
from lra_bench.runtime.signals import ECHO_SECONDS, SIGNALS, raise_once

raise_once(*SIGNALS)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, None, signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
    try:
        if number is None:
            time.sleep(ECHO_SECONDS + 0.1)
        else:
            os.kill(os.getpid(), number)
        print("nothing")
    except KeyboardInterrupt:
        print("raised")
"""


def test_repeated_signals_count_once_and_a_later_sigterm_counts_again():
    done = subprocess.run([sys.executable, "-c", SUPERVISED], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["raised", *["nothing"] * 4, "raised", "nothing"]


IGNORED = """
import os, signal, sys, time, weakref
from lra_bench.runtime import signals
from lra_bench.runtime.signals import SIGNALS, raise_once

class Object:
    pass

class Slow(list):
    def __setitem__(self, *item):
        time.sleep(float(sys.argv[1]))
        super().__setitem__(*item)

signals._last_request = Slow(signals._last_request)

def stop(_):
    print("called")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)

raise_once(*SIGNALS)
try:
    known = Object()
    reference = weakref.ref(known, stop)
    del known  # Python ignores exceptions of the callback
    time.sleep(5)
    print("lost")
except KeyboardInterrupt:
    print("raised")
"""


@pytest.mark.parametrize("seconds", ["0", "0.3"])
def test_a_signal_in_a_callback_of_a_weak_reference_is_not_lost(seconds):
    """Also if handling the ignored exception takes long, as on a busy machine."""
    done = subprocess.run([sys.executable, "-c", IGNORED, seconds], capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["called", "raised"], "")


ENDING = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent process may ignore it
from lra_bench.runtime.signals import ignore_all

try:
    exec("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
except KeyboardInterrupt:
    ignore_all()
    sys.exit(130)
"""


def test_the_exit_code_is_kept_if_an_executed_string_was_interrupted(tmp_path):
    (tmp_path / "ending.py").write_text(ENDING)
    done = subprocess.run([sys.executable, "-m", "ending"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130, done.stderr
