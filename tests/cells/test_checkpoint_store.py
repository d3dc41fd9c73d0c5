"""Checkpoint folders are listed by kind and removed on request, except those of a cell that is being measured."""

import pytest

from lra_bench.cells.checkpoint_store import checkpoints
from lra_bench.cells.locks import cell_lock, checkpoint_folder
from lra_bench.cli.clean import clean
from tests.support.record_factory import make_record

MIB = b"1" * 2**20


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """Create a finished cell, one killed while it wrote a checkpoint, and one killed before its first evaluation."""
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path))
    sizes = {
        0: {"best.safetensors": 1},
        1: {"best.safetensors": 2, "last.pt": 4, f".{'0' * 32}-last.pt": 8},
        2: {"last.pt": 16},
    }
    keys = []
    for seed, files in sizes.items():
        keys.append(make_record(seed=seed).key)
        folder = checkpoint_folder(keys[-1])
        folder.mkdir(parents=True)
        for name, size in files.items():
            (folder / name).write_bytes(MIB * size)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_bytes(MIB * 32)
    return keys


def remaining(keys) -> list[list[str]]:
    folders = [checkpoint_folder(key) for key in keys]
    return [sorted(path.name for path in folder.iterdir()) if folder.exists() else [] for folder in folders]


def test_without_yes_sizes_are_printed_and_no_file_is_removed(cells, capsys):
    before = remaining(cells)
    clean()
    printed = capsys.readouterr()
    assert "would remove best weights of 2 cells: 3.0 MiB" in printed.out
    assert "would remove checkpoints of 2 unfinished cells: 28.0 MiB" in printed.out
    assert ": 63.0 MiB" in printed.out and "add --yes" in printed.err
    assert remaining(cells) == before


def test_best_weights_can_be_kept(cells, capsys):
    clean(keep_best=True, yes=True)
    printed = capsys.readouterr().out
    assert "removed checkpoints of 2 unfinished cells: 28.0 MiB" in printed and "best weights" not in printed
    assert remaining(cells) == [["best.safetensors"], ["best.safetensors"], []]


def test_all_files_are_removed_except_those_of_a_cell_being_measured(cells, capsys):
    with cell_lock(cells[1]):
        clean(data=True, yes=True)
    printed = capsys.readouterr()
    assert "removed best weights of 1 cells: 1.0 MiB" in printed.out
    assert "removed prepared data: 32.0 MiB" in printed.out
    assert "seed1: is being measured, so it is kept" in printed.err
    assert [len(names) for names in remaining(cells)] == [0, 3, 0]


def test_sizes_are_counted_by_kind(cells, tmp_path):
    found = checkpoints(tmp_path)
    assert [(each.best_bytes >> 20, each.other_bytes >> 20) for each in found] == [(1, 0), (2, 12), (0, 16)]
    assert [each.unfinished for each in found] == [False, True, True]
