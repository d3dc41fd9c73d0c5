"""Agreement of all systems with their sources: ``python -m tests.support.fidelity_table > docs/fidelity.md``.

The page is generated from declarations (paper and authors' code), docstrings (deviations) and markers of tests
(comparisons).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from lra_bench.build import load_class
from lra_bench.models.canon_layer import CanonLayer
from lra_bench.models.clusters import AdaptiveEmbedding, AdaptiveSoftmax
from lra_bench.models.evolved import EvolvedBlock
from lra_bench.models.experts import Experts
from lra_bench.models.funnel import pool_pairs
from lra_bench.models.gate import GatedResidual
from lra_bench.models.heads.branches import WeightedBranches
from lra_bench.models.heads.choice import loss_nodes, merge_node
from lra_bench.models.layer_mix import LayerMix
from lra_bench.models.map import systems
from lra_bench.models.output_heads import MixtureOfSoftmaxes, TiedOutput
from lra_bench.models.positions.position import Position
from lra_bench.models.product_keys import ProductKeyMemory
from lra_bench.models.residual import PLAIN, RESIDUALS
from lra_bench.models.token_embedding import FactorisedEmbedding
from tests.oracles import ORACLES, OUTPUTS
from tests.support.agreements import Agreement, agreements
from tests.support.mixer_cases import POSITIONS

CODE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{7,40}):(?P<path>[\w./+-]*\w)")
"""Form of ``Capability.code``."""
PAPER = re.compile(r"(?P<paper>[A-Z](?:[^.:;]|(?<=al)\.)*? \d{4}), arXiv (?P<arxiv>\d{4}\.\d{5})")
"""First paper in the docstring of a position encoding."""
DEVIATIONS = re.compile(r"(?:^|(?<=[.!?])\s)Deviations?(?P<source>\sfrom\s[^:]+)?:(?P<text>.*)", re.DOTALL)
"""Statement of deviations in a paragraph of a docstring, up to the end of the paragraph."""
POSITION_FAMILY = "positions"
OPTION_FAMILY = "options"
OPTIONS: dict[str, Any] = {
    "backbone.block=evolved": EvolvedBlock,
    "backbone.embedding.cutoffs": AdaptiveEmbedding,
    "backbone.embedding.rank": FactorisedEmbedding,
    "backbone.embedding.tied": TiedOutput,
    "backbone.experts": Experts,
    "backbone.funnel": pool_pairs,
    "backbone.gate": GatedResidual,
    "backbone.mix_layers": LayerMix,
    "backbone.output.kind=adaptive": AdaptiveSoftmax,
    "backbone.output.kind=mixture": MixtureOfSoftmaxes,
    "backbone.product_keys": ProductKeyMemory,
    **{f"backbone.residual={name}": kind for name, kind in RESIDUALS.items() if name != PLAIN},
    "backbone.short_convolution": CanonLayer,
    "model.mixer.merge=weighted_branches": WeightedBranches,
}
"""Classes and functions of options with which any system can be modified."""
TITLES = {POSITION_FAMILY: ("Position encodings", "encoding"), OPTION_FAMILY: ("Options", "option")}
"""Title and first column of the sections that are not families of systems."""
HEADER = """# Fidelity

How closely does each system follow its paper and its authors' code, and what is different?

```console
make test ARGS="-m agrees"
python -m tests.support.fidelity_table > docs/fidelity.md
```

The first command runs all comparisons of this page. The second writes the page from declarations, docstrings and tests;
a test fails if it is outdated. The page has one table for each [family](../models/README.md) of systems, one for
position encodings, one for options of the backbone, and below each table a list of deviations.

| column | meaning | source |
| --- | --- | --- |
| `model=` | key of the system, with a link to its implementation | `conf/model` |
| paper | paper that defines the system | `spec` of its class |
| authors' code | repository, commit and file of its authors, if such code was found | `code` in `spec`, or docstring |
| position | position encoding with which it is run: its own, or that of the recipe if it supports it | `conf/model` |
| compared with | what a test compares it with, largest accepted absolute difference, the test | marker `agrees` |

