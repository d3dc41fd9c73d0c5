"""What cells have left is told by kind and removed on request, but not under a cell that is being measured."""

import pytest

from lra_bench.cells.checkpoint_store import checkpoints
from lra_bench.cells.locks import cell_lock, checkpoint_folder
from lra_bench.cli.clean import clean
from tests.support.record_factory import make_record

MIB = b"1" * 2**20


@pytest.fixture
def cells(tmp_path, monkeypatch):
    """A finished cell, one that was cut short while it wrote, and one before its first evaluation."""
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path))
    held = {
        0: {"best.safetensors": 1},
        1: {"best.safetensors": 2, "last.pt": 4, f".{'0' * 32}-last.pt": 8},
        2: {"last.pt": 16},
    }
    keys = []
    for seed, files in held.items():
        keys.append(make_record(seed=seed).key)
        folder = checkpoint_folder(keys[-1])
        folder.mkdir(parents=True)
        for name, size in files.items():
            (folder / name).write_bytes(MIB * size)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rows").write_bytes(MIB * 32)
    return keys


def left(keys) -> list[list[str]]:
    folders = [checkpoint_folder(key) for key in keys]
    return [sorted(path.name for path in folder.iterdir()) if folder.exists() else [] for folder in folders]


def test_without_yes_nothing_goes_and_all_is_told(cells, capsys):
    before = left(cells)
    clean()
    said = capsys.readouterr()
    assert "would remove best weights of 2 cells: 3.0 MiB" in said.out
    assert "would remove checkpoints of 2 unfinished cells: 28.0 MiB" in said.out
    assert ": 63.0 MiB" in said.out and "add --yes" in said.err
    assert left(cells) == before


def test_best_weights_can_be_spared(cells, capsys):
    clean(keep_best=True, yes=True)
    said = capsys.readouterr().out
    assert "removed checkpoints of 2 unfinished cells: 28.0 MiB" in said and "best weights" not in said
    assert left(cells) == [["best.safetensors"], ["best.safetensors"], []]


def test_all_goes_but_what_is_being_measured(cells, capsys):
    with cell_lock(cells[1]):
        clean(data=True, yes=True)
    said = capsys.readouterr()
    assert "removed best weights of 1 cells: 1.0 MiB" in said.out and "removed prepared data: 32.0 MiB" in said.out
    assert "seed1: is being measured, so it stays" in said.err
    assert [len(names) for names in left(cells)] == [0, 3, 0]


def test_sizes_are_those_of_each_kind(cells, tmp_path):
    found = checkpoints(tmp_path)
    assert [(each.best_bytes >> 20, each.other_bytes >> 20) for each in found] == [(1, 0), (2, 12), (0, 16)]
    assert [each.unfinished for each in found] == [False, True, True]
