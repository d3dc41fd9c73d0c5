"""The figure of the skill on the tasks of the group ``abilities``."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from lra_bench.config.task_groups import TaskGroup, task_group
from lra_bench.figures import NothingToDrawError, draw, heat_maps, style, task_table
from lra_bench.measurements.length_curves import section
from lra_bench.records.schema import Record
from tests.figures.test_figures import check_layout, one, sheets, written
from tests.support.record_factory import make_point, make_record

NAME = "abilities"
FLOORS = {"majority": 0.1, "last_element": 0.2}
MANY = ("copy", "needle", "recall", "parity", "s3", "a5", "s5", "selective_copy", "recall_ladder")


@pytest.fixture
def with_parity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a group with tasks whose skill is measured at four times the training length."""
    group = TaskGroup(MANY, dict.fromkeys(("parity", "s3", "a5", "s5"), 4.0))
    monkeypatch.setattr(heat_maps, "task_group", lambda name: group)


def cell(model: str, task: str, accuracy: float, seed: int = 0, **more) -> Record:
    """Return a record with a score at the training length."""
    return make_record(model, task, seed, accuracy=accuracy, floors=FLOORS, **more)


def at_4x(model: str, task: str, score: float | None, floor: float = 0.5, seed: int = 0) -> Record:
    """Return a record with score 0.99 at the training length, and another one at four times this length."""
    record = cell(model, task, 0.99, seed)
    longer = make_point(0.9, 0.0, 4.0) | {"score": score, "floor": floor, "margins": {}}
    if score is None:
        longer |= {"low": None, "high": None, "skill": None, "status": "out_of_memory"}
    else:
        longer |= {"low": score - 0.01, "high": score + 0.01, "skill": (score - floor) / (1 - floor)}
    record.extrapolation = section(
        500, [make_point(0.99, 0.0, 1.0), longer], [], record.extrapolation["attempts"], True
    )
    return record


def of_cell(data, model: str, task: str):
    [row] = data[(data["model"] == model) & (data["task"] == task)].to_dict("records")
    return row


def test_the_cells_are_the_skill_over_the_strongest_floor_in_percent() -> None:
    made = [cell("local", "copy", 0.6), cell("local", "needle", 0.15), cell("local", "recall", 0.98)]
    figure, data = one(NAME, made)
    assert of_cell(data, "local", "copy")["skill"] == pytest.approx((0.6 - 0.2) / 0.8)
    assert of_cell(data, "local", "needle")["skill"] == 0
    assert of_cell(data, "local", "recall")["skill"] == pytest.approx((0.98 - 0.2) / 0.8)
    cells = {text.get_text(): text for text in figure.axes[0].texts if text.get_gid() == "tag"}
    assert list(cells) == ["50", "0", "98"]
    assert [text for text, artist in cells.items() if artist.get_color() == task_table.MUTED] == ["0"]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == [
        f"{task}\nfloor 20.0" for task in ("copy", "needle", "recall")
    ]
    words = " ".join(written(figure))
    assert "not shown to exceed the floor" in words and "training length" not in words


def test_seeds_are_averaged_and_two_levels_are_counted() -> None:
    made = [cell("local", "copy", level, seed) for seed, level in enumerate((0.5, 0.6, 0.7))]
    made += [cell("local", "recall", level, seed) for seed, level in enumerate((0.1, 0.97, 0.98))]
    figure, data = one(NAME, made)
    assert of_cell(data, "local", "copy")["skill"] == pytest.approx(0.5)
    assert [text.get_text() for text in figure.axes[0].texts if text.get_gid() == "tag"] == ["50", "2/3"]
    assert "2/3: seeds that exceed the floor" in " ".join(" ".join(written(figure)).split())


def test_systems_are_sorted_by_tasks_and_then_by_mean_skill() -> None:
    levels = {"local": (0.3, 0.3), "performer": (0.25, 0.9), "linear": (0.1, 0.7), "transformer": (0.95, None)}
    made = [
        cell(model, task, level)
        for model, found in levels.items()
        for task, level in zip(("copy", "recall"), found, strict=True)
        if level is not None
    ]
    figure, _ = one(NAME, made)
    names = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert names == ["Performer", "Linear", "Local", "Transformer"]


