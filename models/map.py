"""List of all systems, generated from their declarations: ``python -m lra_bench.models.map > models/README.md``."""

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

Which systems can I measure, and which file implements each of them? The table below lists every system with its key.
Pass the key to the command line:

```console
lra-bench bench model=performer task=listops
```

`lra-bench list models` prints the same list in the terminal. The folders are the families of systems; variants of a
system may share a file. The columns:

- `key`: value of `model=`. `file`: implementation. `paper`: source.
- `directions`: `causal (exact)` means that no output depends on later input; `causal (pseudo)` means that attention
  weights on later tokens are zero but the choice of keys uses later tokens; such systems are refused for causal tasks.
- `growth`: how compute time grows with the sequence length N.

The systems share these files:

- `mixer.py`: base classes of token mixers (`Mixer`, `HeadMixer`), their declared capabilities (`MixerSpec`) and their
  inputs (`Context`). Read it first to add a system.
- `backbone.py`: the network around a mixer, from the token embeddings to the logits. Its parts are `embedding.py`,
  `block.py`, `feedforward.py` and `readout.py`.
- `canon_layer.py`, `hybrid.py`: a convolution in front of every mixer, and another mixer in every k-th layer.
- `depth/`: controllers that decide how many layers each token or example passes through.
- `reversible.py`: reversible blocks, which recompute activations instead of storing them.
- `batch_norm.py`, `scale_norm.py`: norms that torch does not have in this form.
- `draws.py`: seeded random numbers that are not weights.
- `positions/`: position encodings. `kernels/`: functions in which most of the time is spent.
- `map.py`: generates this file from the declarations: `python -m lra_bench.models.map > models/README.md`.

| family | key | system | file | paper | directions | growth |
| --- | --- | --- | --- | --- | --- | --- |
"""

AROUND = {"controller": "spec", "retrieval": "source"}
"""Nodes of a model file that name the class of the system around its mixer, with the attribute of its source."""


def systems() -> list[tuple[str, str, type[nn.Module], Capability]]:
    """Return key, label, class and declared capabilities of every built-in model, sorted by family."""
    found = []
    for file in files("lra_bench.conf.model").iterdir():
        if file.name.endswith(".yaml") and not file.name.startswith("_"):
            model: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))["model"]
            node = model.get("mixer") or model["network"]
            system = load_class(node["_target_"], nn.Module, "model")
            capability = getattr(system, "spec", None) or system.capability  # type: ignore[attr-defined]
            for around, attribute in AROUND.items():
                if node := model.get(around):
                    system = load_class(node["_target_"], nn.Module, f"model.{around}")
                    capability = capability.sourced(getattr(system, attribute))
            if source := model.get("source"):
                capability = replace(capability, **{"code": None, **source})
            found.append((file.name.removesuffix(".yaml"), str(model["label"]), system, capability))
    return sorted(found, key=lambda each: (each[3].family, each[0]))


def render() -> str:
    """Return the list as Markdown."""
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
