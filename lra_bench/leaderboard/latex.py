"""Tables for a paper: booktabs, the best of each ranking and what ties with it in bold."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from .cells import TEXT_COLUMNS, Section

LONG_TABLE = 40
HEAD = "% Needs \\usepackage{booktabs,longtable}."
SIGNS = {
    "\\": "\\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    '"': "''",
    "·": "$\\cdot$",
    "±": "$\\pm$",
    "×": "$\\times$",
    "−": "$-$",
    "–": "--",
    "—": "---",
    "…": "\\dots{}",
    "\n": " ",
    "\t": " ",
}


def latex(sections: Iterable[Section], note: str) -> str:
    """The sections as ``table`` environments, or ``longtable`` where one page does not hold them.

    Any text is escaped; a character that pdflatex's plain fonts lack is written as its code point.
    """
    return "\n\n".join([HEAD, *(_table(section) for section in sections), f"% {note}"]) + "\n"


def escape(text: str) -> str:
    """``text`` as pdflatex prints it."""
    return "".join(_sign(sign) for sign in text)


def _sign(sign: str) -> str:
    if sign in SIGNS:
        return SIGNS[sign]
    if " " <= sign <= "~":
        return sign
    parts = unicodedata.normalize("NFKD", sign)
    accents = {"\u0301": "'", "\u0300": "`", "\u0308": '"', "\u0302": "^", "\u0303": "~", "\u0327": "c"}
    if len(parts) == 2 and parts[0].isascii() and parts[1] in accents:
        return f"{{\\{accents[parts[1]]}{{{parts[0]}}}}}"
    return f"\\texttt{{U+{ord(sign):04X}}}"


def _table(section: Section) -> str:
    names = [str(name) for name in section.table.columns]
    columns = "".join("l" if name in TEXT_COLUMNS else "r" for name in names)
    heading = " & ".join(escape(name) for name in names) + r" \\"
    rows = [
        " & ".join(_cell(cell, (place, name) in section.best) for name, cell in row.items()) + r" \\"
        for place, row in enumerate(section.table.to_dict("records"))
    ]
    caption = escape(" ".join(filter(None, (f"{section.title}.", section.remark))))
    if len(rows) > LONG_TABLE:
        head = [f"\\begin{{longtable}}{{{columns}}}", f"\\caption{{{caption}}} \\\\", r"\toprule", heading]
        return "\n".join([*head, r"\midrule", r"\endhead", r"\bottomrule", r"\endfoot", *rows, r"\end{longtable}"])
    body = [f"\\begin{{tabular}}{{{columns}}}", r"\toprule", heading, r"\midrule", *rows, r"\bottomrule"]
    return "\n".join(
        [r"\begin{table}", r"\centering", f"\\caption{{{caption}}}", *body, r"\end{tabular}", r"\end{table}"]
    )


def _cell(text: str, bold: bool) -> str:
    return f"\\textbf{{{escape(text)}}}" if bold and text else escape(text)
