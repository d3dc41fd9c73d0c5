"""Recall and copy are learned within a minute of one core by every system whose mechanism allows it."""

import pytest

from tests.learning import learn
from tests.mixer_cases import NODES

OPTIONS = [
    "protocol=quick",
    "train.lr=3e-3",
    "train.steps=100000",
    "task.rows.train=50000",
    "task.rows.validation=500",
]
OWN = {
    "gqa": ["backbone.heads=2", "model.mixer.kv_heads=1"],
    "score_bilinear": ["train.lr=2e-3"],
    "score_dot": ["train.lr=1e-3"],
    "score_reduced": ["train.lr=2e-3"],
    "sparse_strided": ["backbone.heads=2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("task", ["recall", "copy"])
@pytest.mark.parametrize("name", NODES)
def test_a_minute_is_enough(task, name, tmp_path):
    learned = learn(tmp_path, [f"task={task}", f"model={name}", *OPTIONS, *OWN.get(name, [])])
    print(f"\n{task} {name}: {learned.score:.3f} at step {learned.step}, {learned.seconds:.0f} s")
    assert learned.score >= 0.95
