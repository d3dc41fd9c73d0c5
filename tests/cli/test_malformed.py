"""Whatever is wrong with what is read, the user is told in a sentence, and nothing changes on the disk.

Each kind of input is spoiled at random: a few times here, hundreds of times among the slow tests. What loads none the
less must be harmless: everything that reads it afterwards ends in order too.
"""

import functools
import json
import math
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_model

from lra_bench.data.archives import read_files
from lra_bench.data.cache import Cache
from lra_bench.data.pickles import load_arrays
from lra_bench.leaderboard.published import COLUMNS, load_published
from lra_bench.records import store, tables
from lra_bench.tasks.listops.files import read_examples
from lra_bench.tasks.retrieval.files import find_pairs, read_pairs
from lra_bench.training.checkpoint import BEST, LAST, Checkpoints
from lra_bench.training.loop import State
from lra_bench.training.optimizer import Optimizer
from tests.data.test_archives import FILES, write
from tests.support.malformed import as_json, disk, spoiled_bytes, spoiled_tree, told
from tests.support.record_factory import make_curves, make_predictions, make_record
from tests.training.test_loop import CPU, RECIPE, equal, toy, weights

FEW, MANY = 25, 400
TABLE = b"Source\tTarget\r\n" + b"( ( [MAX 2 ) 9 ) ]\t9\r\n( ( [MIN ( [SM 1 ) 2 ) ] ) 9 ) ]\t3\r\n" * 3
PAIRS = b"0.0\tone\ttwo\tsome text\tanother text\n1.0\tone\tthree\tsome text\tits own\n" * 3


@pytest.fixture
def aside(tmp_path):
    return tmp_path


def spoil_record(aside, data):
    raw = json.loads(json.dumps(make_record().to_dict()))
    content = data.draw(st.one_of(spoiled_bytes(as_json(raw)), spoiled_tree(raw).map(as_json)))
    return told(lambda: store.read(content, "record.json"))


def spoil_table(aside, data):
    """Curves and predictions beside a record: bits, or whole columns of another kind."""
    record = make_record()
    made = {"curves": make_curves(), "predictions": make_predictions()}
    path = store.write(record, aside, *made.values())
    name = data.draw(st.sampled_from(sorted(made)))
    file = path.with_name(record.artifacts[name])
    if data.draw(st.booleans()):
        file.write_bytes(data.draw(spoiled_bytes(file.read_bytes())))
    else:
        frame = made[name]
        column = data.draw(st.sampled_from(list(frame.columns)))
        kind = data.draw(st.sampled_from(["gone", "text", "lists", "bytes"]))
        other = {"text": "x", "lists": [1, 2], "bytes": b"\xff"}
        frame = frame.drop(columns=column) if kind == "gone" else frame.assign(**{column: [other[kind]] * len(frame)})
        frame.to_parquet(file, index=False)
    before = disk(aside)
    loaded = store.load(path)
    sentence = told(lambda: (tables.curves if name == "curves" else tables.predictions)(loaded))
    assert disk(aside) == before
    return sentence


def spoil_listops(aside, data):
    (aside / "basic_train.tsv").write_bytes(data.draw(spoiled_bytes(TABLE)))
    return told(lambda: list(read_examples(aside / "basic_train.tsv", 100, 100, lambda *_: None)))


def spoil_pairs(aside, data):
    for split in ("train", "eval", "test"):
        (aside / f"new_aan_pairs.{split}.tsv").write_bytes(data.draw(spoiled_bytes(PAIRS)))
    return told(lambda: list(read_pairs(find_pairs(aside), "train", 100, lambda *_: None)))


def spoil_archive(aside, data):
    form = data.draw(st.sampled_from(["w:", "w:gz", "w:bz2", "w:xz", "zip"]))
    path = write(aside / "data", form, FILES)
    path.write_bytes(data.draw(spoiled_bytes(path.read_bytes())))
    before = disk(aside)
    sentence = told(lambda: list(read_files(path, lambda name: True)))
    assert disk(aside) == before
    return sentence


def spoil_pickle(aside, data):
    content = pickle.dumps({b"data": np.arange(12).reshape(3, 4), b"labels": [1, 2, 3]}, protocol=2)
    return told(lambda: load_arrays(data.draw(spoiled_bytes(content)), "batch"))


