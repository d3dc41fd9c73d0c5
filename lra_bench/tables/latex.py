"""LaTeX tables with booktabs; the best rows are bold, scores at or below the floor grey."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .formatting import Section, parts
from .latex_signs import escape

if TYPE_CHECKING:
    import pandas as pd

HEAD = "% Needs \\usepackage{booktabs} and \\usepackage{xcolor}."
PAGE, COLUMN = 345, 219
"""Available widths in points: the text width of ``article``, and a column of the usual two-column classes."""
WIDEST = 110
"""Maximum width of a column in points; the text of a wider column is wrapped."""
GAP = 3
"""Space on either side of a column, in points."""
LINES = 42
"""Maximum number of lines of a table; a longer table is continued in another float."""
MOST_PENDING_FLOATS = 18
"""Number of tables between ``\\clearpage`` commands; LaTeX fails if too many floats are pending."""
EM = 8.5  # points, of \footnotesize
WIDTHS = {
    **dict.fromkeys("ijlI.,:;'|![] ", 0.33),
    **dict.fromkeys("ft()-rsce_", 0.45),
    **dict.fromkeys("0123456789aogz–", 0.51),
    **dict.fromkeys("mwMW%@±×−+=<>~…→", 0.86),
    **dict.fromkeys("ABCDEFGHJKLNOPQRSTUVXYZ", 0.76),
}
BREAK, END = r" \\ ", r" \tabularnewline"
BREAKABLE = re.compile(r"(?<=[=/:;@)_])(?=\S)|(?<=[.,])(?=[^\s\d])")


def latex(sections: Iterable[Section], note: str) -> str:
    """Return the sections as floats that fit a page: ``table``, or ``table*`` if wider than a column of two.

    A table that is too wide is split into groups of columns, and one that is too long into groups of rows. All text is
    escaped. ``note`` is appended as a comment.
    """
    tables = [table for section in sections for table in _tables(section)]
    for place in range(MOST_PENDING_FLOATS - 1, len(tables) - 1, MOST_PENDING_FLOATS):
        tables[place] += "\n\\clearpage"
    return "\n\n".join([HEAD, *tables, f"% {note}"]) + "\n"


def _tables(section: Section) -> Iterator[str]:
    names = [str(name) for name in section.table.columns]
    widths = {name: _column_width(section, name) + 2 * GAP for name in names}
    caption = " ".join(filter(None, (f"{section.title}.", section.remark)))
    for columns in parts(section, widths, PAGE):
        for rows in _pages(columns):
            yield _table(section, rows, caption, sum(widths[str(name)] for name in rows.columns))
            caption = f"{section.title}, continued."


def _pages(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    """Yield groups of rows that fit on a page."""
    lines, start = 0, 0
    for place, row in enumerate(table.to_dict("records")):
        needed = max(math.ceil(1.2 * _width(text) / WIDEST) for text in row.values())
        if lines and lines + needed > LINES:
            yield table.iloc[start:place]
            lines, start = 0, place
        lines += needed
    yield table.iloc[start:]


def _table(section: Section, table: pd.DataFrame, caption: str, width: float) -> str:
    names = [str(name) for name in table.columns]
    cell_widths = {name: _cell_width(section, name) for name in names}
    columns = "".join(_alignment(name in section.left, cell_widths[name]) for name in names)
    rows = [
        " & ".join(
            _cell(text, section, (place, str(name)), cell_widths[str(name)] > WIDEST) for name, text in row.items()
        )
        + END
        for place, row in table.to_dict("index").items()
    ]
    float_name = "table" if width <= COLUMN else "table*"
    return "\n".join(
        [
            f"\\begin{{{float_name}}}",
            r"\centering",
            f"\\caption{{{escape(caption)}}}",
            f"\\footnotesize\\setlength{{\\tabcolsep}}{{{GAP}pt}}",
            f"\\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(_heading(name, name in section.left, cell_widths[name]) for name in names) + END,
            r"\midrule",
            *rows,
            r"\bottomrule",
            r"\end{tabular}",
            f"\\end{{{float_name}}}",
        ]
    )


def _alignment(left: bool, cell_width: float) -> str:
    if cell_width > WIDEST:
        return f"p{{{WIDEST}pt}}"
    return "l" if left else "r"


def _heading(name: str, left: bool, cell_width: float) -> str:
    lines = _heading_lines(name, cell_width)
    if len(lines) == 1:
        return escape(name)
    side = "l" if left or cell_width > WIDEST else "r"
    return f"\\begin{{tabular}}[b]{{@{{}}{side}@{{}}}}{BREAK.join(map(escape, lines))}\\end{{tabular}}"


def _heading_lines(name: str, cell_width: float) -> list[str]:
    """Return a heading wrapped at spaces to about the width of its cells."""
    lines: list[str] = []
    for word in name.split(" "):
        if lines and _width(f"{lines[-1]} {word}") <= cell_width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _column_width(section: Section, name: str) -> float:
    """Return the width of a column in points, without the space on either side."""
    cells = _cell_width(section, name)
    return max(min(WIDEST, cells), *map(_width, _heading_lines(name, cells)))


def _cell_width(section: Section, name: str) -> float:
    cells = section.table[name].items()
    return max((_width(text) * (1.15 if (place, name) in section.best else 1) for place, text in cells), default=0)


def _width(text: str) -> float:
    """Estimate the width of a text in points in the default font, rather too large than too small."""
    return EM * sum(WIDTHS.get(sign, 0.57) for sign in text)


def _cell(text: str, section: Section, place: tuple[Any, str], broken: bool) -> str:
    shown = escape(text)
    if broken and text:
        shown = r"\allowbreak{}".join(escape(part) for part in BREAKABLE.split(text))
    if place in section.best and text:
        shown = f"\\textbf{{{shown}}}"
    elif place in section.at_floor and text:
        shown = f"\\textcolor{{gray}}{{{shown}}}"
    elif shown.startswith(("[", "*")):
        shown = f"{{}}{shown}"  # otherwise LaTeX parses it as an argument of the preceding \tabularnewline
    return f"\\raggedright {shown}" if broken and text else shown
