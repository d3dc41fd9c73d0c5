"""The command ``lra-bench new``: a model, task or measurement of one's own that works as it is."""

from __future__ import annotations

import keyword
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from lra_bench.contracts import UserError


class Kind(StrEnum):
    """What can be written."""

    model = "model"
    task = "task"
    measurement = "measurement"


def new(
    kind: Annotated[Kind, typer.Argument(help="model, task or measurement")],
    name: Annotated[str, typer.Argument(help="Name on the command line and of the Python file, such as my_mixer")],
    folder: Annotated[Path, typer.Option("--folder", help="Folder for --config-dir")] = Path("ideas"),
) -> None:
    """Write the two files of a model, task or measurement of your own, which work as they are."""
    import importlib.util

    from lra_bench.config.groups import option_files
    from lra_bench.config.measurements import our_measurements

    if not name.isidentifier() or not name.isascii() or keyword.iskeyword(name):
        raise UserError(f"{name}: is no name of a Python module; use letters, digits and _, such as my_{kind}")
    taken = {*option_files(kind), *(our_measurements() if kind is Kind.measurement else ())}
    if name in taken or importlib.util.find_spec(name) is not None:
        what = f"a {kind} of lra-bench" if name in taken else "an installed module"
        raise UserError(f"{name}: is the name of {what}; choose another, such as my_{name}")
    files = rendered(kind, name)
    for path in files:
        if (folder / path).exists():
            raise UserError(f"{folder / path}: exists already; choose another name or --folder")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")
        print(folder / path)
    options = {
        Kind.model: f"model={name} task=listops",
        Kind.task: f"task={name} model=transformer",
        Kind.measurement: "model=gru task=listops backbone.causal=true",
    }
    print(f"Run it: lra-bench bench --config-dir {folder} {options[kind]} protocol=smoke")


def rendered(kind: Kind, name: str) -> dict[str, str]:
    """Return the two files of a model, task or measurement by path."""
    original, python, yaml = _TEMPLATES[kind]
    words = {each: each.split("_") for each in (original, name)}
    spellings = {
        each: (each, "".join(map(str.capitalize, parts)), " ".join(parts).capitalize()) for each, parts in words.items()
    }
    texts = [python, yaml]
    for old, replacement in zip(spellings[original], spellings[name], strict=True):
        texts = [text.replace(old, replacement) for text in texts]
    return dict(zip((f"{name}.py", f"{kind}/{name}.yaml"), texts, strict=True))


# The files of docs/adding-a-{model,task,measurement}.md; tests/cli/test_new.py compares them.
_MIXER = """\
\"\"\"Attention without pairwise comparisons of tokens.\"\"\"

import torch
from torch import Tensor

from lra_bench.models.mixer import Context, HeadMixer, MixerSpec


class MyMixer(HeadMixer):
    \"\"\"Mean of the values weighted by the softmax of the keys, gated by the query of each token.

    After AFT-simple (Zhai et al. 2021, arXiv 2105.14103). q, k, v (B, H, N, D) -> (B, H, N, D); O(N D) per head.
    \"\"\"

    spec = MixerSpec(family="attention_free", paper="An Attention Free Transformer", arxiv="2105.14103")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        \"\"\"Compute the weighted mean of the values, without padding, and gate it.\"\"\"
        if context.padding is not None:
            k = k.masked_fill(~context.padding.key_mask().mT, torch.finfo(k.dtype).min)
        return q.sigmoid() * (k.softmax(dim=2) * v).sum(dim=2, keepdim=True)
"""

_MIXER_OPTIONS = """\
# @package _global_
# My mixer: gated mean of the values, weighted by the keys (after Zhai et al. 2021, arXiv 2105.14103)
model:
  label: My mixer
  mixer: {_target_: my_mixer.MyMixer}
"""

