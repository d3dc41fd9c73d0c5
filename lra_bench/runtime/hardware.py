"""The machine a cell runs on: device, precision and threads made concrete from ``config.hardware``."""

from __future__ import annotations

import functools
import os
import platform
import re
import subprocess
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import Accelerable, UserError

if TYPE_CHECKING:
    import torch
    from torch import nn

STRATEGIES = ("none", "ddp", "fsdp")
CPU_PROCESSES = 2
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass
class HardwareOptions:
    """Where and how to compute; ``micro_batch`` caps the rows computed at once, ``timeout_seconds`` ends a cell.

    ``precision`` is ``auto``, ``fp32``, ``tf32``, ``bf16`` or ``fp16``; ``compile`` runs the model through
    ``torch.compile``, and as it is where that fails. ``deterministic`` takes only operations that give the same bits
    each time; a model that needs another one ends with its name. ``accelerated`` takes the kernels of other packages
    where a model has a route through them.

    ``memory_limit_gigabytes`` (of 2³⁰ bytes) is what one process may take, of its card or of the host on a CPU.
    ``strategy`` is ``none``, ``ddp`` or ``fsdp``: with the latter two ``processes`` train a cell together, by default
    one per CUDA device, and two on a CPU. ``threads`` and ``micro_batch`` are those of one process.
    """

    device: str = "auto"
    precision: str = "auto"
    compile: bool = False
    deterministic: bool = False
    accelerated: bool = False
    processes: int | None = None
    strategy: str = "none"
    threads: int | None = None
    micro_batch: int | None = None
    timeout_seconds: int | None = None
    memory_limit_gigabytes: float | None = None
    checkpoint_seconds: float = 30.0


