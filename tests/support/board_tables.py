"""Tables and figure of boards in README and docs/boards.md; ``python -m tests.support.board_tables`` writes them."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

from lra_bench.figures import draw
from lra_bench.records.schema import Record
from lra_bench.records.store import load_all
from lra_bench.tables import export
from lra_bench.tables.overview import overview

ROOT = Path(__file__).parents[2]
PAGE, README = ROOT / "docs" / "boards.md", ROOT / "README.md"
FIGURE = ROOT / "docs" / "figures" / "score_over_length.png"
BOARD, HEADING = ROOT / "results" / "reference" / "board2026", "\n## Version 3\n"
"""The board whose tables the page contains, and the heading of their section."""


def markdown() -> list[list[str]]:
    """Return the Markdown tables of the page as lists of lines: columns that the README lacks, minimal pairs."""
    heading, line, *rows = wide()
    shown = [0, *(number for number, name in enumerate(heading) if re.match("skill kept|time|parameters", name))]
    systems = [row for row in rows if not row[0].endswith("(floor)")]
    pairs = minimal_pairs(load_all(BOARD))
    return [
        [f"| {' | '.join(row[number] for number in shown)} |" for row in (heading, line, *systems)],
        ["| system | level 1 | 2 | 3 | 4 | 5 |", "| --- | --- | --- | --- | --- | --- |", *pairs],
    ]


def wide() -> list[list[str]]:
    """Return the cells of the first table of the layout ``wide``, with its heading and the line below it."""
    text = export.render(overview(load_all(BOARD)), "markdown", layout="wide")
    [table] = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    return [
        [re.sub("^:?-+:?$", "---", cell.strip()) for cell in row.strip("|").split("|")] for row in table.splitlines()
    ]


def readme() -> list[str]:
    """Return the lines of the table of the README: scores and relative costs of version 3, and the strongest floors."""
    heading, line, *rows = wide()
    hidden = re.compile("mean skill|comparable|time|skill|hardware|status|parameters")
    shown = [number for number, name in enumerate(heading) if not hidden.match(name)]
    floors = [row for row in rows if row[0].endswith("(floor)")]
    strongest = ["strongest floor"]
    for number in shown[1:]:
        scores = sorted((row[number] for row in floors if row[number]), key=float)
        strongest.append((scores[0] if heading[number].startswith("enwik8") else scores[-1]) if scores else "")
    heading = [re.sub(r" \(the first.*\)|: not learned.*", "", name) for name in heading]
    lines = [[row[number] for number in shown] for row in (heading, line, *rows) if row not in floors]
    return [f"| {' | '.join(line)} |" for line in (*lines, strongest)]


def minimal_pairs(records: Sequence[Record]) -> Iterator[str]:
    """Yield a row of each system: the percentage of pairs of which both are right, mean over seeds, by level."""
    found: dict[str, list[list[float]]] = defaultdict(list)
    for record in records:
        if record.minimal_pairs is not None and record.key.task == "listops":
            found[record.variant_name].append([point["score"] for point in record.minimal_pairs["points"]])
    means = {name: [mean(scores) for scores in zip(*seeds, strict=True)] for name, seeds in found.items()}
    for name, scores in sorted(means.items(), key=lambda item: -sum(item[1])):
        yield f"| {name} | {' | '.join(f'{100 * score:.0f}' for score in scores)} |"


def replaced(section: str, tables: Sequence[Sequence[str]]) -> str:
    """Return the text of a section with other tables. Raises ``StopIteration`` if it has more tables than given."""
    left = iter(tables)
    return re.sub(r"(?:^\|.*\n)+", lambda _: "".join(f"{line}\n" for line in next(left)), section, flags=re.MULTILINE)


def main() -> None:
    """Replace the tables of the page and of the README, and the figure of the README."""
    before, heading, rest = PAGE.read_text(encoding="utf-8").partition(HEADING)
    section, next_heading, after = rest.partition("\n## ")
    PAGE.write_text(f"{before}{heading}{replaced(section, markdown())}{next_heading}{after}", encoding="utf-8")
    first, heading, rest = README.read_text(encoding="utf-8").partition("\n## ")
    README.write_text(replaced(first, [readme()]) + heading + rest, encoding="utf-8")
    records = load_all(BOARD)
    with TemporaryDirectory() as folder:
        drawn = draw("extrapolation", [each for each in records if each.key.task != "enwik8"], Path(folder), pdf=False)
        shutil.copy(next(path for path in drawn if path.suffix == ".png"), FIGURE)


if __name__ == "__main__":
    main()
