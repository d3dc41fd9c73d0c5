"""Estimate the cost of a training step on a GPU without running it there: launches, bytes and FLOPs of both passes.

    python -m benchmarks.step_cost mamba,transformer [--task listops] [--protocol base] [--length 4096] [--batch 32]
        [--precision bf16] [--set backbone.depth=6 ...] [--json FILE]

Steps run with fake tensors on a fake CUDA device (``tests/support/fake_cuda``), which needs a CPU build of torch and a
C++ compiler. Without names of models, all models are estimated. The columns are ``launches``, the operators on the GPU
that are not views; ``GB``, the bytes that they read and write; ``launch s`` and ``work s``, the seconds of the launches
and of bytes and FLOPs at the rates assumed in ``tests/support/fake_cuda/cost.py``, the larger of which is the estimate;
and ``largest GB``, the largest result of an operator.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.support.fake_cuda.device import add_device, unavailable


def main() -> None:
    """Estimate a step of each requested model and print one line for it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", default="", help="names separated by commas")
    parser.add_argument("--task", default="listops")
    parser.add_argument("--protocol", default="base")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--set", nargs="*", default=[], dest="overrides", help="further options, such as model.mixer.…")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    parser.add_argument("--sites", action="store_true", help="print the lines of code with most launches")
    chosen = parser.parse_args()
    if reason := unavailable():
        parser.error(reason)
    add_device()
    # These modules import torch, which must not be imported before add_device.
    from lra_bench.config.compose import compose
    from lra_bench.config.listing import options
    from lra_bench.contracts import UserError
    from tests.support.fake_cuda import replacements
    from tests.support.fake_cuda.cost import step_cost

    replacements.install()
    results: dict[str, Any] = {}
    print(f"{'model':32} {'launches':>9} {'GB':>9} {'launch s':>9} {'work s':>9} {'largest GB':>10}")
    for name in chosen.models.split(",") if chosen.models else [row["name"] for row in options("models")]:
        overrides = [f"task={chosen.task}", f"protocol={chosen.protocol}", f"model={name}", "tracker=none"]
        try:
            config = compose([*overrides, *chosen.overrides]).config
            found = step_cost(config, chosen.length, chosen.batch, chosen.precision)
        except UserError as error:
            found = {"status": "incompatible", "reason": str(error)}
        results[name] = found
        if found["status"] != "ok":
            print(f"{name:32} {found['status']}: {found['reason']}", flush=True)
            continue
        print(
            f"{name:32} {found['launches']:9,} {found['gigabytes']:9.2f} {found['launch_seconds']:9.4f} "
            f"{found['work_seconds']:9.4f} {found['largest'][0] / 1e9:10.3f}",
            flush=True,
        )
        for where, count in found["sites"] if chosen.sites else ():
            print(f"    {count:9,} {where}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
