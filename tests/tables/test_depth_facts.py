"""The section ``adaptive_depth`` of a record as ``lra-bench show`` prints it."""

from __future__ import annotations

from lra_bench.measurements.adaptive_depth import DepthBudgets
from lra_bench.records import store
from lra_bench.tables.describe import describe
from tests.records.test_records import STORED


def test_budgets_and_calibrations_are_listed() -> None:
    record = store.load(STORED / "version8.json")
    assert record.adaptive_depth is not None
    found = dict(DepthBudgets.facts(record.adaptive_depth))
    assert found["depth, calibrated 0.1"] == (
        "0.3700 with 2.50 of 4 layers, 62,000 FLOPs per token, 2.5 µs per token, 6.0% other predictions"
    )
    assert "FLOPs" not in found["depth, threshold 0.5"]
    assert found["tolerance 0.1"] == "threshold 0.6 (mean loss 0.0700 over 1,000 examples, failure 0.05)"
    none = {**record.adaptive_depth["calibration"][0], "threshold": None}
    assert dict(DepthBudgets.facts({**record.adaptive_depth, "calibration": [none]}))["tolerance 0.1"].startswith(  # type: ignore[typeddict-item, list-item]
        "no threshold accepted"
    )
    assert all(name in describe(record) for name in found)
