"""Full and read-only disks: one error message, no lost data, and the same command resumes when there is space."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lra_bench.contracts import Unwritable, UserError
from lra_bench.grid.execute import execute
from lra_bench.grid.plan import plan
from lra_bench.records import store
from lra_bench.runtime.files import system_error
from tests.faults.outcome import ALONE, assert_same, assert_tidy, outcome, with_data_of
from tests.support.forks import planned
from tests.support.record_factory import make_curves, make_record


@contextmanager
def small_disk(place: Path, kibibytes: int) -> Iterator[Path]:
    """Mount a file system of ``kibibytes`` in memory; skip the test if mounting is not permitted."""
    place.mkdir(parents=True, exist_ok=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def remount(place: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(place)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_with_checkpoints_interrupts_the_cell(calm, forks, tmp_path):
    folder = with_data_of(calm.folder, tmp_path)
    (cell,) = planned(ALONE, folder)
    with small_disk(folder.cache / "checkpoints", 150) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(b"1" * 70 * 1024)
        assert forks.run(cell, folder) == 2
        record = folder.record()
        assert record["status"] == "interrupted" and "is full (No space left on device)" in record["reason"]
        assert "LRA_BENCH_CACHE" in forks.output.read_text().splitlines()[-1]
        ballast.unlink()
        remount(disk, "size=2m")
        assert forks.run(cell, folder, attempt=2) == 0, forks.output.read_text()
        assert_same(outcome(folder), calm.expected)
        assert_tidy(folder)


def test_training_is_not_repeated_after_the_results_folder_was_full_or_read_only(calm, forks, tmp_path):
    folder = with_data_of(calm.folder, tmp_path)
    (cell,) = planned(ALONE, folder)
    with small_disk(folder.results, 12) as disk:
        assert forks.run(cell, folder) == 2
        assert f"--results {folder.results}: is full" in forks.output.read_text().splitlines()[-1]
        assert not folder.records()
        best = next(folder.cache.glob("checkpoints/**/best.safetensors")).stat().st_ino
        remount(disk, "size=2m,ro")
        with pytest.raises(Unwritable, match=r"--results .* cannot be written \(Read-only file system\)"):
            list(execute(plan(ALONE, folder.results), folder.results))
        assert forks.run(cell, folder) == 2
        assert "Read-only" in forks.output.read_text().splitlines()[-1]
        remount(disk, "rw")
        assert forks.run(cell, folder) == 0, forks.output.read_text()
        assert next(folder.cache.glob("checkpoints/**/best.safetensors")).stat().st_ino == best, (
            "the cell must not be trained again"
        )
        assert_same(outcome(folder), calm.expected)
        assert_tidy(folder)


def test_a_full_disk_leaves_the_earlier_record_and_its_tables(tmp_path):
    with small_disk(tmp_path / "results", 40) as root:
        path = store.write(make_record(), root, make_curves())
        before = {file.name: file.read_bytes() for file in path.parent.iterdir()}
        (root / "ballast").write_bytes(b"1" * 100)
        with pytest.raises(UserError, match="is full"):
            for attempt in range(2, 200):
                store.write(make_record(seed=attempt, attempt=attempt), root, make_curves())
        assert {file.name: file.read_bytes() for file in path.parent.iterdir() if "seed0." in file.name} == before
        assert not list(root.rglob(".*-seed*"))
        assert len(store.load_all(root)) >= 1


def test_errors_of_libraries_on_a_full_disk_are_recognised(tmp_path):
    wrapper = RuntimeError("PytorchStreamWriter failed")
    wrapper.__context__ = OSError(28, "No space left on device")
    assert system_error(wrapper).errno == 28
    assert system_error(ValueError("I/O error: No space left on device (os error 28)")).errno == 28
    assert system_error(ValueError("shapes do not match")) is None
    assert os.strerror(28) in str(system_error(ValueError("(os error 28)")))
