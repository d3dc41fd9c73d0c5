"""The long table: averages over seeds, rankings, comparability and output formats."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from lra_bench.contracts import UserError
from lra_bench.contracts.measurement import Limit
from lra_bench.figures.costs import score_vs_speed
from lra_bench.figures.ranks import ranks
from lra_bench.figures.speed_vs_length import speed_vs_length
from lra_bench.measurements.restriction import Restriction
from lra_bench.records.schema import Record
from lra_bench.records.sections import Machine
from lra_bench.tables import export
from lra_bench.tables.describe import describe
from lra_bench.tables.formatting import fitting
from lra_bench.tables.naming import select
from lra_bench.tables.overview import overview
from lra_bench.tables.table import leaderboard, runs
from lra_bench.training.take_off import late_progress
from tests.support.record_factory import EXAMPLES, MODELS, SLICES, make_pairs, make_record


def board() -> list[Record]:
    """Return all models with three seeds each, a variant, a modified protocol, a diverged seed and an OOM record."""
    return [
        *[make_record(model, seed=seed) for model in MODELS for seed in range(3)],
        make_record("performer", hash="ffff0000", differences={"model.mixer.features": 64}, position="rope"),
        make_record("transformer", hash="eeee0000", protocol_modified=["train.steps"], accuracy=0.9),
        make_record("local", seed=3, status="diverged"),
        make_record("reformer", status="out_of_memory", speed_failures={8192: "out_of_memory"}),
    ]


def row(frame: pd.DataFrame, variant: str, **where: object) -> pd.Series:
    for name, value in {"variant": variant, **where}.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_rows_on_partial_or_lossy_data_are_ranked_separately() -> None:
    whole = [make_record("local", seed=seed, accuracy=0.5) for seed in range(3)]
    part = [make_record("transformer", seed=seed, accuracy=0.6, hash="00000001") for seed in range(3)]
    for record in part:
        record.data |= {"partial": "4,000 of 50,000 train rows", "lossy": "JPEG"}
    frame = leaderboard([*whole, *part])
    assert list(frame["data_lacks"]) == ["", "4,000 of 50,000 train rows; JPEG"]
    assert list(frame["rank"]) == [1, 1]
    for format in ("terminal", "markdown", "csv", "json"):
        assert "4,000 of 50,000 train rows; JPEG" in export.render(frame, format, 200)


def test_examples_that_occur_in_several_splits_are_noted_and_do_not_divide_a_ranking() -> None:
    records = [make_record(model, seed=seed) for model in ("local", "transformer") for seed in range(3)]
    records[0].data["repeats"] = {"validation in train": 12, "test in train": 29}  # other records may be older
    frame = leaderboard(records)
    note = f"12 of 2,000 validation in train, 29 of {EXAMPLES:,} test in train"
    assert sorted(frame["data_repeats"]) == ["", note] and sorted(frame["rank"]) == [1, 2]
    for format in ("terminal", "markdown", "csv", "json"):
        assert note in export.render(frame, format, 200)
    assert note in describe(records[0])


def test_other_length_variants_have_separate_columns() -> None:
    record = make_record()
    points = record.extrapolation["points"]
    points.append({**points[2], "variant": "filler", "score": 0.125, "floor": 0.25})
    row = leaderboard([record]).iloc[0]
    assert (row["score_2x"], row["score_2x_filler"], row["floor_2x_filler"]) == (points[2]["score"], 0.125, 0.25)
    assert "12.5 %" not in export.render(leaderboard([record]), "markdown")


def test_runs_have_one_row_per_record() -> None:
    frame = runs(board())
    assert len(frame) == 16
    assert frame["score"].isna().sum() == 2


def test_a_floor_with_bytes_in_its_name_is_not_an_integer() -> None:
    records = [make_record("transformer", seed=seed) for seed in range(2)]
    for record, floor in zip(records, (0.61, 0.63), strict=True):
        record.floors["bag_of_bytes"] = floor
    assert leaderboard(records)["floor_bag_of_bytes"].tolist() == pytest.approx([0.62])


def test_five_seeds_are_averaged_with_students_interval() -> None:
    records = [make_record("local", seed=seed) for seed in range(5)]
    scores = [record.score() for record in records]
    local = leaderboard([*records, make_record("local", seed=5, status="diverged")]).iloc[0]
    assert local["score"] == pytest.approx(np.mean(scores))
    half = stats.t.ppf(0.975, 4) * stats.sem(scores)
    assert (local["low"], local["high"]) == pytest.approx((local["score"] - half, local["score"] + half))
    assert (local["interval"], local["seeds"], local["statuses"]) == ("5 seeds", 5, {"ok": 5, "diverged": 1})


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_fewer_seeds_are_shown_one_by_one(seeds: int) -> None:
    frame = leaderboard([make_record("local", seed=seed, accuracy=0.36 + 0.01 * seed) for seed in range(seeds)])
    local = frame.iloc[0]
    assert pd.isna(local["low"]) and pd.isna(local["high"]) and local["interval"] == f"{seeds} seeds"
    assert [*local["seed_scores"]] == [0.36 + 0.01 * seed for seed in range(seeds)]
    assert f"({', '.join(['36.0', '37.0', '38.0', '39.0'][:seeds])})" in export.render(frame, "markdown")


def test_seeds_on_two_levels_are_counted() -> None:
    scores = (0.15, 0.97, 0.16, 0.98, 0.97)
    frame = leaderboard([make_record("local", seed=seed, accuracy=score) for seed, score in enumerate(scores)])
    local = frame.iloc[0]
    assert (local["two_levels"], local["learned"], local["clears_floor"]) == (True, 3, False)
    text = export.render(frame, "markdown")
    assert "3/5 learned (15.0–98.0)" in text and "not learned at this budget in every seed" in text


def test_one_seed_has_the_interval_over_its_examples() -> None:
    record = make_record(accuracy=0.3)
    only = leaderboard([record]).iloc[0]
    assert (only["low"], only["high"]) == (record.metrics["test"]["low"], record.metrics["test"]["high"])
    assert only["interval"] == f"{EXAMPLES:,} examples"


def test_intervals_of_accuracies_are_within_0_and_1() -> None:
    scores = (0.90, 0.97, 0.98, 0.99, 0.99)
    wide = leaderboard([make_record(seed=seed, accuracy=score) for seed, score in enumerate(scores)]).iloc[0]
    assert wide["low"] < wide["score"] < wide["high"] == 1.0


def test_only_rows_with_three_seeds_that_clear_the_floor_show_a_rank() -> None:
    few = [make_record("linear", seed=seed, accuracy=0.6) for seed in range(2)]
    enough = [make_record(m, seed=s, accuracy=x) for m, x in (("local", 0.5), ("performer", 0.3)) for s in range(3)]
    frame = leaderboard([*few, *enough])
    assert list(frame["variant"]) == ["linear", "local", "performer"]
    assert [None if pd.isna(rank) else rank for rank in frame["rank"]] == [None, 1, 2]
    assert list(frame["clears_floor"]) == [True, True, False]
    lines = [line for line in export.render(frame, "markdown").splitlines() if re.match(r"\| *1? *\| [lp]", line)]
    assert [line.split("|")[1].strip() for line in lines] == ["", "1", ""]


def test_variants_of_a_model_have_separate_rows() -> None:
    names = list(leaderboard(board())["variant"])
    assert sorted(names) == sorted([*MODELS, "performer · features=64 · rope", "transformer", "reformer"])


def test_rows_with_equal_names_show_their_hash() -> None:
    frame = leaderboard([make_record(hash="aaaa0000"), make_record(hash="bbbb0000")])
    assert sorted(frame["variant"]) == ["performer #aaaa0000", "performer #bbbb0000"]


def test_a_modified_protocol_is_ranked_separately_and_not_comparable() -> None:
    single = [record for record in board() if record.key.hash in ("ffff0000", "eeee0000")]
    more = [replace(record, key=replace(record.key, seed=seed)) for record in single for seed in (1, 2)]
    frame = leaderboard([*board(), *more])
    modified = row(frame, "transformer", section="modified")
    assert (modified["rank"], modified["comparable"], modified["modified"]) == (1, False, "train.steps")
    assert modified["modified_values"] == "train.steps=500"
    ranked = frame[frame["section"] == "ranked"]
    assert list(ranked["rank"].dropna()) == [1, 2, 3, 4, 5]
    assert ranked.iloc[0]["variant"] == "transformer" and ranked.iloc[0]["score"] < modified["score"]
    assert frame.iloc[-1]["section"] == "modified"


def test_protocols_tasks_and_versions_have_separate_rankings() -> None:
    cells = (
        {"accuracy": 0.5},
        {"protocol": "small", "accuracy": 0.6},
        {"task": "text", "accuracy": 0.6},
        {"hash": "b", "accuracy": 0.7},
    )
    records = [make_record(seed=seed, **cell) for cell in cells for seed in range(3)]
    for newer in records[-3:]:
        assert newer.data is not None
        newer.data["version"] = "2"
    assert list(leaderboard(records)["rank"]) == [1, 1, 1, 1]
    assert list(leaderboard(select(records, protocol="small"))["protocol"]) == ["small"]


def test_scores_are_ranked_across_hardware() -> None:
    records = [
        make_record(model, hardware=hardware, seed=seed)
        for model in ("transformer", "local")
        for hardware in ("cpu-a-2t", "h200")
        for seed in range(3)
    ]
    frame = leaderboard(records)
    assert sorted(frame["rank"]) == [1, 1, 3, 3]
    assert not any("speed_rank" in name for name in frame)


def test_a_row_with_one_seed_and_a_task_that_is_not_learned_have_no_rank() -> None:
    levels = {"local": 0.6, "performer": 0.5}
    learned = [make_record(model, seed=seed, accuracy=levels[model]) for model in levels for seed in range(3)]
    frame = leaderboard([*learned, make_record("linear", accuracy=0.9)])
    assert pd.isna(row(frame, "linear")["rank"]) and sorted(frame["rank"].dropna()) == [1, 2]
    below = [make_record(model, seed=seed, accuracy=0.2) for model in ("local", "performer") for seed in range(3)]
    assert leaderboard(below)["rank"].isna().all()
    assert "not learned at this budget" in export.render(leaderboard(below), "markdown")
    drawn = ranks.table(below)
    assert next(ranks.draw(drawn, 7.0)).data["rank"].isna().all()
    assert sorted(next(ranks.draw(ranks.table(learned), 7.0)).data["rank"]) == [1, 2]


def test_speeds_are_shown_only_if_no_other_program_slowed_them_down() -> None:
    names = ["training_tokens_per_second", "train_tokens_per_second", "inference_tokens_per_second"]
    changes: tuple[tuple[Machine, bool], ...] = (
        ({}, True),
        ({"load_average_1_minute": 2.4}, True),  # two threads of an earlier cell
        ({"load_average_1_minute": 2.6}, False),
        ({"load_average_1_minute": None}, False),
        ({"device": "cuda", "gpu": {"other_processes": 0}}, True),
        ({"device": "cuda", "gpu": {"other_processes": 1}}, False),
        ({"device": "cuda", "gpu": None}, False),
    )
    for change, shown in changes:
        record = make_record("local")
        record.environment["hardware"] |= change
        assert leaderboard([record])[names].notna().all(axis=None) == shown, change
        assert (speed_vs_length.exclusions([record]) == [""]) == (score_vs_speed.exclusions([record]) == [""]) == shown
        assert row(leaderboard([record]), "local")["relative_speed"] > 0  # from an interleaved profile


def test_skill_is_measured_from_the_strongest_rule_that_is_not_random() -> None:
    record = make_record("local", "key_to_door", accuracy=0.5)
    record.floors = {"random": 0.2, "majority": 0.1}
    for point in record.extrapolation["points"]:
        point |= {"floors": {"random": 0.3, "majority": 0.1}, "floor": 0.3, "floor_name": "random", "score": 0.5}
    found = row(leaderboard([record]), "local")
    assert (found["floor_name"], found["floor"]) == ("random", 0.2)
    assert found["skill"] == found["skill_1x"] == found["skill_4x"] == pytest.approx(0.4 / 0.9)


def test_a_row_states_whether_the_loss_still_fell_and_the_score_at_half_of_the_steps() -> None:
    evaluations = [(25, 3.0, 0.1), (50, 2.0, 0.2), (75, 1.0, 0.4), (90, 0.8, 0.5), (100, 0.5, 0.6)]
    training = {**(make_record().training or {}), **late_progress(evaluations)}
    records = [make_record("local", training=training), make_record("performer")]
    frame = leaderboard(records).set_index("model")
    found = frame[["late_loss_change", "score_at_half"]]
    assert found.loc["local"].tolist() == [-0.5, 0.2] and found.loc["performer"].isna().all()
    assert "| -0.500" in export.render(frame.reset_index(), "markdown")
    records[0].metrics["test_targets"] = records[0].metrics["test"]  # the test score is that of generated answers
    assert leaderboard(records).set_index("model")["score_at_half"].isna().all()


def test_lower_bits_per_character_rank_first() -> None:
    def with_bits(bits: float, model: str) -> Record:
        metric = {
            "bits_per_character": bits,
            "loss": bits * math.log(2),
            "n": 100,
            "low": bits - 0.1,
            "high": bits + 0.1,
        }
        return make_record(model, metrics={"test": metric}, floors={"majority": 5.0, "bigram": 3.5}, extrapolation=None)

    frame = leaderboard([with_bits(2.0, "local"), with_bits(1.5, "performer")])
    assert list(frame["variant"]) == ["performer", "local"]
    assert frame.iloc[0]["floor_name"] == "bigram"
    assert list(frame["skill"]) == pytest.approx([1 - 1.5 / 3.5, 1 - 2.0 / 3.5])
    # Without the losses of windows there is no interval, and nothing is known about the floor.
    assert "| 1.500   |" in export.render(frame, "markdown") and frame["clears_floor"].isna().all()


def test_comparable_requires_parameters_within_10_percent_of_the_transformer() -> None:
    def body(model: str, size: int, active: int | None = None) -> Record:
        sizes = {"total": size, "body": size, "body_active": active or size, "embeddings": 0, "positions": 0, "head": 0}
        return make_record(model, parameters=sizes)

    records = [body("transformer", 1000), body("a", 1100), body("b", 1101), body("c", 899), body("d", 9000, 1000)]
    frame = leaderboard(records)
    assert {name: row(frame, name)["comparable"] for name in ("transformer", "a", "b", "c", "d")} == {
        "transformer": True,
        "a": True,
        "b": False,
        "c": False,
        "d": True,
    }
    assert leaderboard(records[1:])["comparable"].isna().all()
    assert row(leaderboard([*records, body("e", 10**6)]), "e")["comparable"] is False
    other_task = [record for record in [make_record("local", task="text"), *records] if record.key.model != "a"]
    assert pd.isna(row(leaderboard(other_task), "local")["comparable"])


def test_scores_are_compared_with_the_strongest_floor() -> None:
    only = leaderboard([make_record(accuracy=0.49)]).iloc[0]
    assert (only["floor_name"], only["floor"]) == ("root_operator_and_digits", 0.335)
    assert only["skill"] == pytest.approx((0.49 - 0.335) / (1 - 0.335))
    assert (only["floor_root_operator"], only["clears_floor"], only["learned"]) == (0.32, True, 1)


def test_scores_at_the_floor_of_another_length_are_marked() -> None:
    record = make_record(accuracy=0.5)
    record.extrapolation["points"][3]["margins"]["root_operator"] |= {"low": -0.01}
    frame = leaderboard([record])
    assert (frame.iloc[0]["clears_floor_2x"], frame.iloc[0]["clears_floor_4x"]) == (True, False)
    assert "| 44.0 % ° " in export.render(frame, "markdown") and "| 47.0 % " in export.render(frame, "markdown")


def test_scores_at_other_lengths_with_their_status() -> None:
    record = make_record()
    assert record.extrapolation is not None
    record.extrapolation["points"][4] |= {"score": None, "skill": None, "status": "out_of_memory"}
    only = leaderboard([record]).iloc[0]
    assert only["score_2x"] == record.extrapolation["points"][2]["score"]
    assert only["floor_2x"] == record.extrapolation["points"][2]["floor"]
    assert only["status_8x"] == "out_of_memory"
    assert "out_of_memory" in export.render(leaderboard([record]), "markdown")


def test_speed_columns_use_the_length_of_most_records() -> None:
    slow = make_record("transformer", speed_failures={8192: "timeout", 16384: "timeout"})
    others = [make_record("local"), make_record("performer")]
    assert set(leaderboard(others)["speed_length"]) == {16384}
    assert set(leaderboard([*others, slow])["speed_length"]) == {4096}
    none = make_record("transformer", speed_failures=dict.fromkeys((1024, 2048, 4096, 8192, 16384), "timeout"))
    frame = leaderboard([*others, none])
    assert set(frame["speed_length"]) == {16384}
    assert pd.isna(row(frame, "transformer")["train_tokens_per_second"])
    assert row(frame, "transformer")["train_limit"] == Limit("timeout", 1024)


def test_memory_of_cpu_and_gpu_has_separate_columns() -> None:
    frame = leaderboard([make_record(hardware="cpu-a-2t"), make_record(hardware="h200-bf16")])
    cpu, gpu = (row(frame, "performer", hardware=name) for name in ("cpu-a-2t", "h200-bf16"))
    assert pd.isna(cpu["train_peak_allocated_bytes"]) and cpu["train_peak_resident_growth_bytes"] > 0
    assert pd.isna(gpu["train_peak_resident_growth_bytes"]) and gpu["train_peak_allocated_bytes"] > 0


@pytest.mark.parametrize("status", ["failed", "incompatible", "interrupted", "timeout"])
def test_a_table_of_failures_shows_their_status(status: str) -> None:
    frame = leaderboard([make_record(status=status, speed=[], parameters=None)])
    assert frame.iloc[0]["statuses"] == {status: 1}
    assert pd.isna(frame.iloc[0]["rank"])
    for format in ("terminal", "markdown", "csv", "json"):
        assert status in export.render(frame, format)


def test_runs_without_data_are_in_the_table_of_their_task_unless_its_version_is_unknown() -> None:
    records = [make_record(), make_record("linformer", status="incompatible", data=None), make_record("local", "text")]
    frame = leaderboard(records)
    assert len(frame) == 3 and frame["task_version"].notna().all()
    assert export.render(frame[frame["task"] == "listops"], "terminal").count("listops ·") == 1
    other = make_record("local")
    other.data = other.data | {"version": "0"}
    assert pd.isna(row(leaderboard([*records, other]), "linformer")["task_version"])


@pytest.mark.parametrize("width", [30, 60, 80, 100, 150, 300])
def test_terminal_output_fits_the_width_and_names_the_columns_left_out(width: int) -> None:
    text = export.render(leaderboard(board()), "terminal", width)
    assert max(len(line) for line in text.splitlines()) <= width
    words = " ".join(text.split())
    assert "continued" not in text and "floor 33.5 (root operator and digits)" in words
    left_out = words.partition("Left out: ")[2]
    for heading, cell in {"score": "(36.2,", "RSS growth": "1,374", "modified": "train.steps=500"}.items():
        assert cell in words or heading in left_out
    assert bool(left_out) == (60 <= width < 300)
    costs = export.render(leaderboard(board()), "terminal", width, columns=["RSS", "modified", "floor"])
    for cell in ("882", "train.steps=500", "33.5 %"):
        assert cell in " ".join(costs.split())


def test_each_group_of_columns_contains_the_names_of_rows_once() -> None:
    widths = {"score": 40, "floor": 30, "variant": 20, "rank": 5}
    assert fitting(widths, 95, "variant") == [["score", "floor", "variant", "rank"]]
    assert fitting(widths, 70, "variant") == [["score", "floor"], ["variant", "rank"]]
    assert fitting(widths, 50, "variant") == [["score", "floor"], ["variant", "rank"]]
    widths = {"variant": 20, "score": 40, "floor": 30, "rank": 5}
    assert fitting(widths, 60, "variant") == [["variant", "score"], ["variant", "floor", "rank"]]
    assert fitting(widths, 60) == [["variant", "score"], ["floor", "rank"]]


def test_csv_and_json_contain_unrounded_values() -> None:
    frame = leaderboard(board())
    read = pd.read_csv(StringIO(export.render(frame, "csv")))
    assert list(read.columns) == list(frame.columns)
    np.testing.assert_array_equal(read["score"], frame["score"])
    rows = json.loads(export.render(frame, "json"), parse_constant=pytest.fail)
    assert [entry["score"] for entry in rows] == [None if pd.isna(score) else score for score in frame["score"]]
    assert isinstance(rows[0]["parameters_body"], int) and rows[0]["comparable"] is True


def test_pipes_in_names_are_escaped_in_markdown() -> None:
    text = export.render(leaderboard([make_record(differences={"model.mixer.kind": "a|b"})]), "markdown")
    assert "kind=a\\|b" in text


def test_an_unknown_format_raises_an_error_with_the_known_formats() -> None:
    with pytest.raises(UserError, match="terminal, markdown, latex, csv, json"):
        export.render(leaderboard(board()), "word")


def test_a_leaderboard_without_records_is_empty() -> None:
    empty = leaderboard([])
    assert empty.empty
    assert "No records yet" in export.render(empty)
    assert export.render(empty, "json") == "[]\n"
    assert "No records yet" in export.render(empty, "markdown")


def test_written_files_are_independent_of_the_order_of_records(tmp_path: Path) -> None:
    paths = export.write(leaderboard(board()), tmp_path / "new")
    suffixes = ("csv", "json", "md", "parquet")
    assert sorted(path.name for path in paths) == [f"leaderboard.{suffix}" for suffix in suffixes]
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    first = [path.read_bytes() for path in paths]
    export.write(leaderboard(reversed(board())), tmp_path / "new")
    assert [path.read_bytes() for path in paths] == first


def test_an_unwritable_folder_raises_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="--results"):
        export.write(leaderboard(board()), tmp_path / "file")


def test_row_for_contains_interval_floors_and_status() -> None:
    text = export.row_for(make_record(accuracy=0.3815), width=120)
    assert "38.1 [36.0, 40.3]" in text or "38.2 [36.0, 40.3]" in text
    assert "root operator 32.0 %" in text and "majority 17.1 %" in text
    assert "rank" not in text
    failed = export.row_for(make_record(status="diverged", reason="loss nan at step 3"), width=120)
    assert "Status diverged: loss nan at step 3" in failed


@pytest.mark.parametrize(("from_length", "mark"), [(66, "not restricted at 64"), (64, ""), (0, ""), (None, "")])
@pytest.mark.parametrize("layout", ["long", "wide"])
def test_rows_that_the_mechanism_does_not_restrict_are_marked(layout: str, from_length: int | None, mark: str) -> None:
    restriction: Restriction = {"from_length": from_length, "row_length": 64}
    records = [make_record("local", restriction=restriction), make_record("performer")]
    text = export.render(leaderboard(records) if layout == "long" else overview(records), "markdown", layout=layout)
    assert ("not restricted" in text) == bool(mark) and mark in text
    local = leaderboard(records).set_index("model").loc["local"]
    assert (None if pd.isna(local["restricts_from"]) else local["restricts_from"]) == from_length
    assert (None if pd.isna(local["unrestricted_at"]) else local["unrestricted_at"]) == (64 if mark else None)


@pytest.mark.parametrize(
    ("restriction", "text"),
    [
        ({"from_length": 66, "row_length": 64}, "restricted from 66 tokens; the longest row has 64"),
        ({"from_length": 0, "row_length": 64}, "restricted at every length"),
        ({"from_length": None, "row_length": 64}, "restricted at no length"),
        (None, ""),
    ],
)
def test_a_described_record_states_the_length_from_which_attention_is_restricted(
    restriction: Restriction | None, text: str
) -> None:
    described = describe(make_record("local", restriction=restriction)).splitlines()
    assert [line.split(maxsplit=1)[1] for line in described if line.startswith("  attention ")] == (
        [text] if text else []
    )


def test_a_described_record_lists_rungs_and_the_score_on_minimal_pairs() -> None:
    record = make_record("local", rungs={"one_level": 0.418, "two_levels": 0.719}, minimal_pairs=make_pairs(0.6, 0.02))
    lines = describe(record).splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("  rung ")] == [
        "one level 0.4180", "two levels 0.7190"
    ]  # fmt: skip
    assert [line.split(maxsplit=2)[2] for line in lines if line.startswith("  minimal pairs ")] == [
        "level 1: 0.6000 [0.5020, 0.6906] over 100 pairs, chance 0.01",
        "level 2: 0.0200 [0.0055, 0.0700] over 100 pairs, chance 0.01",
        "all pairs: 0.3100 [0.2500, 0.3772] over 200 pairs, chance 0.01",
    ]


def test_a_column_contains_the_mean_share_of_minimal_pairs() -> None:
    made = [make_record("local", seed=n, minimal_pairs=make_pairs(0.2 * n, 0.2)) for n in range(3)]
    made += [make_record("transformer", seed=n) for n in range(3)]
    frame = leaderboard(made)
    assert row(frame, "local")["minimal_pairs"] == pytest.approx(0.2)
    header, _, *lines = [line for line in export.render(frame, "markdown").splitlines() if line.startswith("|")]
    column = [name.strip() for name in header.split("|")].index("pairs")
    assert [line.split("|")[column].strip() for line in lines if "local" in line] == ["20 %"]


def test_a_described_record_lists_the_score_of_each_slice() -> None:
    lines = [line for line in describe(make_record("local", accuracy=0.5)).splitlines() if line.startswith("  by ")]
    assert [line.split(" over ")[0].split(" [")[0].split() for line in lines] == [
        ["by", "length", "20–99:", "0.4800"],
        ["by", "length", "100–500:", "0.5200"],
        *(["by", "operator", f"{name}:", f"{0.44 + 0.04 * n:.4f}"] for n, name in enumerate(SLICES["operator"])),
    ]
    assert lines[0].endswith("over 1,000 targets, root_operator floor 0.3400")
