"""Which accelerators are used, and what is said about those that are not."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from lra_bench.config.validation import check_hardware
from lra_bench.contracts import UserError
from lra_bench.runtime import hardware
from lra_bench.runtime.hardware import HardwareOptions, unused_accelerator


@pytest.mark.parametrize(
    ("content", "build"),
    [
        ("cuda = '12.8'\nhip = None\n", "CUDA 12.8"),
        ("cuda = None\nhip = '6.4.4'\n", "ROCm 6.4.4"),
        ("cuda = None\nhip = None\n", ""),
        ("cuda = None\n", ""),
    ],
)
def test_the_build_of_torch_is_read_without_importing_it(
    content: str, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "version.py").write_text(content)
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(hardware, "find_spec", lambda name: found if name == "torch" else None)
    assert hardware.torch_build.__wrapped__() == build


def test_a_gpu_that_torch_cannot_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kfd").write_text("")
    monkeypatch.setattr(hardware, "ACCELERATORS", {"AMD": (str(tmp_path / "kfd"),)})
    monkeypatch.setattr(hardware, "has_cuda", lambda: False)
    monkeypatch.setattr(hardware, "torch_build", lambda: "ROCm 6.4")
    message = "there is a device file of an AMD GPU, but torch is built for ROCm 6.4 and finds no device"
    assert unused_accelerator().startswith(message)
    with pytest.raises(UserError, match=f"hardware.device=cuda: {message}.*choose hardware=cpu"):
        check_hardware(HardwareOptions(device="cuda"))
    monkeypatch.setattr(hardware, "has_cuda", lambda: True)
    assert unused_accelerator() == ""


@pytest.mark.parametrize("device", ["mps", "xpu"])
def test_other_devices_are_refused(device: str) -> None:
    with pytest.raises(UserError, match=f"hardware.device={device}: torch's device {device} is not supported"):
        check_hardware(HardwareOptions(device=device))


@pytest.mark.parametrize(("variable", "threads"), [("3", 3), ("", 8), ("0", 8), ("many", 8), ("9999999", 8)])
def test_the_default_number_of_threads_is_omp_num_threads_if_valid(
    variable: str, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware, "usable_cpus", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert hardware.slug(HardwareOptions(device="cpu")).endswith(f"-{threads}t")
    assert hardware.slug(HardwareOptions(device="cpu", threads=2)).endswith("-2t")
