"""Estimate the training steps of a grid on a GPU without running them there, and store them for the dry run.

    python -m benchmarks.grid_cost reproduction

A step of each task and model is estimated as by ``benchmarks.step_cost``, with the longest rows and the batch size of
the protocol. ``lra_bench/grid/gpu_step_costs.csv`` is replaced by the results.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import Any

from tests.support.fake_cuda.device import add_device, unavailable

FILE = Path(__file__).resolve().parents[1] / "lra_bench/grid/gpu_step_costs.csv"
PRECISION = "bf16"


def main() -> None:
    """Estimate the steps of a grid and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", help="name of a file in conf/grid")
    chosen = parser.parse_args()
    if reason := unavailable():
        parser.error(reason)
    add_device()
    # These modules import torch, which must not be imported before add_device.
    from lra_bench.config.compose import compose
    from lra_bench.config.objects import build_task
    from lra_bench.config.search import protocol_label
    from lra_bench.grid.cost import STEP_COST_COLUMNS
    from lra_bench.grid.expand import expand
    from tests.support.fake_cuda import replacements
    from tests.support.fake_cuda.cost import step_cost

    replacements.install()
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for overrides in expand([f"grid={chosen.grid}"]):
        composed = compose(overrides)
        config = composed.config
        key = (composed.choices["task"], composed.choices["model"], protocol_label(config))
        if key in rows:
            continue
        length, batch_size = build_task(config).spec.train_length, config.train.batch_size
        found = step_cost(config, length, batch_size, PRECISION)
        if found["status"] != "ok":
            parser.exit(1, f"{' '.join(key)}: {found['status']}: {found['reason']}\n")
        costs = (found["launches"], f"{found['gigabytes']:.3f}", f"{found['seconds']:.6f}")
        rows[key] = dict(zip(STEP_COST_COLUMNS, (*key, PRECISION, length, batch_size, *costs), strict=True))
        print(*rows[key].values(), flush=True)
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, STEP_COST_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    main()
