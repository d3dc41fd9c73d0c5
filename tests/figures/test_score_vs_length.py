"""The figure of score over training length."""

from dataclasses import replace
from pathlib import Path

import pytest

from lra_bench.figures import NothingToDrawError, draw
from lra_bench.figures.style import COLUMN_INCHES, PAGE_INCHES
from lra_bench.records.schema import Record
from tests.figures.test_figures import check_layout, one, sheets, written
from tests.support.record_factory import make_record

NAME = "score_vs_length"
MODELS = ("transformer", "performer", "local")


def trained_at(length: int, model: str = "performer", task: str = "copy", seed: int = 0, **more) -> Record:
    """Return a record trained at a length, with a score that decreases with the length."""
    changed = {"protocol_modified": ["task.length"], "accuracy": 0.9 - length / 2000 + 0.02 * seed, **more}
    record = make_record(model, task, seed, hash=f"{length:08x}", **changed)
    record.config["task"]["length"] = length
    assert record.extrapolation is not None
    record.extrapolation["train_length"] = length
    for point in record.extrapolation["points"]:
        point["length"] = int(point["ratio"] * length)
    return record


def study(models=MODELS, tasks=("copy", "recall"), seeds=2) -> list[Record]:
    return [
        trained_at(length, model, task, seed)
        for model in models
        for task in tasks
        for seed in range(seeds)
        for length in (128, 256, 512)
    ]


def test_each_training_is_a_point_on_the_line_of_its_system() -> None:
    figure, data = one(NAME, study())
    line = data[(data["label"] == "Performer (task.length changed)") & (data["task"] == "copy")]
    assert list(line["length"]) == [128, 256, 512]
    assert list(line["score"]) == pytest.approx([0.9 - length / 2000 + 0.01 for length in (128, 256, 512)])
    assert set(line["seeds"]) == {2} and set(line["interval"]) == {"each"}
    assert set(data["label"]) == {f"{model.title()} (task.length changed)" for model in MODELS}
    assert {"copy", "recall", "128", "256", "512"} <= set(written(figure))


@pytest.mark.parametrize("width", [COLUMN_INCHES, PAGE_INCHES])
def test_the_floor_at_each_length_is_drawn_and_scores_at_it_are_grey(width: float) -> None:
    made = [*study(), *(trained_at(length, "linear", accuracy=0.05) for length in (128, 256))]
    for sheet in sheets(NAME, made, width):
        for page in sheet.pages:
            for ax in page.axes:
                (floor,) = [line for line in ax.lines if line.get_gid() == "floor"]
                assert list(floor.get_xdata()) == [128, 256, 512]
            assert "(baseline without a model)" in " ".join(" ".join(written(page)).split())
        (copy,) = [ax for page in sheet.pages for ax in page.axes if ax.get_title("left") == "copy"]
        (grey,) = [line for line in copy.lines if line.get_gid() == "at floor"]
        assert len(grey.get_xdata()) == 2


def test_trainings_that_differ_in_more_than_the_length_are_separate_lines() -> None:
    made = study(("performer",), ("copy",), 1)
    slower = [trained_at(length, accuracy=0.3) for length in (128, 256)]
    for record in slower:
        record.config["train"]["lr"] = 1e-5
        record.key = replace(record.key, hash=f"{record.key.hash[:-1]}f")
    [sheet] = sheets(NAME, [*made, *slower])
    assert sheet.data.groupby("label").size().sort_values().tolist() == [2, 3]


def test_a_system_is_one_variant_across_task_options_and_training_recipes() -> None:
    made = study(("performer", "local"), seeds=1)
    for record in made:
        if record.key.task == "recall":
            record.config["task"]["pairs"] = 2
            record.config["train"]["steps"] = 1000
            record.protocol_modified = ["task.length", "task.pairs"]
    [sheet] = sheets(NAME, made)
    assert sheet.data.groupby("label")["task"].nunique().to_dict() == {
        f"{model.title()} (task.length changed)": 2 for model in ("local", "performer")
    }


def test_a_task_with_two_length_variants_has_one_point_per_training() -> None:
    made = study(("performer",), ("copy",), 1)
    for record in made:
        assert record.extrapolation is not None
        points = record.extrapolation["points"]
        points += [{**point, "variant": "filled"} for point in points if point["ratio"] > 1]
    [sheet] = sheets(NAME, made)
    assert list(sheet.data["length"]) == [128, 256, 512]


def test_variants_trained_at_one_length_are_excluded() -> None:
    made = [*study(("performer",), ("copy",)), make_record("local", "copy"), trained_at(128, "transformer")]
    [sheet] = sheets(NAME, made)
    assert set(sheet.data["model"]) == {"performer"}


def test_without_two_lengths_the_error_states_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(NothingToDrawError, match=r"plot score_vs_length: .*task\.length=128,256"):
        draw(NAME, [make_record(), make_record("local")], tmp_path)
    bare = make_record(extrapolation=None)
    with pytest.raises(NothingToDrawError, match="1 without a score at the training length"):
        draw(NAME, [bare], tmp_path)


def test_protocols_and_modified_protocols_have_separate_sheets() -> None:
    made = [
        trained_at(length, **options)
        for length in (128, 256)
        for options in ({}, {"protocol": "small"}, {"protocol_modified": []})
    ]
    assert {sheet.name for sheet in sheets(NAME, made)} == {"quick", "quick-modified", "small-modified"}


@pytest.mark.slow
@pytest.mark.parametrize("width", [PAGE_INCHES, COLUMN_INCHES])
def test_layout_is_readable_and_files_are_reproducible(width: float, tmp_path: Path) -> None:
    made = study((*MODELS, "lstm", "s4d", "lru", "gated_delta_net"), seeds=1)
    check_layout(NAME, made, width)
    name = "one" if width == COLUMN_INCHES else "two"
    first, again = ([p.read_bytes() for p in draw(NAME, made, tmp_path / folder, name)] for folder in "ab")
    assert first == again and len(first) == 5
