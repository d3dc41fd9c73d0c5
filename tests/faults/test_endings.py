"""Every way in which a cell can end: status and reason of its record, exit code, and the next cell of the grid."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lra_bench.contracts import UserError
from lra_bench.grid.execute import execute
from lra_bench.grid.plan import plan
from lra_bench.grid.status import RERUN
from lra_bench.records import store
from lra_bench.runtime import subprocesses
from lra_bench.runtime.limits import memory_limit
from tests.support.command import TINY, Folder
from tests.support.forks import Forks, planned

OPTIONS = [*TINY, "tracker=none", "measure.extrapolation_ratios=[]"]


def own_models(folder: Folder, *failures: str) -> Path:
    """Create and return a folder of model files, one for each way to fail."""
    own = folder.root / "own"
    (own / "model").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("faulty.py"), own / "faulty.py")
    for how in failures:
        (own / "model" / f"{how}.yaml").write_text(
            "# @package _global_\n# Fails.\n"
            f"model: {{label: Faulty, network: {{_target_: faulty.Faulty, how: {how}}}}}\n"
        )
    return own


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Folder:
    return Folder(tmp_path_factory.mktemp("endings"))


DETECTED_BY_THE_CELL = {
    "not_a_number": ("diverged", "the loss became nan at step 3", []),
    "gradient": ("diverged", "the gradient became nan at step 3", []),
    "error": ("failed", "training at 100 tokens, batch 8: IndexError: one too far", []),
    "slow": (
        "timeout",
        "training at 100 tokens, batch 8: hardware.timeout_seconds=3 exceeded",
        ["hardware.timeout_seconds=3"],
    ),
    "memory": (
        "out_of_memory",
        "training at 100 tokens, batch 8: [enforce fail",
        ["hardware.memory_limit_gigabytes=2.5"],
    ),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("how", DETECTED_BY_THE_CELL)
def test_a_failure_that_the_cell_detects_is_in_its_record(folder, forks: Forks, how):
    status, reason, options = DETECTED_BY_THE_CELL[how]
    own = own_models(folder, how)
    (cell,) = planned([*OPTIONS, *options, f"model={how}"], folder, own)
    assert forks.run(cell, folder) == 10, forks.output.read_text()
    record = store.find(cell.key, folder.results)
    assert record.status == status and record.reason.startswith(reason), record.reason
    if how == "error":
        assert record.last_lines[-1] == "IndexError: one too far"
        assert any(line.strip().startswith('File "faulty.py"') for line in record.last_lines), record.last_lines
    (found,) = plan([*OPTIONS, f"model={how}"], folder.results, own)
    assert found.status == ("done" if status == "diverged" else "failed")


@pytest.mark.parametrize(
    ("how", "status"),
    [("sigint_while_the_record_is_written", "ok"), ("two_signals_while_the_record_is_written", "interrupted")],
)
def test_a_signal_does_not_interrupt_writing_a_record(folder, forks: Forks, how, status):
    (cell,) = planned([*OPTIONS, f"model={how}"], folder, own_models(folder, how))
    assert forks.run(cell, folder) == 130, forks.output.read_text()
    assert store.find(cell.key, folder.results).status == status


def test_wrong_input_gives_no_record(folder, forks: Forks):
    (cell,) = planned([*OPTIONS, "model=mistake"], folder, own_models(folder, "mistake"))
    assert forks.run(cell, folder) == 2
    assert "lra-bench: model.mixer: invalid on purpose" in forks.output.read_text()
    assert store.find(cell.key, folder.results) is None


DETECTED_BY_THE_COMMAND = {
    "killed": ("interrupted", "ended by signal 9, from outside"),
    "aborted": ("out_of_memory", "ended by signal 6"),
    "ignores_timeout": ("timeout", "hardware.timeout_seconds=3 exceeded, and the process did not stop"),
}


def assert_recorded_by_the_command(folder: Folder, how: str, status: str, reason: str) -> None:
    (record,) = [record for record in folder.records() if record["key"]["model"] == how]
    assert record["status"] == status and reason in record["reason"], record["reason"]
    assert record["reason"].startswith("training at 100 tokens, batch 8: ")


@pytest.mark.slow
def test_the_command_records_killed_cells_and_runs_the_next_ones(folder, forks: Forks):
    own = own_models(folder, *DETECTED_BY_THE_COMMAND)
    options = [
        *("--config-dir", str(own), *OPTIONS, "hardware.timeout_seconds=3"),
        f"model={','.join(DETECTED_BY_THE_COMMAND)}",
    ]
    done = forks.command(folder, "bench", *options, check=False, grace=0.5)
    assert done.returncode == 1, done.stderr
    for how, expected in DETECTED_BY_THE_COMMAND.items():
        assert_recorded_by_the_command(folder, how, *expected)
    (killed,) = plan([*OPTIONS, "hardware.timeout_seconds=3", "model=killed"], folder.results, own)
    assert killed.status == "to run"


@pytest.mark.slow
def test_a_crash_is_recorded_with_the_last_lines_of_stderr(folder, monkeypatch, capfd):
    for name, value in folder.environment.items():
        monkeypatch.setenv(name, value)
    own = own_models(folder, "crash")
    cells = plan([*OPTIONS, "model=crash"], folder.results, own)
    ((_, record, code),) = execute(cells, folder.results)
    assert code == 1
    assert_recorded_by_the_command(folder, "crash", "failed", "ended by signal 11")
    assert record.last_lines[-1] == "my last words"
    assert "my last words" in capfd.readouterr().err, "stderr of a cell must be forwarded"
    (again,) = plan([*OPTIONS, "model=crash"], folder.results, own)
    assert again.status == "failed" and "--rerun failed" in again.reason
    skipped = list(execute([again], folder.results))
    assert [(record.attempt, code) for _, record, code in skipped] == [(1, 1)], (
        "a failed cell must not run again without --rerun"
    )


@pytest.mark.slow
def test_a_clock_that_is_set_back_changes_only_dates(folder, forks: Forks):
    """Check that durations and the order of attempts do not depend on the system clock."""
    own = own_models(folder, "clock", "counted")
    records = []
    for how in ("counted", "clock"):
        (cell,) = planned([*OPTIONS, f"model={how}"], folder, own)
        assert forks.run(cell, folder) == 0, forks.output.read_text()
        records.append(store.find(cell.key, folder.results))
    correct, set_back = records
    assert set_back.finished_at < "1971" < set_back.started_at
    assert 0 < set_back.wall_seconds < 600 and 0 < set_back.training["train_seconds"] < 600
    assert set_back.training["final_weights_sha256"] == correct.training["final_weights_sha256"]
    assert set_back.metrics == correct.metrics
    assert forks.run(cell, folder, attempt=2, restart=True) == 0, forks.output.read_text()
    assert store.find(cell.key, folder.results).attempt == 2
    (found,) = plan([*OPTIONS, "model=clock"], folder.results, own)
    assert found.status == "done"


def test_rerun_selects_cells_by_status():
    assert RERUN == {
        "never": (),
        "failed": ("failed",),
        "stale": ("stale",),
        "all": ("done", "failed", "stale"),
    }


@pytest.mark.parametrize(
    ("code", "before", "after", "status"),
    [
        (-9, 3, 4, "out_of_memory"),
        (-9, 3, 3, "interrupted"),
        (-9, None, None, "interrupted"),
        (-15, 3, 4, "interrupted"),
        (-11, 3, 4, "failed"),
        (77, 3, 3, "failed"),
    ],
)
def test_status_of_a_killed_process_depends_on_the_signal_and_the_out_of_memory_count(
    monkeypatch, code, before, after, status
):
    monkeypatch.setattr(subprocesses, "memory_kills", lambda: after)
    found, reason = subprocesses.status_of_exit(code, before)
    assert found == status
    assert f"signal {-code}" in reason or f"exit code {code}" in reason


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Create a control group with 300 MiB of memory and yield its folder."""
    root = Path("/sys/fs/cgroup")
    version1 = (root / "memory").is_dir()
    folder = (root / "memory" if version1 else root) / f"lra-bench-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / ("memory.limit_in_bytes" if version1 else "memory.max")).write_text(str(300 << 20))
    except OSError as error:
        with suppress(OSError):
            folder.rmdir()
        pytest.skip(f"a control group cannot be created here ({error.strerror})")
    yield folder
    folder.rmdir()


