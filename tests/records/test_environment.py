"""Description of machine and program in a record, on this machine and with a simulated GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import psutil
import pytest
import torch

from lra_bench.records import environment as module
from lra_bench.records.environment import code_version, environment
from lra_bench.runtime.hardware import HardwareOptions, resolve


def test_environment_of_this_machine() -> None:
    hardware = resolve(HardwareOptions(device="cpu", precision="fp32", threads=2))
    found = environment(hardware)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["hardware"]["memory_bytes"] == psutil.virtual_memory().total
    assert found["hardware"]["threads"] == torch.get_num_threads()
    assert (found["hardware"]["device"], found["hardware"]["precision"]) == ("cpu", "fp32")
    assert found["hardware"]["gpu"] is None
    assert found["software"]["torch"] == torch.__version__
    assert "math" in found["software"]["sdpa_backends"]


def test_settings_of_the_process_are_read() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        assert environment()["software"]["sdpa_backends"] == ["math"]
    torch.set_flush_denormal(False)
    assert environment()["software"]["flushes_denormals"] is False
    torch.use_deterministic_algorithms(True)
    try:
        assert environment()["software"]["deterministic"] is True
    finally:
        torch.use_deterministic_algorithms(False)


class SimulatedGpu(types.ModuleType):
    """A driver library of one GPU with MIG off and without clock queries."""

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2

    def __getattr__(self, name: str):
        functions = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetHandleByUUID": lambda uuid: {"GPU-1234": "card"}[uuid],
            "nvmlSystemGetDriverVersion": lambda: "580.1",
            "nvmlDeviceGetMigMode": lambda card: [0, 0],
            "nvmlDeviceGetEnforcedPowerLimit": lambda card: 700_000,
            "nvmlDeviceGetComputeRunningProcesses": lambda card: [
                types.SimpleNamespace(pid=os.getpid()),
                types.SimpleNamespace(pid=1),
            ],
        }
        return functions[name] if name in functions else super().__getattribute__(name)


def test_properties_of_a_gpu_that_the_driver_does_not_report_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedGpu("pynvml"))
    assert module._nvml("1234", 0) == {
        "driver": "580.1",
        "mig": False,
        "power_limit_watts": 700.0,
        "graphics_clock_megahertz": None,
        "memory_clock_megahertz": None,
        "other_processes": 1,
    }


def test_without_the_driver_library_all_properties_of_a_gpu_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert set(module._nvml("1234", 0).values()) == {None}


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments], cwd=folder, check=True, capture_output=True
    )


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    package = tmp_path / "clone" / "lra_bench"
    package.mkdir(parents=True)
    (package / "code.py").write_text("a = 1\n")
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "all")
    monkeypatch.setattr(module, "PACKAGE", package)
    return package.parent


def test_git_dirty_considers_code_only(checkout: Path) -> None:
    clean = code_version()
    assert clean["git_sha"] is not None and len(clean["git_sha"]) == 40
    assert clean["git_dirty"] is False
    (checkout / "results").mkdir()
    (checkout / "results" / "record.json").write_text("{}")
    assert code_version()["git_dirty"] is False
    (checkout / "lra_bench" / "new.py").write_text("b = 1\n")
    assert code_version() == clean | {"git_dirty": True}


def test_an_installed_package_inside_a_foreign_checkout_has_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = checkout / "venv" / "lra_bench"
    site.mkdir(parents=True)
    monkeypatch.setattr(module, "PACKAGE", site)
    assert code_version()["git_sha"] is None


def test_without_git_the_commit_is_unknown(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert code_version()["git_sha"] is None
    assert code_version()["git_dirty"] is None
    assert code_version()["version"]


DENORMALS = """
import torch
from lra_bench.runtime.hardware import HardwareOptions, resolve
from lra_bench.models.kernels.gated_scan import gated_scan
from lra_bench.models.kernels.scan import scan

resolve(HardwareOptions(device="cpu", precision="fp32", threads=2)).apply()
small = torch.full((1 << 20,), 1e-39)
assert not (small * 2).any(), "operators on all threads"
assert not (small.view(1024, 1024) @ torch.eye(1024)).any(), "products"
h = scan(torch.full((4, 4096, 64), 0.9), torch.zeros(4, 4096, 64), torch.ones(4, 64))
assert h[:, 500].min() > 0 and not h[:, 900:].any(), "compiled loops on all threads"
"""


@pytest.mark.slow
def test_denormal_numbers_are_flushed_to_zero_on_every_thread() -> None:
    """With denormal numbers a step of an LRU takes eight times as long."""
    subprocess.run([sys.executable, "-c", DENORMALS], check=True)
