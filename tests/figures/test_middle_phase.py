"""The figure of the success rate over the length of the middle phase."""

from pathlib import Path

import pytest

from lra_bench.figures import NothingToDrawError, draw
from lra_bench.figures.lengths import middle_phase
from lra_bench.figures.style import PAGE_INCHES
from lra_bench.records.schema import Record
from tests.figures.test_figures import check_layout, one, written
from tests.support.record_factory import make_point, make_record

NAME = "middle_phase"
RATIOS = (1.0, 2.8, 10.0)


def trained(model: str, task: str = "key_to_door_memory", seed: int = 0, phases=(10, 30, 10), **more) -> Record:
    """Return a record with scores at three lengths of the middle phase."""
    record = make_record(model, task, seed, **more)
    record.config["task"]["phases"] = list(phases)
    assert record.extrapolation is not None
    length = (1 if task == "delayed_recall" else 3) * sum(phases)
    points = [{**make_point(0.9, 0.1, ratio), "length": round(length * ratio)} for ratio in RATIOS]
    record.extrapolation["train_length"] = length
    record.extrapolation["points"] = points  # type: ignore[typeddict-item]
    return record


def test_the_x_axis_is_the_number_of_steps_between_the_rooms() -> None:
    figure, data = one(NAME, [trained(model) for model in ("transformer", "local")])
    line = data[data["model"] == "local"]
    assert list(line["middle"]) == [30, 120, 480] and set(line["trained"]) == {30}
    assert list(line["score"]) == [make_point(0.9, 0.1, ratio)["score"] for ratio in RATIOS]
    assert {"30", "120", "480", "middle phase (steps)"} <= set(written(figure))
    (floor,) = [line for line in figure.axes[0].lines if line.get_gid() == "floor"]
    assert list(floor.get_xdata()) == [30, 120, 480]
    (trained_at,) = [line for line in figure.axes[0].lines if line.get_gid() == "trained"]
    assert set(trained_at.get_xdata()) == {30}


def test_a_step_of_delayed_recall_is_one_token() -> None:
    _, data = one(NAME, [trained("local", "delayed_recall", phases=(10, 100, 10))])
    assert list(data["middle"]) == [100, 316, 1180]


def test_other_tasks_are_excluded(tmp_path: Path) -> None:
    made = [trained("local"), make_record("local", "copy"), make_record("local", "key_to_door")]
    reason = "of tasks without a middle phase"
    assert middle_phase.exclusions(made) == ["", reason, reason]
    with pytest.raises(NothingToDrawError, match="run lra-bench bench task=key_to_door"):
        draw(NAME, made[1:], tmp_path)


def test_layout_is_readable() -> None:
    made = [
        trained(model, task, seed)
        for model in ("transformer", "local", "performer", "linear")
        for task in ("key_to_door", "key_to_door_memory")
        for seed in range(2)
    ]
    check_layout(NAME, made, PAGE_INCHES)
