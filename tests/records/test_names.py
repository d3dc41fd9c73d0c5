"""Names of records on the command line."""

from __future__ import annotations

import os

import pytest

from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.names import find_path, find_paths
from tests.support.command import Folder
from tests.support.record_factory import make_record


@pytest.fixture
def results(tmp_path):
    for number, (model, hash, seed) in enumerate(
        [("performer", "0a1b2c3d", 0), ("performer", "0a1b2c3d", 1), ("local", "0a1bffff", 0), ("fnet", "12345678", 0)]
    ):
        path = store.write(make_record(model, hash=hash, seed=seed), tmp_path / "results")
        os.utime(path, (1000 + number, 1000 + number))
    return tmp_path / "results"


def test_every_way_to_name_a_record(results, monkeypatch):
    path = results / "runs/listops/performer/cpu-epyc-2t/quick-0a1b2c3d/seed0.json"
    monkeypatch.chdir(results / "runs")
    for text in (
        "listops/performer/cpu-epyc-2t/quick-0a1b2c3d/seed0",
        "listops/performer/cpu-epyc-2t/quick-0a1b2c3d/seed0.json",
        "runs/listops/performer/cpu-epyc-2t/quick-0a1b2c3d/seed0.json",
        str(path),
        "0a1b2/seed0",
        "#0a1b2/seed0",
        "quick-0a1b2c3d/seed0",
    ):
        assert find_path(text, results) == path, text
    local = results / "runs/listops/local/cpu-epyc-2t/quick-0a1bffff/seed0.json"
    for text in ("0a1bf", "local", "listops/local", str(local.parent), "./listops/local"):
        assert find_path(text, results) == local, text
    assert find_path("last", results) == results / "runs/listops/fnet/cpu-epyc-2t/quick-12345678/seed0.json"


def test_a_name_of_several_or_no_records_is_an_error(results, tmp_path):
    with pytest.raises(UserError, match=r"matches 3 records; choose one of listops/local/.*seed0, listops/perf"):
        find_path("0a1b", results)
    with pytest.raises(UserError, match="matches 2 records"):
        find_path("performer", results)
    for text in ("absent", "ffff", "listops/absent", "quick-0a1b2c3d/seed7", "smoke-0a1b2c3d"):
        assert find_paths(text, results) == [], text
        with pytest.raises(UserError, match="no such record; lra-bench results list shows"):
            find_path(text, results)
    with pytest.raises(UserError, match="contains no record yet"):
        find_path("last", tmp_path / "empty")


def test_boards_are_searched_after_the_results_folder(results, tmp_path):
    board = tmp_path / "reference" / "board"
    store.write(make_record("performer", hash="0a1b2c3d"), board)
    store.write(make_record("luna", hash="77777777"), board)
    assert find_path("7777", results, tmp_path / "reference").is_relative_to(board)
    assert find_path("0a1b2/seed0", results, tmp_path / "reference").is_relative_to(results)
    with pytest.raises(UserError):
        find_path("7777", results)


def test_show_and_compare_accept_names(results, tmp_path):
    folder = Folder(tmp_path)
    assert "performer" in folder.run("show", "0a1b2/seed0").stdout
    assert "fnet" in folder.run("show", "last").stdout
    printed = folder.run("compare", "last", "listops/local/cpu-epyc-2t/quick-0a1bffff/seed0").stdout
    assert "fnet #12345678" in printed and "local #0a1bffff" in printed
    printed = folder.run("compare", "0a1b2", "local").stdout
    assert "performer #0a1b2c3d" in printed
