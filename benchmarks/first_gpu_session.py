"""Check and measure the project on a CUDA device in 12 minutes: attention, every system, speed, and whole cells.

Run from the repository, with the packages that docs/gpu.md lists:

    python -m benchmarks.first_gpu_session --output gpu-session              # all steps
    python -m benchmarks.first_gpu_session --output gpu-session --steps A,B  # some of them
    python -m benchmarks.first_gpu_session --output trial --device cpu --tiny

Step A checks attention, the memory limit and the tests that need a GPU; B trains every system for three steps and
compares its logits with those on the CPU; C measures speed and trains cells of the protocol ``small``; D runs several
cells at the same time, an energy-measuring and a compiled cell.

Each item of a step runs in its own process with a time limit. Its result is a line of ``<output>/items.jsonl``, its
output is in ``<output>/logs``, and records of cells are in ``<output>/results``. The same command resumes an
interrupted session: it runs the items that have not run or whose time was cut short by the end of their step, then, in
the time that is left, those that failed. Items with the status ``ok`` or ``incompatible`` are finished.
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
MINUTES = {"A": 2.0, "B": 3.0, "C": 5.0, "D": 2.0}
"""Time limit of each step in minutes."""
FINISHED = ("ok", "incompatible")
UNFINISHED = ("not started", "stopped")
"""Statuses of items whose step ended before their time limit."""
SHARDS = 4
"""Number of processes that run the systems of step B on a GPU."""
SYSTEM_SECONDS = 40.0
"""Time limit of one system in step B."""
SLOW = (
    "score_additive", "sac", "b2s6", "forgetting", "mamba", "predictive", "pattern_guided", "gaussian_transformer",
    "local_gaussian", "synthesizer_factorised_dense", "capsule_em", "camtl", "rwkv7",
)  # fmt: skip
"""Systems with the highest estimates of ``benchmarks.step_cost``."""
COMPARED = ("performer", "s4")
TRAINED = ("transformer", "performer")
SHORT = (
    "train.steps=500", "task.rows.train=4000", "task.rows.validation=500", "task.rows.test=500",
    "measure.speed_lengths=[]", "measure.extrapolation_ratios=[1]",
)  # fmt: skip
"""Options of the cells of step C, whose scores have no meaning."""
PLUGINS = ("-p", "no:cacheprovider", "-p", "no:benchmark")
"""Options of pytest; the plug-in ``pytest-benchmark`` fails together with ``pytest-xdist``."""
GROUP = 2
"""Number of systems in one profile. On an H200, one batch size, mode and length of a model takes 8 seconds."""
SHORTEST = 5.0
"""Seconds that must be left to start an item."""
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
    """Options of a session.

    Attributes:
        output: Output folder.
        device: ``cuda`` or ``cpu``.
        tiny: Whether sizes are tiny.
        train_task: Task of the cells in step C.
        scale: Factor of all time limits.
    """

    output: Path
    device: str
    tiny: bool
    train_task: str
    scale: float = 1.0

    @property
    def results_file(self) -> Path:
        """The file with one JSON line per finished item."""
        return self.output / "items.jsonl"

    def statuses(self) -> dict[tuple[str, str], str]:
        """Return the latest status of each item, by step and name."""
        return {(line["step"], line["item"]): line["status"] for line in read_lines(self.results_file)}


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
    """Yield step A: known faults of attention, versions, the tests that need a GPU, and the memory limit."""
    for name in ("masked_attention", "hidden_rows", "versions"):
        yield Item("A", name.replace("_", " "), probe(name, session), 60, together=True)
    if session.device == "cuda" and not session.tiny:
        marked = [path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
        files = [str(path.relative_to(ROOT)) for path in marked]
        yield Item("A", "tests", ("-m", "pytest", "-q", "-m", "gpu", "-n", "8", *PLUGINS, *files), 90)
    limited = ("task=listops", "model=transformer", "protocol=smoke", "hardware.memory_limit_gigabytes=4")
    yield Item("A", "memory limit", bench(session, *limited), 60)


def speed(session: Session) -> Iterator[Item]:
    """Yield step C: profiles of systems relative to full attention, the slowest first, and short cells of ``small``."""
    lengths = "[32]" if session.tiny else "[1024,4096]"
    tiny = ("protocol=smoke", "measure.speed_seconds=0.02", "measure.speed_batch_size=1")
    size = tiny if session.tiny else ("protocol=base", "measure.speed_seconds=0.5", "measure.speed_batches=[32]")
    names = ["performer"] if session.tiny else [*COMPARED, *SLOW]
    cell = ("protocol=smoke",) if session.tiny else ("protocol=small", *SHORT)
    for name in TRAINED[: 1 if session.tiny else None]:
        yield Item("C", f"train {name}", bench(session, f"task={session.train_task}", f"model={name}", *cell), 60)
    for start in range(0, len(names), GROUP):
        group = ",".join(names[start : start + GROUP])
        overrides = (
            "task=listops",
            f"model={group}",
            *size,
            f"measure.speed_lengths={lengths}",
            "measure.energy=false",
        )
        yield Item("C", f"profile {group}", lra_bench("profile", session, *overrides), 120)


def cells(session: Session) -> Iterator[Item]:
    """Yield step D: four cells at the same time, then one with energy and one with compilation."""
    smoke = ("protocol=smoke", "measure.energy=false")
    for name in ("transformer", "performer", "mamba2", "s4d"):
        yield Item("D", f"cell {name}", bench(session, "task=listops", f"model={name}", *smoke), 60, together=True)
    energy = ("model=local", "protocol=smoke", "measure.energy=true")
    yield Item("D", "energy", bench(session, "task=listops", *energy), 45)
    compiled = ("task=listops", "model=transformer", *smoke, "hardware.compile=true")
    yield Item("D", "compiled", bench(session, *compiled), 90)


PLAN = {"A": checks, "C": speed, "D": cells}
"""Functions that yield the items of each step; ``run_systems`` runs step B."""


def run_items(session: Session, left: Sequence[Item], until: float) -> None:
    """Run the items until ``time.monotonic()`` is ``until``."""
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
    """Run an item and return its result.

    The status is ``not started`` if less than five seconds are left, and ``stopped`` if the item was ended before its
    own time limit.
    """
    own_limit = item.seconds * session.scale
    limit = min(own_limit, until - time.monotonic())
    line: dict[str, Any] = {"step": item.step, "item": item.name, "command": ["python", *item.command]}
    if limit < SHORTEST:
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
    cut = "timeout" if limit == own_limit else "stopped"
    status = cut if code is None else "ok" if code == 0 else "failed"
    seconds, tail = round(time.monotonic() - started, 1), log.read_text(errors="replace")[-TAIL:]
    return {**line, "status": status, "code": code, "seconds": seconds, "found": read_lines(log), "tail": tail}


def write_line(path: Path, result: dict[str, Any]) -> None:
    """Append a JSON line and flush it to the disk."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())