def spoil_cache(aside, data):
    """A prepared data set is its own remedy: what is damaged is made again."""
    import datasets

    cache = Cache(aside / "cache")
    rows = datasets.Dataset.from_dict({"tokens": [[1, 2], [3]], "target": [0, 1]})
    folder = cache.path("toy", "key")
    shutil.rmtree(aside / "cache", ignore_errors=True)
    cache.dataset("toy", "key", lambda advance: rows, 2, "toy")
    file = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    if file == "manifest.json" and data.draw(st.booleans()):
        spoiled = data.draw(spoiled_tree(json.loads((folder / file).read_text())).map(as_json))
    else:
        spoiled = data.draw(spoiled_bytes((folder / file).read_bytes()))
    (folder / file).write_bytes(spoiled)
    (aside / "outside").write_text("kept")
    assert isinstance(cache.verify("toy", "key"), list) and isinstance(cache.entries(), list)
    again = cache.dataset("toy", "key", lambda advance: rows, 2, "toy")
    assert len(again) == 2 and (aside / "outside").read_text() == "kept"
    return ""


@functools.cache
def checkpoint() -> tuple[bytes, bytes]:
    """A checkpoint to continue from, and the best weights."""
    import tempfile
    from pathlib import Path

    model = toy()
    with tempfile.TemporaryDirectory() as place:
        checkpoints = Checkpoints(Path(place), math.inf)
        optimizer = Optimizer(model, RECIPE, CPU)
        optimizer.backward(model.head.bias.sum())
        optimizer.step(0)
        checkpoints.keep_best(model)
        checkpoints.save(State(step=3, curve=[(1.0, 1e-3, 2.0, 30)] * 3), model, optimizer)
        return Path(place, LAST).read_bytes(), Path(place, BEST).read_bytes()


def spoil_best_weights(aside, data):
    model, checkpoints = toy(), Checkpoints(aside, math.inf)
    save_model(model, str(aside / BEST))
    (aside / BEST).write_bytes(data.draw(spoiled_bytes(checkpoint()[1])))
    before = disk(aside)
    sentence = told(lambda: checkpoints.load_best(model))
    assert disk(aside) == before
    return sentence


def spoil_last_checkpoint(aside, data):
    """Training begins again where it cannot be continued."""
    spoiled = data.draw(spoiled_bytes(checkpoint()[0]))
    (aside / LAST).write_bytes(spoiled)
    model = toy(seed=5)
    before = weights(model)
    state = Checkpoints(aside, math.inf).resume(model, Optimizer(model, RECIPE, CPU))
    assert state.step == 3 or ((state == State() or math.isnan(state.best_score)) and equal(before, weights(model)))
    return ""


def spoil_published(aside, data):
    row = ["m", "listops", "", "accuracy", "37.1", "%", "Table 1", "Title", "2011.04006", "", "2020", *[""] * 4]
    content = "\n".join([",".join(COLUMNS), *[",".join([f"m{n}", *row[1:]]) for n in range(4)]]).encode() + b"\n"
    (aside / "numbers.csv").write_bytes(data.draw(spoiled_bytes(content)))
    return told(lambda: load_published(aside))


KINDS = {
    name.removeprefix("spoil_"): check
    for name, check in dict(globals()).items()
    if name.startswith("spoil_")
}  # fmt: skip
REPAIRED = {"cache", "last_checkpoint"}


def spoil_often(kind, aside, examples):
    """How many of so many spoiled inputs of a kind were refused."""
    refused = []

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(st.data())
    def spoil(data):
        refused.append(bool(KINDS[kind](aside, data)))

    spoil()
    return sum(refused), len(refused)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_spoiled_is_a_sentence(kind, aside, capsys):
    refused, count = spoil_often(kind, aside, FEW)
    assert count >= FEW and (refused >= count // 3 or kind in REPAIRED), (refused, count)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_spoiled_hundreds_of_times_is_a_sentence(kind, aside, capsys):
    refused, count = spoil_often(kind, aside, MANY)
    assert count >= MANY and (refused >= count // 3 or kind in REPAIRED), (refused, count)
