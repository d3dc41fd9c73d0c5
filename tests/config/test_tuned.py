"""The protocol that trains systems with the recipes of their papers: its files, refused cells, records."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from lra_bench.config import compose
from lra_bench.config.listing import options
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from tests.support.command import Folder

CONF = Path(__file__).parents[2] / "conf"
FILES = sorted(path.stem for path in (CONF / "tuned").glob("*.yaml"))
MECHANISMS = sorted(path.stem for path in (CONF / "mechanism").glob("*.yaml") if "mixer:" in path.read_text())


def cell(name):
    """Return protocol, task and model of a file name."""
    protocol = max((p["name"] for p in options("protocols") if name.startswith(f"{p['name']}_")), key=len)
    rest = name.removeprefix(f"{protocol}_")
    task = max((t["name"] for t in options("tasks") if rest.startswith(f"{t['name']}_")), key=len)
    return protocol, task, rest.removeprefix(f"{task}_")


def chosen(name):
    return [f"{group}={value}" for group, value in zip(("protocol", "task", "model"), cell(name), strict=True)]


def leaves(node, before=""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


@pytest.fixture(scope="module")
def composed():
    """Return a function that composes the cell of a file once."""

    @functools.cache
    def cell_of(name):
        with compose.hydra_context():
            return compose.compose([*chosen(name), "hardware=cpu"])

    return cell_of


def test_recipes_exist_for_every_task_of_long_range_arena():
    for model in ("s4", "s4d", "s5", "dss", "mega", "mega_chunk"):
        tasks = {task for protocol, task, system in map(cell, FILES) if (protocol, system) == ("published", model)}
        assert tasks == {"listops", "text", "retrieval", "image", "pathfinder", "pathfinder128"}


def test_protocol_lra_follows_the_code_of_long_range_arena_for_sinkhorn():
    sizes = {"pathfinder", "pathfinder64", "pathfinder128", "pathfinder256"}
    for each in ("lra", "lra_released"):
        tasks = {task for protocol, task, model in map(cell, FILES) if (protocol, model) == (each, "sinkhorn")}
        assert tasks == {"listops", "text", "retrieval", "image", *sizes}


@pytest.mark.parametrize("name", FILES)
class TestFile:
    def test_names_an_existing_cell_and_states_the_source_of_its_values(self, name):
        protocol, _, model = cell(name)
        assert (CONF / "protocol" / f"{protocol}.yaml").exists()
        assert model in {entry["name"] for entry in options("models")}
        text = " ".join((CONF / "tuned" / f"{name}.yaml").read_text().replace("\n#", "").split())
        source = r"arXiv \d{4}\.\d{5}: \S+/\S+ at \w{7}, \S+\."
        assert text.startswith("# @package _global_ ") and re.search(source, text)

    @pytest.mark.one_in(8)
    def test_its_values_are_those_of_the_composed_cell(self, name, composed):
        from omegaconf import OmegaConf

        written: Any = OmegaConf.load(CONF / "tuned" / f"{name}.yaml")
        while bases := written.pop("defaults", []):
            for base in bases:
                written = OmegaConf.merge(OmegaConf.load(CONF / "tuned" / f"{base}.yaml"), written)
        expected = dict(leaves(OmegaConf.to_container(written)))
        found = dict(leaves(as_dict(composed(name).config)))
        assert {key: found[key] for key in expected} == expected
        assert composed(name).modified == () and composed(name).differences == {}
        assert {"train.steps", "train.batch_size", "train.lr", "train.state_lr", "train.warmup_steps"} <= set(found)

    @pytest.mark.one_in(8)
    def test_the_system_can_be_built(self, name, composed):
        made = composed(name).config
        spec = build_task(made).spec
        network = build_model(made, spec)
        assert network.supports(spec) is None
        assert len(network.blocks) == made.backbone.depth
        inside = [key for key, _ in network.named_modules() if not key.startswith("head")]
        assert any("feed_forward" in key for key in inside) == made.backbone.feed_forward


@pytest.mark.one_in(8)
@pytest.mark.parametrize("name", MECHANISMS)
def test_the_mechanism_of_a_protocol_restricts_at_its_training_length(name):
    protocol, _, model = name.partition("_")
    with compose.hydra_context():
        cells = [
            compose.compose([f"protocol={each}", "task=listops", f"model={model}", "hardware=cpu"])
            for each in (protocol, "small")
        ]
    made, default = (each.config for each in cells)
    spec = build_task(made).spec
    smaller, larger = (build_model(each, spec).blocks[0].mixer.restricts_from() for each in (made, default))
    assert smaller <= spec.train_length and smaller < larger
    assert cells[0].modified == () and cells[0].differences == {}


def test_a_changed_option_is_recorded_as_a_change_of_the_protocol(tmp_path):
    (planned,) = plan(["protocol=published", "task=listops", "model=s5", "train.steps=2", "hardware=cpu"], tmp_path)
    assert planned.cell.modified == ("train.steps",)
    assert planned.cell.key.protocol == "published"


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("listops", r"tuned/published_listops_performer\.yaml does not exist; create it, or choose model=.*s5"),
        ("recall", r"tuned/published_recall_performer\.yaml does not exist; create it, or choose another task"),
    ],
)
def test_a_cell_without_a_file_names_it(task, words, tmp_path):
    with pytest.raises(UserError, match=rf"protocol=published: .*{words}"):
        plan(["protocol=published", f"task={task}", "model=performer", "hardware=cpu"], tmp_path)


def test_a_protocol_that_requires_recipes_refuses_other_tasks(tmp_path):
    words = r"protocol=lra_released: has no recipe for task=recall; choose task=.*listops.*text"
    with pytest.raises(UserError, match=words):
        plan(["protocol=lra_released", "task=recall", "model=transformer", "hardware=cpu"], tmp_path)


def test_a_file_in_config_dir_is_found(tmp_path):
    (tmp_path / "tuned").mkdir()
    text = "# @package _global_\nbackbone: {depth: 3}\ntrain: {steps: 7}\n"
    (tmp_path / "tuned" / "published_listops_performer.yaml").write_text(text)
    (planned,) = plan(["protocol=published", "task=listops", "model=performer", "hardware=cpu"], tmp_path, tmp_path)
    assert planned.cell.config.backbone.depth == 3 and planned.cell.modified == ()


@pytest.mark.slow
def test_a_cell_runs_end_to_end_and_its_changes_are_recorded(tmp_path):
    folder = Folder(tmp_path)
    few = ["train.steps=2", "train.batch_size=4", "train.evaluate_every=1", "measure.speed_lengths=[64]"]
    rows = ["task.rows={train: 8, validation: 4, test: 4}", "task.window=[20,100]", "task.extrapolation_rows=4"]
    machine = ["hardware=cpu", "hardware.threads=1", "tracker=none", "measure.extrapolation_ratios=[1]"]
    folder.run("bench", "model=s5", "task=listops", "protocol=published", *few, *rows, *machine)
    (record,) = folder.records()
    assert record["status"] == "ok" and record["key"]["protocol"] == "published"
    assert {"train.steps", "train.batch_size"} <= set(record["protocol_modified"])
    refused = folder.run("bench", "model=local", "task=listops", "protocol=published", *machine, check=False)
    assert refused.returncode == 2 and "published_listops_local.yaml" in refused.stderr.strip().splitlines()[-1]