def test_tasks_of_measured_at_show_the_skill_at_that_length(with_parity: None) -> None:
    made = [at_4x("lstm", "parity", 0.9), at_4x("transformer", "parity", 0.4), cell("lstm", "copy", 0.6)]
    made += [at_4x("linear", "parity", None), cell("linear", "copy", 0.3)]
    made.append(cell("linear", "s3", 0.3, status="diverged"))
    figure, data = one(NAME, made)
    row = of_cell(data, "lstm", "parity")
    assert (row["score"], row["floor"], row["low"], row["ratio"]) == (0.9, 0.5, 0.89, 4)
    assert row["skill"] == pytest.approx(0.8) and row["learned"] == 1
    assert of_cell(data, "transformer", "parity")["skill"] == 0 == of_cell(data, "transformer", "parity")["learned"]
    assert of_cell(data, "linear", "parity")["status"] == "out_of_memory"
    assert of_cell(data, "lstm", "copy")["ratio"] == 1
    assert of_cell(data, "linear", "s3")["floor"] != 0.2  # that of the training length
    words = " ".join(" ".join(written(figure)).split())
    assert "parity 4× floor 50.0" in words and "4×: examples of this multiple of the training length" in words
    assert "div: diverged, mem: out of memory" in words and list(dict.fromkeys(data["task"])) == [
        "copy",
        "parity",
        "s3",
    ]


def test_records_without_the_data_are_excluded(with_parity: None, tmp_path: Path, capsys) -> None:
    bare = cell("local", "parity", 0.99)
    bare.extrapolation = None
    without = [bare, cell("local", "copy", 0.9, metrics={}), make_record("local", "listops")]
    without.append(make_record("performer", "copy", floors={}))
    reasons = [
        *("without a point at 4× the training length", "without a score"),
        *("of tasks outside of the group abilities", "without a floor"),
    ]
    assert list(heat_maps.abilities.exclusions(without)) == reasons
    paths = draw(NAME, [*without, cell("local", "needle", 0.9)], tmp_path)
    assert [path.name for path in paths] == [f"abilities-quick.{end}" for end in ("pdf", "png", "csv", "txt", "tex")]
    assert capsys.readouterr().err.startswith("abilities: 4 of 5 records excluded (1 ")
    with pytest.raises(NothingToDrawError, match="run lra-bench bench task=abilities"):
        draw(NAME, without, tmp_path / "nothing")


def test_the_tasks_are_those_of_the_file_of_the_group() -> None:
    made = [cell("local", task, 0.9) for task in (*reversed(task_group("abilities").tasks), "listops")]
    for record in made:
        if ratio := task_group("abilities").measured_at.get(record.key.task):
            record.extrapolation = section(
                500, [make_point(0.9, 0.0, ratio)], [], record.extrapolation["attempts"], True
            )
    [sheet] = sheets(NAME, made)
    assert tuple(sheet.data["task"]) == task_group("abilities").tasks


@pytest.mark.one_in(4)
@pytest.mark.parametrize("width", style.WIDTHS.values(), ids=style.WIDTHS)
@pytest.mark.parametrize("models", [2, 30])
def test_nothing_is_cut_off_or_overlaps(with_parity: None, models: int, width: float) -> None:
    names = ["transformer", "synthesizer_factorised_random", *(f"invention_{number}" for number in range(models - 2))]
    made = [
        at_4x(model, task, 0.55 + number % 40 / 100)
        if task in ("parity", "s3", "a5", "s5")
        else cell(model, task, number % 90 / 100)
        for number, (model, task) in enumerate(itertools.product(names, MANY))
    ]
    check_layout(NAME, made, width)


@pytest.mark.slow
def test_protocols_have_separate_sheets_and_files_are_reproducible(tmp_path: Path) -> None:
    made = [
        cell("local", "copy", 0.9, **more) for more in ({}, {"protocol": "small"}, {"protocol_modified": ["train.lr"]})
    ]
    found = []
    for folder in (tmp_path / "one", tmp_path / "two"):
        found.append([path.read_bytes() for path in draw(NAME, made, folder)])
    assert found[0] == found[1]
    assert {path.name for path in folder.glob("*.csv")} == {
        f"abilities-{name}.csv" for name in ("quick", "small", "quick-modified")
    }
