"""Tests of the networks that configurations describe."""

import pytest
import torch
from safetensors.torch import load_file

from lra_bench.config.compose import compose
from lra_bench.config.groups import option_files
from lra_bench.config.objects import build_model, build_task
from lra_bench.contracts import UserError
from tests.support.command import TINY, Folder
from tests.support.forks import planned
from tests.support.model_cases import node_file, task

PARTS = {
    name: {part: node[part] for part in ("controller", "retrieval") if part in node}
    for name in option_files("model")
    if "mixer" in (node := node_file("model", name)["model"])
}


@pytest.fixture
def composed():
    """Compose the configuration of a cell."""
    yield lambda *overrides: compose(["task=listops", *overrides]).config


def class_name(node):
    return node["_target_"].rpartition(".")[2]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [name for name, parts in PARTS.items() if parts])
def test_every_part_of_a_model_file_is_part_of_the_network(name, composed):
    config = composed(f"model={name}")
    made = build_model(config, task())
    if "retrieval" in PARTS[name]:
        assert type(made).__name__ == class_name(PARTS[name]["retrieval"])
    if "controller" in PARTS[name]:
        assert type(made.controller).__name__ == class_name(PARTS[name]["controller"])


def test_the_options_of_a_controller_reach_it(composed):
    config = composed("model=universal", "model.controller.steps=3")
    assert build_model(config, build_task(config).spec).controller.full_depth == 3


def test_a_controller_and_a_retrieval_are_refused_together(composed):
    added = "+model.controller._target_=lra_bench.models.depth.calm.Calm"
    config = composed("model=knn_lm", added)
    with pytest.raises(UserError, match=r"^model\.retrieval: is not supported with model\.controller"):
        build_model(config, task())


@pytest.mark.slow
def test_the_retriever_of_spalm_can_be_the_network_of_another_run(forks, tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    monkeypatch.setenv("LRA_BENCH_CACHE", str(folder.cache))
    short = ["tracker=none", "train.steps=2", "measure.extrapolation_ratios=[1]"]
    (first,) = planned([*TINY, "model=transformer", *short], folder)
    assert forks.run(first, folder) == 0, forks.output.read_text()
    (record,) = folder.results.glob("runs/**/seed0.json")
    key = str(record.relative_to(folder.results / "runs").with_suffix(""))

    def cells(key, depth):
        own = [
            f"model.retrieval.retriever={key}",
            f"model.retrieval.retriever_depth={depth}",
            "model.retrieval.keys=50",
        ]
        return planned([*TINY, "model=spalm", *own, *short], folder)

    (cell,) = cells(key, first.config.backbone.depth)
    network = build_model(cell.config, task(vocabulary_size=16, classes=10))
    network.restore(network.retriever, key, "model.retrieval.retriever")
    (best,) = folder.cache.glob("checkpoints/**/best.safetensors")
    saved, found = load_file(best), network.retriever.state_dict()
    assert saved and all(torch.equal(found[name], saved[name]) for name in saved)
    assert forks.run(cell, folder) == 0, forks.output.read_text()
    with pytest.raises(UserError, match=r"^model\.retrieval\.retriever=.*weights are those of another network"):
        network.restore(network.another(depth=3), key, "model.retrieval.retriever")
    with pytest.raises(
        UserError, match=r"^model\.retrieval\.retriever=a/b: .* does not exist; give the path of a record"
    ):
        network.restore(network.retriever, "a/b", "model.retrieval.retriever")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "adapts_by"), [("universal", "token"), ("calm", "example")])
def test_the_record_of_a_controlled_model_contains_its_budgets(name, adapts_by, forks, tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp(name))
    options = ["tracker=none", "train.steps=2", "measure.extrapolation_ratios=[1]"]
    (cell,) = planned([*TINY, f"model={name}", *options], folder)
    assert forks.run(cell, folder) == 0, forks.output.read_text()
    section = folder.record()["adaptive_depth"]
    assert section["adapts_by"] == adapts_by and len(section["points"]) > 1
