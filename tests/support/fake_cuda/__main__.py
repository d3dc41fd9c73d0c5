"""Read cases from standard input as JSON and write one line of JSON for each to standard output.

A case is a list of overrides and a precision, such as ``[["task=listops", "model=mamba"], "bf16"]``.
"""

import json
import sys
import warnings

from tests.support.fake_cuda.device import add_device

add_device()

import torch  # noqa: E402

from lra_bench.config.compose import hydra_context  # noqa: E402
from lra_bench.config.group_cache import Loader  # noqa: E402
from tests.support.fake_cuda import replacements, steps  # noqa: E402


def main() -> None:
    """Run all cases."""
    warnings.simplefilter("ignore")
    replacements.install()
    loader = Loader(None)
    with hydra_context():
        for overrides, precision in json.load(sys.stdin):
            print(json.dumps(vars(steps.run_case(overrides, precision, loader))), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
