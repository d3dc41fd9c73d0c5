"""One cell in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from lra_bench.child import environment

from .plan import Planned


def run_in_fresh_process(planned: Planned, results: Path) -> int:
    """Run one cell in a process of its own, with the user's folder on its import path; its exit code."""
    cell = planned.cell
    request = {
        "cell": cell.as_json(),
        "results": str(results),
        "attempt": planned.record.attempt + 1 if planned.record else 1,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "lra_bench.cell"],
        stdin=subprocess.PIPE,
        env=environment(cell.config_dir),
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        return process.wait()
    except KeyboardInterrupt:
        # The terminal has told the child as well; it ends at its next step, after its checkpoint.
        process.wait()
        return 130
    except BrokenPipeError:
        return process.wait()
