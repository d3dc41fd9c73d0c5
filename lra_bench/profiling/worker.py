"""Measure one model at one length after the other in a separate process: ``python -m lra_bench.profiling.worker``.

Reads jobs from stdin, one JSON object per line, and writes one line per result to stdout, so that results are preserved
if the kernel kills this process because memory runs out.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

from lra_bench.config.serialization import from_dict
from lra_bench.records.sections import SpeedPoint
from lra_bench.records.status import status_of
from lra_bench.runtime.garbage import skip_final_collection
from lra_bench.runtime.hardware import resolve
from lra_bench.runtime.memory import PeakMemory, hand_back
from lra_bench.runtime.subprocesses import complete_import_path, end_with_parent, set_kill_preference

from .bench import Bench, flops_per_token, spec_of, step_flops
from .idle_threads import wait_for_idle_threads
from .peak_matmul import peak_matmul_flops
from .speed_point import unmeasured
from .timing import time_steps, warm_up


def results(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the speed entries of the job's modes, then the other requested results, each by the record's section."""
    config, length, batch_size = from_dict(job["config"]), job["length"], job["batch_size"]
    spec = spec_of(job)
    hardware = resolve(config.hardware)
    hardware.apply()
    try:
        bench = Bench.build(config, spec, length, batch_size, hardware)
    except Exception as error:
        for mode in job["modes"]:
            yield {"speed": unmeasured(mode, length, batch_size, *status_of(error))}
    else:
        for mode in job["modes"]:
            if job["memory_only"]:
                yield {"memory": [mode, bench.measure_peak_memory(mode)]}
            else:
                yield {"speed": _entry(bench, mode, length, job["limit_seconds"], config.measure.speed_seconds)}
        if job["energy"]:
            yield {"energy": bench.energy()}
        if job["step_flops"]:
            yield {"step_flops": step_flops(config, spec, length)}
    if job["flops"]:
        yield {"flops": {**flops_per_token(config, spec), "ceiling_per_second": peak_matmul_flops(hardware)}}


def _entry(bench: Bench, mode: str, length: int, limit_seconds: float, seconds: float | None) -> SpeedPoint:
    """Measure the speed entry of ``mode``; errors are reported in its status and reason.

    On CUDA it contains the peak memory. Memory on a CPU requires other allocator settings and thus a separate process.
    """
    device = bench.hardware.device
    try:
        step = bench.step(mode)
        warm = warm_up(step, device, bench.hardware.compile, limit_seconds, seconds)
        timing = time_steps(step, device, warm, limit_seconds, seconds)
        return bench.entry(mode, length, timing, bench.peak(step) if device.type == "cuda" else PeakMemory())
    except Exception as error:
        return unmeasured(mode, length, bench.batch.size, *status_of(error))
    finally:
        bench.release()


def prepare_process() -> None:
    """Make this process end with its parent, and be the first that the kernel kills when memory runs out."""
    complete_import_path()
    end_with_parent(signal.SIGKILL)
    set_kill_preference(1000)


def serve(answers: Callable[[IO[str]], Iterator[Any]]) -> None:
    """Write each of ``answers(stdin)`` to stdout, as JSON lines, until stdin ends.

    Output of models is redirected to stderr, because stdout is for answers.
    """
    prepare_process()
    skip_final_collection()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as channel:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for answer in answers(sys.stdin):
            print(json.dumps(answer), file=channel, flush=True)


def run_jobs(results: Callable[[Mapping[str, Any]], Iterator[dict[str, Any]]]) -> None:
    """Read jobs from stdin and answer each with its ``results``, followed by null."""

    def answers(jobs: IO[str]) -> Iterator[dict[str, Any] | None]:
        for job in jobs:
            yield from results(json.loads(job))
            gc.collect()
            hand_back()
            wait_for_idle_threads()  # another process is measured next
            yield None

    serve(answers)


if __name__ == "__main__":
    run_jobs(results)
