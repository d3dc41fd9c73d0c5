"""Fixtures of the fault tests: one uninterrupted run."""

import time

import pytest

from tests.faults.outcome import ALONE, Calm, assert_same, assert_tidy, outcome, with_data_of
from tests.support.command import Folder
from tests.support.forks import Forks, planned


@pytest.fixture(scope="session")
def calm(forks: Forks, tmp_path_factory) -> Calm:
    folder = Folder(tmp_path_factory.mktemp("calm"))
    (cell,) = planned(ALONE, folder)
    assert forks.run(cell, folder) == 0, forks.output.read_text()
    expected = outcome(folder)
    again = with_data_of(folder, tmp_path_factory.mktemp("again"))
    began = time.monotonic()
    assert forks.run(cell, again) == 0
    seconds = time.monotonic() - began
    assert_same(outcome(again), expected)
    assert_tidy(again)
    return Calm(folder, expected, seconds)
