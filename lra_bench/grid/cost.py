"""Estimate the duration of cells from earlier records."""

from __future__ import annotations

import csv
import functools
import statistics
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from lra_bench.cells.cell import Cell
from lra_bench.config.objects import build_launcher
from lra_bench.config.pretraining import pretraining_steps
from lra_bench.config.search import TRIAL, is_trial
from lra_bench.contracts import UserError
from lra_bench.records import store
from lra_bench.records.reference import boards, load_reference
from lra_bench.records.schema import Record

from .search import trials_folder
from .status import UNRESOLVED, Planned, is_at, measured_here, place_of

STEP_COST_COLUMNS = (
    "task", "model", "protocol", "precision", "length", "batch_size", "launches", "gigabytes", "seconds",
)  # fmt: skip
"""Columns of ``gpu_step_costs.csv``, the training steps on a GPU that ``benchmarks.grid_cost`` estimates."""


@dataclass(frozen=True)
class Estimate:
    """Estimated duration of a cell in seconds (None without a suitable record) and the source of the estimate.

    ``machine`` is the hardware of the records if they are those of a reference board, otherwise empty.
    """

    seconds: float | None
    source: str
    machine: str = ""

    def __str__(self) -> str:
        """Return a short text for a table."""
        return "unknown" if self.seconds is None else f"{format_duration(self.seconds)} ({self.source})"


def estimates(
    planned: Sequence[Planned], results: Path, reference: Path | None = None, others: bool = False
) -> list[Estimate]:
    """Return the estimated duration of each cell, from finished records of its task on its hardware in ``results``.

    For trials of a search, records of trials count, and the training of other records. If there is none, the records
    of the same cell on the reference boards in the folder ``reference`` count, and with ``others`` those of all models
    and versions of the protocol on a CPU.
    """
    folders = (results, trials_folder(results))
    by_task = {
        task: [record for folder in folders for record in _finished(folder, f"{task}/*/*/*/seed*.json")]
        for task in {each.cell.key.task for each in planned}
    }
    found = [estimate(each.cell, by_task[each.cell.key.task]) for each in planned]
    unknown = [
        number
        for number, each in enumerate(planned)
        if found[number].seconds is None and each.cell.key.hardware.startswith("cpu")
    ]
    for number in unknown:
        found[number] = on_boards(planned[number].cell, reference) or found[number]
    unknown = [number for number in unknown if found[number].seconds is None]
    if others and unknown:
        known = [each for each in load_reference(reference) if each.status == "ok" and each.wall_seconds is not None]
        for number in unknown:
            found[number] = _of_others(planned[number].cell, known) or found[number]
    return found


def _of_others(cell: Cell, records: Iterable[Record]) -> Estimate | None:
    """Return the median duration on a CPU of all models with the task and protocol of a cell, None if unknown."""
    wanted = cell.key.task, cell.key.protocol_name
    fits = [
        _scaled(record, cell)
        for record in records
        if (record.key.task, record.key.protocol_name) == wanted and record.key.hardware.startswith("cpu")
    ]
    source = f"{len(fits)} record{'s' if len(fits) > 1 else ''} of other models on the boards"
    return Estimate(statistics.median(fits), source, "other machines") if fits else None


def on_boards(cell: Cell, reference: Path | None) -> Estimate | None:
    """Return the median duration of a cell on a CPU over its seeds on the first reference board that contains it."""
    key = cell.key
    for board, folder in boards(reference):
        if found := _finished(folder, f"{key.task}/{key.model}/cpu*/{key.protocol}-{key.hash}/seed*.json"):
            machine = found[0].key.hardware
            source = f"{len(found)} record{'s' if len(found) > 1 else ''} of the board {board}, {machine}"
            return Estimate(statistics.median(record.wall_seconds or 0.0 for record in found), source, machine)
    return None


def estimate(cell: Cell, records: Iterable[Record]) -> Estimate:
    """Return the median duration over the most similar of ``records``.

    Records of the same settings are preferred, then records of the same model, then those of any model. Only records
    of the cell's task and protocol on this machine count. The training time is scaled to the cell's steps and batch
    size; the rest of the duration is not scaled.
    """
    key, settings = cell.key, (cell.key.model, cell.key.protocol, cell.key.hash)
    place = place_of(cell.config) if key.hardware == UNRESOLVED else None
    here = [
        record
        for record in records
        if (record.key.task, record.key.unsearched_protocol) == (key.task, key.unsearched_protocol)
        and (is_trial(cell.config) or not _is_trial(record))
        and (is_at(record, place) if place else record.key.hardware == key.hardware and measured_here(record))
    ]
    tiers: tuple[tuple[str, Callable[[Record], bool]], ...] = (
        ("the same cell of other seeds", lambda r: (r.key.model, r.key.protocol, r.key.hash) == settings),
        (key.model, lambda r: r.key.model == key.model),
        ("other models", lambda r: True),
    )
    for name, fits in tiers:
        if found := [_scaled(record, cell) for record in here if fits(record)]:
            count = f"{len(found)} record{'s' if len(found) > 1 else ''}"
            return Estimate(statistics.median(found), f"{count} of {name}")
    if (seconds := training_seconds_on_gpu(cell)) is not None:
        return Estimate(seconds, "training only, estimated from launches and bytes")
    return Estimate(None, "no record of this task and protocol on this machine")


