"""Pretrained systems: rankings of their own, and their gain over the same systems without pretraining."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import pytest

from lra_bench.page.page import page
from lra_bench.records.schema import Record, variant_name
from lra_bench.tables.claims import rankings
from lra_bench.tables.comparison import compare
from lra_bench.tables.layouts import LAYOUTS
from lra_bench.tables.naming import current
from lra_bench.tables.overview import overview
from lra_bench.tables.summary import summary
from lra_bench.tables.table import leaderboard
from tests.figures.test_figures import sheets
from tests.support.page_records import data_of
from tests.support.record_factory import make_pretraining, make_record

SEEDS = range(5)
SCORES = {"transformer": 0.6, "s4": 0.4}


def pretrained(model: str, seed: int, accuracy: float, objective: str = "masked", **changes: Any) -> Record:
    own = {"hash": "3a5ced00", "differences": {"pretrain": objective}, **changes}
    record = make_record(model, seed=seed, accuracy=accuracy, **own)
    record.config["pretrain"] = {"name": objective}
    record.add_section("pretraining", make_pretraining(objective))
    return record


def board() -> list[Record]:
    return [
        *(
            make_record(model, seed=seed, accuracy=0.5 + seed / 100)
            for model in ("transformer", "s4")
            for seed in SEEDS
        ),
        *(pretrained("transformer", seed, 0.8 + seed / 90) for seed in SEEDS),
        *(pretrained("s4", seed, 0.55 + seed / 80) for seed in SEEDS),
        *(pretrained("lstm", seed, 0.9) for seed in SEEDS),
        *(pretrained("transformer", seed, 0.7, "causal", hash="ca05a100") for seed in SEEDS),
    ]


def test_names_end_in_the_objective() -> None:
    assert variant_name("s4", {"pretrain": "masked", "model.mixer.state": 8}, "rope") == "s4 · state=8 · rope · masked"
    assert board()[10].variant_name == "transformer · masked"


def test_rows_with_and_without_pretraining_are_not_ranked_together() -> None:
    rows = leaderboard(board())
    found = {section: sorted(group["rank"]) for section, group in rows.groupby("section")}
    assert found == {"ranked": [1, 1], "masked": [1, 2, 3], "causal": [1]}
    assert list(dict.fromkeys(rows["section"])) == ["ranked", "masked", "causal"]
    assert sorted(place[4] for place in rankings(board())) == ["", "causal", "masked"]
    assert {record.key.hash for record in current(board())[0]} == {"0a1b2c3d", "3a5ced00", "ca05a100"}
    for layout, frame in (("long", rows), ("wide", overview(board()))):
        (names,) = [
            list(section.table["variant"])
            for section in LAYOUTS[layout].sections(frame)
            if "after pretraining (masked)" in section.title
        ]
        assert sorted(names) == ["lstm · masked", "s4 · masked", "transformer · masked"]


def test_the_short_leaderboard_has_a_line_of_its_own() -> None:
    lines = summary(board(), 100).splitlines()
    starts = [line.split("  ")[0] for line in lines if line.startswith("listops")]
    assert starts == ["listops", "listops · masked", "listops · causal"]
    assert not any("masked" in line and "s4 5" in line for line in lines)


def test_the_difference_of_a_pretrained_system_is_its_gain_over_the_same_system() -> None:
    rows = leaderboard(board()).set_index("variant")
    for model in ("transformer", "s4"):
        row = rows.loc[f"{model} · masked"]
        _, _, (expected,) = compare(board(), f"{model} masked", f"#0a1b2c3d {model}")
        assert row["against"] == "no pretraining" and row["difference"] == pytest.approx(expected.difference)
        assert (row["difference_low"], row["difference_high"]) == (expected.low, expected.high)
        assert row["p_against"] >= expected.p and "pretraining of A and B differs" in expected.remarks[-1]
    assert rows.loc["transformer · masked", "difference"] == pytest.approx(0.3, abs=0.05)
    assert pd.isna(rows.loc["lstm · masked", "against"]) and rows.loc["lstm · masked", "verdict"] == ""
    assert rows.loc["s4", "against"] == "transformer"


def test_causal_pretraining_is_compared_with_the_causal_network() -> None:
    causal = {"causal": True}
    plain = [make_record("s4", seed=seed, accuracy=0.4) for seed in SEEDS]
    network = {"hash": "ca05a1ff", "differences": {"backbone.causal": True}}
    same = [make_record("s4", seed=seed, accuracy=0.5, **network) for seed in SEEDS]
    trained = [pretrained("s4", seed, 0.6, "causal") for seed in SEEDS]
    for record in (*same, *trained):
        record.config["backbone"] = causal
    assert gain([*plain, *same, *trained]) == pytest.approx(0.1)
    assert gain([*plain, *trained]) == pytest.approx(0.2)
    _, _, (found,) = compare([*same, *trained], "s4 causal", "s4 causal=true")
    assert found.difference == pytest.approx(0.1)


def gain(records: list[Record]) -> float:
    (difference,) = leaderboard(records).set_index("variant").loc[["s4 · causal"], "difference"]
    return float(difference)


def test_the_same_system_of_the_same_board_is_preferred() -> None:
    records = [record for record in board() if record.key.model == "s4"]
    other = [make_record("s4", seed=seed, accuracy=0.4, hash="00000000") for seed in SEEDS]
    for record in records:
        record.reference = "pretraining"
    for record in other:
        record.reference = "board2026"
    rows = leaderboard([*other, *records]).set_index("variant")
    assert rows.loc["s4 · masked", "difference"] == pytest.approx(0.055, abs=0.01)


def test_compare_uses_rows_of_one_board_if_several_contain_the_variant() -> None:
    records = [record for record in board() if "pretrain" not in record.config]
    others = [make_record(model, seed=seed, accuracy=score) for model, score in SCORES.items() for seed in SEEDS]
    for record in records:
        record.reference = "pretraining"
    for record in others:
        record.reference = "board2026"
    _, _, (found,) = compare([*records, *others], "s4", "transformer")
    assert found.difference == pytest.approx(-0.2, abs=0.02)
    pretrained_on_one = [pretrained("s4", seed, 0.55 + seed / 80) for seed in SEEDS]
    for record in pretrained_on_one:
        record.reference = "pretraining"
    everything = [*records, *others, *pretrained_on_one]
    _, _, (found,) = compare(everything, "s4 masked", "#0a1b2c3d s4")
    gain = leaderboard(everything).set_index("variant").loc["s4 · masked", "difference"]
    assert found.difference == gain == pytest.approx(0.055, abs=0.01)


def test_tables_show_the_gain_with_its_interval() -> None:
    rows = leaderboard(board())
    tables = {section.title: section.table for section in LAYOUTS["long"].sections(rows)}
    (shown,) = [table.set_index("variant")["gain"] for title, table in tables.items() if "(masked)" in title]
    gain = rows.set_index("variant").loc["s4 · masked"]
    ends = f"{100 * gain['difference_low']:+.1f}, {100 * gain['difference_high']:+.1f}"
    assert shown["s4 · masked"] == f"{100 * gain['difference']:+.1f} [{ends}] points" and shown["lstm · masked"] == ""
    assert all("gain" not in table for title, table in tables.items() if "after pretraining" not in title)


def test_costs_of_the_pretraining_have_columns() -> None:
    rows = leaderboard(board()).set_index("variant")
    row = rows.loc["transformer · masked"]
    assert (row["pretraining_steps"], row["pretraining_seconds"], row["pretraining_loss"]) == (70, 12.5, 1.5)
    flops = board()[10].flops
    assert flops is not None and row["pretraining_flops"] == flops["per_token_training"] * 5000
    assert rows.loc["s4", "pretraining"] == "" and rows.loc["s4"].isna()["pretraining_steps"]


def test_a_changed_option_of_pretraining_modifies_the_protocol_and_still_has_a_gain() -> None:
    records = [*board(), *(pretrained("s4", seed, 0.6, hash="5eed0000") for seed in SEEDS)]
    for record in records[-len(SEEDS) :]:
        record.protocol_modified = ["pretrain.steps"]
    (row,) = leaderboard(records).query("section == 'modified'").to_dict("records")
    assert row["against"] == "no pretraining" and row["difference"] == pytest.approx(0.08)


def test_the_page_and_figures_show_pretrained_systems_apart() -> None:
    text = page(board(), {name: each.make(board(), None) for name, each in LAYOUTS.items()}, "nothing")
    assert "After pretraining (masked): ranked separately" in json.dumps(data_of(text))
    sections = {sheet.parts[1]: set(sheet.data["model"]) for sheet in sheets("ranks", board())}
    assert sections == {"": {"transformer", "s4"}, "masked": {"transformer", "s4", "lstm"}, "causal": {"transformer"}}


def test_a_record_with_the_section_can_be_stored_and_its_types_are_checked() -> None:
    record = board()[10]
    assert Record.from_dict(record.to_dict()).section("pretraining") == record.section("pretraining")
    assert record.fault() == ""
    record.measured["pretraining"]["validation_loss"] = "low"
    assert "validation_loss" in record.fault()
