"""Estimate what a training step costs on a GPU, without one: launches, bytes and FLOPs of forward and backward pass.

    python -m benchmarks.price_step mamba,transformer [--task listops] [--protocol base] [--length 4096] [--batch 32]
        [--precision bf16] [--set backbone.depth=6 ...] [--json FILE]

Steps run with fake tensors on a pretended CUDA device (``tests/support/pretended_card``), which needs a CPU build of
torch and a C++ compiler. The estimate is the larger of the time of the launches and of the work; the assumed rates are
in ``tests/support/pretended_card/pricing.py``. docs/gpu.md explains how to read the numbers. Without names of models,
all are priced.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tests.support.pretended_card.device import add_card, unavailable


def main() -> None:
    """Price the requested models and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", default="", help="names separated by commas")
    parser.add_argument("--task", default="listops")
    parser.add_argument("--protocol", default="base")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp16", "fp32"))
    parser.add_argument("--set", nargs="*", default=[], dest="overrides", help="further options, such as model.mixer.…")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sites", action="store_true", help="print the lines of code with most launches")
    chosen = parser.parse_args()
    if reason := unavailable():
        parser.error(reason)
    add_card()
    results: dict[str, Any] = {}
    print(f"{'model':32} {'launches':>9} {'GB':>9} {'launch s':>9} {'work s':>9} {'largest GB':>10}")
    for name in chosen.models.split(",") if chosen.models else _all_models():
        results[name] = found = _price(name, chosen)
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


def _all_models() -> list[str]:
    from lra_bench.config.listing import options

    return [entry["name"] for entry in options("model")]


def _price(name: str, chosen: argparse.Namespace) -> dict[str, Any]:
    # Imported here, because they import torch, which must happen after add_card.
    from lra_bench.config.compose import compose, hydra_context
    from lra_bench.contracts import UserError
    from tests.support.pretended_card import stand_ins
    from tests.support.pretended_card.pricing import price

    if not getattr(_price, "ready", False):
        stand_ins.install()
        vars(_price)["ready"] = True
    overrides = [f"task={chosen.task}", f"protocol={chosen.protocol}", f"model={name}", "tracker=none"]
    try:
        with hydra_context():
            config = compose([*overrides, *chosen.overrides]).config
    except UserError as error:
        return {"status": "incompatible", "reason": str(error)}
    return price(config, chosen.length, chosen.batch, chosen.precision)


if __name__ == "__main__":
    main()
