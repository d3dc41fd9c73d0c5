"""What the fault tests share: one server of forks, and one run that was left alone."""

import time

import pytest

from tests.faults.forks import Forks, planned
from tests.faults.outcome import ALONE, Calm, assert_same, assert_tidy, beside, outcome
from tests.support.command import Folder


@pytest.fixture(scope="session")
def server(forks: Forks) -> Forks:
    return forks


@pytest.fixture(scope="session")
def calm(server, tmp_path_factory) -> Calm:
    folder = Folder(tmp_path_factory.mktemp("calm"))
    (cell,) = planned(ALONE, folder)
    assert server.run(cell, folder) == 0, server.output.read_text()
    expected = outcome(folder)
    again = beside(folder, tmp_path_factory.mktemp("again"))
    began = time.monotonic()
    assert server.run(cell, again) == 0
    seconds = time.monotonic() - began
    assert_same(outcome(again), expected)
    assert_tidy(again)
    return Calm(folder, expected, seconds)