def test_a_process_that_the_kernel_kills_in_its_control_group_is_out_of_memory(memory_group: Path) -> None:
    program = """
import os, subprocess, sys
from lra_bench.runtime.subprocesses import memory_kills, status_of_exit
open(sys.argv[1], "w").write(str(os.getpid()))
for command in ("held = bytearray(b'x' * (1 << 30))", "import os; os.kill(os.getpid(), 9)"):
    before = memory_kills()
    print(*status_of_exit(subprocess.run([sys.executable, "-c", command]).returncode, before))
"""
    arguments = [sys.executable, "-c", program, str(memory_group / "cgroup.procs")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["out_of_memory", "interrupted"]


def test_a_memory_limit_above_that_of_the_system_is_refused(monkeypatch):
    import resource

    import torch

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 30, 1 << 30))
    refused = pytest.raises(UserError, match=r"hardware\.memory_limit_gigabytes=3: the system allows 1\.0")
    with refused, memory_limit(3, torch.device("cpu")):
        raise AssertionError


def test_a_subprocess_whose_parent_ended_before_the_setup_ends(monkeypatch):
    sent = []
    monkeypatch.setattr(os, "kill", lambda *arguments: sent.append(arguments))
    monkeypatch.setenv(subprocesses.PARENT, str(os.getpid()))
    monkeypatch.setattr(subprocesses.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError))
    subprocesses.end_with_parent(signal.SIGTERM)
    assert sent == [(os.getpid(), signal.SIGTERM)]