def systems(session: Session) -> list[str]:
    """Return the systems of step B, those with the highest estimates first."""
    names = sorted((row["name"] for row in options("models")), key=lambda name: name not in SLOW)
    return names[:: len(names) // 3] if session.tiny else names


def run_systems(session: Session, left: Sequence[str], until: float) -> None:
    """Run step B for the given systems, on a GPU in ``SHARDS`` processes at the same time.

    If a process crashes, or a system takes longer than ``SYSTEM_SECONDS``, the system gets the status ``crashed`` or
    ``timeout``, and another process runs the remaining systems.
    """
    if not left:
        return
    count = min(SHARDS if session.device == "cuda" else 1, len(left))
    lock = threading.Lock()
    with bar(len(left), "Step B", unit="systems") as advance, ThreadPoolExecutor(count) as pool:

        def record(result: dict[str, Any]) -> None:
            with lock:
                write_line(session.results_file, {"step": "B", "item": result["system"], **result})
                advance(1)

        def shard(names: Sequence[str]) -> None:
            while names and time.monotonic() < until:
                names = names[_run_shard(session, names, until, record) :]

        list(pool.map(shard, [left[number::count] for number in range(count)]))


def _run_shard(session: Session, names: Sequence[str], until: float, record: Any) -> int:
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
            late = time.monotonic() - latest > SYSTEM_SECONDS * session.scale
            if late or time.monotonic() > until:
                stopped = "timeout" if late else "not started"
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
            if line["status"] not in FINISHED:
                lines.append(f"  {line['item']}: {line['status']} {line.get('reason', '')}".rstrip())
    return lines


def run_steps(session: Session, steps: Sequence[str]) -> None:
    """Run the items that are not finished: first those that have not failed, then those that failed in earlier calls.

    Each step ends after its time in ``MINUTES``; failed items are run again as long as the time of all steps lasts.
    """
    before = session.statuses()
    seconds = {step: 60 * session.scale * MINUTES[step] for step in steps}
    end = time.monotonic() + sum(seconds.values())
    for again in (False, True):
        for step in steps:
            until = end if again else min(end, time.monotonic() + seconds[step])

            def wanted(name: str, step: str = step, again: bool = again) -> bool:
                status = before.get((step, name), "not started")
                return status not in FINISHED and (status not in UNFINISHED) == again

            if step == "B":
                run_systems(session, [*filter(wanted, systems(session))], until)
            elif until - time.monotonic() > SHORTEST:
                run_items(session, [item for item in PLAN[step](session) if wanted(item.name)], until)


def cuda_is_available() -> bool:
    """Return whether torch finds a CUDA device."""
    import torch

    return torch.cuda.is_available()


def main() -> int:
    """Run the requested steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--steps", default=",".join(MINUTES), help="letters with commas (default: %(default)s)")
    parser.add_argument("--minutes", type=float, help="time of the steps together; scales all time limits")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--train-task", default="listops", help="task of the cells of step C (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes and few systems, to test the session itself")
    asked = parser.parse_args()
    steps = asked.steps.split(",")
    if unknown := [step for step in steps if step not in MINUTES]:
        parser.error(f"--steps {','.join(unknown)}: choose among {','.join(MINUTES)}")
    if asked.device == "cuda" and not cuda_is_available():
        parser.error("--device cuda: no CUDA device is available here; set --device cpu --tiny to test the session")
    planned = sum(MINUTES[step] for step in steps)
    task = "listops" if asked.tiny else asked.train_task
    scale = (asked.minutes or planned) / planned
    session = Session(asked.output.absolute(), asked.device, asked.tiny, task, scale)
    session.output.mkdir(parents=True, exist_ok=True)
    run_steps(session, steps)
    lines = summary(session)
    say("\n".join(lines))
    return int(any(line.startswith("  ") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
