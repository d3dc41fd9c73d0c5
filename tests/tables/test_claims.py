"""Tables, figures and ``compare`` make the same claims, on simulated boards."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.claims import REFERENCE, key_of, rankings, tie_letters
from lra_bench.tables.comparison import compare
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.overview import overview
from lra_bench.tables.table import leaderboard
from tests.support.record_factory import make_record
from tests.tables.test_comparison import run_of

ROWS = 300
MODELS = ("transformer", "local", "performer", "linear", "bigbird")
BETTER, WORSE, NONE = "better", "worse", ""


def simulated(root: Path, draw: int) -> list[Record]:
    """Return the records of a board: models of random quality with one to six seeds, some of which do not learn."""
    generator = np.random.default_rng(draw)
    difficulty = generator.uniform(size=ROWS)
    floor = float(generator.choice([0.2, 0.4, 0.6]))
    records = []
    for model in MODELS:
        level, scatter = generator.uniform(0.3, 0.8), generator.choice([0.0, 0.01, 0.1])
        fails = generator.random() < 0.3
        for seed in range(int(generator.integers(1, 7))):
            own = 0.1 if fails and generator.random() < 0.5 else level + generator.normal(0, scatter)
            right = difficulty + generator.normal(0, 0.05, ROWS) < own
            records.append(run_of(root, model, seed, right, floors={"majority": 0.1, "rule": floor}))
    return records


@pytest.fixture(params=range(8))
def board(request: pytest.FixtureRequest, tmp_path: Path) -> list[Record]:
    return simulated(tmp_path, request.param)


def claim(verdict: str) -> str:
    """Return the direction of a verdict, without its scope."""
    return next((side for side in (BETTER, WORSE) if verdict.startswith(side)), NONE)


def verdict(records: list[Record], a: str, b: str) -> str:
    return compare(records, a, b)[2][0].verdict_of_a


def opposite(verdict: str) -> str:
    return verdict.replace(BETTER, "?").replace(WORSE, BETTER).replace("?", WORSE)


@pytest.mark.one_in(4)
def test_compare_does_not_depend_on_the_order(board: list[Record]) -> None:
    for a, b in itertools.combinations(MODELS, 2):
        assert verdict(board, a, b) == opposite(verdict(board, b, a)), (a, b)


@pytest.mark.one_in(4)
def test_the_table_agrees_with_compare(board: list[Record]) -> None:
    for reference in MODELS:
        table = leaderboard(board, against=None if reference == REFERENCE else reference).set_index("variant")
        assert table.at[reference, "verdict"] == "reference"
        for other in set(MODELS) - {reference}:
            of_table, of_compare = table.at[other, "verdict"], verdict(board, other, reference)
            # Without the default reference, the better row is the reference of compare.
            if reference == REFERENCE or (other != REFERENCE and table.at[other, "difference"] <= 0):
                assert of_table == of_compare, (reference, other)
            assert {claim(of_table), claim(of_compare)} != {BETTER, WORSE}, (reference, other)


@pytest.mark.one_in(4)
def test_nothing_is_claimed_below_the_floor(board: list[Record]) -> None:
    table = leaderboard(board).set_index("variant")
    for name, row in table.iterrows():
        if not row["clears_floor"]:
            assert not row["best"] and claim(row["verdict"]) != BETTER, name
    for a, b in itertools.permutations(MODELS, 2):
        if not table.at[a, "clears_floor"]:
            assert claim(verdict(board, a, b)) != BETTER, (a, b)


@pytest.mark.one_in(4)
def test_rows_are_bold_unless_compare_shows_that_the_best_is_better(board: list[Record]) -> None:
    table = leaderboard(board).set_index("variant")
    able = table[(table["clears_floor"] == True) & (table["seeds"] >= 3)]  # noqa: E712
    bold = set(table.index[table["best"]])
    if not len(able):
        assert not bold
        return
    best = able["score"].idxmax()
    compared = {name: compare(board, name, best)[2][0] for name in set(able.index) - {best}}
    tied = {name for name, found in compared.items() if found.p is not None and claim(found.verdict_of_a) != WORSE}
    assert bold == {best, *tied}


def test_a_row_that_was_not_tested_is_not_bold(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    records = [
        run_of(tmp_path, model, seed, generator.uniform(size=ROWS) < level, floors={"majority": 0.1})
        for model, level in (("transformer", 0.9), ("local", 0.9), ("performer", 0.5))
        for seed in range(3)
    ]
    # The predictions of the last model were not saved.
    records[-3:] = [make_record("performer", seed=seed, accuracy=0.5, floors={"majority": 0.1}) for seed in range(3)]
    table = leaderboard(records).set_index("variant")
    assert table["clears_floor"].all() and table.at["performer", "rank"] == 3
    assert table["best"].to_dict() == {"transformer": True, "local": True, "performer": False}
    assert export.render(table.reset_index(), "markdown").count("**") == 4


@pytest.mark.one_in(4)
def test_every_format_and_layout_has_the_same_bold_rows(board: list[Record]) -> None:
    table = leaderboard(board).set_index("variant")
    bold = {str(name) for name in table.index[table["best"]]}
    wide = overview(board)
    assert set(wide.loc[wide["best_listops"] == True, "variant"]) == bold  # noqa: E712
    for layout, frame in (("long", leaderboard(board)), ("wide", wide)):
        for section in LAYOUTS[layout].sections(frame):
            assert {section.table["variant"].iloc[place] for place, _ in section.best} == bold
        text = export.render(frame, "markdown", layout=layout)
        assert sum("**" in line for line in text.splitlines() if line.startswith("|")) == len(bold)


@pytest.mark.one_in(4)
def test_letters_separate_only_what_compare_separates(board: list[Record]) -> None:
    [ranking] = rankings(board).values()
    keys = {record.key.model: key_of(record) for record in board}
    letters = tie_letters(ranking)
    for a, b in itertools.combinations(MODELS, 2):
        own, other = letters.get(keys[a]), letters.get(keys[b])
        if own and other and not set(own) & set(other):
            assert claim(verdict(board, a, b)), (a, b)


@pytest.mark.slow
def test_simulated_boards_contain_every_kind_of_verdict(tmp_path: Path) -> None:
    found = set()
    for draw in range(16):
        found |= set(leaderboard(simulated(tmp_path / str(draw), draw))["verdict"])
    assert {"reference", "no difference shown", "floor not cleared", "too few seeds"} < found
    assert {"worse", "worse in every seed"} & found and {"better", "better in every seed"} & found


@pytest.mark.slow
def test_equal_models_are_separated_in_at_most_5_percent_of_boards(tmp_path: Path) -> None:
    wrong = 0
    for draw in range(40):
        generator = np.random.default_rng(draw)
        difficulty = generator.uniform(size=ROWS)
        records = [
            run_of(tmp_path / str(draw), model, seed, difficulty + generator.normal(0, 0.2, ROWS) < 0.6)
            for model in MODELS[:3]
            for seed in range(5)
        ]
        wrong += any(claim(each) for each in leaderboard(records)["verdict"])
    assert wrong <= 5  # the 98 % quantile of a binomial distribution with 40 draws and 5 %
