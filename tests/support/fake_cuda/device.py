"""Compile and load the fake CUDA device. This module does not import torch."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("device.cpp")
COMPILERS = ("c++", "g++", "clang++")


def compiler() -> str | None:
    """Return the C++ compiler of this machine: ``$CXX`` or the first one found, None if there is none."""
    candidates = [name for name in (os.environ.get("CXX"), *COMPILERS) if name]
    return next((path for name in candidates if (path := shutil.which(name))), None)


def unavailable() -> str | None:
    """Return why the device cannot be added here, without importing torch, or None if it can."""
    if not sys.platform.startswith("linux"):
        return "the fake CUDA device is compiled on Linux only"
    if compiler() is None:
        return "the fake CUDA device needs a C++ compiler"
    if "+cpu" not in _version() and "cuda: Optional[str] = None" not in _version():
        return "the fake CUDA device needs a CPU build of torch"
    return None


def add_device() -> None:
    """Add the device ``cuda:0`` to torch. Must be called before torch is imported, because torch looks it up once.

    Raises ``RuntimeError`` if torch was imported before.
    """
    if "torch" in sys.modules:
        raise RuntimeError("torch was imported before the fake CUDA device")
    if ctypes.CDLL(str(library())).add_fake_device() != 1:
        raise RuntimeError("torch does not report the fake CUDA device")


def library() -> Path:
    """Return the compiled library, from the temporary folder if it was compiled for this source and torch before."""
    torch, source = _torch(), SOURCE.read_text(encoding="utf-8")
    key = hashlib.sha256("\0".join((source, _version(), str(torch))).encode()).hexdigest()[:16]
    user = os.getuid() if hasattr(os, "getuid") else 0
    folder = Path(tempfile.gettempdir()) / f"lra_bench_fake_cuda_{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    built = folder / f"{key}.so"
    if not built.exists():
        with tempfile.TemporaryDirectory(dir=folder) as aside:
            part = Path(aside) / "part.so"
            _compile(part, torch)
            part.replace(built)
    return built


def _compile(target: Path, torch: Path) -> None:
    include, libraries = torch / "include", torch / "lib"
    command = [
        str(compiler()),
        *("-O0", "-std=c++20", "-fPIC", "-shared", str(SOURCE), "-o", str(target)),
        *(f"-I{include}", f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}"),
        *(f"-L{libraries}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"),
    ]
    subprocess.run(command, check=True)


def _torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


def _version() -> str:
    return (_torch() / "version.py").read_text(encoding="utf-8")
