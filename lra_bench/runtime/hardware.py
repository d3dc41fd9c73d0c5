"""Resolve ``config.hardware`` on this machine: device, precision, threads, processes and the hardware's short name."""

from __future__ import annotations

import functools
import os
import platform
import runpy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.contracts import Accelerable
from lra_bench.options.declaration import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, Rule, choose, option

from .processor import processor, usable_cpus

if TYPE_CHECKING:
    import torch
    from torch import nn

THREADS = Rule("must be 1 to 4096", lambda value: 1 <= value <= 4096)
STRATEGIES = ("none", "ddp", "fsdp")
"""Values of ``hardware.strategy``: one process; or several, with replicated (ddp) or sharded (fsdp) parameters."""
CPU_PROCESSES = 2
"""Default number of processes on a CPU if ``hardware.strategy`` is ``ddp`` or ``fsdp``."""
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
BUILDS = {"CUDA": "cuda", "ROCm": "hip"}
"""Platforms for which torch is built, each with its name in ``torch.version``; both are torch's device ``cuda``."""
ACCELERATORS = {
    "NVIDIA": ("/dev/nvidiactl", "/proc/driver/nvidia", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/dxg"),
    "AMD": ("/dev/kfd",),
}
"""Makers of accelerators and device files of their drivers; those of Jetson and WSL are among NVIDIA's."""


@dataclass
class HardwareOptions:
    """Options of ``config.hardware``.

    Attributes:
        device: ``auto``, ``cpu`` or ``cuda``; ``auto`` uses CUDA if available.
        precision: ``auto``, ``fp32``, ``tf32``, ``bf16`` or ``fp16``; ``auto`` is ``bf16`` on CUDA and ``fp32`` on a
            CPU.
        compile: Compile the model with ``torch.compile``; if compilation fails, run it uncompiled.
        deterministic: Use deterministic operations only. A model that needs an operation without a deterministic
            implementation fails, and the reason names the operation.
        accelerated: Use kernels of the package flash-linear-attention in models that support them; on CUDA in 16-bit
            precision only.
        processes: Number of processes that train one cell under ``ddp`` or ``fsdp``. Default: one per CUDA device, or
            ``CPU_PROCESSES`` on a CPU.
        strategy: ``none`` (one process), ``ddp`` or ``fsdp``.
        threads: Threads per process. Default: ``$OMP_NUM_THREADS`` if set, otherwise the available cores divided by
            ``processes``.
        micro_batch: Largest number of examples per process in one forward and backward pass; gradients are
            accumulated over the micro-batches of a batch. Default: the entire batch.
        timeout_seconds: Time limit of a cell in seconds; null for none.
        memory_limit_gigabytes: Memory limit per process in units of 2³⁰ bytes: GPU memory on CUDA, host memory on a
            CPU; null for none.
        checkpoint_seconds: Minimum time between two checkpoints in seconds.
    """

    device: str = "auto"
    precision: str = option("auto", choose(("auto", *PRECISIONS)))
    compile: bool = False
    deterministic: bool = False
    accelerated: bool = False
    processes: int | None = option(None, AT_LEAST_ONE)
    strategy: str = option("none", choose(STRATEGIES))
    threads: int | None = option(None, THREADS)
    micro_batch: int | None = option(None, AT_LEAST_ONE)
    timeout_seconds: int | None = option(None, AT_LEAST_ONE)
    memory_limit_gigabytes: float | None = option(None, POSITIVE)
    checkpoint_seconds: float = option(30.0, NOT_NEGATIVE)


@dataclass(frozen=True)
class Hardware:
    """The values of ``HardwareOptions`` on this machine, with ``auto`` and defaults replaced.

    ``threads`` and ``micro_batch`` are per process. ``slug`` is the short name of the hardware in a cell's key.
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
        """Return a context that enables autocast for bf16 and fp16 and has no effect otherwise."""
        import torch

        if self.precision in ("bf16", "fp16"):
            return torch.autocast(self.device.type, torch.bfloat16 if self.precision == "bf16" else torch.float16)
        return nullcontext()

    def apply(self) -> None:
        """Set threads, precision, deterministic algorithms and kernels of this process; call before any computation."""
        import torch

        if self.deterministic:
            # cuBLAS reads the variable when it is initialised. Its results are reproducible only with workspaces of
            # fixed size.
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Skip the call if it changes nothing: it imports torch's compiler, which takes more than a second per process.
        if torch.are_deterministic_algorithms_enabled() != self.deterministic:
            torch.use_deterministic_algorithms(self.deterministic)

        # Gradients that vanish over thousands of positions become denormal numbers, whose products are many times
        # slower on a CPU. Threads inherit the setting when they are created, so it is set before the number of threads.
        torch.set_flush_denormal(True)
        torch.set_num_threads(self.threads)
        tf32 = self.precision == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32
        if self.device.type == "cuda":
            # cuDNN's attention can return NaN gradients under a mask in 16 bits (pytorch issue 196678).
            torch.backends.cuda.enable_cudnn_sdp(False)

    def place(self, model: nn.Module) -> nn.Module:
        """Move ``model`` to the device and return it; with ``accelerated``, call ``Accelerable.accelerate`` first."""
        if self.accelerated:
            for module in model.modules():
                if isinstance(module, Accelerable):
                    module.accelerate()
        return model.to(self.device)

    def synchronize(self) -> None:
        """Wait until all operations queued on the device are finished; has no effect on a CPU."""
        import torch

        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def resolve(options: HardwareOptions) -> Hardware:
    """Return the resolved hardware for ``config.hardware``, which ``validation.check_hardware`` has accepted."""
    import torch

    name = device_name(options)
    return Hardware(
        # With an index, which functions of torch.cuda that set limits and read properties require.
        device=torch.device("cpu") if name == "cpu" else torch.device(name, 0),
        precision=precision_of(options),
        threads=_threads(options),
        compile=options.compile,
        micro_batch=options.micro_batch,
        slug=slug(options),
        processes=processes_of(options),
        strategy=options.strategy,
        deterministic=options.deterministic,
        accelerated=options.accelerated,
    )


def shards_on_cpu() -> bool:
    """Return whether this version of torch supports FSDP2 on a CPU; torch 2.6 lacks the events that it records."""
    import torch

    return hasattr(torch.cpu.Stream, "record_event")


def single_process(options: HardwareOptions) -> HardwareOptions:
    """Return a copy of ``config.hardware`` for one process, which runs all stages except distributed training."""
    return replace(options, processes=None, strategy="none")


def processes_of(options: HardwareOptions) -> int:
    """Return the number of processes that train one cell.

    It is 1 if the strategy is ``none``. Otherwise it is ``options.processes``, by default one per GPU, or
    ``CPU_PROCESSES`` on a CPU.
    """
    if options.strategy == "none":
        return 1
    return options.processes or (CPU_PROCESSES if on_cpu(options) else gpu_count())


def gpu_count() -> int:
    """Return the number of CUDA devices."""
    import torch

    return torch.cuda.device_count()


def slug(options: HardwareOptions) -> str:
    """Return the short name of the hardware in a cell's key, without importing torch if it is built for a CPU only.

    It contains the processor (``Processor.slug``) and the number of threads (``2t``), or the GPU; the precision except
    fp32 on a CPU; and, with a strategy, the number of processes. Examples: ``cpu-xeon-6-143-8-vm-2t``, ``h200-bf16``,
    ``cpu-epyc-7763-25-1-1-2x1t-ddp`` (2 processes of 1 thread), ``h200-8x-bf16-fsdp``.
    """
    name, precision = device_name(options), precision_of(options)
    settings = f"-{precision}" if precision != "fp32" else ""
    settings += "-compiled" if options.compile else ""
    settings += "-deterministic" if options.deterministic else ""
    settings += "-accelerated" if options.accelerated else ""
    strategy, processes = options.strategy, processes_of(options)
    count, suffix = ("", "") if strategy == "none" else (f"{processes}x", f"-{strategy}")
    if name == "cpu":
        return f"cpu-{processor().slug}-{count}{_threads(options)}t{settings}{suffix}"
    import torch

    chip = "-".join(torch.cuda.get_device_name().lower().replace("nvidia", "").strip().split())
    return f"{chip}{count and '-' + count}{settings or '-fp32'}{suffix}"


def on_cpu(options: HardwareOptions) -> bool:
    """Return whether ``config.hardware`` resolves to the CPU on this machine."""
    return device_name(options) == "cpu"


def _threads(options: HardwareOptions) -> int:
    """Return the number of threads per process.

    It is ``threads`` if set, otherwise ``$OMP_NUM_THREADS`` if valid, otherwise an equal part of the available cores.
    """
    if options.threads:
        return options.threads
    of_environment = os.environ.get("OMP_NUM_THREADS", "")
    if of_environment.isdecimal() and THREADS.allows(int(of_environment)):
        return int(of_environment)
    return max(1, usable_cpus() // processes_of(options))


def device_name(options: HardwareOptions) -> str:
    """Return ``cpu`` or ``cuda`` for ``hardware.device``."""
    if options.device == "auto":
        return "cuda" if has_cuda() else "cpu"
    return options.device


def precision_of(options: HardwareOptions) -> str:
    """Return the precision for ``hardware.precision``."""
    if options.precision == "auto":
        return "bf16" if device_name(options) == "cuda" else "fp32"
    return options.precision


def has_cuda() -> bool:
    """Return whether torch can use a CUDA or ROCm device."""
    if not torch_build():  # importing torch is slow
        return False
    import torch

    return torch.cuda.is_available()


@functools.cache
def torch_build() -> str:
    """Return the platform for which torch is built, such as ``CUDA 12.8`` or ``ROCm 6.4``; empty if only for a CPU."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    versions = runpy.run_path(str(Path(spec.origin).with_name("version.py")))  # without importing torch
    return next((f"{name} {number}" for name, key in BUILDS.items() if (number := versions.get(key))), "")


def unused_accelerator() -> str:
    """Return which accelerator ``hardware=auto`` does not use, and why; empty if it uses it or there is none."""
    maker = next((maker for maker, nodes in ACCELERATORS.items() if any(Path(node).exists() for node in nodes)), "")
    apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    if not (maker or apple) or has_cuda():
        return ""
    if apple:
        return "the GPU of this Mac is not supported (torch's device mps)"
    build = torch_build()
    why = f"torch is built for {build} and finds no device" if build else "torch is a CPU build"
    return f"there is a device file of an {maker} GPU, but {why}; lra-bench doctor says what to install"


def visible_gpus() -> Sequence[str]:
    """Return the visible GPUs by the names that ``CUDA_VISIBLE_DEVICES`` uses for them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(gpu_count())]


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message.

    Torch's error for an operation without a deterministic implementation is replaced by a line that names the option
    to change.
    """
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    operation, separator, _ = line.partition(" does not have a deterministic implementation")
    if not separator:
        return line
    return f"{operation} has no deterministic form on this device; set hardware.deterministic=false"
