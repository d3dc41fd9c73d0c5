"""Check and measure the project on a CUDA device in half an hour: attention, every system, speed, and whole cells.

Run from the repository, with the package and its test dependencies on the import path:

    python -m benchmarks.first_gpu_session --output gpu-session              # all steps
    python -m benchmarks.first_gpu_session --output gpu-session --steps A,B  # some of them
    python -m benchmarks.first_gpu_session --output trial --device cpu --tiny

Step A checks attention, the memory limit and the tests that need a GPU; B trains every system for three steps and
compares its logits with those on the CPU; C measures speed and trains cells of the protocol ``small``; D runs several
cells at the same time, and a compiled, an accelerated and an energy-measuring cell.

Each item of a step runs in its own process with a time limit. Its result is a line of ``<output>/items.jsonl``, its
output is in ``<output>/logs``, and records of cells are in ``<output>/results``. The same command resumes an
interrupted session: it skips items with the status ``ok`` or ``incompatible`` and runs all others again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lra_bench.config.listing import options
from lra_bench.progress import bar, say

ROOT = Path(__file__).resolve().parent.parent
MINUTES = {"A": 5.0, "B": 6.0, "C": 8.0, "D": 6.0}
"""Time limit of each step in minutes."""
SHARDS = 4
"""Number of processes that run the systems of step B on a GPU."""
SYSTEM_SECONDS = 60.0
"""Time limit of one system in step B."""
SLOW = (
    "score_additive", "sac", "b2s6", "forgetting", "mamba", "predictive", "pattern_guided", "gaussian_transformer",
    "local_gaussian", "synthesizer_factorised_dense", "capsule_em", "camtl", "rwkv7",
)  # fmt: skip
"""Systems with the highest estimates of ``benchmarks.step_cost``."""
COMPARED = ("performer", "s4")
TRAINED = ("transformer", "nystrom", "linformer", "performer")
TAIL = 2000
"""Characters of an item's output that are kept in its result."""


@dataclass(frozen=True)
class Item:
    """One process of a step.

    Attributes:
        step: Letter of the step.
        name: Name within the step; the same item of a later run has the same name.
        command: Arguments of the Python interpreter.
        seconds: Time limit.
        together: Whether it runs at the same time as the other items of its step with this flag.
    """

    step: str
    name: str
    command: tuple[str, ...]
    seconds: float
    together: bool = False


