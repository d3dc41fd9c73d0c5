"""Estimate the training time of the cells of a grid on a GPU, without one, for the dry run of these cells.

    python -m benchmarks.price_grid reproduction

Each combination of task and model is priced as by ``benchmarks.price_step``, with the longest rows and the batch size
of its recipe, and written to ``lra_bench/grid/priced_steps.csv``, which replaces the previous file.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from tests.support.pretended_card.device import add_card, unavailable

FILE = Path(__file__).resolve().parents[1] / "lra_bench/grid/priced_steps.csv"
PRECISION = "bf16"


def main() -> None:
    """Price the cells of a grid and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", help="name of a file in conf/grid")
    chosen = parser.parse_args()
    if reason := unavailable():
        parser.error(reason)
    add_card()
    # Imported here, because they import torch, which must happen after add_card.
    from lra_bench.config.compose import compose, hydra_context
    from lra_bench.config.objects import build_task
    from lra_bench.config.search import protocol_label
    from lra_bench.grid.cost import PRICED_COLUMNS
    from lra_bench.grid.expand import expand
    from tests.support.pretended_card import stand_ins
    from tests.support.pretended_card.pricing import price

    stand_ins.install()
    rows: dict[tuple[str, str, str], dict[str, object]] = {}
    for overrides in expand([f"grid={chosen.grid}"]):
        with hydra_context():
            composed = compose(overrides)
        config = composed.config
        key = (composed.choices["task"], composed.choices["model"], protocol_label(config))
        if key in rows:
            continue
        length = build_task(config).spec.train_length
        found = price(config, length, config.train.batch_size, PRECISION)
        if found["status"] != "ok":
            print(*key, found["status"], found["reason"])
            continue
        values = (*key, PRECISION, length, config.train.batch_size, found["launches"], round(found["gigabytes"], 3))
        rows[key] = dict(zip(PRICED_COLUMNS, (*values, f"{found['seconds']:.6f}"), strict=True))
        print(*rows[key].values(), flush=True)
    with FILE.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, PRICED_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    main()
