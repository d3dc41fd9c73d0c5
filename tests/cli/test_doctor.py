"""Findings of ``lra-bench doctor``, and which of them are problems."""

import os
import sys

import pytest
import torch

from lra_bench import errors
from lra_bench.cli import doctor, main
from lra_bench.runtime.findings import Finding


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Install a fake nvidia-smi that reports one GPU."""
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'NVIDIA H200, 143771, 570.86.15'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def gpu_finding(monkeypatch, cuda: str | None, available: bool) -> Finding:
    monkeypatch.setattr(doctor, "torch_build", lambda: f"CUDA {cuda}" if cuda else "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    (found,) = doctor._gpus()
    return found


def test_a_gpu_that_torch_cannot_use_is_a_problem(smi, monkeypatch):
    found = gpu_finding(monkeypatch, None, False)
    assert found.ok is False
    assert found.found.startswith("NVIDIA H200, 140 GiB, driver 570.86.15; torch")
    assert "is a CPU build; install a CUDA build" in found.found
    found = gpu_finding(monkeypatch, "12.8", False)
    assert found.ok is False and "built for CUDA 12.8; install a newer driver" in found.found
    assert gpu_finding(monkeypatch, "12.8", True).ok is True
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_finding(monkeypatch, "12.8", False).ok is None


def test_a_missing_gpu_is_not_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_finding(monkeypatch, None, False) == Finding("GPU", "none")


def test_extras_are_listed_with_the_command_that_installs_them(monkeypatch):
    installed = {"submitit": "1.5.4", "linformer": "0.2.3"}
    monkeypatch.setattr(doctor, "_version", installed.get)
    found = {finding.what: finding for finding in doctor._extras()}
    names = ("nvidia", "accelerated", "slurm", "ray", "retrieval", "rl", "peers", "tokenizers", "notebook", "optuna")
    assert set(found) == {f"extra {name}" for name in names}
    assert all(finding.ok is None for finding in found.values())
    assert found["extra slurm"].found == "submitit 1.5.4"
    assert found["extra nvidia"].found == f"without nvidia-ml-py: {errors.install_command('nvidia')}"
    assert found["extra peers"].found == f"1 of 16 packages; {errors.install_command('peers')}"


def test_extras_are_installed_from_the_checkout_and_without_one_by_their_packages(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "CHECKOUT", tmp_path)
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    outside, inside = f"{tmp_path}/.venv/bin/python -m pip install", ".venv/bin/python -m pip install"
    assert errors.install_command("nvidia") == f"{outside} 'nvidia-ml-py>=12'"
    (tmp_path / "pyproject.toml").touch()
    assert errors.install_command("slurm") == f"{outside} -c {tmp_path}/constraints.txt -e '{tmp_path}[slurm]'"
    monkeypatch.chdir(tmp_path)
    assert errors.install_command("slurm") == f"{inside} -c constraints.txt -e '.[slurm]'"


def test_a_missing_compiler_is_reported(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor._compiler().found.startswith("none, so hardware.compile=true")
    (tmp_path / "clang++").write_text("")
    (tmp_path / "clang++").chmod(0o755)
    assert doctor._compiler().found == str(tmp_path / "clang++")


@pytest.mark.parametrize(("load", "verdict"), [(99.0, "busy: timings will be inaccurate"), (0.0, "ok")])
def test_a_high_system_load_is_reported_and_not_a_problem(load, verdict, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, load, load))
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "ENOUGH_DISK_BYTES", 0)
    monkeypatch.setattr(doctor, "_resident_memory", lambda: Finding("CPU peak memory", "measured", True))
    monkeypatch.setattr(doctor, "_gpus", lambda: iter(()))
    monkeypatch.setattr(sys, "argv", ["lra-bench", "doctor", "--results", str(tmp_path / "results")])
    with pytest.raises(SystemExit) as end:
        main.main()
    lines = capsys.readouterr().out.splitlines()
    (line,) = (line for line in lines if "system load" in line)
    assert verdict in line and "PROBLEM" not in line
    assert any("free memory: " in line and line.endswith(" GiB") for line in lines)
    assert end.value.code == 0
