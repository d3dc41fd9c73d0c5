"""Measure one cell and write its record. Run as ``python -m lra_bench.cells.run`` with a JSON request on stdin."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lra_bench.config.import_path import importable
from lra_bench.contracts import Unwritable, UserError
from lra_bench.progress import say
from lra_bench.records.schema import FINISHED, Record
from lra_bench.records.status import status_of
from lra_bench.runtime.garbage import reduce_collections
from lra_bench.runtime.limits import TimeUp, debugging, memory_limit, time_limit
from lra_bench.runtime.signals import deferred, ignore, ignore_all, raise_once, unblock
from lra_bench.runtime.subprocesses import last_lines, prepare_child, stage_reporter

from .cell import RECORDED, Cell, already_completed, blank_record, exit_code, now
from .locks import cell_lock, checkpoint_folder

if TYPE_CHECKING:
    from .stages import Stages


@dataclass(frozen=True)
class CellEnd:
    """How the stages of a cell ended.

    Attributes:
        status: Status of the record.
        reason: Reason for the status, empty if it is ``ok``.
        last_lines: Last lines of the traceback of an exception.
        code: Exit code: 0 for success or ``incompatible``, 1 for a failure status, 2 for a folder that cannot be
            written, 130 for a signal.
    """

    status: str
    reason: str = ""
    last_lines: tuple[str, ...] = ()
    code: int = 0


def run(
    cell: Cell, results: Path, attempt: int, restart: bool = False, report: Callable[[str], None] = lambda stage: None
) -> tuple[Record, int]:
    """Measure a cell and write its record, also if the cell fails.

    If another process has already completed the attempt, its record is returned and nothing is measured.

    Args:
        cell: The cell to measure.
        results: The results folder.
        attempt: Number of the attempt, from 1; raised if the existing record has the same or a later attempt.
        restart: Whether to ignore the checkpoints of earlier attempts.
        report: Function that is called with the name of each stage.

    Returns:
        The record that is now stored for the cell, and the exit code of this attempt. The two may differ, because an
        unfinished record does not replace a finished one.

    Raises:
        UserError: If the configuration is wrong, or the results folder cannot be written. No record is written.
        KeyboardInterrupt: If a signal arrived while the record was written. The record is complete.
    """
    from lra_bench.records import environment, store
    from lra_bench.runtime.hardware import resolve, single_process
    from lra_bench.training.checkpoint import writer

    from .stages import Stages

    hardware = resolve(cell.config.hardware)
    own = resolve(single_process(cell.config.hardware))  # for all stages except training under ddp or fsdp
    own.apply()
    folder = checkpoint_folder(cell.key)
    with cell_lock(cell.key, results):
        done = store.find(cell.key, results)
        if already_completed(done, attempt):
            assert done is not None
            return done, exit_code(done.status)
        record = blank_record(cell, max(attempt, done.attempt + 1 if done else 1), environment.environment(hardware))
        began = time.perf_counter()
        stages = Stages(record, cell, hardware, own, results, folder, report)
        with writer(folder):  # wait until the ranks of a killed attempt have ended
            if restart:
                stages.checkpoints.reset(record.attempt)
        try:
            outcome = _guarded(stages)
            record.status, record.reason, record.last_lines = outcome.status, outcome.reason, list(outcome.last_lines)
            record.finished_at = now()
            record.wall_seconds = time.perf_counter() - began
            curves, predictions = stages.curves, stages.predictions
            if fault := record.fault():  # the schema refuses a measured value
                measured, record = record, blank_record(cell, record.attempt, record.environment)
                record.status = "failed"
                record.reason = f"a measured value cannot be stored: {fault.removeprefix('record: ')}"
                for name in ("started_at", "finished_at", "wall_seconds"):
                    setattr(record, name, getattr(measured, name))
                curves = predictions = None
            # Finish writing the record despite signals, also repeated ones.
            with deferred(again=ignore) as interrupted:
                kept = store.keep_best(record, results, curves, predictions)
                if record.status != "interrupted":
                    stages.checkpoints.ended(record.status in FINISHED)
            if interrupted():
                raise KeyboardInterrupt
        finally:
            stages.close()
    return kept, outcome.code if record.status == outcome.status else exit_code(record.status)


def _guarded(stages: Stages) -> CellEnd:
    """Run all stages and return the outcome; convert exceptions to a status and a reason.

    ``Unwritable`` is the only ``UserError`` that is converted, because the cell can be resumed. Others are raised.
    """
    from lra_bench.training.meter import Diverged
    from lra_bench.training.ranks import GroupFailed

    from .stages import Incompatible

    options = stages.config.hardware
    seconds = options.timeout_seconds
    try:
        with time_limit(seconds), memory_limit(options.memory_limit_gigabytes, stages.hardware.device):
            stages.measure()
    except Unwritable as error:
        say(f"lra-bench: {error}")
        return CellEnd("interrupted", f"{stages.stage}: {error}", code=2)
    except UserError:
        raise
    except Incompatible as error:
        return CellEnd("incompatible", str(error))
    except Diverged as error:
        return CellEnd("diverged", str(error), code=1)
    except TimeUp:
        return CellEnd("timeout", f"{stages.stage}: hardware.timeout_seconds={seconds} exceeded", code=1)
    except KeyboardInterrupt:
        return CellEnd("interrupted", f"{stages.stage}: stopped by a signal; the same command resumes", code=130)
    except GroupFailed as error:
        return CellEnd(error.status, f"{stages.stage}: {error}", error.last_lines, code=1)
    except Exception as error:
        status, reason = status_of(error)
        return CellEnd(status, f"{stages.stage}: {reason}", last_lines(error) if status == "failed" else (), code=1)
    return CellEnd("ok")


def main() -> int:
    """Run the cell that is given as JSON on standard input, and return the exit code of the process."""
    request = json.load(sys.stdin)
    reduce_collections()  # saves time while modules are imported
    if request["cores"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, request["cores"])
    # If memory runs out, the kernel kills this process before its parent, which records the failure.
    prepare_child(signal.SIGTERM, 500)
    # An exception from a signal handler could look like a failed import, so SIGTERM ends the process during imports,
    # when there is nothing to save, and SIGINT stays blocked until they end.
    unblock(signal.SIGTERM)
    try:
        import lra_bench.cells.stages  # noqa: F401

        raise_once(signal.SIGINT, signal.SIGTERM)
        unblock()
        folder = json.loads(request["cell"])["config_dir"]
        with importable(Path(folder) if folder else None):  # may contain measurements
            _, code = run(
                Cell.from_json(request["cell"]),
                Path(request["results"]),
                request["attempt"],
                request["restart"],
                stage_reporter(request["stages"]),
            )
    except UserError as error:
        if debugging():
            raise
        say(f"lra-bench: {error}")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        ignore_all()
    # Python exits with 1 after an exception that is not caught, so a failure with a record needs another exit code.
    return RECORDED if code == 1 else code


if __name__ == "__main__":
    sys.exit(main())
