"""A dry run lists the cells that a run would measure and writes no files."""

from __future__ import annotations

import pytest

from lra_bench.data.cache import Cache
from lra_bench.grid.plan import plan
from lra_bench.runtime.files import cache_read_only
from tests.support.command import Folder

TASKS_WITH_FILES = ("text", "retrieval", "image", "enwik8")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("task", ["listops", "copy", "pathfinder"])
def test_nothing_is_written_for_generated_data(task, tmp_path):
    folder = Folder(tmp_path)
    done = folder.run("bench", f"task={task}", "model=performer", "protocol=smoke", "--dry-run")
    assert "to run" in done.stdout
    assert folder.run("bench", f"task={task}", "model=performer", "--print-config").stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nothing_is_written_for_a_large_grid(tmp_path):
    folder = Folder(tmp_path)
    done = folder.run("bench", "task=listops,copy", "model=performer,local", "seed=0,1,2,3,4,5", "--dry-run")
    assert done.stdout.count("to run") == 24
    assert list(tmp_path.iterdir()) == []


@pytest.mark.one_in(4)
@pytest.mark.parametrize("task", TASKS_WITH_FILES)
def test_nothing_is_written_for_tasks_with_files_and_the_key_is_that_of_the_run(
    task, tmp_path, shared_data, monkeypatch
):
    monkeypatch.setenv("LRA_BENCH_DATA", str(shared_data))
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    overrides = [f"task={task}", "model=performer", "protocol=smoke", "task.allow_partial=true"]
    with cache_read_only():
        (dry,) = plan(overrides, tmp_path / "results")
    assert list(tmp_path.iterdir()) == []
    (planned,) = plan(overrides, tmp_path / "results")
    assert planned.cell.key == dry.cell.key
    with cache_read_only():  # now the data is read from the cache
        (dry,) = plan(overrides, tmp_path / "results")
    assert planned.cell.key == dry.cell.key


@pytest.mark.one_in(3)
@pytest.mark.parametrize("task", ["text", "image", "enwik8"])
def test_tasks_are_planned_without_downloading_their_official_files(task, tmp_path):
    folder = Folder(tmp_path, HF_HUB_OFFLINE="1")
    folder.environment.pop("LRA_BENCH_DATA", None)
    done = folder.run("bench", f"task={task}", "model=performer", "--dry-run")
    assert "to run" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_data_that_is_not_in_the_cache_is_created_in_memory(tmp_path):
    import pyarrow

    cache = Cache(tmp_path / "cache")
    with cache_read_only():
        made = cache.dataset("rows", "0", lambda advance: iter([pyarrow.table({"a": [1, 2]})] * 2), 2, "making")
        assert made["a"][:] == [1, 2, 1, 2]
        assert cache.note("figures", "0", lambda: {"a": 1.0}) == {"a": 1.0}
    assert not cache.root.exists()
