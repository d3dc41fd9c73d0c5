"""Planning many cells: equal to composing one, files read once, read from the cache if no file changed."""

import json
import multiprocessing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lra_bench.config import compose, disk_cache, loading
from lra_bench.config.compose_many import CACHE_FROM_CELLS
from lra_bench.config.layers import Loader
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan

GROUPS = {
    "model": ["transformer", "performer", "local", "fnet", "luna"],
    "task": ["listops", "recall", "image"],
    "protocol": ["smoke", "small"],
    "position": ["auto", "rope", "none"],
    "hardware": ["cpu"],
}
VALUES = [
    *("seed=0", "seed=3", "seed=x", "train.lr=1e-3", "train.lr=0.002", "train.steps=7", "train.betas=[0.8,0.9]"),
    *("backbone.depth=3", "backbone.causal=true", "backbone.position=rope", "backbone.position=sinusoidal"),
    *("model.mixer.features=8", "model.label='a b, c'", "++model.mixer.window=4", "+train.steps=5", "~train.clip"),
    *("++train.clip=2", "hardware.threads=1", "task.seed=9", "measure.speed_lengths=[64,128]", "measure.flops=false"),
    *("train.step=3", "train.lr=many", "train.steps=1,2", "train={steps: 4}", "tracker.project=${protocol.name}"),
    *(
        "model.label=${protocol.name}",
        "model.mixer={_target_: lra_bench.models.linear.performer.Performer, features: 16}",
    ),
]


@st.composite
def override_lists(draw):
    chosen = [f"{group}={draw(st.sampled_from(names))}" for group, names in GROUPS.items() if draw(st.booleans())]
    return draw(st.permutations([*chosen, *draw(st.lists(st.sampled_from(VALUES), max_size=4))]))


def outcome(overrides, load=None):
    try:
        return compose.compose(overrides, None, load)
    except UserError as error:
        return str(error)


@pytest.fixture(scope="module")
def load():
    """Return one loader for all examples, so that an example which modifies the loader's state affects later ones."""
    return Loader(None)


def same_as_one(overrides, load):
    """Compare the composed cells, or the error messages if the overrides are invalid."""
    with compose.hydra_context():
        assert outcome(overrides, load) == outcome(overrides)


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(overrides=override_lists())
def test_a_cell_equals_that_of_a_new_loader(load, overrides):
    same_as_one(overrides, load)


@pytest.mark.slow
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(overrides=override_lists())
def test_many_cells_equal_those_of_new_loaders(load, overrides):
    same_as_one(overrides, load)


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
def test_every_kind_of_value_gives_the_cell_of_a_new_loader(load, value):
    same_as_one(["model=performer", "protocol=smoke", value, "seed=1"], load)


GRID = ["task=recall", "protocol=smoke", "hardware=cpu", "hardware.threads=1", "model=performer,local"]
SEEDS = f"seed=range(0,{CACHE_FROM_CELLS // 2})"


def count_composing(monkeypatch):
    calls = []
    original = loading.option_file

    def counted(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(loading, "option_file", counted)
    return calls


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a folder with a model file that tests may change, with a separate cache."""
    monkeypatch.setenv("LRA_BENCH_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "mine"
    (folder / "model").mkdir(parents=True)
    mixer = "{_target_: lra_bench.models.linear.performer.Performer}"
    (folder / "model" / "mine.yaml").write_text(f"# @package _global_\nmodel: {{label: Mine, mixer: {mixer}}}\n")
    return folder


def test_files_are_read_once_for_any_number_of_seeds(own, monkeypatch, tmp_path):
    calls = count_composing(monkeypatch)
    assert len(plan([*GRID, SEEDS, "train.lr=1e-3,1e-4"], tmp_path)) == 2 * CACHE_FROM_CELLS
    assert len(calls) == len(set(calls))


@pytest.mark.slow
def test_a_cached_plan_is_equal_and_composes_nothing(own, monkeypatch, tmp_path):
    first = plan([*GRID, SEEDS], tmp_path)
    calls = count_composing(monkeypatch)
    assert plan([*GRID, SEEDS], tmp_path) == first
    assert calls == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "model" / "mine.yaml").write_text(
            (folder / "model" / "mine.yaml").read_text().replace("label: Mine", "label: Else")
        ),
        lambda folder: (folder / "model" / "other.yaml").write_text("# @package _global_\n"),
        lambda folder: (folder / "code.py").write_text("x = 1\n"),
    ],
    ids=["content", "new file", "code"],
)
def test_a_grid_is_composed_again_after_a_file_has_changed(own, monkeypatch, tmp_path, change):
    arguments = ["model=mine", *GRID[:4], f"seed=range(0,{CACHE_FROM_CELLS})"]
    plan(arguments, tmp_path, own)
    calls = count_composing(monkeypatch)
    plan(arguments, tmp_path, own)
    assert calls == []
    change(own)
    labels = {each.cell.config.model["label"] for each in plan(arguments, tmp_path, own)}
    assert calls and labels == {"Else" if "Else" in (own / "model" / "mine.yaml").read_text() else "Mine"}


@pytest.mark.slow
def test_configurations_with_resolvers_are_not_cached(own, tmp_path, monkeypatch):
    monkeypatch.setenv("MY_LABEL", "one")
    (own / "model" / "mine.yaml").write_text(
        (own / "model" / "mine.yaml").read_text().replace("label: Mine", 'label: "${oc.env:MY_LABEL}"')
    )
    arguments = ["model=mine", *GRID[:4], f"seed=range(0,{CACHE_FROM_CELLS})"]
    plan(arguments, tmp_path, own)
    monkeypatch.setenv("MY_LABEL", "two")
    assert {each.cell.config.model["label"] for each in plan(arguments, tmp_path, own)} == {"two"}


@pytest.mark.slow
def test_a_truncated_cache_file_is_replaced(own, tmp_path):
    first = plan([*GRID, SEEDS], tmp_path)
    (cached,) = (tmp_path / "cache" / "plans").glob("*.json")
    content = cached.read_text()
    cached.write_text(content[: len(content) // 2])
    assert plan([*GRID, SEEDS], tmp_path) == first
    assert json.loads(cached.read_text())


@pytest.mark.slow
def test_planning_works_without_a_writable_cache(own, tmp_path):
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache" / "plans").write_text("in the way")
    assert len(plan([*GRID, SEEDS], tmp_path)) == CACHE_FROM_CELLS


@pytest.mark.slow
def test_several_processes_read_and_write_one_cache_file(own, tmp_path):
    with compose.hydra_context():
        cells = [["model=performer", *GRID[:4], f"seed={seed}"] for seed in range(CACHE_FROM_CELLS)]
        load = Loader(None)
        made = [compose.compose(cell, None, load) for cell in cells]
    cache_file = disk_cache.cache_path(cells, None)
    assert cache_file is not None

    def work() -> None:
        for _ in range(5):
            disk_cache.write(cache_file, made, None)
            assert disk_cache.read(cache_file) == made

    processes = [multiprocessing.get_context("fork").Process(target=work) for _ in range(3)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()
    assert [each.exitcode for each in processes] == [0, 0, 0]
    assert [path.name for path in Path(cache_file.parent).iterdir()] == [cache_file.name]


@pytest.mark.slow
def test_old_cache_files_are_removed(own, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_cache, "KEPT", 1)
    for model in ("performer", "local"):
        plan([f"model={model}", *GRID[:4], f"seed=range(0,{CACHE_FROM_CELLS})"], tmp_path)
    assert len(list((tmp_path / "cache" / "plans").iterdir())) == 1
