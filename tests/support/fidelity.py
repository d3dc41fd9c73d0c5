"""Agreement of all systems with their sources, as pages of the site.

They are generated from declarations (paper and authors' code), docstrings (deviations) and markers of tests
(comparisons).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from typing import Any

from lra_bench.build import load_class
from lra_bench.config.details import details, deviations, one_line, stated_deviations
from lra_bench.models.canon_layer import CanonLayer
from lra_bench.models.clusters import AdaptiveEmbedding, AdaptiveSoftmax
from lra_bench.models.evolved import EvolvedBlock
from lra_bench.models.experts import Experts
from lra_bench.models.funnel import pool_pairs
from lra_bench.models.gate import GatedResidual
from lra_bench.models.heads.branches import WeightedBranches
from lra_bench.models.layer_mix import LayerMix
from lra_bench.models.map import systems
from lra_bench.models.output_heads import MixtureOfSoftmaxes, TiedOutput
from lra_bench.models.positions.position import Position
from lra_bench.models.product_keys import ProductKeyMemory
from lra_bench.models.residual import PLAIN, RESIDUALS
from lra_bench.models.stem import Patches, Stem
from lra_bench.models.token_embedding import FactorisedEmbedding
from tests.oracles import ORACLES, OUTPUTS
from tests.support.agreements import Agreement, agreements
from tests.support.mixer_cases import POSITIONS

CODE = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)@(?P<commit>[0-9a-f]{7,40}):(?P<path>[\w./+-]*\w)")
"""Form of ``Capability.code``."""
PAPER = re.compile(r"(?P<paper>[A-Z](?:[^.:;]|(?<=al)\.)*? \d{4}), arXiv (?P<arxiv>\d{4}\.\d{5})")
"""First paper in the docstring of a position encoding."""
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
    "backbone.patch": Patches,
    "backbone.product_keys": ProductKeyMemory,
    **{f"backbone.residual={name}": kind for name, kind in RESIDUALS.items() if name != PLAIN},
    "backbone.short_convolution": CanonLayer,
    "backbone.stem": Stem,
    "model.mixer.merge=weighted_branches": WeightedBranches,
}
"""Classes and functions of options with which any system can be modified."""
TITLES = {POSITION_FAMILY: "Position encodings", OPTION_FAMILY: "Options of the backbone"}
"""Titles of the pages that are not families of systems."""
INDEX = """# Systems

Every system, with the paper that defines it. The page of its family states the authors' code, what tests compare it
with, and its [deviations](../fidelity.md) from paper and code; `lra-bench list models s4d` prints its options, too.

- **causal**: `exact` means that no output depends on later input; `pseudo` that attention weights on later tokens are
  zero but the choice of keys uses later tokens; such systems are refused for causal tasks.
