"""Temporary folders of killed processes, and paths in the home folder of a user that has none."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from lra_bench.records.store import results_root
from lra_bench.runtime.files import expanded, temporary_folder
from lra_bench.runtime.redaction import shareable
from lra_bench.tracking.account import has_account


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process run as a user without an entry in the user database, and without HOME."""
    for name in ("HOME", "XDG_CACHE_HOME", "LRA_BENCH_CACHE", "LRA_BENCH_RESULTS", "NETRC", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54321)


def test_without_a_home_folder_the_option_to_set_is_named(homeless: None) -> None:
    with pytest.raises(
        UserError, match="LRA_BENCH_CACHE: the home folder of this user is unknown; set LRA_BENCH_CACHE"
    ):
        Cache()
    with pytest.raises(UserError, match="--results: the home folder of this user is unknown"):
        results_root("~/results")


def test_without_a_home_folder_absolute_paths_can_be_used(homeless: None, tmp_path: Path) -> None:
    assert Cache(tmp_path).root == tmp_path and results_root(tmp_path) == tmp_path
    assert expanded("a/b", "--results") == Path("a/b")
    assert shareable(f"{tmp_path}/~x") == f"{tmp_path}/~x"
    assert has_account() is False


HOLDER = """
import time
from lra_bench.runtime.files import temporary_folder
with temporary_folder() as folder:
    (folder / "file").write_text("content")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_folders_of_killed_processes_are_removed_and_those_of_others_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    processes = [subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    killed, running = (Path(process.stdout.readline().strip()) for process in processes if process.stdout)
    try:
        processes[0].send_signal(signal.SIGKILL)
        processes[0].wait()
        with temporary_folder():
            assert killed.is_dir() and running.is_dir(), "a folder that is younger than a minute is kept"
        of_user = [tmp_path / name for name in ("lra-bench-main", "lra-bench-ranks-of-mine", "lra-bench")]
        for folder in of_user:
            folder.mkdir()
        for folder in (killed, running, *of_user):
            os.utime(folder, (0, 0))
        with temporary_folder() as own:
            assert not killed.exists() and running.is_dir() and own.is_dir()
            assert all(folder.is_dir() for folder in of_user)
        assert not own.exists()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
