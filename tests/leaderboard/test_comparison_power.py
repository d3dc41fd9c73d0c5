"""How often the command that compares is right about worlds whose truth is known."""

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
from tests.leaderboard.test_comparison import world

WORLDS = 200
Compare = Callable[[float, int], dict[str, Any]]


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Compare:
    """What ``lra-bench compare`` prints of five seeds each of two models that truly differ by ``gap``."""

    def of_world(gap: float, draw: int) -> dict[str, Any]:
        shutil.rmtree(tmp_path, ignore_errors=True)
        world(tmp_path, gap, seeds=5, draw=draw)
        arguments = ["compare", "local", "performer", "--json", "--results", str(tmp_path)]
        monkeypatch.setattr(sys, "argv", ["lra-bench", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert not ended.value.code
        [found] = json.loads(capsys.readouterr().out)
        return dict(found)

    return of_world


@pytest.mark.slow
def test_equal_models_are_claimed_to_differ_in_at_most_one_world_of_twenty(compared: Compare) -> None:
    claims = sum(compared(0.0, draw)["verdict"] in ("A", "B") for draw in range(WORLDS))
    assert claims <= binom.ppf(0.99, WORLDS, 0.05)


@pytest.mark.slow
def test_twice_the_difference_that_is_called_detectable_is_claimed_in_nineteen_worlds_of_twenty(
    compared: Compare,
) -> None:
    claims = 0
    for draw in range(WORLDS):
        printed = compared(0.0, draw)["detectable"]  # it scatters as the seeds do: small ones are as likely taken
        claims += compared(2 * printed, WORLDS + draw)["verdict"] == "A"
    assert claims >= 0.95 * WORLDS
