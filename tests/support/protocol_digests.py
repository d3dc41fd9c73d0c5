"""Digests of the values that each protocol sets for the cells of the stored tasks and models.

``python -m tests.support.protocol_digests`` stores them again, with the tasks and models that were added.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from lra_bench.config.compose import Loader, defaults
from lra_bench.config.groups import option_files
from lra_bench.config.protocols import combined

FILE = Path(__file__).parents[1] / "config" / "protocol_digests.json"


def digests(tasks: list[str], models: list[str]) -> dict[str, str]:
    """Return the digest of each protocol: of the merged values of all cells, before the choice of a position.

    The launcher and the pretraining, which no protocol sets, are left out.
    """
    load = Loader(None)

    def values(protocol: str, task: str, model: str) -> dict[str, Any]:
        choices = {**defaults()["choices"], "hardware": "cpu", "protocol": protocol, "task": task, "model": model}
        merged = combined(load.layers(choices))
        return {name: value for name, value in merged.items() if name not in ("launcher", "pretrain")}

    return {
        protocol: hashlib.sha256(
            json.dumps([values(protocol, task, model) for task in tasks for model in models], sort_keys=True).encode()
        ).hexdigest()[:16]
        for protocol in sorted(option_files("protocol"))
    }


def main() -> None:
    """Store the digests."""
    tasks, models = sorted(option_files("task")), sorted(option_files("model"))
    stored = {"tasks": tasks, "models": models, "digests": digests(tasks, models)}
    FILE.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