**Deviations** are differences from the paper or from the authors' code that remain. Docstrings state those of a class,
and comments in `conf/model` those of its options. "None known" does not mean that the authors' numbers have been
reproduced; [published-recipes.md](published-recipes.md) describes how to train as the authors did.

How the comparisons are made:

- Most use float64, small sizes and random weights, so that a difference of 10⁻¹⁰ is due to rounding.
- "Definition of the paper" is an independent implementation of the formula with loops and full N × N matrices, in
  `tests/oracles`. It is compared with and without padding, in each direction, at up to 64 tokens. A misreading of the
  paper can be in both; comparisons with the authors' formulas or with other packages can find it.
- A name such as `transformers` is that of a package, which is given the same weights. Few of these packages are by the
  authors of the system. Their tests are skipped unless they are installed (extra `peers`).
- All other entries are comparisons with a formula of the authors' code or paper, which the test computes itself; the
  repository contains no code of the authors.

Position encodings: a model file sets the encoding of the paper, such as `rope` for RetNet, or `none` for state spaces,
recurrences and long convolutions, whose outputs depend on the order of the tokens without one. All other systems use
the encoding of the recipe, so that they are compared under equal conditions; a mixer that does not support its hooks
runs without one.

Some differences hold for all systems and are not listed for each:

- Embedding, residual blocks, norms, feed-forward networks, dropout and readout are those of the
  [backbone](../models/backbone.py) and of the recipe, except under
  [`protocol=published`](published-recipes.md).
- Query, key, value and output projections of heads have biases, and are initialised Xavier-uniform with biases of zero,
  unless a system has its own or the recipe sets `backbone.attention_bias` and `backbone.projection_init`, as `small`
  and `lra` do.
