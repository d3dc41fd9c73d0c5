"""Peak memory against allocations of known size."""

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
    """Calls in a fresh process: what other tests left here may be let go at any time, and would hide as much."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield lambda *call: process.submit(*call).result()


@linux
@pytest.mark.parametrize("megabytes", [50, 200, 500])
@pytest.mark.parametrize("work", [touch, fill])
def test_a_known_allocation_is_seen(alone: Callable[..., int], work: Callable[..., object], megabytes: int) -> None:
    assert alone(growth, work, megabytes) == pytest.approx(megabytes * MB, rel=0.05)


def peak_in_the_middle() -> None:
    one = touch(150)
    other = touch(100)
    del one, other
    touch(60)


@linux
def test_the_peak_counts_and_not_the_end(alone: Callable[..., int]) -> None:
    assert alone(growth, peak_in_the_middle) == pytest.approx(250 * MB, rel=0.05)


def growth_beside_what_was_before() -> int:
    kept = touch(150)
    touch(400)
    grown = growth(touch, 100)
    assert kept.size
    return grown


@linux
def test_what_was_there_before_and_greater_peaks_before_do_not_count(alone: Callable[..., int]) -> None:
    assert alone(growth_beside_what_was_before) == pytest.approx(100 * MB, rel=0.05)


def small_pieces() -> list[bytes]:
    return [b"x" * size for size in [60_000] * 2000]  # each too small for a mapping of its own


def growth_into_a_hole_of_the_heap() -> int:
    topmost = small_pieces().pop()  # holds the heap's end, so that freeing alone gives nothing back
    grown = growth(small_pieces)
    assert topmost
    return grown


@linux
def test_memory_freed_into_the_heap_does_not_hide_the_next_use_of_it(alone: Callable[..., int]) -> None:
    assert alone(growth_into_a_hole_of_the_heap) == pytest.approx(120 * MB, rel=0.1)


def test_what_lasts_is_computed_from_the_tensors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.BatchNorm1d(20), torch.nn.Linear(20, 1, bias=False))
    model[2].weight.requires_grad_(False)
    trained, frozen, buffers = 10 * 20 + 20 + 20 + 20, 20, 4 * (20 + 20) + 8
    assert memory.static_bytes(model) == 4 * (trained + frozen) + buffers
    assert memory.gradient_bytes(model) == 4 * trained
    train = Train(lr=0.1, clip=None, steps=1, schedule="constant", warmup_steps=0)
    optimizer = Optimizer(model, train, resolve(HardwareOptions(device="cpu")))
    model(torch.randn(3, 10)).sum().backward()
    optimizer.step(0)
    moments = 2 * 4 * trained + 4 * 4  # and the count of steps of four tensors
    assert memory.static_bytes(model, optimizer.wrapped) == 4 * (trained + frozen) + buffers + 4 * trained + moments


@pytest.mark.parametrize(
    ("peak", "expected"),
    [
        (memory.PeakMemory(peak_allocated_bytes=1000, peak_reserved_bytes=4000), 400),
        (memory.PeakMemory(peak_resident_growth_bytes=1000), 900),
        (memory.PeakMemory(peak_resident_growth_bytes=90), None),
        (memory.PeakMemory(), None),
    ],
)
def test_activations_are_what_is_left_of_the_peak(peak: memory.PeakMemory, expected: int | None) -> None:
    assert memory.activation_bytes(peak, static=600, gradients=100) == expected


def test_unknown_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.sys, "platform", "darwin")
    with peak_memory(CPU) as peak:
        touch(10)
    assert set(peak.as_dict().values()) == {None}


@linux
def test_unknown_is_none_where_the_mark_cannot_be_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    touch(200)
    monkeypatch.setattr(memory, "RESET_HIGH_WATER_MARK", "1")  # a command that leaves the mark alone
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
