"""Tests of every task: it runs, records contain its floors, and its data is prepared once."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from lra_bench.config import compose as configuration
from lra_bench.config.listing import options
from lra_bench.config.objects import build_task
from lra_bench.data.cache import Cache
from lra_bench.data.checks import check_split
from tests.conftest import SHARED_DATA
from tests.support.command import Folder

CONF = Path(__file__).parents[2] / "conf"
HEAVY = ("torch", "numba", "datasets", "pandas", "pyarrow", "scipy")
FAST_TASKS = {"parity", "key_to_door"}  # tests/cli/test_bench.py runs listops
LONG = {"pathfinder128", "pathfinder256"}  # the Transformer takes minutes; another system is tested on them, too
REAL = {"text", "retrieval", "image", "enwik8"}
TABLE = Path(__file__).parents[1] / "support" / "own_table" / "reviews.csv"
OWN = {"csv": [f"task.path={TABLE}"], "hub": [f"task.name={TABLE.parent}"]}
"""Options of the tasks that read a table of the user."""
TASKS = [entry["name"] for entry in options("tasks")]
SLICINGS = {
    "listops": {"length", "depth", "operator", "modular_sums"},
    "copy": {"distance"},
    "recall": {"pairs", "distance"},
    "recall_ladder": {"pairs", "distance"},
    "needle": {"distance"},
    "mqar": {"pairs", "distance"},
    "mqar_forgetting": {"pairs", "distance"},
    "mqar_compositional": {"pairs", "distance"},
    "mad_recall": {"distance"},
    "mad_noisy": {"distance"},
    "mad_copy": {"distance"},
    "mad_compression": {"distance"},
    "key_to_door": {"asked return", "actions"},
    "key_to_door_memory": {"asked return", "actions"},
    **{task: {"generated", "length"} for task in ("addition", "reverse", "sort")},
}
ROLLED_OUT = {"key_to_door", "key_to_door_memory", "addition", "reverse", "sort"}
"""Tasks that compute their score themselves, so that floors are not those of the rows of a split."""
FAST = ["hardware=cpu", "hardware.threads=1", "tracker=none", "measure.speed_lengths=[]", "measure.energy=false"]


CLASSES = {yaml.safe_load((CONF / "task" / f"{task}.yaml").read_text())["_target_"]: task for task in reversed(TASKS)}
ONE_OF_EACH_CLASS = set(CLASSES.values())


def overrides(task):
    return [
        f"task={task}",
        "protocol=smoke",
        *(["task.allow_partial=true"] if task in REAL else []),
        *OWN.get(task, []),
    ]


def offline(monkeypatch, source):
    """Set ``$LRA_BENCH_DATA`` to ``source``, or unset it if ``source`` is None, and disable downloads."""
    if source is None:
        monkeypatch.delenv("LRA_BENCH_DATA", raising=False)
    else:
        monkeypatch.setenv("LRA_BENCH_DATA", str(source))
    monkeypatch.setenv("LRA_BENCH_OFFLINE", "1")


@pytest.fixture
def data(request, monkeypatch):
    """Provide the files of tasks that read files; the other tasks run without any."""
    real = request.getfixturevalue("task") in REAL
    offline(monkeypatch, request.getfixturevalue("shared_data") if real else None)


def build(task):
    return build_task(configuration.compose(overrides(task)).config)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("task", TASKS)
def test_file_name_equals_name_in_spec(task):
    assert build(task).spec.name == task


@pytest.mark.one_in(4)
@pytest.mark.parametrize("task", TASKS)
def test_planning_imports_no_heavy_packages(task):
    node = yaml.safe_load((CONF / "task" / f"{task}.yaml").read_text())
    module, name = node.pop("_target_").rsplit(".", 1)
    code = (
        f"import sys; from {module} import {name}; task = {name}(**{node!r}); "
        f"{'' if task in REAL | set(OWN) else 'task.fingerprint(); '}"
        f"print([heavy for heavy in {HEAVY} if heavy in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def assert_runs(forks, folder, task, model):
    forks.command(folder, "bench", *overrides(task), f"model={model}", *FAST, timeout=1800)
    record = folder.record()
    assert record["status"] == "ok", record["reason"]
    metric = "bits_per_character" if task == "enwik8" else "accuracy"
    metrics = record["metrics"]["test"]
    assert metrics[metric] is not None
    assert set(record["data"]["checksums"]) >= {"train", "validation", "test"}
    assert record["data"]["partial"] or task not in REAL
    assert record["data"]["repeats"] == {}
    points = record["extrapolation"]["points"]
    scored = [point for point in points if point["status"] == "ok"]
    assert len(scored) >= 2 and all(point["floor"] is not None for point in scored)
    paired = metric == "accuracy" and task not in ROLLED_OUT
    for floors, compared, margins, score in (
        (record["floors"], set(record["floors"]), record["margins"], metrics[metric]),
        *((point["floors"], {point["floor_name"]}, point["margins"], point["score"]) for point in scored),
    ):
        assert set(margins) == (compared if paired else set())
        for name, margin in margins.items():
            assert margin["difference"] == pytest.approx(score - floors[name], abs=1e-6)
            assert margin["low"] < margin["high"]
    assert all(point["reason"] for point in points if point["status"] != "ok")
    assert bool(record["extrapolation"]["by_position"]) == (task == "enwik8")
    assert {point["slicing"] for point in record["slices"]} == SLICINGS.get(task, set())
    for name in SLICINGS.get(task, ()) if task not in ROLLED_OUT else ():
        own = [point for point in record["slices"] if point["slicing"] == name]
        total = sum(point["n"] * point["score"] for point in own)
        assert sum(point["n"] for point in own) == metrics["n"] and total / metrics["n"] == pytest.approx(
            metrics[metric]
        )


@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, marks=() if task in FAST_TASKS else pytest.mark.long if task in LONG else pytest.mark.slow)
        for task in TASKS
    ],
)
def test_runs_from_data_to_record(task, data, tmp_path, forks):
    assert_runs(forks, Folder(tmp_path), task, "transformer")


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_runs_with_another_system(task, data, tmp_path, forks):
    assert_runs(forks, Folder(tmp_path), task, "performer")


@pytest.mark.one_in(3)
@pytest.mark.parametrize("task", TASKS)
def test_prepared_data_passes_its_checks(task, data, tmp_path):
    prepared = build(task)
    prepared.prepare(Cache(tmp_path))
    for split in ("train", "validation", "test"):
        check_split(prepared.split(split), prepared.spec, split)
        prepared.check(split)


def _prepare(sources, root, started, sizes):
    for task, source in sources.items():
        with pytest.MonkeyPatch.context() as monkeypatch:
            offline(monkeypatch, source)
            prepared = build(task)
            started.wait(120)
            prepared.prepare(Cache(root / task))
            sizes.put((task, len(prepared.split("train"))))


@pytest.mark.slow
def test_two_concurrent_prepares_create_one_data_set(tmp_path):
    sources = dict.fromkeys(sorted(ONE_OF_EACH_CLASS - REAL))
    if SHARED_DATA.is_dir():
        sources |= dict.fromkeys(sorted(ONE_OF_EACH_CLASS & REAL), SHARED_DATA)
    context = multiprocessing.get_context("spawn")
    started, sizes = context.Barrier(2), context.Queue()
    processes = [context.Process(target=_prepare, args=(sources, tmp_path, started, sizes)) for _ in range(2)]
    for process in processes:
        process.start()
    counts = {sizes.get(timeout=120) for _ in range(2 * len(sources))}
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert sorted(task for task, _ in counts) == sorted(sources), "the processes returned different numbers of examples"
    for task in sources:
        names = [path.name for path in (tmp_path / task / "data").iterdir() if path.is_dir()]
        assert names and not [name for name in names if ".building-" in name]


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(ONE_OF_EACH_CLASS - {"enwik8"} - ROLLED_OUT))
def test_floors_of_rows_are_in_the_order_of_the_split(task, data, tmp_path):
    built = build(task)
    built.prepare(Cache(tmp_path))
    lengths = [None, 2 * built.spec.train_length]
    for variant in built.variants:
        for length in lengths:
            if built.supports_length(length or built.spec.train_length, variant):
                continue
            split = built.split("test", length, variant)
            rows, floors = built.floor_rows("test", length, variant), built.floors("test", length, variant)
            assert set(rows) == set(floors) and all(len(correct) == len(split) for correct in rows.values())
            if built.spec.per_token:
                continue
            targets = np.asarray(split["target"])
            right = rows["majority"].astype(bool)
            assert len(set(targets[right])) <= 1 and not set(targets[right]) & set(targets[~right])