@dataclass(frozen=True)
class Hardware:
    """Where and how numbers are computed; ``threads`` are those of one CPU process.

    A ``strategy`` other than ``none`` has ``processes`` train each cell together, one per card on CUDA.
    """

    device: torch.device
    precision: str
    threads: int
    compile: bool
    micro_batch: int | None
    slug: str
    processes: int = 1
    strategy: str = "none"
    deterministic: bool = False
    accelerated: bool = False

    def autocast(self) -> AbstractContextManager[Any]:
        """Mixed precision for bf16 and fp16, nothing otherwise."""
        import torch

        if self.precision in ("bf16", "fp16"):
            return torch.autocast(self.device.type, torch.bfloat16 if self.precision == "bf16" else torch.float16)
        return nullcontext()

    def apply(self) -> None:
        """Set thread count, matrix precision and choice of algorithms of this process, before it computes."""
        import torch

        if self.deterministic:
            # Read by cuBLAS when it starts: several streams of its own would otherwise share one workspace.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Setting it imports torch's compiler, which takes more than a second in every process.
        if torch.are_deterministic_algorithms_enabled() != self.deterministic:
            torch.use_deterministic_algorithms(self.deterministic)

        # A gradient that fades over thousands of steps ends below the smallest normal number, where products take a CPU
        # many times as long. Threads take the setting over from the one that starts them.
        torch.set_flush_denormal(True)
        torch.set_num_threads(self.threads)
        tf32 = self.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32

    def place(self, model: nn.Module) -> nn.Module:
        """``model`` on the device, with the kernels of other packages where they were asked for and it knows them."""
        if self.accelerated:
            for module in model.modules():
                if isinstance(module, Accelerable):
                    module.accelerate()
        return model.to(self.device)

    def synchronize(self) -> None:
        """Wait until the device has done what it was asked."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def resolve(options: HardwareOptions) -> Hardware:
    """The concrete hardware for ``config.hardware``; ``UserError`` where it asks for what is not there."""
    import torch

    name = _device_name(options.device)
    precision = _precision(options.precision, name)
    return Hardware(
        device=torch.device(name),
        precision=precision,
        threads=_threads(options),
        compile=options.compile,
        micro_batch=options.micro_batch,
        slug=slug(options),
        processes=processes_of(options),
        strategy=_strategy(options),
        deterministic=options.deterministic,
        accelerated=_accelerated(options, name, precision),
    )


def single_process(options: HardwareOptions) -> HardwareOptions:
    """``config.hardware`` for what one process does by itself: tests, other lengths."""
    return replace(options, processes=None, strategy="none")


def processes_of(options: HardwareOptions) -> int:
    """How many processes train a cell together: one without a strategy, else by default one per card, two on a CPU.

    Raises ``UserError`` where that does not go with the strategy or with the cards there are.
    """
    strategy, asked = _strategy(options), options.processes
    if strategy == "none":
        if asked not in (None, 1):
            raise UserError(f"hardware.processes={asked}: needs hardware.strategy=ddp or hardware.strategy=fsdp")
        return 1
    if on_cpu(options):
        return asked or CPU_PROCESSES
    import torch

    cards = torch.cuda.device_count()
    if asked is not None and asked > cards:
        raise UserError(f"hardware.processes={asked}: one process needs a card and there are {cards}; lower it")
    return asked or cards


def check_batch(options: HardwareOptions, batch_size: int, norm: str = "layer") -> None:
    """Raise ``UserError`` where a batch cannot be cut as ``config.hardware`` says."""
    processes, cap = processes_of(options), options.micro_batch
    if norm == "batch" and cap and cap * processes < batch_size:
        raise UserError(
            f"hardware.micro_batch={cap}: backbone.norm=batch is over all rows of a batch, of which there are "
            f"{batch_size} (train.batch_size); leave hardware.micro_batch out or share them by hardware.strategy=ddp"
        )
    if batch_size < processes:
        raise UserError(
            f"train.batch_size={batch_size}: leaves nothing to some of hardware.processes={processes}; "
            "lower hardware.processes"
        )
    if cap == 1 and batch_size % processes and _strategy(options) == "fsdp":
        raise UserError(
            "hardware.micro_batch=1: under hardware.strategy=fsdp every process needs as many rows, and "
            f"train.batch_size={batch_size} is no multiple of hardware.processes={processes}; "
            "set hardware.micro_batch=2"
        )


def slug(options: HardwareOptions) -> str:
    """The short name of the hardware in a cell's key, found without torch on a CPU.

    ``cpu-epyc-2t``, ``h200-bf16``; of several processes ``cpu-epyc-2x1t-ddp``, ``h200-8x-bf16-fsdp``.
    """
    name = _device_name(options.device)
    precision = _precision(options.precision, name)
    tail = f"-{precision}" if precision != "fp32" else ""
    tail += "-compiled" if options.compile else ""
    tail += "-deterministic" if options.deterministic else ""
    tail += "-accelerated" if _accelerated(options, name, precision) else ""
    strategy, processes = _strategy(options), processes_of(options)
    several, together = ("", "") if strategy == "none" else (f"{processes}x", f"-{strategy}")
    if name == "cpu":
        return f"cpu-{processor_slug()}-{several}{_threads(options)}t{tail}{together}"
    import torch

    chip = "-".join(torch.cuda.get_device_name().lower().replace("nvidia", "").strip().split())
    return f"{chip}{several and '-' + several}{tail or '-fp32'}{together}"


def on_cpu(options: HardwareOptions) -> bool:
    """Whether ``config.hardware`` means the CPU, here."""
    return _device_name(options.device) == "cpu"


def _strategy(options: HardwareOptions) -> str:
    if options.strategy not in STRATEGIES:
        choices = f"{', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}"
        raise UserError(f"hardware.strategy={options.strategy}: choose {choices}")
    return options.strategy


def _threads(options: HardwareOptions) -> int:
    """Threads of one process: those asked for, or an equal part of the cores."""
    return options.threads or max(1, usable_cpus() // processes_of(options))


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
    if device == "cpu" and wanted == "tf32":
        raise UserError("hardware.precision=tf32: needs a CUDA device; choose fp32, bf16 or fp16 on a CPU")
    return wanted


def _accelerated(options: HardwareOptions, device: str, precision: str) -> bool:
    if not options.accelerated:
        return False
    if device != "cuda":
        raise UserError("hardware.accelerated=true: needs a CUDA device; leave it out")
    if precision not in ("bf16", "fp16"):
        raise UserError("hardware.accelerated=true: its kernels multiply 16 bits; set hardware.precision=bf16")
    if find_spec("fla") is None:
        raise UserError("hardware.accelerated=true: wants flash-linear-attention; pip install 'lra-bench[accelerated]'")
    return True


def first_line(error: BaseException) -> str:
    """What an exception says, in one line; of an operation that ``deterministic`` refuses, what to change."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    operation, refused, _ = text.partition(" does not have a deterministic implementation")
    if not refused:
        return text
    return f"{operation} has no deterministic form on this device; set hardware.deterministic=false"


def usable_cpus() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_NOISE = re.compile(
    r"\(r\)|\(tm\)|@.*|\b\d+-core\b|\b\d+(th|st|nd|rd) gen\b|\bwith .*|\b(cpu|processor|intel|amd|genuine)\b",
    re.IGNORECASE,
)


def processor_slug() -> str:
    """Short name of the processor for folder names, for example ``epyc-7763`` or ``apple-m2``."""
    return slugify_processor(processor_name() or "") or platform.machine().lower() or "unknown"


def slugify_processor(name: str) -> str:
    """A processor's brand string without trademarks, core counts and clock rates, fit for a folder name."""
    return re.sub(r"[^a-z0-9]+", "-", _NOISE.sub(" ", name).lower()).strip("-")[:40].rstrip("-")


@functools.cache
def processor_name() -> str | None:
    """The brand string of the processor, None where the system does not tell."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = re.search(r"^(?:model name|cpu model)\s*:\s*(.+)$", cpuinfo.read_text(errors="replace"), re.MULTILINE)
        return found.group(1).strip() if found else None
    if platform.system() == "Darwin":
        with suppress(OSError, subprocess.SubprocessError):
            command = ["sysctl", "-n", "machdep.cpu.brand_string"]
            return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return platform.processor() or None
