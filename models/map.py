"""The map of the systems, written from what they declare: ``python -m lra_bench.models.map > models/README.md``."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from lra_bench.build import load_class
from lra_bench.contracts import Capability

HEADER = """# Models

One file per system, foldered by family; everything common lies below. This map is written from what the systems
declare: `python -m lra_bench.models.map > models/README.md`.

- `backbone.py` embeds, positions, stacks blocks, pools and reads out; `block.py`, `feedforward.py` and `readout.py` are
  its parts.
- `embedding.py` takes tokens in, `reversible.py` runs blocks without keeping what they computed.
- `mixer.py` says what a mixer is and what it may declare, `draws.py` what its random draws depend on; `positions/`
  holds what tells it where tokens stand.
- `kernels/` holds the few pure functions where the time is spent.

| family | key | system | file | paper | directions | growth |
| --- | --- | --- | --- | --- | --- | --- |
"""


def systems() -> list[tuple[str, str, type[nn.Module], Capability]]:
    """Key, label, class and declared capabilities of every built-in model, sorted by family."""
    found = []
    for file in files("lra_bench.conf.model").iterdir():
        if file.name.endswith(".yaml") and not file.name.startswith("_"):
            model: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["model"]
            node = model.get("mixer") or model["network"]
            system = load_class(node["_target_"], nn.Module, "model")
            capability = getattr(system, "spec", None) or system.capability  # type: ignore[attr-defined]
            capability = replace(capability, **model.get("source", {}))
            found.append((file.name.removesuffix(".yaml"), str(model["label"]), system, capability))
    return sorted(found, key=lambda each: (each[3].family, each[0]))


def render() -> str:
    """The map as markdown."""
    return HEADER + "".join(_row(*each) for each in systems())


def _row(key: str, label: str, system: type[nn.Module], capability: Capability) -> str:
    file = Path(*system.__module__.split(".")[2:]).with_suffix(".py").as_posix()
    paper = f"[{capability.paper}](https://arxiv.org/abs/{capability.arxiv})" if capability.arxiv else capability.paper
    directions = (["bidirectional"] if capability.bidirectional else []) + (
        [f"causal ({capability.causal})"] if capability.causal != "none" else []
    )
    growth = "N" if capability.growth == 1 else f"N^{capability.growth:g}"
    cells = capability.family, f"`{key}`", label, f"[{file}]({file})", paper, ", ".join(directions), growth
    return f"| {' | '.join(cells)} |\n"


if __name__ == "__main__":
    sys.stdout.write(render())