_ECHO = """\
\"\"\"Classify sequences by whether the last symbol equals the first.\"\"\"

import datasets
import numpy as np

from lra_bench.contracts import Provenance, Task, TaskSpec, UserError


class Echo(Task):
    \"\"\"Sequences of random symbols with the classes 0 (first and last symbol differ) and 1 (they are equal).\"\"\"

    def __init__(self, max_length: int = 256, rows: int = 1000) -> None:
        self.max_length, self.rows = max_length, rows
        self.spec = TaskSpec("echo", "1", "classification", "either", 2, train_length=max_length, vocabulary_size=8)

    def fingerprint(self) -> str:
        return f"echo-{self.max_length}-{self.rows}"

    def prepare(self, cache) -> None:
        \"\"\"Store nothing, because ``split`` generates the examples at each call.\"\"\"

    def split(self, name: str, length: int | None = None, variant: str | None = None) -> datasets.Dataset:
        longest = length or self.max_length
        random = np.random.default_rng([("train", "validation", "test").index(name), longest])
        lengths = random.integers(longest // 2, longest, self.rows, endpoint=True)
        rows = [random.integers(8, size=n) for n in lengths]
        targets = random.integers(2, size=self.rows)
        for row, same in zip(rows, targets):
            row[-1] = (row[0] + (0 if same else random.integers(1, 8))) % 8
        return datasets.Dataset.from_dict({"tokens": rows, "target": targets, "length": lengths})

    def floors(self, split: str, length: int | None = None, variant: str | None = None) -> dict[str, float]:
        share = float(np.mean(self.split(split, length)["target"]))
        return {"majority": max(share, 1 - share)}

    def check(self, split: str) -> None:
        if any((row["tokens"][0] == row["tokens"][-1]) != row["target"] for row in self.split(split)):
            raise UserError(f"task=echo: {split} contains a wrong label")

    def provenance(self) -> Provenance:
        return Provenance(source="generated by echo.py", licence="CC0-1.0", citation="none")
"""

_ECHO_OPTIONS = """\
# Classify sequences by whether the last symbol equals the first: two classes, 128 to 256 symbols
_target_: echo.Echo
"""

_NORM = """\
\"\"\"Norm of the inference state of a causal model.\"\"\"

from dataclasses import dataclass
from itertools import islice
from typing import TypedDict

from lra_bench.contracts.measurement import Column, Display, Measurement, ScoreOver
from lra_bench.options.declaration import AT_LEAST_ONE, option


class Norms(TypedDict):
    \"\"\"Root mean square of all numbers in the state after an example, and the number of examples of the mean.\"\"\"

    examples: int
    mean: float


class StateNorm(Measurement):
    \"\"\"Root mean square of the numbers in the inference state of the trained model.\"\"\"

    name = "state_norm"
    stage = "measuring the norm of the state"
    needs = ("model", "rows")
    Result = Norms
    columns = (
        Column(
            name="state_norm",
            help="root mean square of the numbers in the inference state after a test example",
            source="state_norm.mean",
            seeds="mean",
            display=Display("norm of state", "{:.3f}"),
        ),
    )
    figures = (
        ScoreOver(
            name="score_vs_state_norm",
            help="Score over the norm of the inference state.",
            values={"state_norm": lambda norms: norms["mean"]},
            label="root mean square of the state",
            missing="without a norm of the state",
            remedy="run lra-bench bench --config-dir ideas backbone.causal=true",
        ),
    )

    @dataclass
    class Options:
        \"\"\"Number of test examples that are read.\"\"\"

        state_norm_examples: int = option(8, AT_LEAST_ONE)

    def measure(self, subject, context):
        \"\"\"Read the first test examples, each to its end; None if the model has no inference state.\"\"\"
        import torch
        from torch.utils._pytree import tree_leaves

        from lra_bench.data.batches import evaluation_batches
        from lra_bench.training.evaluation import evaluating

        if subject.model.refuses_steps():
            return None
        means = []
        with evaluating(subject.model), torch.inference_mode():
            batches = evaluation_batches(subject.rows["test"], 1, multiple=1)  # without padding
            for _, batch in islice(batches, self.options.state_norm_examples):
                _, memory = subject.model.read(batch.to(context.hardware.device))
                parts = [part.flatten() for part in tree_leaves(memory) if part.is_floating_point()]
                means.append(torch.cat(parts).square().mean().sqrt().item())
        return {"examples": len(means), "mean": sum(means) / len(means)}

    @classmethod
    def facts(cls, section):
        \"\"\"Yield the line that ``lra-bench show`` prints.\"\"\"
        yield "norm of state", f"{section['mean']:.3f}, mean over {section['examples']} examples"
"""

_NORM_OPTIONS = """\
# Norm of the inference state after test examples
_target_: state_norm.StateNorm
"""

_TEMPLATES = {
    Kind.model: ("my_mixer", _MIXER, _MIXER_OPTIONS),
    Kind.task: ("echo", _ECHO, _ECHO_OPTIONS),
    Kind.measurement: ("state_norm", _NORM, _NORM_OPTIONS),
}
