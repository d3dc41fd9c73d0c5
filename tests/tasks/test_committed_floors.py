"""The floors in the repository are those that the code computes, and a first run computes none of them."""

import numpy as np
import pytest

from lra_bench.config.objects import build_task
from lra_bench.data.cache import Cache
from lra_bench.tasks.floor_rows import COMMITTED
from tests.support.committed_floors import composed, computed

GENERATED = (
    "a5",
    "copy",
    "mad_compression",
    "mad_copy",
    "mad_fuzzy",
    "mad_memorisation",
    "mad_noisy",
    "mad_recall",
    "mqar",
    "mqar_compositional",
    "mqar_forgetting",
    "needle",
    "parity",
    "recall",
    "recall_ladder",
    "retrieval_synthetic",
    "s3",
    "s5",
    "selective_copy",
)


@pytest.mark.parametrize("name", GENERATED)
def test_floors_of_quick_need_no_data(name, tmp_path):
    config = composed("quick", name)
    task = build_task(config)
    task._cache = Cache(tmp_path)
    for ratio in config.measure.extrapolation_ratios:
        length = round(task.spec.train_length * ratio)
        if task.supports_length(length) is None:
            rows, floors = task.floor_rows("test", length), task.floors("test", length)
            assert {len(column) for column in rows.values()} == {2000} and set(floors) == set(rows)
    assert task.floors("validation")
    assert not list(tmp_path.rglob("*.arrow"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["needle", "retrieval_synthetic", "s3", "delayed_recall"])
def test_committed_floors_equal_computed_ones(name, tmp_path):
    with np.load(COMMITTED) as file:
        committed = {entry: file[entry] for entry in file.files if entry.split("-")[0] == name}
    found = computed("quick", name, Cache(tmp_path))
    assert set(found) == set(committed) and found
    for entry, values in found.items():
        # Fits on another processor may differ in a few rows.
        assert np.abs(values.astype(float) - committed[entry]).mean() <= 0.002, entry
