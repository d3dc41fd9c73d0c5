"""Collect the results of a run, compare them with those of an uninterrupted run, and check folders and processes."""

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from lra_bench.records import check
from lra_bench.runtime.files import ASIDE
from tests.support.command import TINY, Folder

STEPS = 40
OPTIONS = [
    *("model=performer", "tracker=none", "hardware.checkpoint_seconds=0", f"train.steps={STEPS}"),
    *("train.evaluate_every=7", "measure.extrapolation_ratios=[2]", "task.extrapolation_rows=16"),
]
ALONE = [*TINY, *OPTIONS]
TOGETHER = [*(option for option in TINY if option != "hardware=cpu"), "hardware=cpu_ddp", *OPTIONS]

NOT_COMPARED = {"code", "wall_seconds", "started_at", "finished_at", "attempt", "environment", "command", "artifacts"}
TIMED_TRAINING = ("_seconds", "_per_second", "_share", "_bytes", "_by_rank")


class Calm(NamedTuple):
    """An uninterrupted run: its folder, its outcome, and its duration in seconds with prepared data."""

    folder: Folder
    expected: dict
    seconds: float


def outcome(folder: Folder) -> dict:
    """Return all results of a run except times and memory: record, curves, predictions, weights."""
    (path,) = folder.results.glob("runs/*/*/*/*/seed*.json")
    record = folder.record()
    assert record["status"] == "ok", record["reason"]
    training = {name: value for name, value in record["training"].items() if not name.endswith(TIMED_TRAINING)}
    assert "final_weights_sha256" in training
    (best,) = folder.cache.glob("checkpoints/**/best.safetensors")
    curve = {name: value for name, value in record["extrapolation"].items() if name != "attempts"}
    curve["points"] = [{name: value for name, value in p.items() if name != "attempt"} for p in curve["points"]]
    slices = [{name: value for name, value in point.items() if name != "attempt"} for point in record["slices"]]
    pairs = {name: value for name, value in (record["minimal_pairs"] or {}).items() if name != "attempt"}
    kept = {name: value for name, value in record.items() if name not in NOT_COMPARED}
    return {
        "record": {**kept, "training": training, "slices": slices, "minimal_pairs": pairs, "extrapolation": curve},
        "curves": pd.read_parquet(path.with_name(record["artifacts"]["curves"])).to_csv(),
        "predictions": pd.read_parquet(path.with_name(record["artifacts"]["predictions"])).to_csv(),
        "weights": best.read_bytes(),
    }


def assert_same(found: dict, expected: dict) -> None:
    for part, value in expected.items():
        assert found[part] == value, part


def assert_sound(folder: Folder) -> None:
    """Check that all records are valid, their tables exist, and other files are only temporary ones."""
    if not (folder.results / "runs").exists():
        return
    problems = {finding.what: finding.found for finding in check.check_store(folder.results) if finding.ok is False}
    left = problems.pop("other files", "")
    assert not problems, problems
    names = [path.name for path in (folder.results / "runs").rglob("*") if path.is_file()]
    named = [name for name in names if not ASIDE.fullmatch(name) and not name.endswith((".json", ".parquet"))]
    assert not named, left


def assert_tidy(folder: Folder) -> None:
    """Check that a finished cell has no files except its record, its tables, its best weights and empty lock files."""
    files = [path for root in (folder.results, folder.cache / "checkpoints") for path in root.rglob("*")]
    left = [path.name for path in files if path.is_file() and path.stat().st_size]
    kinds = {name if name == "best.safetensors" else name.partition(".")[2].partition("-")[0] for name in left}
    assert kinds == {"json", "curves", "predictions", "best.safetensors"} and len(left) == 4, left


def with_data_of(calm: Folder, root: Path) -> Folder:
    """Return a new folder with the prepared data of another run."""
    folder = Folder(root)
    shutil.copytree(calm.cache / "data", folder.cache / "data", dirs_exist_ok=True)
    return folder


def wait_for_step(folder: Folder, alive: Callable[[], bool], wanted: int, seconds: float = 600) -> None:
    """Wait until at least ``wanted`` checkpoints of any cell were observed; some may be missed between two checks.

    A checkpoint of an earlier attempt does not count, because it was not written by the process that was just started.
    """
    last = _checkpoints(folder)
    seen, deadline = 0, time.monotonic() + seconds
    while seen < wanted and alive() and time.monotonic() < deadline:
        time.sleep(0.003)
        now = _checkpoints(folder)
        seen += sum(last.get(path) != stamp for path, stamp in now.items())
        last.update(now)
    assert seen >= wanted or not alive(), f"{seen} of {wanted} checkpoints after {seconds} s"


def _checkpoints(folder: Folder) -> dict[Path, tuple[int, int]]:
    """Return the last checkpoint of each cell, with inode and modification time, which change with every write."""
    found = {}
    for path in folder.cache.glob("checkpoints/**/last.pt"):
        with suppress(FileNotFoundError):
            stat = path.stat()
            found[path] = (stat.st_ino, stat.st_mtime_ns)
    return found


def wait_for(found: Callable[[], object], process, seconds: float = 120) -> None:
    """Wait until ``found`` returns a true value; fail if the command ends first."""
    deadline = time.monotonic() + seconds
    while not found():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.005)


def left_behind(folder: Folder) -> list[str]:
    """Return the processes that were started for the folder, or work in it, and still run after five seconds."""
    mark, deadline = f"LRA_BENCH_RESULTS={folder.results}", time.monotonic() + 5
    while found := [
        path.name
        for path in Path("/proc").glob("[0-9]*")
        if mark in variables(path / "environ") or inside(path, folder)
    ]:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.1)
    return []


def inside(process: Path, folder: Folder) -> bool:
    """Return whether the working folder of a process is ``folder``.

    This finds forked processes, for which /proc shows the environment variables of the fork server.
    """
    try:
        return (process / "cwd").samefile(folder.root)
    except OSError:
        return False


def variables(path: Path) -> list[str]:
    """Return the environment variables of a process, or an empty list if it has ended."""
    try:
        return path.read_text().split("\0")
    except OSError:
        return []