@dataclass(frozen=True)
class Session:
    """Options of a session: output folder, device, tiny sizes, and the task of the cells in step C."""

    output: Path
    device: str
    tiny: bool
    train_task: str

    @property
    def results_file(self) -> Path:
        """The file with one JSON line per finished item."""
        return self.output / "items.jsonl"

    def finished(self) -> set[tuple[str, str]]:
        """Return step and name of the items with the status ``ok`` or ``incompatible``."""
        return {
            (line["step"], line["item"])
            for line in read_lines(self.results_file)
            if line["status"] in ("ok", "incompatible")
        }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of the lines of a file; other lines are skipped, such as an incomplete last one."""
    found = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        with suppress(json.JSONDecodeError):
            if isinstance(value := json.loads(line), dict):
                found.append(value)
    return found


def probe(name: str, session: Session, *more: str) -> tuple[str, ...]:
    """Return the command of a probe of ``benchmarks.gpu_probes``."""
    return ("-m", "benchmarks.gpu_probes", name, "--device", session.device, *more)


def bench(session: Session, *overrides: str) -> tuple[str, ...]:
    """Return the command ``lra-bench bench`` on the device and with the results folder of the session."""
    return lra_bench("bench", session, *overrides)


def lra_bench(command: str, session: Session, *overrides: str) -> tuple[str, ...]:
    """Return a command of ``lra-bench`` on the device and with the results folder of the session."""
    common = ("tracker=none", f"hardware={session.device}", *overrides, "--results", str(session.output / "results"))
    return ("-m", "lra_bench.cli.main", command, *common)


def checks(session: Session) -> Iterator[Item]:
    """Yield step A: versions, known faults of attention, the memory limit, and the tests that need a GPU."""
    yield Item("A", "versions", probe("versions", session), 60)
    yield Item("A", "masked attention", probe("masked_attention", session), 60)
    yield Item("A", "hidden rows", probe("hidden_rows", session), 60)
    limited = ("task=listops", "model=transformer", "protocol=smoke", "hardware.memory_limit_gigabytes=4")
    yield Item("A", "memory limit", bench(session, *limited), 120)
    if session.device == "cuda" and not session.tiny:
        yield Item("A", "tests", ("-m", "pytest", "-q", "-m", "gpu", "-n", "2", "-p", "no:cacheprovider"), 200)


def speed(session: Session) -> Iterator[Item]:
    """Yield step C: profiles of slow systems relative to full attention, then cells of ``small``."""
    lengths = "[32]" if session.tiny else "[1024,4096]"
    tiny = ("protocol=smoke", "measure.speed_seconds=0.02", "measure.speed_batch_size=1")
    size = tiny if session.tiny else ("protocol=base", "measure.speed_seconds=0.5")
    names = ["performer"] if session.tiny else [*SLOW, *COMPARED]
    for start in range(0, len(names), 4):
        group = ",".join(names[start : start + 4])
        overrides = (
            "task=listops",
            f"model={group}",
            *size,
            f"measure.speed_lengths={lengths}",
            "measure.energy=false",
        )
        yield Item("C", f"profile {group}", lra_bench("profile", session, *overrides), 150)
    cell = ("protocol=smoke",) if session.tiny else ("protocol=small", "measure.speed_lengths=[]")
    for name in TRAINED[: 1 if session.tiny else None]:
        yield Item("C", f"train {name}", bench(session, f"task={session.train_task}", f"model={name}", *cell), 400)


def cells(session: Session) -> Iterator[Item]:
    """Yield step D: four cells at the same time, then one each with compilation, accelerated kernels and energy."""
    smoke = ("protocol=smoke", "measure.energy=false")
    for name in ("transformer", "performer", "mamba2", "s4d"):
        yield Item("D", f"cell {name}", bench(session, "task=listops", f"model={name}", *smoke), 150, together=True)
    compiled = ("task=listops", "model=transformer", "protocol=smoke", "hardware.compile=true")
    yield Item("D", "compiled", bench(session, *compiled), 200)
    if session.device == "cuda" and not session.tiny:
        accelerated = ("task=enwik8", "model=gla", "protocol=smoke", "hardware.accelerated=true")
        partial = ("task.allow_partial=true",)
        yield Item("D", "accelerated", bench(session, *accelerated, *partial), 120)
    yield Item(
        "D", "energy", bench(session, "task=listops", "model=local", "protocol=smoke", "measure.energy=true"), 120
    )


PLAN = {"A": checks, "C": speed, "D": cells}
"""Functions that yield the items of each step; ``run_systems`` runs step B."""


def run_items(session: Session, items: Sequence[Item], until: float) -> None:
    """Run the items that are not finished, until ``time.monotonic()`` is ``until``."""
    done = session.finished()
    left = [item for item in items if (item.step, item.name) not in done]
    if not left:
        return
    lock = threading.Lock()
    with bar(len(left), f"Step {left[0].step}", unit="items") as advance:

        def run(item: Item) -> None:
            result = run_item(session, item, until)
            with lock:
                write_line(session.results_file, result)
                say(f"  {item.step} {item.name}: {result['status']} after {result['seconds']:.0f} s")
                advance(1)

        together = [item for item in left if item.together]
        with ThreadPoolExecutor(max(1, len(together))) as pool:
            list(pool.map(run, together))
        for item in left:
            if not item.together:
                run(item)


def run_item(session: Session, item: Item, until: float) -> dict[str, Any]:
    """Run an item and return its result, with the status ``not started`` if less than five seconds are left."""
    limit = min(item.seconds, until - time.monotonic())
    line: dict[str, Any] = {"step": item.step, "item": item.name, "command": ["python", *item.command]}
    if limit < 5:
        return {**line, "status": "not started", "seconds": 0.0}
    log = session.output / "logs" / f"{item.step} {item.name}.txt".replace(" ", "_").replace("/", "_")
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("w") as out:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            [sys.executable, *item.command], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            # Send SIGTERM before SIGKILL, so that a cell can write its checkpoint and record.
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            code = None
    status = "timeout" if code is None else "ok" if code == 0 else "failed"
    seconds, tail = round(time.monotonic() - started, 1), log.read_text(errors="replace")[-TAIL:]
    return {**line, "status": status, "code": code, "seconds": seconds, "found": read_lines(log), "tail": tail}


def write_line(path: Path, result: dict[str, Any]) -> None:
    """Append a JSON line and flush it to the disk."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_systems(session: Session, until: float) -> None:
    """Run step B: every system, on a GPU in ``SHARDS`` processes at the same time.

    If a process crashes, or a system takes longer than ``SYSTEM_SECONDS``, the system gets the status ``crashed`` or
    ``timeout``, and another process runs the remaining systems.
    """
    done = session.finished()
    names = [row["name"] for row in options("models")]
    names = names[:: len(names) // 3] if session.tiny else names
    left = [name for name in names if ("B", name) not in done]
    if not left:
        return
    count = min(SHARDS if session.device == "cuda" else 1, len(left))
    lock = threading.Lock()
    with bar(len(left), "Step B", unit="systems") as advance, ThreadPoolExecutor(count) as pool:

        def record(result: dict[str, Any]) -> None:
            with lock:
                write_line(session.results_file, {"step": "B", "item": result["system"], **result})
                advance(1)

        def shard(names: list[str]) -> None:
            while names and time.monotonic() < until:
                names = names[_run_shard(session, names, until, record) :]

        list(pool.map(shard, [left[number::count] for number in range(count)]))


def _run_shard(session: Session, names: list[str], until: float, record: Any) -> int:
    """Run systems in one process and record their results; return how many of ``names`` need not run any more."""
    small = ("--protocol", "smoke", "--length", "64") if session.tiny else ()
    command = probe("systems", session, "--systems", ",".join(names), *small)
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT, text=True
    )
    latest = time.monotonic()
    stopped = ""

    def watch() -> None:
        nonlocal stopped
        while process.poll() is None:
            if time.monotonic() > until or time.monotonic() - latest > SYSTEM_SECONDS:
                stopped = "timeout" if time.monotonic() - latest > SYSTEM_SECONDS else "not started"
                process.kill()
            time.sleep(0.2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    finished = 0
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if not line.startswith("{"):
                continue
            latest = time.monotonic()
            found = json.loads(line)
            if "system" in found:
                record(found)
                finished += 1
    process.wait()
    watcher.join()
    if finished < len(names) and stopped != "not started":
        status = stopped or "crashed"
        record({"system": names[finished], "status": status, "code": process.returncode})
        finished += 1
    return finished if stopped != "not started" else len(names)


def summary(session: Session) -> list[str]:
    """Return a line per step with the number of items of each status, and a line per item that failed."""
    latest = {(line["step"], line["item"]): line for line in read_lines(session.results_file)}
    lines = []
    for step in MINUTES:
        own = [line for (letter, _), line in latest.items() if letter == step]
        counts: dict[str, int] = {}
        for line in own:
            counts[line["status"]] = counts.get(line["status"], 0) + 1
        lines.append(f"Step {step}: " + (", ".join(f"{number} {status}" for status, number in counts.items()) or "–"))
        for line in own:
            if line["status"] not in ("ok", "incompatible"):
                lines.append(f"  {line['item']}: {line['status']} {line.get('reason', '')}".rstrip())
    return lines


def cuda_is_available() -> bool:
    """Return whether torch finds a CUDA device."""
    import torch

    return torch.cuda.is_available()


def main() -> int:
    """Run the requested steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", default=",".join(MINUTES), help="letters with commas (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="time of each step; default: that of the plan")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--train-task", default="image", help="task of the cells of step C (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes and few systems, to test the session itself")
    asked = parser.parse_args()
    steps = asked.steps.split(",")
    if unknown := [step for step in steps if step not in MINUTES]:
        parser.error(f"--steps {','.join(unknown)}: choose among {','.join(MINUTES)}")
    if asked.device == "cuda" and not cuda_is_available():
        parser.error("--device cuda: no CUDA device is available here; set --device cpu --tiny to test the session")
    session = Session(asked.output.absolute(), asked.device, asked.tiny, "listops" if asked.tiny else asked.train_task)
    session.output.mkdir(parents=True, exist_ok=True)
    for step in steps:
        until = time.monotonic() + 60 * (asked.minutes or MINUTES[step])
        if step == "B":
            run_systems(session, until)
        else:
            run_items(session, [*PLAN[step](session)], until)
    lines = summary(session)
    say("\n".join(lines))
    return int(any(line.startswith("  ") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
