"""One LaTeX table of systems and tasks per protocol, for a paper: booktabs, siunitx and citations."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import pandas as pd

from lra_bench.statistics.paired import MIN_SEEDS

from .cell import SHORT
from .column import Row
from .formatting import BITS, first_known, fitting, number, readable, rows_of, score, short_labels
from .overview import task_columns
from .seeds import combine

HEAD = r"""% Preamble: \usepackage{booktabs,siunitx}
% Bibliography: \bibliography{systems}, from lra-bench cite"""
COLUMN, PAGE = 200.0, 345.0
"""Widths in points of a column and of the text of the class ``article``."""
POINTS, GAP = 4.1, 6.0
"""Width of a character, and of the space between columns, in points."""
LINES, HEADING = 46, 5
"""Number of lines of a page, and of those around the systems of a tabular; longer tables are continued."""
SIGNS = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "–": "--",
    "…": r"\dots{}",
    "→": r"$\to$",
    "↓": r"$\downarrow$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "−": "$-$",
}
"""Signs that pdflatex does not print as they are."""
ACCEPTED = re.compile(r"[ -~\u00a1-\u00ff]")
"""Characters that pdflatex prints with its default fonts; the signs among them are escaped."""
OTHER_FONT = "«»ÐÞðþ"
FLOOR = "Strongest floor"
CITED = 5
"""Characters of a citation such as ``[12]``, with the space in front of it."""


def escape(text: str) -> str:
    """Return ``text`` escaped for pdflatex; characters outside of Latin-1 lose accents or become their code point."""
    return "".join(SIGNS.get(sign) or _plain(sign) for sign in unicodedata.normalize("NFC", text))


def _plain(sign: str) -> str:
    if ACCEPTED.fullmatch(sign) and sign not in OTHER_FONT:
        return sign
    base = unicodedata.normalize("NFKD", sign).encode("ascii", "ignore").decode()
    if base or unicodedata.category(sign)[0] in "CZM":
        return "".join(SIGNS.get(each, each) for each in base) or " " * sign.isspace()
    return f"\\texttt{{U+{ord(sign):04X}}}"


def latex(frame: pd.DataFrame, keys: Mapping[str, str]) -> str:
    r"""Return one ``table`` for each protocol with ranked rows, from the data of the layout ``wide``.

    It is continued in further ones if it is longer than a page.

    Args:
        frame: The rows and task columns, in the order of the table.
        keys: Keys for ``\cite`` by name of the model.
    """
    return "\n\n".join([HEAD, *(_table(rows, protocol, keys) for protocol, rows in ranked(frame))]) + "\n"


def ranked(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the name and the measured rows of each protocol, without those of modified protocols."""
    own = frame[(frame["section"] == "ranked") & (frame["kind"] == "measured")]
    for protocol, rows in own.groupby("protocol", sort=False):
        yield str(protocol), rows


def _table(frame: pd.DataFrame, protocol: str, keys: Mapping[str, str]) -> str:
    """Return the table of one protocol: one tabular per group of tasks that fits the width, in one or more floats."""
    rows = rows_of(frame)
    cells = pd.DataFrame({task: [_cell(row, task) for row in rows] for task in task_columns(frame)})
    cells = cells.loc[:, (cells != "").any()]
    tasks = [str(task) for task in cells]
    floors = [combine("mean", [row[f"floor_{task}"] for row in rows]) for task in tasks]
    metrics = [first_known(rows, f"metric_{task}") for task in tasks]
    cells.loc[len(rows)] = [score(*each).removesuffix(" %") for each in zip(floors, metrics, strict=True)]
    bold = pd.DataFrame({task: [*(bool(row[f"best_{task}"]) for row in rows), False] for task in tasks})
    counts = Counter(row["label"] for row in rows)
    names = [row["label"] + (" (reference)" if counts[row["label"]] > 1 and row["reference"] else "") for row in rows]
    cited = [rf"~\cite{{{keys[row['model']]}}}" if row["model"] in keys else "" for row in rows]
    cells.insert(0, "", [*(escape(name) + key for name, key in zip(names, cited, strict=True)), FLOOR])
    room = POINTS * (max(map(len, (*names, FLOOR))) + (CITED if keys else 0)) + GAP
    widths = {task: GAP + POINTS * max(6, *map(len, name.split(" "))) for task, name in short_labels(tasks).items()}
    one_column = room + sum(widths.values()) <= COLUMN
    floats: list[list[str]] = []
    lines = LINES
    for block in fitting(widths, (COLUMN if one_column else PAGE) - room):
        own = [at for at in range(len(rows)) if (cells.loc[at, block] != "").any()]
        for start in range(0, len(own), LINES):
            shown = own[start : start + LINES]
            if lines + len(shown) + HEADING > LINES:
                floats.append([])
                lines = 0
            shown.append(len(rows))
            floats[-1].append(_tabular(cells.loc[shown, ["", *block]], bold.loc[shown, block], short_labels(tasks)))
            lines += len(shown) - 1 + HEADING
    label = rf"\label{{tab:lra-bench-{re.sub(r'[^a-z0-9]+', '-', protocol.lower())}}}"
    captions = [escape(_caption(rows, tasks, protocol)) + f"}}\n{label[:-1]}"]
    captions += [f"Protocol {escape(protocol)} of lra-bench, continued."] * (len(floats) - 1)
    environment = "table" if one_column else "table*"
    ends = rf"\begin{{{environment}}}", rf"\end{{{environment}}}"
    style = rf"\smallskip\footnotesize\setlength{{\tabcolsep}}{{{GAP / 2:g}pt}}\sisetup{{detect-weight=true}}"
    return "\n\n".join(
        "\n".join(
            [ends[0], r"\centering", rf"\caption{{{caption}}}", style, "\n\\par\\medskip\n".join(tabulars), ends[1]]
        )
        for caption, tabulars in zip(captions, floats, strict=True)
    )


