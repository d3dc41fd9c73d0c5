"""Tables of the documentation contain the numbers of committed records, and the claims that follow from them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lra_bench.leaderboard import export
from lra_bench.leaderboard.overview import overview
from lra_bench.leaderboard.table import leaderboard
from lra_bench.records.reference import load_reference
from lra_bench.records.schema import Record

ROOT = Path(__file__).parents[2]
SEEDS = r"\d+\.\d+ \(\d+\.\d+, \d+\.\d+, \d+\.\d+\)"


def records_of(*boards: str) -> list[Record]:
    records = load_reference(ROOT / "results" / "reference")
    found = [record for record in records if record.reference in boards]
    for record in found:
        record.reference = ""  # as with --results
    return found


def table_rows(text: str) -> list[list[str]]:
    """Return the cells of the rows of Markdown tables, without the lines below headings."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if not re.fullmatch("[-:]+", row[0])]


@pytest.mark.slow
@pytest.mark.parametrize(("version", "board"), [("2", "quick"), ("1", "board")])
def test_tables_of_the_boards_are_those_of_the_command(version: str, board: str) -> None:
    [section] = re.findall(rf"^## Version {version}\n(.*?)(?=^## |\Z)", page("boards"), re.MULTILINE | re.DOTALL)
    assert table_rows(section) == table_rows(export.render(overview(records_of(board)), "markdown", layout="wide"))


@pytest.mark.slow
def test_sample_rows_of_listops_are_those_of_the_boards() -> None:
    records = [record for record in load_reference(ROOT / "results" / "reference") if record.key.task == "listops"]
    frame = leaderboard(records, protocol="quick-v2")
    ranked = frame[frame["section"] == "ranked"].set_index("variant")
    texts = ((ROOT / "README.md").read_text(), page("leaderboard"))
    rows = [match for text in texts for match in re.findall(rf"^ +(\d+)  (\w+) +({SEEDS})  (.+)$", text, re.MULTILINE)]
    assert len(rows) >= 5
    for rank, variant, scores, verdict in rows:
        row = ranked.loc[variant]
        own = [f"{100 * float(score):.1f}" for score in row["seed_scores"].split()]
        assert (int(rank), scores) == (row["rank"], f"{100 * row['score']:.1f} ({', '.join(own)})")
        assert verdict.split(", ")[-1] == row["verdict"]
        if ", " in verdict:
            assert verdict.split(", ")[0] == f"{100 * row['difference']:+.1f}"


@pytest.mark.slow
def test_bits_of_systems_with_memory_are_those_of_the_records() -> None:
    rows = {re.sub(r"`| \(board.*", "", row[0]): row for row in table_rows(page("memory")) if len(row) == 10}
    found = 0
    for record in records_of("memory", "quick"):
        row = rows.get(record.variant_name)
        if record.key.task != "enwik8" or row is None:
            continue
        assert f"{record.score():.3f}" == row[2].split(", ")[record.key.seed], record.key
        assert f"{record.parameters['body']:,}" == row[1]
        found += 1
    assert found == 3 * (len(rows) - 1)  # without the heading


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()