"""


@dataclass(frozen=True)
class Row:
    """What is known of the fidelity of a system.

    Attributes:
        family: Family of the system, ``POSITION_FAMILY`` or ``OPTION_FAMILY``.
        key: Name of its model file, ``position=`` and the name of its position file, or a key of ``OPTIONS``.
        file: Path of the implementation, relative to the repository.
        paper: Title or authors of the paper.
        arxiv: arXiv id of the paper.
        code: The authors' code, see ``Capability.code``.
        position: Position encoding that the model file sets, or None for that of the recipe; empty for other rows.
        has_oracle: Whether the system is a mixer with a dense definition.
        deviations: Deviations from the paper and the authors' code, as Markdown.
        agreements: Comparisons with the paper, the authors' code or other packages.
    """

    family: str
    key: str
    file: str
    paper: str
    arxiv: str | None
    code: str | None
    position: str | None
    has_oracle: bool
    deviations: tuple[str, ...]
    agreements: list[Agreement] = field(default_factory=list)


def rows() -> list[Row]:
    """Return the rows of all systems, sorted by family, followed by those of position encodings and of options."""
    found = [*_system_rows(), *_position_rows(), *_option_rows()]
    for agreement in agreements():
        for row in found:
            if row.key in agreement.systems or (row.has_oracle and not agreement.systems):
                row.agreements.append(agreement)
    return found


def _system_rows() -> Iterable[Row]:
    """Yield the rows of all systems without their comparisons."""
    for key, _, system, capability in systems():
        text = files("lra_bench.conf.model").joinpath(f"{key}.yaml").read_text(encoding="utf-8")
        parts = [system, *_chosen_classes(yaml.safe_load(text)["model"].get("mixer", {}))]
        yield Row(
            family=capability.family,
            key=key,
            file=_file_of(system),
            paper=capability.paper,
            arxiv=capability.arxiv,
            code=capability.code,
            position=(yaml.safe_load(text).get("backbone") or {}).get("position"),
            has_oracle=system in {**ORACLES, **OUTPUTS},
            deviations=(*stated_in_comments(text), *(stated for part in parts for stated in deviations(part))),
        )


def _chosen_classes(mixer: dict[str, Any]) -> list[type[nn.Module]]:
    """Return the classes that the options ``merge`` and ``head_losses`` of a mixer select."""
    nodes = [merge_node(mixer["merge"])] if "merge" in mixer else []
    nodes += loss_nodes(mixer.get("head_losses"))
    return [load_class(node["_target_"], nn.Module, "model.mixer") for node in nodes]


def _position_rows() -> Iterable[Row]:
    """Yield the rows of all position encodings without their comparisons."""
    for name, node in POSITIONS.items():
        position = load_class(node["_target_"], Position, f"position={name}")
        source = PAPER.search(_one_line(cleandoc(position.__doc__ or "")))
        yield Row(
            family=POSITION_FAMILY,
            key=f"position={name}",
            file=_file_of(position),
            paper=source["paper"] if source else "none",
            arxiv=source["arxiv"] if source else None,
            code=position.code,
            position="",
            has_oracle=False,
            deviations=deviations(position),
        )


def _option_rows() -> Iterable[Row]:
    """Yield the rows of all options without their comparisons."""
    for key, kind in OPTIONS.items():
        text = _one_line(cleandoc(kind.__doc__))
        source, code = PAPER.search(text), CODE.search(text)
        assert source is not None, f"{key}: the docstring names no paper"
        yield Row(
            family=OPTION_FAMILY,
            key=key,
            file=_file_of(kind),
            paper=source["paper"],
            arxiv=source["arxiv"],
            code=code[0] if code else None,
            position="",
            has_oracle=False,
            deviations=deviations(kind) if isinstance(kind, type) else tuple(stated_deviations(cleandoc(kind.__doc__))),
        )


def _file_of(kind: Any) -> str:
    """Return the file of a class or function of ``lra_bench.models``, relative to the repository."""
    return Path(*kind.__module__.split(".")[1:]).with_suffix(".py").as_posix()


def deviations(kind: type[nn.Module]) -> tuple[str, ...]:
    """Return the deviations in the docstring of a class, or in that of the nearest base class that states any.

    A docstring states them after "Deviations from the paper:" or similar words. They end with the paragraph, or with
    the list that follows it. "Deviations as in ``Name``" adds those of the base class ``Name``.
    """
    for base in kind.__mro__:
        if not base.__module__.startswith("lra_bench.models"):
            continue
        text = cleandoc(base.__dict__.get("__doc__") or "")
        found = [stated for stated in stated_deviations(text) if not re.search(r"(^|: )none\b", stated)]
        named = re.search(r"[Dd]eviations\s(?:are\s)?(?:as\sin|those\sof)\s``(\w+)``", text)
        parents = [parent for parent in kind.__mro__ if named and parent.__name__ == named[1] and parent is not base]
        found += [stated for parent in parents for stated in deviations(parent)]
        if found or parents or re.search(r"^Deviations?\b", text, re.MULTILINE):
            return tuple(found)
    return ()


def stated_deviations(docstring: str) -> list[str]:
    """Return the deviations that a docstring states itself, as Markdown: "from the paper: ...", or "...".

    Items of a list are indented, to follow an item of the page's own list.
    """
    found: list[str] = []
    in_list = False
    for paragraph in docstring.split("\n\n"):
        if match := DEVIATIONS.search(paragraph):
            source = _one_line(match["source"] or "")
            text = _markdown(match["text"])
            found.append(f"{source}: {text}".strip(": ") if text and not text.startswith("\n") else f"{source}:{text}")
            in_list = True
        elif in_list and paragraph.startswith("- "):
            found[-1] += _markdown(paragraph)
        else:
            in_list = False
    return found


def stated_in_comments(text: str) -> list[str]:
    """Return the deviations that a model file states in comments: those of its options, not of its class."""
    lines = [line.strip().lstrip("# ") for line in text.splitlines() if line.strip().startswith("#")]
    return stated_deviations("\n".join(f"\n{line}" if re.match("Deviation|Defaults", line) else line for line in lines))


def _markdown(text: str) -> str:
    """Return text of a docstring as Markdown, with the items of lists on lines of their own."""
    parts = re.split(r"^- ", text, flags=re.MULTILINE)
    lines = [_one_line(part) for part in parts]
    escaped = [re.sub(r"([*<|])", r"\\\1", line).replace("``", "`") for line in lines]
    return escaped[0] + "".join(f"\n  - {line}" for line in escaped[1:])


def _one_line(text: str) -> str:
    """Return text without line breaks."""
    return " ".join(text.split())


def render() -> str:
    """Return the page as Markdown."""
    sections = [_section(family, list(found)) for family, found in groupby(rows(), key=lambda row: row.family)]
    return "\n".join([HEADER, *sections])


def _section(family: str, found: list[Row]) -> str:
    """Return the table of a family and its list of deviations."""
    title, first = TITLES.get(family, (f"Family `{family}`", "`model=`"))
    table = "".join(_table_row(row) for row in found)
    names = [first, "paper", "authors' code", *([] if family in TITLES else ["position"]), "compared with"]
    head = f"| {' | '.join(names)} |\n|{' --- |' * len(names)}\n"
    return f"## {title}\n\n{head}{table}\n{_listed(found)}"


def _table_row(row: Row) -> str:
    """Return a row of a table."""
    paper = f"[{row.paper}](https://arxiv.org/abs/{row.arxiv})" if row.arxiv else row.paper
    name = f"[`{row.key}`](../{row.file})"
    comparisons = "<br>".join(_comparison(each) for each in row.agreements) or "–"
    position = [] if row.family in TITLES else [row.position or "of the recipe"]
    cells = [name, paper, _code(row), *position, comparisons]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |\n"


def _code(row: Row) -> str:
    """Return the link to the authors' code."""
    if row.code is None:
        return "none found" if row.arxiv or not row.paper.startswith("none") else "–"
    if (match := CODE.fullmatch(row.code)) is None:
        raise ValueError(f"{row.key}: code={row.code!r} must have the form owner/repository@commit:path/to/file")
    url = f"https://github.com/{match['repository']}/blob/{match['commit']}/{match['path']}"
    return f"[{match['repository']}@{match['commit'][:7]}]({url}), {match['path']}"


