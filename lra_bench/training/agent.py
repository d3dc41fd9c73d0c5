"""torchrun for the ranks of one cell: ``python -m lra_bench.training.agent`` with the options of torchrun.

It starts and watches the ranks, and ends all of them when one dies. What it found is the last line on stdout, as JSON:
the ranks that failed, in the order in which they did, with their exit codes.
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
    """Run the group to its end."""
    end_with_parent(signal.SIGTERM)
    skip_final_collection()
    os.environ[PARENT] = str(os.getpid())
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    # Who started the group says in one sentence what torchrun would say in a page.
    logging.disable(logging.CRITICAL)
    failures: dict[int, int] = {}
    try:
        run(parse_args(sys.argv[1:]))
    except ChildFailedError as error:
        ordered = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        failures = {rank: failure.exitcode for rank, failure in ordered}
    except SignalException:
        pass
    # torchrun's handlers, which raise, are still there, and whoever hears the last line ends this process.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print(json.dumps({"failures": failures}), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
