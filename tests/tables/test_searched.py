"""Rows whose learning rate was searched: apart from others, with the chosen rate; at an end of the grid not ranked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from lra_bench.figures import draw, tabulate
from lra_bench.figures.style import WIDTHS
from lra_bench.page import facts
from lra_bench.page.page import page
from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.claims import rankings
from lra_bench.tables.describe import describe
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.naming import select
from lra_bench.tables.overview import overview
from lra_bench.tables.query import tidy
from lra_bench.tables.table import leaderboard
from tests.figures.test_figures import check_layout, one, sheets, written
from tests.support.page_records import data_of
from tests.support.record_factory import RATES, make_record, make_search


def searched(model: str, seed: int = 0, accuracy: float = 0.6, **changes: Any) -> Record:
    found = changes.pop("search", None) or make_search()
    more = {"protocol": "quick-searched", "hash": "5ea1c4ed", "search": found, **changes}
    return make_record(model, seed=seed, accuracy=accuracy, **more)


def board() -> list[Record]:
    return [
        *(make_record(model, seed=seed, accuracy=0.5) for model in ("transformer", "local") for seed in range(3)),
        *(searched("transformer", seed) for seed in range(3)),
        *(searched("local", seed, 0.7) for seed in range(3)),
        *(searched("fnet", seed, 0.9, search=make_search(9e-2, edge=True)) for seed in range(3)),
    ]


def test_searched_rows_have_their_own_ranking() -> None:
    rows = leaderboard(board())
    ranked = rows[rows["section"] == "ranked"]
    assert {protocol: sorted(group["rank"]) for protocol, group in ranked.groupby("protocol")} == {
        "quick": [1, 1],
        "quick-searched": [1, 2],
    }
    assert {place[2] for place in rankings(board())} == {"quick", "quick-searched"}
    best = rows[rows["best"]]
    assert set(zip(best["protocol"], best["variant"], strict=True)) >= {("quick-searched", "local")}
    against = rows.set_index(["protocol", "variant"])["against"]
    assert against["quick", "local"] == against["quick-searched", "local"] == "transformer"
    assert rows.set_index(["protocol", "variant"]).at[("quick-searched", "local"), "difference"] == pytest.approx(0.1)


def test_the_protocol_option_shows_both_and_the_full_name_one_of_them() -> None:
    assert {record.key.protocol for record in select(board(), protocol="quick")} == {"quick", "quick-searched"}
    assert {record.key.protocol for record in select(board(), protocol="quick-searched")} == {"quick-searched"}
    smoke = [searched("local", protocol="smoke-searched")]
    assert select(smoke) == []  # scores of smoke have no meaning, searched or not


@pytest.mark.slow
def test_a_choice_at_an_end_of_the_grid_has_no_rank_and_no_claim_although_its_score_is_the_best() -> None:
    rows = leaderboard(board()).set_index("variant")
    row = rows.loc["fnet"]
    assert row["score"] == pytest.approx(0.9) and row["section"] == "edge"
    assert pd.isna(row["rank"]) and not row["best"] and row["verdict"] == "" and pd.isna(row["p_against"])
    assert all("fnet" not in {key[0] for key in ranking.entries} for ranking in rankings(board()).values())
    for layout, frame in (("long", leaderboard(board())), ("wide", overview(board()))):
        titles = {s.title: list(s.table["variant"]) for s in LAYOUTS[layout].sections(frame)}
        (title,) = [title for title, variants in titles.items() if "fnet" in variants]
        assert "at an end of the grid, not ranked" in title and "local" not in titles[title]
    (edge,) = [sheet for sheet in sheets("ranks", board()) if "fnet" in set(sheet.data["model"])]
    assert edge.parts[:2] == ("quick-searched", "edge")


def test_tables_show_the_chosen_rate_and_its_robustness() -> None:
    rows = leaderboard(board()).set_index(["protocol", "variant"])
    assert rows.at[("quick-searched", "local"), "searched_lr"] == 3e-3
    assert rows.at[("quick-searched", "local"), "lr_robustness"] == 1.0
    assert rows.at[("quick-searched", "local"), "search_trials"] == 10
    assert rows.at[("quick-searched", "local"), "search_seconds"] == 600.0
    assert pd.isna(rows.at[("quick", "local"), "searched_lr"]) and pd.isna(rows.at[("quick", "local"), "lr_robustness"])
    text = export.render(leaderboard(board()), "markdown")
    assert "searched rate" in text and "0.003" in text and "0.09 (edge)" in text and "rates near best" in text
    plain = export.render(leaderboard([make_record("local")]), "markdown")
    assert "searched rate" not in plain
    assert list(tidy(board(), "runs")["search_trials"].dropna().unique()) == [10, 12]


def test_tables_show_the_validation_score_of_trials_only() -> None:
    trial = {"metrics": {}, "training": {"validation_score_at_lowest_loss": 0.4321}, "protocol": "quick-v3-trial"}
    shown, hidden = (
        export.render(leaderboard([record]), "markdown", layout="long")
        for record in (make_record("performer", **trial), make_record("performer"))
    )
    assert "validation" in shown and "43.2" in shown and "validation" not in hidden


@pytest.mark.slow
def test_the_page_and_the_description_explain_the_search() -> None:
    records = board()
    text = page(records, {name: each.make(records, None) for name, each in LAYOUTS.items()}, "nothing")
    on_page = str(data_of(text)["protocols"])
    assert "Searched learning rate at an end of the grid: not ranked" in on_page and "searched rate" in on_page
    groups = dict(facts.groups([records[-1]]))
    found = dict(groups["Hyperparameter search"])
    assert "0.09, at an end of the grid" in found["searched rate"]
    assert "max_lr=0.001" in found["rates by hint"]
    assert "Hyperparameter search" not in dict(facts.groups([records[0]]))
    shown = describe(searched("local", search=make_search(diverged=3e-2)))
    assert "0.003 (protocol: 0.001; seeds 1000, 1001; the rule)" in shown
    assert "0.03: a trial diverged or failed" in shown and "10, 600 s" in shown


def test_the_figure_draws_the_mean_losses_and_marks_the_choice() -> None:
    made = [*board(), searched("performer", search=make_search(1e-3, diverged=3e-2))]
    figure, data = one("rate_search", made)
    local = data[data["label"] == "Local"]
    assert list(local["lr"]) == list(RATES)
    assert list(local["loss"]) == pytest.approx([1.05 + 10 * abs(lr - 3e-3) for lr in RATES])
    assert list(local["low"]) == pytest.approx([1 + 10 * abs(lr - 3e-3) for lr in RATES])
    assert data[data["label"] == "Performer"].set_index("lr")["loss"].isna().to_dict()[3e-2]
    (ax,) = figure.axes
    (mark,) = [line for line in ax.lines if line.get_gid() == "chosen"]
    chosen = data[data["chosen"]]
    assert sorted(zip(*mark.get_data(), strict=True)) == sorted(zip(chosen["lr"], chosen["loss"], strict=True))
    assert set(zip(chosen["label"], chosen["lr"], strict=True)) == {
        ("Local", 3e-3), ("Transformer", 3e-3), ("Fnet", 9e-2), ("Performer", 1e-3)
    }  # fmt: skip
    assert [line.get_xdata()[0] for line in ax.lines if line.get_gid() == "protocol"] == [1e-3]
    words = " ".join(written(figure))
    assert "chosen rate" in words and "a trial diverged" in words and "rate of the protocol" in words


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_the_layout_of_the_figure_is_readable(width: float) -> None:
    names = ("transformer", "local", "performer", "linear", "fnet", "s4d", "lstm", "luna", "nystrom", "bigbird")
    made = [
        searched(name, task=task, search=make_search(RATES[number % 4], edge=number % 5 == 0))
        for number, name in enumerate(names)
        for task in ("listops", "recall", "text", "retrieval_synthetic")
    ]
    check_layout("rate_search", made, width)


def test_records_without_a_search_are_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tabulate("rate_search", board())
    assert set(data["protocol"]) == {"quick-searched"}
    assert "6 without a search of the learning rate" in capsys.readouterr().err
    assert {path.suffix for path in draw("rate_search", board(), tmp_path)} == {".pdf", ".png", ".csv", ".txt", ".tex"}
