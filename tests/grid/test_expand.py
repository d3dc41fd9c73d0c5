"""Grids in files: one override expands to many cells."""

import pytest

from lra_bench.config import compose
from lra_bench.config.compose import Loader
from lra_bench.config.groups import GROUPS, option_files
from lra_bench.config.listing import options
from lra_bench.contracts import UserError
from lra_bench.grid.expand import expand

FILE = """# Own.
all: {protocol: smoke, train.steps: 3}
parts:
  - {task: [copy, recall], model: [local, performer], seed: [0, 1]}
  - {task: needle, model: local, train.steps: 5, measure.speed_lengths: "[]", measure.flops: false}
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "own.yaml").write_text(FILE)
    return tmp_path


def configurations(cells):
    load = Loader(None)
    return [compose.compose(cell, None, load).config for cell in cells]


def test_a_grid_expands_to_the_cells_of_its_parts(own):
    cells = expand(["grid=own"], own)
    assert len(cells) == 9 and len({tuple(cell) for cell in cells}) == 9
    assert cells[0] == ["protocol=smoke", "train.steps=3", "task=copy", "model=local", "seed=0"]
    assert set(cells[-1]) == {
        *("protocol=smoke", "train.steps=5", "task=needle", "model=local"),
        *("measure.speed_lengths=[]", "measure.flops=false"),
    }


def test_all_tasks_are_those_that_need_no_table(own):
    tasks = {text for cell in expand(["task=ALL", "model=local"], own) for text in cell if text.startswith("task=")}
    assert {"task=listops", "task=copy"} <= tasks and tasks.isdisjoint({"task=csv", "task=hub"})


def test_other_overrides_replace_those_of_the_grid(own):
    cells = expand(["seed=4", "grid=own", "model=linear,fnet", "tracker=none"], own)
    assert len(cells) == 6
    for cell in cells:
        assert {"seed=4", "tracker=none"} <= set(cell)
        assert [text for text in cell if text.startswith("model=")] in (["model=linear"], ["model=fnet"])


def test_several_grids_are_concatenated(own):
    (own / "grid" / "more.yaml").write_text("parts: [{task: copy}]\n")
    assert expand(["grid=more,own"], own) == [["task=copy"], *expand(["grid=own"], own)]


@pytest.mark.parametrize(
    "text", ["- {task: copy}\n", "parts: {task: copy}\n", "all: 3\nparts: []\n", "parts: [copy]\n"]
)
def test_a_file_without_parts_is_named(own, text):
    (own / "grid" / "own.yaml").write_text(text)
    with pytest.raises(UserError, match=r"grid=own: .*own\.yaml has no parts"):
        expand(["grid=own"], own)


def test_a_file_that_cannot_be_read_is_named(own):
    (own / "grid" / "own.yaml").write_text("parts: [")
    with pytest.raises(UserError, match=r"grid=own: a configuration file cannot be read .*own\.yaml"):
        expand(["grid=own"], own)


def test_for_an_unknown_grid_a_known_one_is_suggested():
    with pytest.raises(UserError, match=r"grid=bord: there is no such grid; did you mean board"):
        expand(["grid=bord"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [entry["name"] for entry in options("grids")])
def test_cells_of_a_built_in_grid_are_valid(name):
    """Check that every choice exists, no cell occurs twice, and every seventh cell composes."""
    cells = expand([f"grid={name}"])
    assert len({tuple(sorted(cell)) for cell in cells}) == len(cells)
    for group, _, value in (text.partition("=") for cell in cells for text in cell):
        assert group not in GROUPS or value in option_files(group), f"{group}={value}"
    assert all(each.model["label"] for each in configurations(cells[::7]))