def _tabular(cells: pd.DataFrame, bold: pd.DataFrame, labels: Mapping[str, str]) -> str:
    """Return one row per system and one for the floor, whose cells are numbers for siunitx or words in braces."""
    headings = {}
    for task in bold:  # the last word is on a line of its own
        *words, last = [escape(word) for word in labels[str(task)].split(" ")]
        headings[task] = rf"\shortstack{{{' '.join(words)}\\{last}}}" if words else last
    formats = "l" + "".join(_format(cells[task]) for task in bold)
    styles = bold.replace({True: "bfseries:;", False: ""}).reindex(columns=cells.columns, fill_value="")
    styler = cells.rename(columns=headings).style.hide(axis="index")
    styler = styler.apply(lambda _: styles.rename(columns=headings), axis=None)
    *lines, floor, bottom, end = styler.to_latex(column_format=formats, hrules=True, siunitx=True).splitlines()
    return "\n".join([*lines, r"\midrule", floor, bottom, end])


def _format(cells: Iterable[str]) -> str:
    """Return the column of siunitx for cells, whose numbers have the same decimals."""
    numbers = [cell.split(".") for cell in cells if cell[:1].isdigit()] or [["1", "0"]]
    return f"S[table-format={max(len(whole) for whole, _ in numbers)}.{len(numbers[0][1])}]"


def _cell(row: Row, task: str) -> str:
    """Return the score as a number, a status in braces, or an empty cell if the task was not run."""
    if row[f"score_{task}"] is not None:
        return number(row[f"score_{task}"], row[f"metric_{task}"])
    status = _status(row, task)
    return f"{{{SHORT.get(status, readable(status))}}}" if status else ""


def _status(row: Row, task: str) -> str:
    """Return the most frequent status of the seeds, empty if the task was not run."""
    statuses: Mapping[str, int] = row[f"statuses_{task}"] or {}
    return max(statuses, key=lambda status: statuses[status], default="")


def _caption(rows: Sequence[Row], tasks: Sequence[str], protocol: str) -> str:
    """Return what a reader must know to read the table on its own."""
    cells = [(row, task) for row in rows for task in tasks if row[f"score_{task}"] is not None]
    metrics = {task: row[f"metric_{task}"] for row, task in cells}
    names = short_labels(tasks)
    bits = [names[task] for task, metric in metrics.items() if metric == BITS]
    parts = [f"{names[task]}: {task.partition('(')[2].removesuffix(')')}" for task in tasks if "(part)" in names[task]]
    measure = "Accuracy on the test split in %" if len(bits) < len(metrics) else "Bits per character on the test split"
    if 0 < len(bits) < len(metrics):
        measure += f" ({', '.join(bits)}: bits per character, lower is better)"
    counts = sorted({row[f"seeds_{task}"] for row, task in cells})
    seeds = " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1])))) if counts else ""
    many = f", mean over {seeds} seeds" if counts and counts[-1] > 1 else ", one seed"
    best = any(row[f"best_{task}"] for row, task in cells)
    ended = dict.fromkeys(_status(row, task) for row in rows for task in tasks if row[f"score_{task}"] is None)
    return " ".join(
        [
            f"{measure}, protocol {protocol} of lra-bench{many if counts else ''}.",
            *([f"Data of {'; '.join(parts)}."] if parts else []),
            "The floor is the strongest baseline without a model.",
            f"Bold: best, or not shown to be worse, of the systems that exceed the floor in each of {MIN_SEEDS} or "
            "more seeds (paired tests over seeds and test examples, Holm's correction)."
            if best
            else f"No system is marked as best, which needs {MIN_SEEDS} seeds that exceed the floor.",
            *(f"{SHORT[status]}: {readable(status)}." for status in ended if status in SHORT),
        ]
    )
