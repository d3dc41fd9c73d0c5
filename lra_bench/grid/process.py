"""One cell in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import IO

from lra_bench.cell import log_file
from lra_bench.child import environment
from lra_bench.contracts import UserError
from lra_bench.files import why

from .plan import Planned
from .share import Share


def start(planned: Planned, results: Path, share: Share) -> subprocess.Popen[str]:
    """Start a cell in a fresh process, with the user's folder on its import path.

    One that is ``alone`` has the terminal; of several each writes to its own log, and Ctrl-C reaches it through us.
    """
    cell = planned.cell
    request = {
        "cell": cell.as_json(),
        "results": str(results),
        "attempt": planned.attempt,
        "cores": share.cores,
    }
    variables = environment(cell.config_dir)
    if share.cards is not None:
        variables["CUDA_VISIBLE_DEVICES"] = share.cards
    with nullcontext() if share.alone else _log(planned) as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "lra_bench.cell"],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            env=variables,
            text=True,
            process_group=None if share.alone else 0,
        )
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already, and its exit code says how
        process.stdin.write(json.dumps(request))
        process.stdin.close()
    return process


def _log(planned: Planned) -> IO[str]:
    """The cell's log, emptied."""
    path = log_file(planned.cell.key)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UserError(f"LRA_BENCH_CACHE: {path} {why(error)}; set LRA_BENCH_CACHE to another folder") from error
