"""False positive rate and power of ``lra-bench compare`` on simulated records with a known difference."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import binom

from lra_bench.cli import main
from tests.tables.test_comparison import simulate

SIMULATIONS = 200
Compare = Callable[[float, int], dict[str, Any]]


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """Return a function that runs ``lra-bench compare`` on two models with five seeds each that differ by ``gap``."""

    def compare_simulated(gap: float, draw: int) -> dict[str, Any]:
        shutil.rmtree(tmp_path, ignore_errors=True)
        simulate(tmp_path, gap, seeds=5, draw=draw)
        arguments = ["compare", "local", "performer", "--json", "--results", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["lra-bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert not ended.value.code
        [found] = json.loads(capsys.readouterr().out)
        return dict(found)

    return compare_simulated


@pytest.mark.slow
def test_false_positive_rate_is_at_most_5_percent(compared: Compare) -> None:
    claims = sum(compared(0.0, draw)["verdict"] in ("A", "B") for draw in range(SIMULATIONS))
    assert claims <= binom.ppf(0.99, SIMULATIONS, 0.05)


@pytest.mark.long
def test_twice_the_detectable_difference_is_detected_with_95_percent_power(
    compared: Compare,
) -> None:
    claims = 0
    for draw in range(SIMULATIONS):
        printed = compared(0.0, draw)["detectable"]  # varies with the sampled seeds
        claims += compared(2 * printed, SIMULATIONS + draw)["verdict"] == "A"
    assert claims >= 0.95 * SIMULATIONS
