"""A dry run names the cells that a run would measure, and writes nothing."""

from __future__ import annotations

import pytest

from lra_bench.data.cache import Cache
from lra_bench.grid.plan import plan
from lra_bench.runtime.files import cache_read_only
from tests.support.command import Folder

NEEDING_FILES = ("text", "retrieval", "image", "enwik8")


@pytest.mark.parametrize("task", ["listops", "copy", "pathfinder"])
def test_nothing_is_written_for_generated_data(task, tmp_path):
    folder = Folder(tmp_path)
    told = folder.run("bench", f"task={task}", "model=performer", "protocol=smoke", "--dry-run")
    assert "to run" in told.stdout
    assert folder.run("bench", f"task={task}", "model=performer", "--print-config").stdout
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_written_for_a_large_grid(tmp_path):
    folder = Folder(tmp_path)
    told = folder.run("bench", "task=listops,copy", "model=performer,local", "seed=0,1,2,3,4,5", "--dry-run")
    assert told.stdout.count("to run") == 24
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("task", NEEDING_FILES)
def test_nothing_is_written_for_files_and_the_key_is_that_of_the_run(task, tmp_path, shared_data, monkeypatch):
    monkeypatch.setenv("LRA_BENCH_DATA", str(shared_data))
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    overrides = [f"task={task}", "model=performer", "protocol=smoke", "task.allow_partial=true"]
    with cache_read_only():
        (dry,) = plan(overrides, tmp_path / "results")
    assert list(tmp_path.iterdir()) == []
    (planned,) = plan(overrides, tmp_path / "results")
    assert planned.cell.key == dry.cell.key
    with cache_read_only():  # what the cache holds is read from it
        (dry,) = plan(overrides, tmp_path / "results")
    assert planned.cell.key == dry.cell.key


@pytest.mark.parametrize("task", ["text", "image", "enwik8"])
def test_official_files_that_are_nowhere_yet_are_planned_without_fetching_them(task, tmp_path):
    folder = Folder(tmp_path, HF_HUB_OFFLINE="1")
    folder.environment.pop("LRA_BENCH_DATA", None)
    told = folder.run("bench", f"task={task}", "model=performer", "--dry-run")
    assert "to run" in told.stdout
    assert list(tmp_path.iterdir()) == []


def test_what_the_cache_lacks_is_made_in_memory(tmp_path):
    import pyarrow

    cache = Cache(tmp_path / "cache")
    with cache_read_only():
        made = cache.dataset("rows", "0", lambda advance: iter([pyarrow.table({"a": [1, 2]})] * 2), 2, "making")
        assert made["a"][:] == [1, 2, 1, 2]
        assert cache.note("figures", "0", lambda: {"a": 1.0}) == {"a": 1.0}
    assert not cache.root.exists()
