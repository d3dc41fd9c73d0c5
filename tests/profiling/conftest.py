"""Workers in the test process, with short timing windows."""

from collections.abc import Iterator

import pytest
import torch

from lra_bench.profiling import interleave, timing
from tests.support.in_process_workers import InProcess


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """Run workers in this process with a shortened timing window; the number of threads is restored."""
    monkeypatch.setattr(interleave, "WorkerProcess", InProcess)
    monkeypatch.setattr("gc.unfreeze", lambda: None)  # separate processes would not contain the objects of the tests
    for name, value in {"SECONDS": 0.01, "ROUNDS": 7, "ROUND_SECONDS": 0.01}.items():
        monkeypatch.setattr(timing, name, value)
    monkeypatch.setattr(timing, "WARM_UP_STEPS", 2)
    monkeypatch.setattr(InProcess, "commands", [])
    threads = torch.get_num_threads()
    yield InProcess.commands
    torch.set_num_threads(threads)
