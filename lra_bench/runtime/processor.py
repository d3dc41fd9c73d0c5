"""What processor this is, in full and short enough for a folder's name."""

from __future__ import annotations

import functools
import platform
import re
import subprocess
from contextlib import suppress
from pathlib import Path

_NOISE = re.compile(
    r"\(r\)|\(tm\)|@.*|\b\d+-core\b|\b\d+(th|st|nd|rd) gen\b|\bwith .*|\b(cpu|processor|intel|amd|genuine)\b",
    re.IGNORECASE,
)


def processor_slug() -> str:
    """A short name of the processor for folder names: ``epyc-7763``, ``xeon-gold-6248``, ``apple-m2``."""
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