def training_seconds_on_gpu(cell: Cell) -> float | None:
    """Return the training time of a cell on one GPU in seconds, estimated from the costs in ``gpu_step_costs.csv``.

    The costs are those of the protocol's sizes in bf16 at rates of a Hopper GPU, without validation and the optimizer.
    None if the file does not contain the cell, or if the cell runs on a CPU, on several GPUs, in another precision or
    with other sizes.
    """
    options = cell.config.hardware
    on_gpu = options.device == "cuda" or not cell.key.hardware.startswith(("cpu", UNRESOLVED))
    if not on_gpu or set(cell.modified) - {"train.steps"}:
        return None
    if options.precision not in ("auto", "bf16") or options.strategy != "none":
        return None
    seconds = _step_seconds().get((cell.key.task, cell.key.model, cell.key.unsearched_protocol))
    return None if seconds is None else seconds * (cell.config.train.steps + pretraining_steps(cell.config))


@functools.cache
def _step_seconds() -> dict[tuple[str, str, str], float]:
    """Return the seconds of a step by task, model and protocol."""
    file = resources.files("lra_bench.grid") / "gpu_step_costs.csv"
    with file.open(encoding="utf-8") as rows:
        return {(row["task"], row["model"], row["protocol"]): float(row["seconds"]) for row in csv.DictReader(rows)}


def summary(planned: Sequence[Planned], found: Sequence[Estimate]) -> str:
    """Return one sentence with the estimated duration of all cells together."""
    trials = sum(is_trial(each.cell.config) for each in planned)
    cells = f"{len(found)} cell{'s' if len(found) > 1 else ''} to run"
    cells += f" ({trials} of them trials of a search)" if trials else ""
    known = [each.seconds for each in found if each.seconds is not None]
    missing = f"; unknown for {len(found) - len(known)}" if len(known) < len(found) else ""
    if not known:
        return f"{cells}; the duration is unknown: there is no record of the same tasks and protocol on this machine."
    workers = build_launcher(planned[0].cell.config.launcher).parallel()
    total = sum(known) / min(workers or 1, len(found))
    mode = {None: "in total", 1: "sequentially"}.get(workers, f"{workers} at a time")
    machines = ", ".join(sorted({each.machine for each in found} - {""}))
    return f"{cells}: about {format_duration(total)}, {mode}{f', measured on {machines}' if machines else ''}{missing}."


def format_duration(seconds: float) -> str:
    """Format a duration in its unit: ``40 s``, ``12 min``, ``3.4 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def _finished(folder: Path, pattern: str) -> list[Record]:
    """Return the records of ``store.paths`` with status ok and a duration; unreadable records are left out."""
    found = []
    for path in store.paths(folder, pattern):
        with suppress(UserError):  # lra-bench results check reports the error
            found.append(store.load(path))
    return [record for record in found if record.status == "ok" and record.wall_seconds is not None]


def _scaled(record: Record, cell: Cell) -> float:
    """Return the duration of a record in seconds, its training time scaled to the steps and batch size of a cell.

    The steps of pretraining are added to those of training, whose time per step is assumed.
    """
    assert record.wall_seconds is not None
    training = (record.training or {}).get("train_seconds") or 0.0
    before, now = record.config.get("train", {}), cell.config.train
    done = (record.training or {}).get("steps") or before.get("steps", 0)  # training may have been stopped early
    rows = done * before.get("batch_size", 0)
    steps = now.steps + pretraining_steps(cell.config)
    ratio = steps * now.batch_size / rows if rows > 0 else 1.0
    pretraining = (record.section("pretraining") or {}).get("seconds") or 0.0
    rest = max(0.0, record.wall_seconds - training - pretraining)
    if is_trial(cell.config) and not _is_trial(record):
        rest = (record.training or {}).get("evaluation_seconds") or 0.0
    return rest + training * ratio


def _is_trial(record: Record) -> bool:
    return bool((record.config.get("search") or {}).get("name") == TRIAL)
