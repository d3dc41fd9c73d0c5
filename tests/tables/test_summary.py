"""The short leaderboard: one screen, the best rows above the floor, the user's rows, and what is hidden."""

from __future__ import annotations

import dataclasses

import pytest

from lra_bench.records.schema import Record
from lra_bench.tables import export
from lra_bench.tables.naming import current, find_variant
from lra_bench.tables.summary import MOST_LINES, summary
from lra_bench.tables.table import leaderboard
from tests.support.record_factory import make_record


def seeds(
    model: str, task: str = "listops", count: int = 3, reference: str = "board", **changes: object
) -> list[Record]:
    records = [make_record(model, task, seed, **changes) for seed in range(count)]
    return [dataclasses.replace(record, reference=reference) for record in records]


def boards(tasks: tuple[str, ...] = ("listops",)) -> list[Record]:
    scores = {"transformer": 0.6, "local": 0.5, "linear": 0.55, "fnet": 0.45, "luna": 0.3}
    return [record for task in tasks for name, score in scores.items() for record in seeds(name, task, accuracy=score)]


def line_of(text: str, task: str) -> str:
    assert "task" in text.splitlines()[2] and "floor" in text.splitlines()[2]
    return next(line for line in text.splitlines() if line.startswith(f"{task} "))


def test_each_task_shows_its_floor_and_the_three_best_rows_above_it() -> None:
    line = line_of(summary(boards(), 120), "listops")
    assert line.split(maxsplit=2)[1:] == ["33.5", "transformer 60.0, linear 55.0, local 50.0"]
    assert "none" in line_of(summary(seeds("luna", accuracy=0.3), 120), "listops")


def test_rows_of_the_user_are_marked_and_always_shown() -> None:
    own = seeds("performer", count=1, reference="", accuracy=0.2)
    text = summary([*boards(), *own], 120)
    assert line_of(text, "listops").endswith("local 50.0 … *performer 20.0 (1) °") and "* your rows" in text
    best = summary([*boards(), *seeds("performer", reference="", accuracy=0.7)], 120)
    assert "*performer 70.0, transformer 60.0, linear 55.0" in best
    assert "*" not in summary(own, 120) and "*" not in summary(boards(), 120)


def test_rows_with_too_few_seeds_follow_ranked_rows() -> None:
    few = seeds("mamba2", count=2, accuracy=0.9)
    assert "transformer 60.0, linear 55.0, local 50.0" in summary([*boards(), *few], 120)
    line = line_of(summary([*few, *seeds("local", accuracy=0.5)], 120), "listops")
    assert line.endswith("local 50.0, mamba2 90.0 (2)")


@pytest.mark.parametrize(("count", "cut"), [(1, False), (17, False), (60, True)])
def test_the_summary_fits_a_screen(count: int, cut: bool) -> None:
    tasks = [f"task_{number}" for number in range(count)]
    models = ("a_system_with_a_long_name", "another_system_with_a_long_name")
    records = [record for task in tasks for name in models for record in seeds(name, task, count=1, accuracy=0.6)]
    own = seeds("performer", f"task_{count - 1}", reference="", differences={"model.mixer.features": 64})
    for width in (80, 120):
        lines = summary([*records, *own], width, "Hidden rows: 3. Use --all to show them.").splitlines()
        assert len(lines) <= MOST_LINES and max(map(len, lines)) <= width
        assert any("*performer" in line for line in lines) and "--all" in " ".join(lines)
        assert any("more tasks" in line for line in lines) == cut


def test_other_protocols_are_named_and_those_of_the_user_shown() -> None:
    small = seeds("local", protocol="small")
    text = summary([*boards(), *small], 120)
    assert "Other protocols: small (1 row)" in text and "listops, small" not in text
    assert "*performer" in line_of(
        summary([*boards(), *small, *seeds("performer", protocol="small", reference="")], 120), "listops, small"
    )
    assert "protocol small" in summary(small, 120)


def test_only_ranked_rows_of_the_newest_version_are_current() -> None:
    newest = seeds("local", protocol="quick-v2")
    others = [
        *seeds("local", protocol="quick", count=2),
        *seeds("local", protocol="quick-v2", hash="b", protocol_modified=["train.lr"]),
    ]
    assert current([*newest, *others])[0] == newest
    assert current([*newest, *others])[1] == (
        "Hidden rows: 1 of an earlier protocol version, 1 with a modified protocol. Use --all to show them."
    )
    assert current(newest) == (newest, "") and current(others[2:]) == (others[2:], "")


def test_modified_rows_are_told_apart_by_the_values_of_their_options() -> None:
    def modified(hash: str, activation: str, order: list[int]) -> Record:
        options = {"backbone": {"activation": activation}, "task": {"order": order}, "train": {"steps": 500}}
        changed = ["backbone.activation", "task.order", "train.steps"]
        return make_record("local", hash=hash, config={"seed": 0, **options}, protocol_modified=changed)

    records = [modified("a", "relu", [1] * 100), modified("b", "gelu", [1] * 100), modified("c", "gelu", [1] * 9)]
    frame = leaderboard(records)
    assert set(frame["variant"]) == {
        "local · activation=relu · order=[100 values]",
        "local · activation=gelu · order=[100 values]",
        "local · activation=gelu · order=[1,1,1,1,1,1,1,1,1]",
    }
    assert frame["modified_values"].iloc[0].endswith("train.steps=500")
    for format in (each for each in export.FORMATS if each != "latex"):
        assert "#" not in export.render(frame, format, 120).replace("##", "").replace("# Leaderboard", "")
    assert find_variant(records, "local activation=relu", "A")[1] == records[:1]
    twins = [modified("a", "relu", [1] * 100), modified("b", "relu", [2] * 100)]
    assert {name.split()[-1] for name in leaderboard(twins)["variant"]} == {"#a", "#b"}
