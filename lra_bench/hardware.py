"""The machine a cell runs on: device, precision and threads made concrete from ``config.hardware``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import UserError
from lra_bench.processor import processor_slug

if TYPE_CHECKING:
    import torch

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Hardware:
    """Where and how numbers are computed; ``threads`` are those of one CPU process."""

    device: torch.device
    precision: str
    threads: int
    compile: bool
    micro_batch: int | None
    slug: str

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision for bf16 and fp16, nothing otherwise."""
        import torch

        if self.precision in ("bf16", "fp16"):
            return torch.autocast(self.device.type, torch.bfloat16 if self.precision == "bf16" else torch.float16)
        return nullcontext()

    def apply(self) -> None:
        """Set thread count and matrix precision of this process."""
        import torch

        torch.set_num_threads(self.threads)
        tf32 = self.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32

    def synchronize(self) -> None:
        """Wait until the device has done what it was asked."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def resolve(options: Mapping[str, Any]) -> Hardware:
    """The concrete hardware for ``config.hardware``; ``UserError`` where it asks for what is not there."""
    import torch

    name = _device_name(str(options["device"]))
    precision = _precision(str(options["precision"]), name)
    threads = int(options["threads"] or usable_cpus())
    return Hardware(
        device=torch.device(name),
        precision=precision,
        threads=threads,
        compile=bool(options["compile"]),
        micro_batch=options["micro_batch"],
        slug=slug(options),
    )


def slug(options: Mapping[str, Any]) -> str:
    """The short name of the hardware in a cell's key: ``cpu-epyc-2t``, ``h200-bf16``; found without torch on CPU."""
    name = _device_name(str(options["device"]))
    precision = _precision(str(options["precision"]), name)
    tail = f"{'-' + precision if precision != 'fp32' else ''}{'-compiled' if options['compile'] else ''}"
    if name == "cpu":
        return f"cpu-{processor_slug()}-{int(options['threads'] or usable_cpus())}t{tail}"
    import torch

    chip = torch.cuda.get_device_name().lower().replace("nvidia", "").strip().split()
    return f"{'-'.join(chip)}{tail}" if tail else f"{'-'.join(chip)}-fp32"


def _device_name(wanted: str) -> str:
    if wanted not in ("auto", "cpu", "cuda"):
        raise UserError(f"hardware.device={wanted}: choose auto, cpu or cuda")
    if wanted == "auto":
        return "cuda" if _has_cuda() else "cpu"
    if wanted == "cuda" and not _has_cuda():
        raise UserError("hardware.device=cuda: no CUDA device is available here; choose hardware=cpu or hardware=auto")
    return wanted


def _has_cuda() -> bool:
    from pathlib import Path

    # A look at the driver's device files spares machines without a card the import of torch.
    if not any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg", "/proc/driver/nvidia")):
        return False
    import torch

    return torch.cuda.is_available()


def _precision(wanted: str, device: str) -> str:
    if wanted == "auto":
        return "bf16" if device == "cuda" else "fp32"
    if wanted not in PRECISIONS:
        raise UserError(f"hardware.precision={wanted}: choose auto, {', '.join(PRECISIONS)}")
    if device == "cpu" and wanted in ("tf32", "fp16"):
        raise UserError(f"hardware.precision={wanted}: needs a CUDA device; choose fp32 or bf16 on a CPU")
    return wanted


def usable_cpus() -> int:
    """How many cores this process may use."""
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
