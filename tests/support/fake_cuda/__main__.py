"""Run cases on the fake CUDA device and print one line of JSON for each.

Standard input is a JSON object with ``precision``; ``longest``, the length to which longer tasks are shortened, or
null; and either ``cases``, lists of overrides, or ``systems`` and ``tasks``, names combined under ``protocol=smoke``.
A line has the fields of ``steps.Found``; cases of a system follow each other.
"""

import json
import sys
import warnings

from tests.support.fake_cuda.device import add_device

add_device()

import torch  # noqa: E402

from lra_bench.config.compose import (  # noqa: E402
    Loader,
    compose,
)
from tests.support.fake_cuda import configurations, replacements, steps  # noqa: E402


def main() -> None:
    """Run all cases."""
    warnings.simplefilter("ignore")
    replacements.install()
    asked = json.load(sys.stdin)
    if "cases" in asked:
        loader = Loader(None)
        configs = [compose([*case, "tracker=none"], load=loader).config for case in asked["cases"]]
    else:
        # The cases of a system follow each other: operators on the same shapes are computed only once.
        of_task = [list(configurations.of_systems(asked["systems"], f"task={task}")) for task in asked["tasks"]]
        configs = [config for of_system in zip(*of_task, strict=True) for config in of_system]
    for config in configs:
        found = steps.run_case(config, asked["precision"], asked["longest"])
        print(json.dumps(vars(found)), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
