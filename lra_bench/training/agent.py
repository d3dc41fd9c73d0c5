"""Run torchrun for the ranks of one cell: ``python -m lra_bench.training.agent`` with the options of torchrun.

torchrun starts and monitors the ranks, and terminates all of them when one exits with an error. The last line on stdout
is a JSON object with the exit codes of the failed ranks, in the order in which they failed.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys

from lra_bench.runtime.garbage import skip_final_collection
from lra_bench.runtime.subprocesses import PARENT, end_with_parent


def main() -> None:
    """Run the ranks until all have exited, then print the failed ranks."""
    end_with_parent(signal.SIGTERM)
    skip_final_collection()
    os.environ[PARENT] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # The process that started the group reports a failure in one sentence, so torchrun's own log is not needed.
    logging.disable(logging.CRITICAL)
    failures: dict[int, int] = {}
    try:
        run(parse_args(sys.argv[1:]))
    except ChildFailedError as error:
        ordered = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        failures = {rank: failure.exitcode for rank, failure in ordered}
    except SignalException:
        pass
    # torchrun's signal handlers raise and are still installed. The parent terminates this process after the last line.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps({"failures": failures}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
