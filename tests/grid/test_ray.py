"""Cells on a Ray cluster of two nodes, of which one is stopped, and after Ctrl-C."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from types import SimpleNamespace

import psutil
import pytest

from lra_bench.contracts import UserError
from lra_bench.grid.execute import execute
from lra_bench.grid.plan import plan
from lra_bench.grid.ray import _connected
from tests.support.command import TINY, Folder

OPTIONS = ["tracker=none", "model=local", "launcher=ray", "hardware.checkpoint_seconds=0"]


def test_without_ray_one_sentence_names_the_command_that_installs_it(tmp_path, monkeypatch):
    planned = plan([*TINY, *OPTIONS], tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="launcher=ray: needs ray; install it with"):
        list(execute(planned, tmp_path))


def test_an_address_at_which_nothing_answers_gives_one_sentence(tmp_path, monkeypatch):
    planned = plan([*TINY, *OPTIONS, "launcher.address=127.0.0.1:1"], tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    with pytest.raises(UserError, match=r"^launcher.address=127.0.0.1:1: no Ray cluster answers"):
        list(execute(planned, tmp_path))


def test_the_handler_of_sigterm_is_restored_after_ray_replaces_it(monkeypatch):
    ended = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_IGN),
        shutdown=lambda: ended.append(True),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with _connected(None):
            assert signal.getsignal(signal.SIGTERM) is before and not ended
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Iterator[Folder]:
    """Yield a folder whose commands use a cluster of two nodes with one core each."""
    pytest.importorskip("ray", reason="ray is not installed (pip install -e '.[ray]')")
    from ray.cluster_utils import Cluster

    own = Folder(tmp_path)
    for name, value in own.environment.items():
        monkeypatch.setenv(name, value)
    cluster = Cluster()
    cluster.add_node(num_cpus=1)
    own.removable = cluster.add_node(num_cpus=1)
    own.cluster = cluster
    own.environment["RAY_ADDRESS"] = cluster.address
    yield own
    cluster.shutdown()


def checkpoints(folder: Folder) -> list[str]:
    return [path.parent.name for path in folder.cache.glob("checkpoints/**/last.pt")]


@pytest.mark.slow
def test_cells_of_a_node_that_fails_are_measured_once_on_another(folder):
    grid = folder.start("bench", *TINY, *OPTIONS, "train.steps=150", "seed=0,1,2")
    while len(checkpoints(folder)) < 2:
        assert grid.poll() is None, grid.communicate()[0]
        time.sleep(0.05)
    folder.cluster.remove_node(folder.removable, allow_graceful=False)
    printed, _ = grid.communicate(timeout=600)
    assert grid.returncode == 0, printed
    records = folder.records()
    assert sorted(record["key"]["seed"] for record in records) == [0, 1, 2]
    assert [record["status"] for record in records] == ["ok"] * 3, printed
    assert sorted(record["attempt"] for record in records) == [1, 1, 2], "one cell was interrupted and resumed"
    planned = plan([*TINY, *OPTIONS, "train.steps=150", "seed=0,1,2"], folder.results)
    assert [each.status for each in planned] == ["done"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("daemon", ["raylet", "gcs_server"])
def test_a_cluster_of_one_machine_whose_daemon_is_killed_ends_the_command_and_the_next_continues(tmp_path, daemon):
    pytest.importorskip("ray", reason="ray is not installed (pip install -e '.[ray]')")
    folder = Folder(tmp_path)
    command = ["bench", *TINY, *OPTIONS, "train.steps=400"]
    grid = folder.start(*command)
    while not checkpoints(folder):
        assert grid.poll() is None, grid.communicate()[0]
        time.sleep(0.05)
    daemons = [each for each in psutil.Process(grid.pid).children(recursive=True) if each.name() == daemon]
    assert len(daemons) == 1
    daemons[0].kill()
    printed, _ = grid.communicate(timeout=60)
    # Ray notices the loss of a node after some 15 seconds; a cell that ends before has been measured.
    assert grid.returncode in ((0, 2) if daemon == "raylet" else (1,)), printed
    assert "Traceback" not in printed
    folder.run(*command)
    assert [record["status"] for record in folder.records()] == ["ok"]


@pytest.mark.slow
def test_after_ctrl_c_running_cells_write_a_checkpoint_and_the_command_continues(folder):
    command = ["bench", *TINY, *OPTIONS, "train.steps=400", "seed=0,1"]
    grid = folder.start(*command)
    while len(checkpoints(folder)) < 2:
        assert grid.poll() is None, grid.communicate()[0]
        time.sleep(0.05)
    states = [cell["state"] for cell in json.loads(folder.run("grid", "status", "--json").stdout)["cells"]]
    assert states == ["waiting"] * 2
    os.kill(grid.pid, signal.SIGINT)
    printed, _ = grid.communicate(timeout=120)
    assert grid.returncode == 130, printed
    assert [record["status"] for record in folder.records()] == ["interrupted"] * 2, printed
    folder.run(*command)
    assert [record["status"] for record in folder.records()] == ["ok"] * 2
    assert [record["attempt"] for record in folder.records()] == [2, 2]
