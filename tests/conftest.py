"""Fixtures for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.forks import Forks

# Tests run in two workers on two cores, so more than one thread per worker would only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")
THREADS = int(os.environ["OMP_NUM_THREADS"])
CORES = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

# If a shell starts the tests in the background, they ignore SIGINT, and their child processes inherit that.
with suppress(ValueError):  # not in the main thread
    signal.signal(signal.SIGINT, signal.default_int_handler)

SHARED_DATA = Path(os.environ.get("LRA_BENCH_DATA") or Path(__file__).parents[2] / "shared" / "data")


gc.disable()  # until tests are collected


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all cases of a test marked ``one_in(n)`` but one in ``n``, or as long if the test is slow itself.

    With ``one_in(n, m)``, one in ``m`` of the other cases is slow, the rest are long. The cases are chosen by a
    checksum of their name.
    """
    for item in items:
        marker = item.get_closest_marker("one_in")
        if marker is None:
            continue
        every, every_slow = (*marker.args, 1)[:2]
        rest, chosen = divmod(zlib.crc32(item.name.encode()), every)
        if chosen:
            item.add_marker("long" if item.get_closest_marker("slow") or rest % every_slow else "slow")


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, because they are thousands and exist until the end."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data; the test is skipped if there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip(f"no real data in {SHARED_DATA} (set LRA_BENCH_DATA)")
    return SHARED_DATA


@pytest.fixture
def within(request: pytest.FixtureRequest) -> float:
    """Largest accepted difference of a test marked ``agrees``; the site shows the same number."""
    marker = request.node.get_closest_marker("agrees")
    assert marker is not None, "only tests marked with pytest.mark.agrees use the fixture within"
    return float(marker.kwargs["within"])


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory):
    """Use a temporary cache instead of the user's, and no reference boards unless a test sets them."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("LRA_BENCH_CACHE", str(folder))
        patch.setenv("LRA_BENCH_REFERENCE", "none")
        yield folder


@pytest.fixture(autouse=True)
def process_settings():
    """Restore settings changed by a cell that ran in this process: threads, affinity, denormal numbers.

    With two threads in each of two workers, small operators take ten times as long. Hypothesis needs denormal numbers.
    """
    yield
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_flush_denormal(False)
        torch.set_num_threads(THREADS)
    if CORES:
        os.sched_setaffinity(0, CORES)


@pytest.fixture(scope="session")
def forks(tmp_path_factory) -> Iterator[Forks]:
    """A fork server, which runs cells and commands without the time for imports."""
    from tests.support.forks import fork_server

    with fork_server(tmp_path_factory.mktemp("forks")) as server:
        yield server
