"""Running the installed command as a user would, in a folder of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

COMMAND = [sys.executable, "-m", "lra_bench.cli.main"]

# One layer, sixty steps, no speed table: what a test of the way of a run needs.
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
    """A function that tells whether a started command is still running."""
    return lambda: process.poll() is None


class Folder:
    """A user's working folder with its own results and cache."""

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
        """Run ``lra-bench`` with arguments and wait; with ``check`` a failure shows what it printed."""
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
        """Start ``lra-bench`` in a process group of its own."""
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
        """The records as raw JSON, by path."""
        return [json.loads(path.read_text()) for path in sorted(self.results.glob("runs/*/*/*/*/seed*.json"))]

    def record(self) -> dict:
        """The only record there is."""
        (record,) = self.records()
        return record
