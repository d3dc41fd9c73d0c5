"""BibTeX entries of the papers that systems are from, with what the model files state about them."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from lra_bench.build import suggest
from lra_bench.config.groups import option_files
from lra_bench.config.listing import capabilities, describe
from lra_bench.contracts import UserError

from .latex import escape

FILE = "systems.bib"
ON_ARXIV = re.compile(r"[(;] ?(?:after )?(?P<authors>[^();]+?) \d{4}, arXiv (?P<arxiv>\d{4}\.\d{4,5})")
ELSEWHERE = re.compile(r"\((?P<authors>[^();]+?) (?P<year>\d{4})(?:, (?P<place>[^();]+))?\)")
"""Authors, year and place of a paper in the description of a model."""
FILLERS = ("a", "an", "on", "the")
"""First words of titles that are not part of a key."""


@dataclass(frozen=True)
class Paper:
    """A paper as cited.

    Attributes:
        title: Title of the paper.
        arxiv: arXiv id; empty if the model file names none.
        authors: Surnames as in the model file, such as ``Gu and Dao`` or ``Qin et al.``; empty if unknown.
        year: Year of the first version on arXiv, otherwise the year in the model file.
        place: Where it was published, if it is not on arXiv.
    """

    title: str
    arxiv: str
    authors: str
    year: str
    place: str

    @property
    def key(self) -> str:
        r"""The key for ``\cite``: first surname, year and first word of the title."""
        surname = re.split(r" et al\.| and |,", self.authors)[0]
        word = next((word for word in re.findall(r"\w+", self.title) if word.lower() not in FILLERS), "untitled")
        ascii = unicodedata.normalize("NFKD", surname + self.year + word if surname else word + self.year)
        return re.sub(r"\W", "", ascii.encode("ascii", "ignore").decode()).lower()

    def bibtex(self) -> str:
        """Return the entry."""
        names = re.split(r", | and ", self.authors.removesuffix(" et al."))
        authors = " and ".join(f"{{{escape(name)}}}" if " " in name else escape(name) for name in names)
        fields = {
            "author": authors + (" and others" if self.authors.endswith(" et al.") else ""),
            "title": f"{{{escape(self.title)}}}",
            "year": self.year,
            "howpublished": f"arXiv:{self.arxiv}" if self.arxiv else escape(self.place),
            "eprint": self.arxiv,
            "archivePrefix": "arXiv" if self.arxiv else "",
            "url": f"https://arxiv.org/abs/{self.arxiv}" if self.arxiv else "",
        }
        lines = (f"  {name} = {{{value}}},\n" for name, value in fields.items() if value)
        return f"@misc{{{self.key},\n{''.join(lines)}}}\n"


def papers(models: Iterable[str] = (), config_dir: Path | None = None) -> dict[str, Paper]:
    """Return the paper of each model whose file names one; ``models`` are by default all.

    Authors and year are those in the description of a model file that names the paper: ``(Qin et al. 2022, arXiv …)``.
    ``config_dir`` is a folder of additional models. Raises ``UserError`` if there is no such model.
    """
    files, wanted = option_files("model", config_dir), list(models)
    if unknown := next((model for model in wanted if model not in files), None):
        raise UserError(f"model={unknown}: there is no such model{suggest(unknown, set(files))}")
    about = {model: describe(file) for model, file in files.items()}
    named = {match["arxiv"]: match["authors"] for text in about.values() for match in ON_ARXIV.finditer(text)}
    found = {}
    for model in wanted or files:
        with nullcontext() if wanted else suppress(UserError):  # a file of the user's that names no class
            declared, printed = capabilities(files[model]), ELSEWHERE.search(about[model])
            title, arxiv = declared.get("paper") or "", declared.get("arxiv") or ""
            if arxiv:
                found[model] = Paper(title, arxiv, named.get(arxiv, ""), f"20{arxiv[:2]}", "")
            elif title and printed:
                found[model] = Paper(title, "", printed["authors"], printed["year"], printed["place"] or "")
    return found


def bibliography(found: Iterable[Paper]) -> str:
    """Return the entries of papers, each once, sorted by their keys."""
    return "\n".join(paper.bibtex() for paper in sorted(set(found), key=lambda paper: paper.key))
