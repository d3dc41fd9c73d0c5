"""Examples that do not match the specification of their task are user errors with column and row."""

import datasets
import numpy as np
import pytest

from lra_bench.contracts import NOT_SCORED, TaskSpec, UserError
from lra_bench.data.checks import check_split
from tests.support.command import Folder

TOKENS = [[1, 2], [3], [4, 0, 1]]


def spec(kind="classification", **options):
    return TaskSpec("mine", "1", kind, "either", 2, train_length=3, **({"vocabulary_size": 5} | options))


def check(columns, spec=spec(), rows=None):  # noqa: B008 (a constant)
    dataset = datasets.Dataset.from_dict(columns)
    check_split(dataset if rows is None else dataset.select(rows), spec, "train")


@pytest.mark.parametrize(
    ("columns", "task"),
    [
        ({"tokens": TOKENS, "target": [0, 1, 1]}, spec()),
        ({"tokens": [[[1], [2, 3]]] * 3, "target": [0, 1, 1]}, spec("matching")),
        ({"tokens": TOKENS, "target": [[0, 1], [NOT_SCORED], [1, NOT_SCORED, 0]]}, spec("tagging")),
        ({"tokens": [[1] * 100]}, spec("language_modeling")),
        ({"values": [[0.5, -1e30], [3.0]], "target": [0, 1]}, spec(vocabulary_size=None, channels=1)),
        ({"values": [[[0.5, 1.0]], [[3.0, 2.0]]], "target": [0, 1]}, spec(vocabulary_size=None, channels=2)),
    ],
    ids=["classes", "pairs", "tags", "text", "values", "channels"],
)
def test_valid_examples_are_accepted(columns, task):
    check(columns, task)


CONTINUOUS = spec(vocabulary_size=None, channels=1)
WRONG: dict[str, tuple[dict, TaskSpec, str]] = {
    "an id beyond the vocabulary": ({"tokens": [[1], [2, 5]]}, spec(), "tokens of train contains 5 in row 1 .* 0 to 4"),
    "a negative id": ({"tokens": [[1], [2, -1]]}, spec(), "tokens of train contains -1 in row 1 instead of 0 to 4"),
    "an id of a pair": ({"tokens": [[[1], [2]], [[1], [9]]]}, spec("matching"), "tokens of train contains 9 in row 1"),
    "booleans": ({"tokens": [[True], [False]]}, spec(), "tokens of train contains bool instead of numbers from row 0"),
    "strings": ({"tokens": [["a"], ["b"]]}, spec(), "tokens of train contains string instead of numbers from row 0"),
    "a string": ({"tokens": ["ab", "b"]}, spec(), "tokens of train contains string instead of numbers from row 0"),
    "floats as ids": ({"tokens": [[1.0], [2.0]]}, spec(), "tokens of train contains double instead of numbers"),
    "a missing id": ({"tokens": [[1], [None]]}, spec(), "tokens of train has a missing number in row 1"),
    "a missing row": ({"tokens": [[1], None]}, spec(), "tokens of train has a missing number in row 1"),
    "NaN": (
        {"values": [[1.0], [np.nan]]},
        CONTINUOUS,
        "values of train contains nan in row 1 instead of a finite number",
    ),
    "infinity": ({"values": [[1.0], [np.inf]]}, CONTINUOUS, "values of train contains inf in row 1"),
    "no column": ({"token": [[1], [2]]}, spec(), r"tokens of train is missing \(there are token, target\)"),
    "an empty row": ({"tokens": [[1], []]}, spec(), "row 1 of train has 0 tokens instead of 1 to 3"),
    "a long row": (
        {"tokens": [[1], [1] * 4]},
        spec(),
        r"row 1 of train has 4 tokens instead of 1 to 3 \(train_length\)",
    ),
}
TARGETS = {
    "a class too many": ([0, 2], spec(), "target of train contains 2 in row 1 instead of 0 to 1"),
    "not scored": ([0, NOT_SCORED], spec(), "target of train contains -100 in row 1"),
    "booleans": ([False, True], spec(), "target of train contains bool"),
    "names": (["neg", "pos"], spec(), "target of train contains string"),
    "a missing target": ([0, None], spec(), "target of train has a missing number in row 1"),
    "lists": ([[0], [1]], spec(), "target of train must contain one number per row"),
    "no lists": ([0, 1], spec("tagging"), "target of train must contain one number per token"),
    "another number of tags": ([[0], [1, 1]], spec("tagging"), "target of train has not as many numbers .* in row 1"),
    "a wrong tag": ([[0], [7]], spec("tagging"), "target of train contains 7 in row 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_inputs_are_user_errors(case):
    columns, task, message = WRONG[case]
    with pytest.raises(UserError, match=f"^task=mine: .*{message}.*; correct the data that the task returns$"):
        check({**columns, "target": [0, 1]}, task)


@pytest.mark.parametrize("case", TARGETS)
def test_wrong_targets_are_user_errors(case):
    target, task, message = TARGETS[case]
    with pytest.raises(UserError, match=f"^task=mine: .*{message}.*; correct the data that the task returns$"):
        check({"tokens": [[1], [2]], "target": target}, task)


def test_rows_that_are_not_selected_are_not_checked():
    check({"tokens": [[9], [1], [2]], "target": [7, 0, 1]}, rows=[1, 2])


OWN_TASK = """
import datasets
from lra_bench.contracts import Provenance, Task, TaskSpec


class Mine(Task):
    def __init__(self):
        self.spec = TaskSpec("mine", "1", "classification", "either", 2, train_length=2, vocabulary_size=5)

    def fingerprint(self):
        return "one"

    def prepare(self, cache):
        pass

    def split(self, name, length=None, variant=None):
        return datasets.Dataset.from_dict({"tokens": [[1, 2], [3, 9]], "target": [0, 1], "length": [2, 2]})

    def floors(self, split, length=None, variant=None):
        return {"majority": 0.5}

    def check(self, split):
        pass

    def provenance(self):
        return Provenance("made", "none", "none")
"""


@pytest.mark.slow
@pytest.mark.parametrize("command", ["bench", "data verify"])
def test_wrong_examples_of_an_own_task_end_the_command_without_a_record(tmp_path, command):
    (tmp_path / "own" / "task").mkdir(parents=True)
    (tmp_path / "own" / "task" / "mine.yaml").write_text("_target_: my_task.Mine\n")
    (tmp_path / "own" / "my_task.py").write_text(OWN_TASK)
    options = ["model=transformer", "protocol=smoke", "hardware=cpu", "tracker=none"] if command == "bench" else []
    done = Folder(tmp_path).run(*command.split(), "--config-dir", "own", "task=mine", *options, check=False)
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == (
        "lra-bench: task=mine: the column tokens of train contains 9 in row 1 instead of 0 to 4; "
        "correct the data that the task returns"
    )
    assert not list((tmp_path / "results").rglob("*.json"))
