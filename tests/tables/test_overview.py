"""The wide table: cells, averages, relative costs and floors."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.overview import overview, systems, task_columns
from lra_bench.tables.published import load_published
from lra_bench.tables.sections import wide_sections
from lra_bench.tables.seeds import known
from tests.support.record_factory import make_record

SCORES = {"listops": 0.37, "text": 0.64, "retrieval": 0.79, "image": 0.41, "pathfinder": 0.71}


def arena(model: str, seeds: int = 5, protocol: str = "lra", **changes: object) -> list[Record]:
    """Return the records of a model on the five tasks; scores of consecutive seeds differ by 0.01."""
    middle = (seeds - 1) / 2
    return [
        make_record(model, task, seed, protocol=protocol, accuracy=score + 0.01 * (seed - middle), **changes)
        for task, score in SCORES.items()
        for seed in range(seeds)
    ]


def row(frame: pd.DataFrame, variant: str, **where: object) -> pd.Series:
    for name, value in {"variant": variant, **where}.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1
    return frame.iloc[0]


def test_the_best_score_of_each_task_is_bold_in_any_row() -> None:
    """Rows are sorted by their mean skill, so the best score of a task may be in a later row."""
    scores = {"performer": {"listops": 0.6, "text": 0.5}, "local": {"listops": 0.5, "text": 0.9}}
    records = [
        make_record(model, task, seed, protocol="lra", accuracy=score + 0.01 * seed)
        for model, own in scores.items() for task, score in own.items() for seed in range(3)
    ]  # fmt: skip
    frame = overview(records)
    assert list(frame["variant"])[:2] == ["local", "performer"]
    [section] = wide_sections(frame)
    # Without predictions the other rows cannot be tested against the best.
    assert section.best == {(0, "text"), (1, "listops")}
    below = overview([*records, make_record("linear", "listops", protocol="lra", accuracy=0.335)])
    assert row(below, "linear")["best_listops"] == False  # noqa: E712


def test_all_systems_and_tasks_are_in_one_table_with_empty_cells() -> None:
    records = [make_record(model, task) for model in ("transformer", "local") for task in ("listops", "text", "recall")]
    records += [make_record("linear", "recall", accuracy=0.9), make_record("linear", "enwik8", status="failed")]
    [table] = [section.table.set_index("variant") for section in wide_sections(overview(records))]
    measured = [name for name in table.index if "(floor)" not in name]
    assert {"listops", "text", "recall", "enwik8"} <= set(table.columns)
    assert measured == ["transformer", "local", "linear"]
    assert table.loc["linear", "listops"] == "" and table.loc["linear", "enwik8"] == "failed"
    skill = float(row(overview(records), "linear")["skill_recall"])
    assert table.loc["linear", "mean skill"] == f"{100 * skill:.0f} %"


def test_rows_of_a_variant_on_several_machines_are_joined() -> None:
    made = [
        make_record("local", "listops", seed, hardware=hardware, accuracy=score)
        for hardware, score, seeds in (("cpu-a-1t", 0.5, range(1)), ("cpu-b-1t", 0.6, range(3)))
        for seed in seeds
    ]
    made.append(make_record("local", "text", hardware="cpu-a-1t", accuracy=0.9))
    made.append(make_record("performer", accuracy=0.9))
    frame = overview(made)
    joined = systems(frame)
    measured = joined[joined["kind"] == "measured"]
    assert len(frame) - len(joined) == 1 and list(measured["variant"]) == ["local", "performer"]
    local = row(joined, "local")
    assert (local["score_listops"], local["seeds_listops"], local["score_text"]) == (pytest.approx(0.6), 3, 0.9)
    assert local["hardware"] == "several machines" and pd.isna(local["relative_speed"])
    skills = [float(local[f"skill_{task}"]) for task in ("listops", "text")]
    assert local["mean_skill"] == pytest.approx(sum(skills) / 2)


def test_joined_rows_contain_the_statuses_of_cells_without_a_score() -> None:
    made = [make_record("local", "text", hardware="cpu-a-1t"), make_record("local", "listops", hardware="cpu-b-1t")]
    made[1].status = "diverged"
    made[1].metrics, made[1].extrapolation = {}, None
    assert row(systems(overview(made)), "local")["statuses_listops"] == {"diverged": 1}


@pytest.mark.parametrize(("machines", "expected"), [(["cpu-a-1t"], 4.0), (["cpu-a-1t", "cpu-b-1t"], None)])
def test_joined_rows_have_the_costs_of_the_only_profiled_machine(machines: list[str], expected: float | None) -> None:
    made = [make_record("local", task, hardware=at) for task, at in (("listops", "cpu-a-1t"), ("text", "cpu-b-1t"))]
    for record in made:
        record.profiled = {**record.profiled, "relative_speed": 4.0} if record.key.hardware in machines else None
    assert known(row(systems(overview(made)), "local")["relative_speed"]) == expected


def test_rows_with_other_modifications_are_in_other_short_tables() -> None:
    changes = ([], ["train.steps"], ["backbone.width", "train.steps"])
    made = [make_record("local", protocol_modified=keys) for keys in changes] + [make_record("linear")]
    titles = [section.title for section in wide_sections(overview(made), short=True)]
    assert [title.split(" · ")[1] for title in titles] == [
        "accuracy in %", "protocol modified: backbone.width, train.steps", "protocol modified: train.steps"
    ]  # fmt: skip
    assert len(list(wide_sections(overview(made)))) == 2


def test_decisions_are_in_no_average_with_other_tasks() -> None:
    scores = {"listops": 0.6, "recall": 0.8, "key_to_door": 0.9, "delayed_recall": 0.7}
    frame = overview([make_record("local", task, accuracy=score) for task, score in scores.items()])
    skills = row(frame, "local")[[f"skill_{task}" for task in scores]].astype(float)
    assert row(frame, "local")["mean_skill"] == pytest.approx(skills.iloc[:2].mean()) != pytest.approx(skills.mean())
    alone = overview([make_record("local", task, accuracy=scores[task]) for task in ("key_to_door", "delayed_recall")])
    assert row(alone, "local")["mean_skill"] == pytest.approx(skills.iloc[2:].mean())


def test_a_task_on_which_no_system_beats_the_floor_says_so_in_its_heading() -> None:
    records = [make_record("local", accuracy=0.2), make_record("local", "text", accuracy=0.9)]
    [section] = wide_sections(overview(records))
    assert "listops: not learned at this budget" in section.table and "text" in section.table
    place = list(section.table["variant"]).index("local")
    assert section.at_floor == {(place, "listops: not learned at this budget")} and not section.best
    assert section.table["listops: not learned at this budget"].iloc[place] == "20.0 ± 1.8 (1) °"


def test_the_mean_skill_leaves_out_tasks_on_which_no_system_beats_the_floor() -> None:
    records = [make_record("local", accuracy=0.2), make_record("local", "text", accuracy=0.9)]
    only = row(overview(records), "local")
    assert only["mean_skill"] == only["skill_text"] > 0 and pd.isna(only["skill_listops"])
    learned = row(overview([*records, make_record("performer", accuracy=0.9)]), "local")
    assert learned["mean_skill"] == (learned["skill_text"] + learned["skill_listops"]) / 2


def test_bits_and_accuracies_are_in_no_common_mean() -> None:
    metric = {"bits_per_character": 2.0, "loss": 1.4, "n": 100, "low": 1.9, "high": 2.1}
    bits = make_record("local", "enwik8", metrics={"test": metric}, floors={"order_2": 3.2}, extrapolation=None)
    learned = [make_record("local", task, accuracy=0.9) for task in ("listops", "recall")]
    with_bits = row(overview([bits, *learned]), "local")
    assert with_bits["skill_enwik8"] == pytest.approx(1 - 2 / 3.2)
    for name in ("mean_skill", "retention_4x"):
        assert with_bits[name] == row(overview(learned), "local")[name] > 0
    alone = row(overview([bits]), "local")
    assert pd.isna(alone["mean_skill"]) and pd.isna(alone["avg5"])


def test_the_mean_of_equal_floors_is_rounded_as_each_of_them() -> None:
    records = [make_record("local", seed=seed, floors={"root_operator": 0.2265}) for seed in range(7)]
    frame = overview(records)
    floor = frame.loc[frame["kind"] == "floor", "score_listops"].item()
    assert floor == 0.2265 != pd.Series([0.2265] * 7).mean()


def test_a_row_contains_every_task_and_both_averages() -> None:
    path_x = [make_record("local", "pathfinder128", seed, protocol="lra", accuracy=0.8) for seed in range(5)]
    frame = overview([*arena("local"), *path_x])
    assert task_columns(frame) == [*SCORES, "pathfinder128"]
    local = row(frame, "local")
    assert (local["score_text"], local["seeds_text"]) == (pytest.approx(0.64), 5)
    five = np.mean(list(SCORES.values()))
    assert (local["avg5"], local["avg6_fail50"]) == pytest.approx((five, (5 * five + 0.8) / 6))
    # All tasks have the same seeds, so the interval (Student's t) is computed over the averages of the seeds.
    deviation = 0.01 * 2.5**0.5
    assert local["avg5_high"] - local["avg5"] == pytest.approx(2.7764451051978 * deviation / 5**0.5)
    assert local["avg5_seeds"] == 5


def test_an_average_has_an_interval_only_if_its_tasks_have_the_same_seeds() -> None:
    path_x = [make_record("local", "pathfinder128", 0, protocol="lra", accuracy=0.8)]
    local = row(overview([*arena("local"), *path_x]), "local")
    few = row(overview(arena("local", seeds=3)), "local")
    assert few["avg5"] == pytest.approx(local["avg5"]) and pd.isna(few["avg5_low"])  # too few seeds for an interval
    assert local["avg5_seeds"] == 5 and local["avg5_low"] < local["avg5"] < local["avg5_high"]
    assert local["avg6_fail50"] > 0 and pd.isna(local["avg6_fail50_low"]) and pd.isna(local["avg6_fail50_seeds"])


def test_averages_require_every_task_and_a_failed_path_x_counts_as_50_percent() -> None:
    failed = [make_record("local", "pathfinder128", seed, protocol="lra", status="diverged") for seed in range(2)]
    frame = overview([*arena("local"), *arena("performer")[:-5], *arena("transformer"), *failed])
    five = np.mean(list(SCORES.values()))
    assert row(frame, "local")["avg6_fail50"] == pytest.approx((5 * five + 0.5) / 6)
    assert pd.isna(row(frame, "performer", kind="measured")["avg5"])
    assert row(frame, "transformer")["avg5"] == pytest.approx(five)
    assert pd.isna(row(frame, "transformer")["avg6_fail50"])
    broken = make_record("transformer", "pathfinder128", protocol="lra", status="failed")
    assert pd.isna(row(overview([*arena("transformer"), broken]), "transformer")["avg6_fail50"])
    partial = arena("local")
    partial[0].data |= {"partial": "half"}
    assert pd.isna(row(overview(partial[:1] + partial[5:]), "local")["avg5"])


def test_protocols_and_modified_protocols_have_separate_tables() -> None:
    modified = make_record("local", protocol="small", hash="eeee0000", protocol_modified=["train.steps"])
    frame = overview([make_record("local", protocol="small"), make_record("local", protocol="quick"), modified])
    assert frame[frame["kind"] == "measured"].groupby(["protocol", "section"]).size().to_dict() == {
        ("quick", "ranked"): 1,
        ("small", "ranked"): 1,
        ("small", "modified"): 1,
    }
    text = export.render(frame, "markdown", layout="wide")
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## quick",
        "## small",
        "## small · protocol modified",
    ]


def test_retention_is_the_ratio_of_skills() -> None:
    good = make_record("local", accuracy=0.8)
    own, longer = (next(p for p in good.extrapolation["points"] if p["ratio"] == ratio) for ratio in (1, 4))
    assert row(overview([good]), "local")["retention_4x"] == pytest.approx(longer["skill"] / own["skill"])
    # Retention is undefined if the confidence interval of the score includes the floor.
    assert pd.isna(row(overview([make_record("local", accuracy=0.33)]), "local")["retention_4x"])
    longer |= {"score": None, "skill": None, "status": "out_of_memory"}
    ended = row(overview([good]), "local")
    assert pd.isna(ended["retention_4x"]) and str(ended["status"]) == "no 4x"


def test_badges_show_failed_seeds_and_failed_lengths() -> None:
    records = [
        make_record("local", seed=0),
        make_record("local", seed=1, speed_failures={8192: "out_of_memory", 16384: "out_of_memory"}),
        make_record("local", seed=2, status="diverged"),
        make_record("performer", status="out_of_memory", speed=[]),
        make_record("performer", "text", speed_failures={8192: "timeout"}),
    ]
    frame = overview(records)
    local = row(frame, "local", kind="measured")
    assert "diverged 1/3" in str(local["status"]) and "diverged 1/3" in str(local["status_listops"])
    only = overview([make_record("local", speed_failures={8192: "out_of_memory", 16384: "out_of_memory"})])
    assert str(row(only, "local")["status"]) == "oom@8k"
    assert str(row(frame, "performer", kind="measured")["status"]) == "oom (listops), timeout@8k (text)"
    assert "oom" in export.render(frame, "markdown", layout="wide")


def test_a_task_without_scores_is_a_column_of_badges() -> None:
    frame = overview([make_record("local"), make_record("local", "text", status="out_of_memory")])
    assert "text" in task_columns(frame)
    assert "| oom " in export.render(frame, "markdown", layout="wide")


def test_a_modified_protocol_alone_has_no_floors() -> None:
    frame = overview([make_record("local", protocol="lra", protocol_modified=["train.steps"])])
    assert list(frame["section"]) == ["modified"]


def test_floors_are_rows_and_their_averages_require_every_task() -> None:
    frame = overview(arena("local"))
    floor = row(frame, "root operator")
    assert (floor["kind"], floor["score_text"], floor["avg5"]) == ("floor", 0.32, pytest.approx(0.32))
    assert pd.isna(row(overview([make_record()]), "majority")["avg5"])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("protocol", ["lra", "small", "published"])
def test_published_numbers_are_not_in_the_table_of_any_protocol(protocol: str) -> None:
    frame = overview(arena("local", protocol=protocol))
    assert set(frame["kind"]) == {"measured", "floor"} and "citation" not in frame
    printed = set(load_published()["model"])
    assert "Performer" in printed and not printed & set(frame["variant"])
    for layout in ("terminal", "markdown", "latex"):
        assert "(published)" not in export.render(frame, layout, 2000, "wide")


def test_other_versions_and_incomplete_data_have_separate_columns() -> None:
    part, newer = make_record("local", hash="1"), make_record("performer", hash="2")
    part.data |= {"partial": "4,000 rows"}
    newer.data |= {"version": "2"}
    frame = overview([make_record("local"), part, newer])
    assert task_columns(frame) == ["listops v1", "listops v1 (4,000 rows)", "listops v2"]


def test_badges_of_some_tasks_name_them() -> None:
    made = [make_record("transformer"), make_record("local"), make_record("transformer", "text")]
    made[0].speed = [{**point, "status": "timeout"} if point["length"] == 16384 else point for point in made[0].speed]
    frame = overview(made)
    assert "timeout@16k (listops)" in str(row(frame, "transformer")["status"])
    [section] = wide_sections(frame)
    assert [text for text in section.table["status"] if "timeout" in text] == ["timeout@16k (listops)"]


def test_comparable_combines_all_tasks() -> None:
    def body(model: str, task: str, size: int) -> Record:
        sizes = {"total": size, "body": size, "body_active": size, "embeddings": 0, "positions": 0, "head": 0}
        return make_record(model, task, parameters=sizes)

    records = [body("transformer", task, 1000) for task in ("listops", "text")]
    frame = overview([*records, body("local", "listops", 1000), body("local", "text", 1200)])
    local = row(frame, "local")
    assert (local["comparable"], local["parameters"], local["parameters_listops"]) == (False, 1200, 1000)
    assert "1,000 / 1,200" in export.render(frame, "markdown", layout="wide")


def test_rows_are_sorted_by_the_number_of_tasks_and_mean_skill() -> None:
    better = [
        make_record("performer", task, seed, protocol="lra", hash="b", accuracy=score + 0.1 + 0.01 * (seed - 2))
        for task, score in SCORES.items()
        for seed in range(5)
    ]
    fewer = make_record("linear", "listops", protocol="lra", accuracy=0.99)
    frame = overview([*arena("local"), *better, *arena("transformer"), fewer])
    measured = frame[frame["kind"] == "measured"]
    assert list(measured["variant"]) == ["performer", "local", "transformer", "linear"]
    floor = 0.335
    skills = [(score + 0.1 - floor) / (1 - floor) for score in SCORES.values()]
    assert measured["mean_skill"].iloc[0] == pytest.approx(np.mean(skills))
    assert "**74.0 ± 2.0 (5)**" in export.render(frame, "markdown", layout="wide")


def test_a_wide_table_without_records_is_empty() -> None:
    assert overview([]).empty
    assert "No records yet" in export.render(overview([]), layout="wide")


def test_the_terminal_shows_scores_and_the_strongest_floor_in_one_table() -> None:
    text = export.render(overview(arena("local")), "terminal", 80, "wide")
    table, _, below = text.partition("\n\nLeft out: ")
    assert text.count("─\n") == 1 and "hardware" in below and "--tasks" in below
    local, floor = (next(line for line in table.splitlines() if name in line) for name in ("local", "strongest floor"))
    assert len(re.findall(r"\d+\.\d", local)) >= 5 and len(re.findall(r"\d+\.\d", floor)) >= 5
    assert "±" not in text and "majority" not in text
    assert max(len(line) for line in text.splitlines()) <= 80