- **growth**: exponent of the sequence length N in the time of a step.
"""


@dataclass(frozen=True)
class Row:
    """What is known of the fidelity of a system.

    Attributes:
        family: Family of the system, ``POSITION_FAMILY`` or ``OPTION_FAMILY``.
        key: Name of its model file, ``position=`` and the name of its position file, or a key of ``OPTIONS``.
        description: One line of its file; empty for options.
        file: Path of the implementation, relative to the repository.
        paper: Title or authors of the paper.
        arxiv: arXiv id of the paper.
        code: The authors' code, see ``Capability.code``.
        position: Position encoding that the model file sets, or None for that of the recipe; empty for other rows.
        has_oracle: Whether the system is a mixer with a dense definition.
        deviations: Deviations from the paper and the authors' code.
        agreements: Comparisons with the paper, the authors' code or other packages.
    """

    family: str
    key: str
    description: str
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
    for key, _, system, _ in systems():
        found = details("model", key)
        yield Row(
            family=found["family"],
            key=key,
            description=found["description"],
            file=_file_of(system),
            paper=found["paper"],
            arxiv=found.get("arxiv"),
            code=found.get("code"),
            position=found["position"],
            has_oracle=system in {**ORACLES, **OUTPUTS},
            deviations=tuple(found["deviations"]),
        )


def _position_rows() -> Iterable[Row]:
    """Yield the rows of all position encodings without their comparisons."""
    for name, node in POSITIONS.items():
        position = load_class(node["_target_"], Position, f"position={name}")
        source = PAPER.search(one_line(cleandoc(position.__doc__ or "")))
        yield Row(
            family=POSITION_FAMILY,
            key=f"position={name}",
            description=details("position", name)["description"],
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
        text = one_line(cleandoc(kind.__doc__))
        source, code = PAPER.search(text), CODE.search(text)
        assert source is not None, f"{key}: the docstring names no paper"
        yield Row(
            family=OPTION_FAMILY,
            key=key,
            description="",
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


def families() -> dict[str, list[Row]]:
    """Return the rows of each family of systems, of the position encodings and of the options."""
    return {family: list(found) for family, found in groupby(rows(), key=lambda row: row.family)}


def title(family: str) -> str:
    """Return the title of the page of a family."""
    return TITLES.get(family, family.replace("_", " ").capitalize())


def index() -> str:
    """Return the page that lists all systems, with links to their sections."""
    table = "".join(
        f"| [`{key}`]({capability.family}.md#{key}) | {label} | {_paper(capability.paper, capability.arxiv)} "
        f"| {'no' if capability.causal == 'none' else capability.causal} | {capability.growth:g} |\n"
        for key, label, _, capability in systems()
    )
    return f"{INDEX}\n| `model=` | system | paper | causal | growth |\n| --- | --- | --- | --- | --- |\n{table}"


def page(family: str, found: Sequence[Row]) -> str:
    """Return the page of a family as Markdown, with one section per system."""
    return "\n".join([f"# {title(family)}\n", *map(_section, found)])


def _section(row: Row) -> str:
    """Return the section of a system."""
    facts = {"Paper": _paper(row.paper, row.arxiv), "Authors' code": _code(row), "Implementation": f"`{row.file}`"}
    if row.family not in TITLES:
        facts["Position"] = f"`{row.position}`" if row.position else "that of the protocol"
    lines = [f"- **{name}**: {text}" for name, text in facts.items()]
    lines += [f"- **Compared with** {_comparison(each)}" for each in row.agreements]
    stated = [f"- {escaped(text)}" for text in row.deviations] or ["- none known"]
    about = [f"{escaped(row.description)}\n"] if row.description else []
    return "\n".join([f"## `{row.key}`\n", *about, *lines, "\nDeviations:\n", *stated, ""])


def escaped(text: str) -> str:
    """Return text of a docstring as Markdown, with the items of lists on the fourth column."""
    marked = re.sub(r"``(.+?)``|([*<|])", lambda found: f"`{found[1]}`" if found[1] else f"\\{found[2]}", text)
    return marked.replace("\n  - ", "\n    - ")


def _paper(paper: str, arxiv: str | None) -> str:
    """Return a paper with the link to it."""
    return f"[{paper}](https://arxiv.org/abs/{arxiv})" if arxiv else paper


def _code(row: Row) -> str:
    """Return the link to the authors' code."""
    if row.code is None:
        return "none found" if row.arxiv or not row.paper.startswith("none") else "–"
    if (match := CODE.fullmatch(row.code)) is None:
        raise ValueError(f"{row.key}: code={row.code!r} must have the form owner/repository@commit:path/to/file")
    url = f"https://github.com/{match['repository']}/blob/{match['commit']}/{match['path']}"
    return f"[{match['repository']}@{match['commit'][:7]}]({url}), {match['path']}"


def _comparison(agreement: Agreement) -> str:
    """Return a comparison with its tolerance and its test."""
    within = f"within {number(agreement.within)}" if agreement.within else "exactly"
    return f"{agreement.compared}, {within} (`{agreement.file.rpartition('/')[2]}::{agreement.test}`)"


def number(value: float) -> str:
    """Return a tolerance as a power of ten with superscripts, such as 2 · 10⁻⁵."""
    factor, exponent = f"{value:e}".split("e")
    factor = f"{float(factor):g}"
    power = "10" + str(int(exponent)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return power if factor == "1" else f"{factor} · {power}"
