"""The first half hour on a CUDA device: checks, every system, speed, and cells, in steps of at most ten minutes.

Run from the repository, with the package and its test dependencies on the import path:

    python -m benchmarks.first_gpu_session --output gpu-session              # all steps
    python -m benchmarks.first_gpu_session --output gpu-session --steps A,B  # some of them
    python -m benchmarks.first_gpu_session --output trial --device cpu --tiny

Each item of a step is a process of its own with a time limit. Its result is one line of ``<output>/items.jsonl``, what
it printed is in ``<output>/logs``, and cells write records to ``<output>/results``. Items that ended well are not
repeated, so the same command resumes an interrupted session, and a second run repeats what failed. ``docs/gpu.md``
describes the plan and how to read the results.
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lra_bench.config.listing import options
from lra_bench.progress import bar, say

ROOT = Path(__file__).resolve().parent.parent
MINUTES = {"A": 5.0, "B": 6.0, "C": 8.0, "D": 6.0}
"""Time of each step, in the order of the plan; what is left of the session can repeat what failed."""
SHARDS = 4
"""Processes among which the systems of step B are divided."""
SYSTEM_SECONDS = 60.0
"""Time limit of one system in step B."""
SLOW = (
    "score_additive", "sac", "b2s6", "forgetting", "mamba", "predictive", "pattern_guided", "gaussian_transformer",
    "local_gaussian", "synthesizer_factorised_dense", "capsule_em", "camtl", "rwkv7",
)  # fmt: skip
"""Systems whose step needs most launches or memory traffic, the slowest first."""
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
        together: Whether it may run at the same time as the other items of its step that may.
        environment: Additional environment variables.
    """

    step: str
    name: str
    command: tuple[str, ...]
    seconds: float
    together: bool = False
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Session:
    """Where a session writes, on which device, and whether sizes are tiny."""

    output: Path
    device: str
    tiny: bool
    train_task: str

    @property
    def results_file(self) -> Path:
        """The file with one JSON line per finished item."""
        return self.output / "items.jsonl"

    def finished(self) -> set[tuple[str, str]]:
        """Return step and name of the items that ended well."""
        return {
            (line["step"], line["item"])
            for line in read_lines(self.results_file)
            if line["status"] in ("ok", "incompatible")
        }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the JSON objects of a file of lines; an incomplete last line is skipped."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return found


def probe(name: str, session: Session, *more: str) -> tuple[str, ...]:
    """Return the command of a probe of ``benchmarks.gpu_probes``."""
    return ("-m", "benchmarks.gpu_probes", name, "--device", session.device, *more)


def bench(session: Session, *overrides: str) -> tuple[str, ...]:
    """Return the command of cells; its records are in the results folder of the session."""
    hardware = () if any(each.startswith("hardware=") for each in overrides) else (f"hardware={session.device}",)
    common = ("tracker=none", *hardware, *overrides, "--results", str(session.output / "results"))
    return ("-m", "lra_bench.cli.main", "bench", *common)


def checks(session: Session) -> Iterator[Item]:
    """Step A: versions, known faults of attention, the memory limit, and the tests that need a card."""
    yield Item("A", "versions", probe("versions", session), 60)
    yield Item("A", "masked attention", probe("masked_attention", session), 60)
    yield Item("A", "hidden rows", probe("hidden_rows", session), 60)
    limited = ("task=listops", "model=transformer", "protocol=smoke", "hardware.memory_limit_gigabytes=4")
    yield Item("A", "memory limit", bench(session, *limited), 120)
    if session.device == "cuda":
        yield Item("A", "tests", ("-m", "pytest", "-q", "-m", "gpu", "-n", "2", "-p", "no:cacheprovider"), 200)


