"""Errors by which libraries report too little memory or a GPU that cannot be used any more, and limits on CUDA."""

import pytest
import torch

from lra_bench.records.status import status_of
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.runtime.limits import is_lost_device, is_out_of_memory, memory_limit

MEMORY = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    MemoryError(),
    RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes."),
    RuntimeError("CUDA error: out of memory"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
)
LOST = (
    "CUDA error: device-side assert triggered",
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: misaligned address",
)


@pytest.mark.parametrize("error", MEMORY, ids=lambda error: str(error)[:50])
def test_out_of_memory_errors_of_all_libraries_are_recognised(error):
    assert is_out_of_memory(error) and status_of(error)[0] == "out_of_memory"
    assert not is_lost_device(error)


@pytest.mark.parametrize("message", LOST)
def test_errors_that_end_the_cuda_context_are_recognised(message):
    assert is_lost_device(RuntimeError(message)) and not is_out_of_memory(RuntimeError(message))


@pytest.mark.parametrize("message", ["CUDA error: invalid argument", "cuFFT error: CUFFT_INVALID_SIZE", "a bug"])
def test_other_errors_are_neither(message):
    assert not is_out_of_memory(RuntimeError(message)) and not is_lost_device(RuntimeError(message))


def test_a_resolved_gpu_has_an_index_which_the_memory_limit_passes_to_torch(monkeypatch):
    calls = []

    def properties(device):
        return type("Properties", (), {"total_memory": 8 * 2**30})

    monkeypatch.setattr("lra_bench.runtime.hardware.has_cuda", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr("torch.cuda.get_device_properties", properties)
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", lambda *arguments: calls.append(arguments))
    device = resolve(HardwareOptions(device="cuda")).device
    assert device.index == 0
    with memory_limit(2, device):
        pass
    assert calls == [(0.25, device), (1.0, device)]


@pytest.mark.gpu
def test_a_memory_limit_is_enforced_on_a_gpu():
    device = resolve(HardwareOptions(device="cuda")).device
    with memory_limit(1, device), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2 * 2**30, dtype=torch.uint8, device=device)
