"""Malformed input is reported in one sentence, and no file on disk changes.

Each kind of input is corrupted at random: a few times in the fast tests, 150 times in the slow tests. If the
input can still be loaded, everything that reads it afterwards must end without an unexpected error.
"""

import functools
import json
import math
import pickle
import shutil

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_model

from lra_bench.data.archives import read_files
from lra_bench.data.cache import Cache
from lra_bench.grid import background
from lra_bench.grid.plan import plan
from lra_bench.records import store, tables
from lra_bench.records.packed import RECORDS
from lra_bench.records.profiles import write_profile
from lra_bench.tables import export
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.published import COLUMNS, load_published
from lra_bench.tasks.image.unpickle import load_batch
from lra_bench.tasks.listops.files import read_examples
from lra_bench.tasks.retrieval.files import find_pairs, read_pairs
from lra_bench.tasks.table import Table
from lra_bench.training.checkpoint import BEST, LAST, Checkpoints
from lra_bench.training.loop import State
from lra_bench.training.optimizer import Optimizer
from tests.data.test_archives import FILES, write
from tests.support.grids import grid_of
from tests.support.malformed import as_json, disk, error_message, spoiled_bytes, spoiled_tree
from tests.support.record_factory import make_curves, make_predictions, make_record
from tests.tables.test_relative import HASHES, profile
from tests.training.test_loop import CPU, RECIPE, equal, toy, weights

FEW, MANY = 25, 150
TABLE = b"Source\tTarget\r\n" + b"( ( [MAX 2 ) 9 ) ]\t9\r\n( ( [MIN ( [SM 1 ) 2 ) ] ) 9 ) ]\t3\r\n" * 3
PAIRS = b"0.0\tone\ttwo\tsome text\tanother text\n1.0\tone\tthree\tsome text\tits own\n" * 3


@pytest.fixture
def workspace(tmp_path):
    return tmp_path


def corrupt_record(workspace, data):
    raw = json.loads(json.dumps(make_record().to_dict()))
    content = data.draw(st.one_of(spoiled_bytes(as_json(raw)), spoiled_tree(raw).map(as_json)))
    return error_message(lambda: store.read(content, "record.json"))


def corrupt_table(workspace, data):
    """Corrupt the curves or predictions of a record: change bytes, or replace a column by one of another type."""
    record = make_record()
    made = {"curves": make_curves(), "predictions": make_predictions()}
    path = store.write(record, workspace, *made.values())
    name = data.draw(st.sampled_from(sorted(made)))
    file = path.with_name(record.artifacts[name])
    if data.draw(st.booleans()):
        file.write_bytes(data.draw(spoiled_bytes(file.read_bytes())))
    else:
        frame = made[name]
        column = data.draw(st.sampled_from(list(frame.columns)))
        kind = data.draw(st.sampled_from(["removed", "text", "lists", "bytes"]))
        other = {"text": "x", "lists": [1, 2], "bytes": b"\xff"}
        frame = (
            frame.drop(columns=column) if kind == "removed" else frame.assign(**{column: [other[kind]] * len(frame)})
        )
        frame.to_parquet(file, index=False)
    before = disk(workspace)
    loaded = store.load(path)
    sentence = error_message(lambda: (tables.curves if name == "curves" else tables.predictions)(loaded))
    assert disk(workspace) == before
    return sentence


def corrupt_listops(workspace, data):
    (workspace / "basic_train.tsv").write_bytes(data.draw(spoiled_bytes(TABLE)))
    return error_message(lambda: list(read_examples(workspace / "basic_train.tsv", 100, 100, lambda *_: None)))


def corrupt_pairs(workspace, data):
    for split in ("train", "eval", "test"):
        (workspace / f"new_aan_pairs.{split}.tsv").write_bytes(data.draw(spoiled_bytes(PAIRS)))
    return error_message(lambda: list(read_pairs(find_pairs(workspace), "train", 100, lambda *_: None)))