def speed(session: Session) -> Iterator[Item]:
    """Step C: the step benchmark of slow systems next to full attention, then cells of ``small`` while time is left."""
    lengths = "[64,128]" if session.tiny else "[1024,4096]"
    size = ("protocol=smoke",) if session.tiny else ("protocol=base", "measure.speed_seconds=0.5")
    names = ["mamba", "performer"] if session.tiny else [*SLOW, *COMPARED]
    for start in range(0, len(names), 4):
        group = ",".join(names[start : start + 4])
        overrides = (
            "task=listops",
            f"model={group}",
            *size,
            f"measure.speed_lengths={lengths}",
            "measure.energy=false",
        )
        profile = ("-m", "lra_bench.cli.main", "profile", f"hardware={session.device}", "tracker=none", *overrides)
        yield Item("C", f"profile {group}", (*profile, "--results", str(session.output / "results")), 150)
    cell = ("protocol=smoke",) if session.tiny else ("protocol=small", "measure.speed_lengths=[]")
    for name in TRAINED[: 1 if session.tiny else None]:
        yield Item("C", f"train {name}", bench(session, f"task={session.train_task}", f"model={name}", *cell), 400)


def cells(session: Session) -> Iterator[Item]:
    """Step D: four cells at the same time on one card, then a compiled, an accelerated and a metered one."""
    smoke = ("protocol=smoke", "measure.energy=false")
    for name in ("transformer", "performer", "mamba2", "s4d"):
        yield Item("D", f"cell {name}", bench(session, "task=listops", f"model={name}", *smoke), 150, together=True)
    compiled = ("task=listops", "model=transformer", "protocol=smoke", "hardware.compile=true")
    yield Item("D", "compiled", bench(session, *compiled), 200)
    if session.device == "cuda":
        accelerated = ("task=enwik8", "model=gla", "protocol=smoke", "hardware.accelerated=true")
        partial = ("task.allow_partial=true",)
        yield Item("D", "accelerated", bench(session, *accelerated, *partial), 120)
    yield Item(
        "D", "energy", bench(session, "task=listops", "model=local", "protocol=smoke", "measure.energy=true"), 120
    )


PLAN = {"A": checks, "C": speed, "D": cells}
"""The items of each step; step B, all systems, is divided into shards instead."""


def run_items(session: Session, items: Sequence[Item], until: float) -> None:
    """Run the items that have not ended well yet, until the monotonic time ``until``."""
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
    """Run one process and return its result; it is ``not started`` if no time is left."""
    limit = min(item.seconds, until - time.monotonic())
    line: dict[str, Any] = {"step": item.step, "item": item.name, "command": ["python", *item.command]}
    if limit < 5:
        return {**line, "status": "not started", "seconds": 0.0}
    log = session.output / "logs" / f"{item.step} {item.name}.txt".replace(" ", "_").replace("/", "_")
    log.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    with log.open("w") as out:
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **item.environment}
        process = subprocess.Popen(
            [sys.executable, *item.command], stdout=out, stderr=subprocess.STDOUT, cwd=ROOT, env=environment
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            # SIGTERM first, so that a cell writes its checkpoint and record.
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            code = None
    status = "timeout" if code is None else "ok" if code == 0 else "failed"
    text = log.read_text(errors="replace")
    found = [json.loads(each) for each in text.splitlines() if each.startswith("{") and each.endswith("}")]
    seconds = round(time.monotonic() - started, 1)
    return {**line, "status": status, "code": code, "seconds": seconds, "found": found, "tail": text[-TAIL:]}


def write_line(path: Path, result: dict[str, Any]) -> None:
    """Append a JSON line and flush it to the disk."""
    with path.open("a") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())


def run_systems(session: Session, until: float) -> None:
    """Step B: run every system in ``SHARDS`` processes at the same time; a process that dies is started again.

    The system during which a process died or exceeded ``SYSTEM_SECONDS`` has the status ``crashed`` or ``timeout``.
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
    """Run one process over ``names``, record its results, and return for how many systems there is one."""
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
    """Return one line per step with the number of items of each status, and the items that did not end well."""
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


def main() -> int:
    """Run the steps that were asked for."""
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