def _comparison(agreement: Agreement) -> str:
    """Return a comparison with its tolerance and a link to its test."""
    within = f"≤ {number(agreement.within)}" if agreement.within else "exactly"
    return f'{agreement.compared} {within} ([test](../{agreement.file} "{agreement.test}"))'


def number(value: float) -> str:
    """Return a tolerance as a power of ten with superscripts, such as 2 · 10⁻⁵."""
    factor, exponent = f"{value:e}".split("e")
    factor = f"{float(factor):g}"
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if factor == "1" else f"{factor} · {power}"


def _listed(found: list[Row]) -> str:
    """Return the deviations as a list, in which systems with the same deviations share an item."""
    together: dict[tuple[str, ...], list[str]] = {}
    for row in found:
        together.setdefault(row.deviations, []).append(f"`{row.key}`")
    without = together.pop((), [])
    items = [_item(", ".join(keys), stated) for stated, keys in together.items()]
    items += [f"- {', '.join(without)}: none known\n"] if without else []
    return f"Deviations:\n\n{''.join(items)}"


def _item(keys: str, stated: tuple[str, ...]) -> str:
    """Return the item of systems with their deviations."""
    if len(stated) == 1:
        text = stated[0]
        return f"- {keys}{', ' if text.startswith('from') else ': ' if not text.startswith(':') else ''}{text}\n"
    return f"- {keys}:\n" + "".join(f"  - {text.replace(chr(10), chr(10) + '  ')}\n" for text in stated)


if __name__ == "__main__":
    sys.stdout.write(render())