def corrupt_archive(workspace, data):
    form = data.draw(st.sampled_from(["w:", "w:gz", "w:bz2", "w:xz", "zip"]))
    path = write(workspace / "data", form, FILES)
    path.write_bytes(data.draw(spoiled_bytes(path.read_bytes())))
    before = disk(workspace)
    sentence = error_message(lambda: list(read_files(path, lambda name: True)))
    assert disk(workspace) == before
    return sentence


def corrupt_pickle(workspace, data):
    content = pickle.dumps({b"data": np.arange(12).reshape(3, 4), b"labels": [1, 2, 3]}, protocol=2)
    return error_message(lambda: load_batch(data.draw(spoiled_bytes(content)), "batch"))


def corrupt_cache(workspace, data):
    """Corrupt a prepared data set, which is then created again."""
    import datasets

    cache = Cache(workspace / "cache")
    rows = datasets.Dataset.from_dict({"tokens": [[1, 2], [3]], "target": [0, 1]})
    folder = cache.path("toy", "key")
    shutil.rmtree(workspace / "cache", ignore_errors=True)
    cache.dataset("toy", "key", lambda advance: rows, 2, "toy")
    file = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    if file == "manifest.json" and data.draw(st.booleans()):
        corrupted = data.draw(spoiled_tree(json.loads((folder / file).read_text())).map(as_json))
    else:
        corrupted = data.draw(spoiled_bytes((folder / file).read_bytes()))
    (folder / file).write_bytes(corrupted)
    (workspace / "outside").write_text("kept")
    assert isinstance(cache.verify("toy", "key"), list) and isinstance(cache.entries(), list)
    again = cache.dataset("toy", "key", lambda advance: rows, 2, "toy")
    assert len(again) == 2 and (workspace / "outside").read_text() == "kept"
    return ""


@functools.cache
def checkpoint() -> tuple[bytes, bytes]:
    """Return the contents of a checkpoint for resuming and of the best weights."""
    import tempfile
    from pathlib import Path

    model = toy()
    with tempfile.TemporaryDirectory() as temporary:
        checkpoints = Checkpoints(Path(temporary), math.inf)
        optimizer = Optimizer(model, RECIPE, CPU)
        optimizer.backward(model.head.bias.sum())
        optimizer.step(0)
        checkpoints.keep_best(model)
        checkpoints.save(State(step=3, curve=[(1.0, 1e-3, 2.0, 30)] * 3), model, optimizer)
        return Path(temporary, LAST).read_bytes(), Path(temporary, BEST).read_bytes()


def corrupt_best_weights(workspace, data):
    model, checkpoints = toy(), Checkpoints(workspace, math.inf)
    save_model(model, str(workspace / BEST))
    (workspace / BEST).write_bytes(data.draw(spoiled_bytes(checkpoint()[1])))
    before = disk(workspace)
    sentence = error_message(lambda: checkpoints.load_best(model))
    assert disk(workspace) == before
    return sentence


def corrupt_last_checkpoint(workspace, data):
    """Corrupt a checkpoint for resuming; training then starts again from step 0."""
    corrupted = data.draw(spoiled_bytes(checkpoint()[0]))
    (workspace / LAST).write_bytes(corrupted)
    model = toy(seed=5)
    before = weights(model)
    state = Checkpoints(workspace, math.inf).resume(model, Optimizer(model, RECIPE, CPU))
    assert state.step == 3 or ((state == State() or math.isnan(state.best_value)) and equal(before, weights(model)))
    return ""


def corrupt_published(workspace, data):
    row = ["m", "listops", "", "accuracy", "37.1", "%", "Table 1", "Title", "2011.04006", "", "2020", *[""] * 3]
    content = "\n".join([",".join(COLUMNS), *[",".join([f"m{n}", *row[1:]]) for n in range(4)]]).encode() + b"\n"
    (workspace / "numbers.csv").write_bytes(data.draw(spoiled_bytes(content)))
    return error_message(lambda: load_published(workspace))


