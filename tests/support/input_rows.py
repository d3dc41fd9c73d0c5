"""Small random rows of tokens, values and pairs of documents for the tests of self-pretraining."""

import datasets
import numpy as np

from lra_bench.config.pretraining import phase_spec
from lra_bench.contracts import TaskSpec
from lra_bench.data.batches import Rows
from lra_bench.data.inputs import InputRows
from tests.support.model_cases import task

TOKENS = task(length=12)
VALUES = task(length=12, channels=3)
PAIRS = task(kind="matching", classes=2, length=12)


def rows(spec: TaskSpec = TOKENS, count: int = 20, seed: int = 0, low: int = 1, high: int = 9) -> Rows:
    """Return random rows of 3 to 12 tokens or values; tokens are from ``low`` to ``high`` - 1."""
    generator = np.random.default_rng(seed)

    def document():
        length = int(generator.integers(3, 13))
        if spec.channels:
            return generator.normal(size=(length, spec.channels)).astype(np.float32).tolist()
        return generator.integers(low, high, length).tolist()

    inputs = [[document(), document()] if spec.kind == "matching" else document() for _ in range(count)]
    name = "values" if spec.channels else "tokens"
    return Rows(datasets.Dataset.from_dict({name: inputs, "target": [i % spec.classes for i in range(count)]}), spec)


def hidden_tokens(spec: TaskSpec = TOKENS, **options) -> InputRows:
    return InputRows(rows(spec), phase_spec(spec), **{"probability": 0.3, **options})
