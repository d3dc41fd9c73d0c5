"""Run the installed command in a separate working folder."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND = [sys.executable, "-m", "lra_bench.cli.main"]

# A minimal complete run: one layer, sixty steps, no speed measurements.
TINY = [
    "protocol=smoke",
    "task=listops",
    "hardware=cpu",
    "hardware.threads=1",
    "measure.speed_lengths=[]",
    "measure.flops=false",
    "measure.energy=false",
]


def alive(process: subprocess.Popen[str]) -> Callable[[], bool]:
    """Return a function that returns whether a process is running."""
    return lambda: process.poll() is None


class Folder:
    """A working folder with its own results folder and cache."""

    def __init__(self, root: Path, **environment: str) -> None:
        self.root = root
        self.results = root / "results"
        self.cache = root / "cache"
        root.mkdir(parents=True, exist_ok=True)
        self.environment = {
            **os.environ,
            "LRA_BENCH_RESULTS": str(self.results),
            "LRA_BENCH_CACHE": str(self.cache),
            "WANDB_MODE": "offline",
            "WANDB_SILENT": "true",
            **environment,
        }

    def run(self, *arguments: str, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run ``lra-bench``; with ``check`` raise ``AssertionError`` with its output if it fails."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            raise AssertionError(f"lra-bench {' '.join(arguments)}: code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start ``lra-bench`` in a new process group."""
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def records(self) -> list[dict]:
        """Return the records as raw JSON, sorted by path."""
        return [json.loads(path.read_text()) for path in sorted(self.results.glob("runs/*/*/*/*/seed*.json"))]

    def record(self) -> dict:
        """Return the only record as raw JSON."""
        (record,) = self.records()
        return record