def corrupt_profile(workspace, data):
    """Corrupt a profile; the table of its records is made with it or without."""
    found = [make_record(model, hash=HASHES[model]) for model in HASHES]
    for name in ("runs", "profiles"):
        shutil.rmtree(workspace / name, ignore_errors=True)
    for record in found:
        store.write(record, workspace)
    path = write_profile(profile(), workspace)
    raw = json.loads(path.read_text())
    corrupted = data.draw(st.one_of(spoiled_bytes(path.read_bytes()), spoiled_tree(raw).map(as_json)))
    path.write_bytes(corrupted)
    said: list[str] = []
    export.render(LAYOUTS["long"].make(store.load_all(workspace, said.append)), "csv", layout="long")
    return "\n".join(said)


def corrupt_board(workspace, data):
    """Corrupt packed records; those that are still valid are read."""
    lines = [as_json(json.loads(json.dumps(make_record(seed=seed).to_dict()))) for seed in range(3)]
    number = data.draw(st.integers(0, 2))
    raw = json.loads(lines[number])
    lines[number] = data.draw(st.one_of(spoiled_bytes(lines[number]), spoiled_tree(raw).map(as_json)))
    (workspace / RECORDS).write_bytes(b"\n".join(lines))
    said: list[str] = []
    found = store.load_all(workspace, said.append)
    assert len(found) >= 2
    export.render(LAYOUTS["long"].make(found), "csv", layout="long")
    return "\n".join(said)


def corrupt_grid(workspace, data):
    """Corrupt the file of a grid that runs in the background or was submitted."""
    job = data.draw(st.sampled_from(["", "12_0"]))
    path = grid_of("a", workspace, job).folder(workspace) / background.FILE
    raw = json.loads(path.read_text())
    path.write_bytes(data.draw(st.one_of(spoiled_bytes(path.read_bytes()), spoiled_tree(raw).map(as_json))))
    return error_message(lambda: background.read(workspace, "a"))


def corrupt_model_file(workspace, data):
    content = (
        b"# @package _global_\n# Own model.\nmodel:\n  label: Own\n  mixer: "
        b"{_target_: lra_bench.models.sparse.sliding_window.SlidingWindow, window: 8}\ntrain: {lr: 1e-3}\n"
    )
    (workspace / "model").mkdir(exist_ok=True)
    (workspace / "model" / "own.yaml").write_bytes(data.draw(spoiled_bytes(content)))
    return error_message(lambda: plan(["task=listops", "protocol=smoke", "model=own"], workspace, workspace))


def corrupt_table_of_the_user(workspace, data):
    """Corrupt a CSV, JSON Lines or Parquet file of texts and labels."""
    rows = {"text": ["one", "two words", "three", "four, five"] * 5, "label": ["a", "b", "a", "b"] * 5}
    name = data.draw(st.sampled_from(["rows.csv", "rows.jsonl", "rows.parquet"]))
    frame, path = pd.DataFrame(rows), workspace / name
    if name.endswith("csv"):
        frame.to_csv(path, index=False)
    elif name.endswith("jsonl"):
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    path.write_bytes(data.draw(spoiled_bytes(path.read_bytes())))

    def read():
        task = Table(path=str(path))
        task.prepare(Cache(workspace / "cache"))
        len(task.split("train"))

    return error_message(read)


KINDS = {
    name.removeprefix("corrupt_"): check
    for name, check in dict(globals()).items()
    if name.startswith("corrupt_")
}  # fmt: skip
REPAIRED = {"cache", "last_checkpoint"}


def corrupt_often(kind, workspace, examples):
    """Return how many corrupted inputs of a kind were refused, and how many there were."""
    refused = []

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(st.data())
    def spoil(data):
        refused.append(bool(KINDS[kind](workspace, data)))

    spoil()
    return sum(refused), len(refused)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_corrupted_input_gives_one_sentence(kind, workspace, capsys):
    refused, count = corrupt_often(kind, workspace, FEW)
    assert count >= FEW and (refused >= count // 3 or kind in REPAIRED), (refused, count)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_often_corrupted_input_gives_one_sentence(kind, workspace, capsys):
    refused, count = corrupt_often(kind, workspace, MANY)
    assert count >= MANY and (refused >= count // 3 or kind in REPAIRED), (refused, count)
