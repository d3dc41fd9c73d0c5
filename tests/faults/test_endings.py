"""Whatever ends a cell, its record says so, the grid goes on, and the exit code tells."""

import os
import shutil
import signal
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


def own_models(folder: Folder, *ways: str) -> Path:
    """A folder of configurations, one for each way to go wrong."""
    own = folder.root / "own"
    (own / "model").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(Path(__file__).with_name("faulty.py"), own / "faulty.py")
    for how in ways:
        (own / "model" / f"{how}.yaml").write_text(
            "# @package _global_\n# Goes wrong.\n"
            f"model: {{label: Faulty, network: {{_target_: faulty.Faulty, how: {how}}}}}\n"
        )
    return own


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Folder:
    return Folder(tmp_path_factory.mktemp("endings"))


WITHIN = {
    "not_a_number": ("diverged", "the loss became nan at step 3", []),
    "gradient": ("diverged", "the gradient became nan at step 3", []),
    "error": ("failed", "training at 100 tokens, batch 8: IndexError: one too far", []),
    "slow": (
        "timeout",
        "training at 100 tokens, batch 8: hardware.timeout_seconds=3 were over",
        ["hardware.timeout_seconds=3"],
    ),
    "memory": (
        "out_of_memory",
        "training at 100 tokens, batch 8: [enforce fail",
        ["hardware.memory_limit_gigabytes=2.5"],
    ),
}


@pytest.mark.parametrize("how", WITHIN)
def test_what_a_cell_sees_of_its_own_end(folder, forks: Forks, how):
    status, reason, options = WITHIN[how]
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
    [("ctrl_c_while_the_record_is_written", "ok"), ("told_to_stop_again_while_the_record_is_written", "interrupted")],
)
def test_a_record_is_written_to_its_end(folder, forks: Forks, how, status):
    (cell,) = planned([*OPTIONS, f"model={how}"], folder, own_models(folder, how))
    assert forks.run(cell, folder) == 130, forks.output.read_text()
    assert store.find(cell.key, folder.results).status == status


def test_a_mistake_is_no_record(folder, forks: Forks):
    (cell,) = planned([*OPTIONS, "model=mistake"], folder, own_models(folder, "mistake"))
    assert forks.run(cell, folder) == 2
    assert "lra-bench: model.mixer: no such luck" in forks.output.read_text()
    assert store.find(cell.key, folder.results) is None


OUTSIDE = {
    "killed": ("interrupted", "ended by signal 9, from outside"),
    "aborted": ("out_of_memory", "ended by signal 6"),
    "deaf": ("timeout", "hardware.timeout_seconds=3 were over, and it did not stop"),
}


def assert_ended_outside(folder: Folder, how: str, status: str, reason: str) -> None:
    (record,) = [record for record in folder.records() if record["key"]["model"] == how]
    assert record["status"] == status and reason in record["reason"], record["reason"]
    assert record["reason"].startswith("training at 100 tokens, batch 8: ")


def test_who_cannot_speak_any_more_is_spoken_for_and_the_grid_goes_on(folder, forks: Forks):
    own = own_models(folder, *OUTSIDE)
    options = ["--config-dir", str(own), *OPTIONS, "hardware.timeout_seconds=3", f"model={','.join(OUTSIDE)}"]
    done = forks.command(folder, "bench", *options, check=False, grace=0.5)
    assert done.returncode == 1, done.stderr
    for how, ending in OUTSIDE.items():
        assert_ended_outside(folder, how, *ending)
    (killed,) = plan([*OPTIONS, "hardware.timeout_seconds=3", "model=killed"], folder.results, own)
    assert killed.status == "to run"


def test_a_crash_of_a_process_that_was_started_leaves_a_record_and_its_last_words(folder, monkeypatch, capfd):
    for name, value in folder.environment.items():
        monkeypatch.setenv(name, value)
    own = own_models(folder, "crash")
    cells = plan([*OPTIONS, "model=crash"], folder.results, own)
    ((_, record, code),) = execute(cells, folder.results)
    assert code == 1
    assert_ended_outside(folder, "crash", "failed", "ended by signal 11")
    assert record.last_lines[-1] == "my last words"
    assert "my last words" in capfd.readouterr().err, "what a cell writes to stderr is passed on"
    (again,) = plan([*OPTIONS, "model=crash"], folder.results, own)
    assert again.status == "failed" and "--rerun failed" in again.reason
    skipped = list(execute([again], folder.results))
    assert [(record.attempt, code) for _, record, code in skipped] == [(1, 1)], "not again without being asked"


def test_a_clock_that_falls_back_changes_dates_alone(folder, forks: Forks):
    """Durations and the order of attempts do not come from it."""
    own = own_models(folder, "clock", "counted")
    records = []
    for how in ("counted", "clock"):
        (cell,) = planned([*OPTIONS, f"model={how}"], folder, own)
        assert forks.run(cell, folder) == 0, forks.output.read_text()
        records.append(store.find(cell.key, folder.results))
    usual, odd = records
    assert odd.finished_at < "1971" < odd.started_at
    assert 0 < odd.wall_seconds < 600 and 0 < odd.training["train_seconds"] < 600
    assert odd.training["final_weights_sha256"] == usual.training["final_weights_sha256"]
    assert odd.metrics == usual.metrics
    assert forks.run(cell, folder, attempt=2, anew=True) == 0, "measured again, it is the later attempt all the same"
    assert store.find(cell.key, folder.results).attempt == 2
    (found,) = plan([*OPTIONS, "model=clock"], folder.results, own)
    assert found.status == "done"


def test_only_what_is_asked_for_is_measured_again():
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
def test_a_death_is_told_by_its_signal_and_by_what_the_kernel_counts(monkeypatch, code, before, after, status):
    monkeypatch.setattr(subprocesses, "memory_kills", lambda: after)
    found, reason = subprocesses.status_of_exit(code, before)
    assert found == status
    assert f"signal {-code}" in reason or f"exit code {code}" in reason


def test_a_limit_that_the_system_does_not_allow_is_refused(monkeypatch):
    import resource

    import torch

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 30, 1 << 30))
    refused = pytest.raises(UserError, match=r"hardware\.memory_limit_gigabytes=3: the system allows 1\.0")
    with refused, memory_limit(3, torch.device("cpu")):
        raise AssertionError


def test_a_child_that_outlived_its_parent_before_it_could_tell_ends(monkeypatch):
    heard = []
    monkeypatch.setattr(os, "kill", lambda *arguments: heard.append(arguments))
    monkeypatch.setenv(subprocesses.PARENT, str(os.getpid()))
    monkeypatch.setattr(subprocesses.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError))
    subprocesses.end_with_parent(signal.SIGTERM)
    assert heard == [(os.getpid(), signal.SIGTERM)]
