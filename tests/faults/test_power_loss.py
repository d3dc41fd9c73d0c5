"""After a loss of power the same command gives the results of an uninterrupted run.

The files that would be left are computed from the calls of fsync and rename of a run (``power_loss.py``).
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.outcome import ALONE, assert_same, assert_sound, assert_tidy, outcome, with_data_of
from tests.support.forks import planned

ROOT = Path(__file__).parents[2]
STATES = 12
"""Number of states, evenly spaced, from which the cell is resumed."""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads file descriptors in /proc")
def test_a_cell_is_resumed_from_what_a_loss_of_power_leaves(forks, calm, tmp_path):
    folder = with_data_of(calm.folder, tmp_path / "run")
    (cell,) = planned(ALONE, folder)
    request = {"cell": cell.as_json(), "results": str(folder.results), "attempt": 1, "restart": False}
    subprocess.run(
        [sys.executable, "-m", "tests.faults.power_loss", tmp_path / "states", folder.root],
        input=json.dumps({**request, "stages": None, "cores": None}),
        cwd=ROOT,
        env=folder.environment,
        text=True,
        check=True,
        capture_output=True,
    )
    states = sorted((tmp_path / "states").iterdir(), key=lambda path: int(path.name))
    assert len(states) > 2 * STATES
    for number in range(STATES):
        state = states[number * (len(states) - 1) // (STATES - 1)]
        lost = with_data_of(calm.folder, tmp_path / f"lost{number}")
        shutil.copytree(state, lost.root, dirs_exist_ok=True)
        assert_sound(lost)
        (cell,) = planned(ALONE, lost)
        assert forks.run(cell, lost, attempt=2) in (0, 10), forks.output.read_text()
        assert_same(outcome(lost), calm.expected)
        assert_tidy(lost)
