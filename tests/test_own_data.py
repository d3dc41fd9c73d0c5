"""Data from Python: ``load_task``, ``task_from`` and the overrides of both."""

from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pytest
import torch

from lra_bench.api.own_data import TaskData, load_task, task_from
from lra_bench.config.compose import compose
from lra_bench.contracts import UserError

REVIEWS = Path(__file__).parent / "support" / "own_table" / "reviews.csv"


def test_a_task_gives_the_same_examples_to_datasets_and_torch():
    parity = load_task("parity", protocol="smoke", length=16)
    rows, items = parity.dataset("test"), parity.torch("test")
    assert isinstance(rows, datasets.Dataset) and isinstance(items, torch.utils.data.Dataset)
    assert parity.spec.train_length == 16 and len(rows) == len(items) == 64
    for index in (0, 63):
        assert items[index]["tokens"].tolist() == rows[index]["tokens"]
        assert items[index]["target"].tolist() == rows[index]["target"]
    assert list(items[-1]) == ["tokens", "target", "length", "row"]
    batches = list(torch.utils.data.DataLoader(items, batch_size=16, collate_fn=items.collate))
    assert len(batches) == 4 and torch.equal(batches[1].tokens[0], items[16]["tokens"])


def tables():
    frame = pd.read_csv(REVIEWS)
    rows = datasets.Dataset.from_pandas(frame)
    return {
        "path": REVIEWS,
        "DataFrame": frame,
        "columns": {"text": frame["text"], "label": list(frame["label"])},
        "Dataset": rows,
        "DatasetDict": datasets.DatasetDict({"train": rows}),
    }


@pytest.mark.parametrize("kind", ["path", "DataFrame", "columns", "Dataset", "DatasetDict"])
def test_the_forms_of_a_table_are_the_same_task(kind, tmp_path):
    own = task_from(tables()[kind], protocol="smoke", max_length=64)
    assert own.task.fingerprint() == task_from(str(REVIEWS), protocol="smoke", max_length=64).task.fingerprint()
    composed = compose([*own.overrides(tmp_path), "protocol=smoke", "hardware=cpu"])
    assert composed.config.task["max_length"] == 64 and Path(composed.config.task["path"]).exists()
    assert composed.modified == ("task.max_length",)
    if kind != "path":
        assert Path(composed.config.task["path"]).is_relative_to(tmp_path)


def test_options_are_carried_as_overrides(tmp_path):
    options = {
        "text": ["a b", "c'\"d"],
        "splits": {"test": "dev"},
        "allow_partial": True,
        "rows": None,
        "path": tmp_path,
    }
    task = compose([*TaskData("csv", options).overrides(tmp_path), "hardware=cpu"]).config.task
    assert {name: task[name] for name in options} == {**options, "path": str(tmp_path)}


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: task_from(3), "task_from: int is no table"),
        (lambda: task_from({"text": ["a"], "label": [1, 2]}), "task_from: the columns are no table"),
        (lambda: task_from(REVIEWS, text=np.float64), "task.text: cannot be a type; set a number, text or list"),
        (lambda: load_task("parity", protocol="smoke").dataset("dev"), "split=dev: there is no such split"),
        (lambda: task_from(REVIEWS).dataset("test", 10**6), "length=1000000: is not possible"),
        (lambda: task_from(REVIEWS, txt="text").spec, "task.txt"),
        (lambda: load_task("parrity").spec, "did you mean parity?"),
    ],
)
def test_wrong_calls_are_one_sentence(call, words):
    with pytest.raises(UserError) as raised:
        call()
    assert words in str(raised.value) and "\n" not in str(raised.value)
