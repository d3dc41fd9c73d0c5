"""Boards pushed to a data set and pulled from it are equal, and neither changes or removes a record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lra_bench.contracts import UserError
from lra_bench.records import hub
from lra_bench.records.board import BOARD, files_of
from lra_bench.records.packed import RECORDS
from lra_bench.records.packing import pack
from tests.records.test_board import add, board
from tests.support import hub_host

__all__ = ["board"]
NAME = "ada/boards"


class Server:
    """The files of the data set, and the requests that it received."""

    def __init__(self, files: dict[str, bytes], requests: list[str]) -> None:
        self.files, self.requests = files, requests

    def commits(self) -> int:
        return sum("/commit/" in request for request in self.requests)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    files: dict[str, bytes] = {"README.md": b"Boards"}
    for name in ("HF_HUB_OFFLINE", "LRA_BENCH_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    with hub_host.hub(NAME, files, token="hf_secret") as (address, requests):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield Server(files, requests)


def contents(root: Path) -> dict[str, bytes]:
    return {BOARD: (root / BOARD).read_bytes()} | {name: path.read_bytes() for name, path in files_of(root).items()}


def test_a_pulled_board_equals_the_pushed_one(server: Server, board: Path, tmp_path: Path) -> None:
    planned, url = hub.push(board, NAME, "ours", dry_run=True)
    assert [each.file for each in planned] == [f"ours/{name}" for name in contents(board)]
    assert server.commits() == 0 and url == ""
    transfers, url = hub.push(board, NAME, "ours", pull_request=True)
    assert transfers == planned and url.endswith("discussions/1") and list(server.files) == ["README.md"]
    transfers, url = hub.push(board, NAME, "ours")
    assert transfers == planned and url.endswith("commit/1") and server.commits() == 2
    assert {each.file: each.size_bytes for each in planned} == {
        f"ours/{name}": len(content) for name, content in contents(board).items()
    }
    assert {each.status for each in hub.push(board, NAME, "ours")[0]} == {"unchanged"} and server.commits() == 2

    there = tmp_path / "there"
    assert {each.status for each in hub.pull(NAME, there, dry_run=True)} == {"new"} and not there.exists()
    pulled = hub.pull(NAME, there)
    assert contents(there / "ours") == contents(board) and sorted(pulled) == sorted(planned)
    assert {each.status for each in hub.pull(NAME, there)} == {"unchanged"}


def test_records_are_added_to_a_board_and_none_is_lost(server: Server, board: Path, tmp_path: Path) -> None:
    hub.push(board, NAME, "ours")
    hub.pull(NAME, tmp_path / "there")
    add(board, 2)
    with pytest.raises(UserError, match="contains records that are not packed; run lra-bench results pack"):
        hub.push(board, NAME, "ours")
    pack(board)
    statuses = [each.status for each in hub.push(board, NAME, "ours")[0]]
    assert statuses.count("removed") == 2 and statuses.count("new") == 4
    assert {name.partition("/")[2] for name in server.files if "/" in name} == contents(board).keys()
    hub.pull(NAME, tmp_path / "there")
    assert contents(tmp_path / "there" / "ours") == contents(board)

    smaller = tmp_path / "smaller"
    add(smaller, 0)
    pack(smaller)
    with pytest.raises(UserError, match=r"--board ours: the data set ada/boards contains 2 other records, such as lis"):
        hub.push(smaller, NAME, "ours")
    server.files.clear()
    hub.push(smaller, NAME, "ours")
    before = contents(tmp_path / "there" / "ours")
    with pytest.raises(UserError, match=r"--to .* contains 2 other records, .*; choose another folder"):
        hub.pull(NAME, tmp_path / "there")
    assert contents(tmp_path / "there" / "ours") == before


def test_a_changed_board_is_neither_pushed_nor_written(server: Server, board: Path, tmp_path: Path) -> None:
    hub.push(board, NAME, "ours")
    server.files[f"ours/{RECORDS}"] = server.files[f"ours/{RECORDS}"].replace(b'"accuracy":0.34', b'"accuracy":0.43')
    for act in (lambda: hub.pull(NAME, tmp_path / "there"), lambda: hub.push(board, NAME, "ours")):
        with pytest.raises(UserError, match=rf"results (pull|push) ada/boards: ours: board: .*{RECORDS} has sha256 "):
            act()
    assert not (tmp_path / "there").exists()
    (board / RECORDS).write_bytes(server.files[f"ours/{RECORDS}"])
    with pytest.raises(UserError, match=rf"--results .*board: board: .*{RECORDS} has sha256 "):
        hub.push(board, NAME, "other")


def test_refusals_name_what_to_do(server: Server, board: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(words: str, repo: str = NAME, board_name: str = "ours") -> None:
        with pytest.raises(UserError, match=words) as raised:
            hub.push(board, repo, board_name)
        assert "\n" not in str(raised.value) and server.commits() == (words == "not permitted")

    refused("create it by hf repos create", repo="ada/absent")
    refused("results push a b: ", repo="a b")
    refused("--board ../ours: use letters", board_name="../ours")
    with pytest.raises(UserError, match="contains no board"):
        hub.pull(NAME, tmp_path)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    refused("not permitted")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="HF_HUB_OFFLINE disables network access; unset it"):
        hub.pull(NAME, tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://ada:hunter2@mirror.example")
    with pytest.raises(UserError, match=r"HF_ENDPOINT=http://\*\*\*@mirror.example: only https is supported"):
        hub.pull(NAME, tmp_path)
