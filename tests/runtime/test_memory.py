"""Measured peak memory equals allocations of known size."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from lra_bench.config.schema import Train
from lra_bench.runtime import memory
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.runtime.memory import peak_memory
from lra_bench.training.optimizer import Optimizer

CPU = torch.device("cpu")
MB = 1_000_000

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")


def touch(megabytes: float) -> np.ndarray:
    return np.ones(int(megabytes * MB) // 8)


def fill(megabytes: float) -> torch.Tensor:
    return torch.ones(int(megabytes * MB) // 4)


def growth(work: Callable[..., object], *arguments: float) -> int:
    with peak_memory(CPU) as peak:
        kept = work(*arguments)
    del kept
    assert peak.peak_allocated_bytes is None and peak.peak_reserved_bytes is None
    assert peak.peak_resident_growth_bytes is not None
    return peak.peak_resident_growth_bytes


@pytest.fixture(scope="module")
def alone() -> Iterator[Callable[..., int]]:
    """Run functions in a separate process, because memory of earlier tests in this one may be freed at any time."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(fill, 1).result()  # the first parallel operator of a process creates its threads
        yield lambda *call: process.submit(*call).result()


@pytest.mark.slow
@pytest.mark.alone
@linux
@pytest.mark.parametrize("megabytes", [50, 200, 500])
@pytest.mark.parametrize("work", [touch, fill])
def test_a_known_allocation_is_measured(alone: Callable[..., int], work: Callable[..., object], megabytes: int) -> None:
    assert alone(growth, work, megabytes) == pytest.approx(megabytes * MB, rel=0.05)


def peak_in_the_middle() -> None:
    one = touch(150)
    other = touch(100)
    del one, other
    touch(60)


@linux
def test_the_peak_is_measured_not_the_final_memory(alone: Callable[..., int]) -> None:
    assert alone(growth, peak_in_the_middle) == pytest.approx(250 * MB, rel=0.05)


def growth_after_a_larger_peak() -> int:
    kept = touch(150)
    touch(400)
    grown = growth(touch, 100)
    assert kept.size
    return grown


@linux
def test_earlier_memory_and_earlier_peaks_do_not_count(alone: Callable[..., int]) -> None:
    assert alone(growth_after_a_larger_peak) == pytest.approx(100 * MB, rel=0.05)


def small_pieces() -> list[bytes]:
    return [b"x" * size for size in [60_000] * 2000]  # each too small for a separate mapping


def growth_into_freed_memory() -> int:
    topmost = small_pieces().pop()  # at the end of the heap, so that glibc does not return freed memory by itself
    grown = growth(small_pieces)
    assert topmost
    return grown


@linux
def test_memory_freed_before_does_not_reduce_the_measured_growth(alone: Callable[..., int]) -> None:
    assert alone(growth_into_freed_memory) == pytest.approx(120 * MB, rel=0.1)


def test_static_bytes() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 1, bias=False))
    model[2].weight.requires_grad_(False)
    trained, frozen, buffers = 10 * 20 + 20 + 20 + 20, 20, 4 * (20 + 20) + 8
    assert memory.static_bytes(model) == 4 * (trained + frozen) + buffers
    assert memory.gradient_bytes(model) == 4 * trained
    train = Train(lr=0.1, clip=None, steps=1, schedule="constant", warmup_steps=0)
    optimizer = Optimizer(model, train, resolve(HardwareOptions(device="cpu")))
    model(torch.randn(3, 10)).sum().backward()
    optimizer.step(0)
    moments = 2 * 4 * trained + 4 * 4  # including the step counters of four tensors
    assert memory.static_bytes(model, optimizer.wrapped) == 4 * (trained + frozen) + buffers + 4 * trained + moments


@pytest.mark.parametrize(
    ("peak", "expected"),
    [
        (memory.PeakMemory(peak_allocated_bytes=1000, peak_reserved_bytes=4000), 400),
        (memory.PeakMemory(peak_allocated_bytes=1000, workspace_bytes=150), 250),
        (memory.PeakMemory(peak_resident_growth_bytes=1000), 900),
        (memory.PeakMemory(peak_resident_growth_bytes=90), None),
        (memory.PeakMemory(), None),
    ],
)
def test_activation_bytes(peak: memory.PeakMemory, expected: int | None) -> None:
    assert memory.activation_bytes(peak, static=600, gradients=100) == expected


def test_workspaces_of_cublas_are_measured_and_not_stored_in_records(monkeypatch: pytest.MonkeyPatch) -> None:
    allocated = [900, 700]
    for name in ("synchronize", "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda _: 1000)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 2000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: allocated[0])
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: allocated.pop(0), raising=False)
    with peak_memory(torch.device("cuda", 0)) as peak:
        pass
    assert peak.workspace_bytes == 200
    assert list(peak.as_dict().values()) == [1000, 2000, None]


def test_unknown_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    with peak_memory(CPU) as peak:
        touch(10)
    assert set(peak.as_dict().values()) == {None}


@pytest.mark.slow
@linux
def test_unknown_is_none_if_the_mark_cannot_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    touch(200)
    monkeypatch.setattr(memory, "RESET_HIGH_WATER_MARK", "1")  # a command that does not reset the mark
    with peak_memory(CPU) as peak:
        touch(10)
    assert peak.peak_resident_growth_bytes is None

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "write_text", refuse)
    with peak_memory(CPU) as peak:
        touch(10)
    assert peak.peak_resident_growth_bytes is None


@pytest.mark.gpu
def test_cuda_peaks() -> None:
    device = torch.device("cuda")
    kept = torch.ones(25 * MB, device=device)
    before = torch.cuda.memory_allocated()
    with peak_memory(device) as peak:
        torch.ones(50 * MB, device=device)
    assert peak.peak_allocated_bytes is not None and peak.peak_reserved_bytes is not None
    assert peak.peak_allocated_bytes - before == pytest.approx(200 * MB, rel=0.01)
    assert peak.peak_reserved_bytes >= peak.peak_allocated_bytes
    assert peak.peak_resident_growth_bytes is None
    assert kept.numel()
