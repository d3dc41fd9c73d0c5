"""Planning many cells gives the same cells as composing one, and reads each file once."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from lra_bench.config import compose, loading
from lra_bench.config.compose import Loader
from lra_bench.config.groups import option_files
from lra_bench.config.protocols import combined
from lra_bench.config.schema import CellConfig, extended_backbone
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


@pytest.mark.one_in(8)
@pytest.mark.parametrize("model", option_files("model"))
def test_the_sections_are_those_of_the_configuration_merged_at_once(load, model):
    loaded = load([f"model={model}", "task=image", "protocol=small"])
    backbone = extended_backbone(loaded.files["backbone"]["_target_"])
    merged = OmegaConf.merge(CellConfig(backbone=backbone()), combined(load.layers(loaded.choices)))
    assert json.dumps(loaded.files) == json.dumps(OmegaConf.to_container(merged, resolve=True))


def test_files_are_read_once_for_any_number_of_seeds(monkeypatch, tmp_path):
    calls = []
    original = loading.option_file

    def counted(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(loading, "option_file", counted)
    cells = ["task=recall", "protocol=smoke", "hardware=cpu", "hardware.threads=1", "model=performer,local"]
    assert len(plan([*cells, "seed=range(0,5)", "train.lr=1e-3,1e-4"], tmp_path)) == 20
    assert len(calls) == len(set(calls))
