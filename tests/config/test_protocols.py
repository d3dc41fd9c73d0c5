"""The files of the protocols: sources of their values, their cells, inheritance, additions, refused cells, records."""

import functools
import json
import re
from pathlib import Path

import pytest

from lra_bench.config import compose
from lra_bench.config.compose import Loader
from lra_bench.config.groups import option_files
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.protocols import SECTIONS, Protocol, combined, leaves
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import UserError
from lra_bench.grid.plan import plan
from tests.support import protocol_digests
from tests.support.command import Folder

CONF = Path(__file__).parents[2] / "conf"
PROTOCOLS = {name: Protocol(name, None) for name in sorted(option_files("protocol"))}
CELLS = [(name, *key.split("/")) for name, each in PROTOCOLS.items() for key in each.keys("cells")]
MECHANISMS = [
    (name, model)
    for name, each in PROTOCOLS.items()
    for model in each.keys("models")
    if "mixer" in each.entry("models", model)[0].values["model"]
]


def chosen(*cell):
    return [f"{group}={value}" for group, value in zip(("protocol", "task", "model"), cell, strict=True)]


def comments(protocol):
    """Return the comment above each entry, which also applies to the entries after it that have none of their own."""
    found, section, lines, above = {}, "", [], False
    for line in (CONF / "protocol" / f"{protocol}.yaml").read_text().splitlines():
        if heading := re.match(r"(\w+):", line):
            section, lines = heading[1], []
        elif line.startswith("  #"):
            lines = [*(lines if above else []), line[3:].strip()]
        elif section in SECTIONS and (entry := re.match(r"  ([\w/]+):", line)):
            found[section, entry[1]] = " ".join(lines)
        above = line.startswith("  #")
    return found


@pytest.fixture(scope="module")
def composed():
    """Return a function that composes a cell once."""
    load = Loader(None)

    @functools.cache
    def cell_of(*cell):
        return compose.compose([*chosen(*cell), "hardware=cpu"], None, load)

    return cell_of


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_entry_has_a_comment_and_names_existing_tasks_and_models(protocol):
    found = comments(protocol)
    assert set(found) == {(section, key) for section in SECTIONS for key in PROTOCOLS[protocol].keys(section)}
    assert all(found.values())
    assert "allow_partial" not in (CONF / "protocol" / f"{protocol}.yaml").read_text()
    tasks, models = option_files("task"), option_files("model")
    assert set(PROTOCOLS[protocol].keys("models")) <= set(models)
    assert {key.split("/")[0] for key in PROTOCOLS[protocol].keys("cells")} <= set(tasks)
    assert {key.split("/")[1] for key in PROTOCOLS[protocol].keys("cells")} <= set(models)
    own = set(PROTOCOLS[protocol].keys("tasks"))
    required = any(PROTOCOLS[protocol].header.get(name) for name in ("recipe", "tuned"))
    assert own <= set(tasks) if required else own == set(tasks)


@pytest.mark.slow
def test_the_values_of_all_cells_are_the_stored_ones():
    stored = json.loads(protocol_digests.FILE.read_text())
    assert protocol_digests.digests(stored["tasks"], stored["models"]) == stored["digests"]


def test_cells_exist_for_every_task_of_long_range_arena():
    for model in ("s4", "s4d", "s5", "dss", "mega", "mega_chunk"):
        tasks = {task for protocol, task, system in CELLS if (protocol, system) == ("published", model)}
        assert tasks == {"listops", "text", "retrieval", "image", "pathfinder", "pathfinder128"}


def test_protocol_lra_follows_the_code_of_long_range_arena_for_sinkhorn():
    sizes = {"pathfinder", "pathfinder64", "pathfinder128", "pathfinder256"}
    assert {task for protocol, task, model in CELLS if (protocol, model) == ("lra", "sinkhorn")} == {
        *("listops", "text", "retrieval", "image"),
        *sizes,
    }
    for task in sizes:
        (first, *_), (same, *_) = (
            PROTOCOLS[each].entry("cells", f"{task}/sinkhorn") for each in ("lra", "lra_released")
        )
        assert first == same and first.origin == "protocol/lra.yaml: cells.listops/sinkhorn"


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
class TestCell:
    def test_states_the_source_of_its_values(self, cell):
        source = r"arXiv \d{4}\.\d{5}: \S+/\S+ at \w{7}, \S+\.|Chosen by the trials in results/"
        assert re.search(source, comments(cell[0])["cells", "/".join(cell[1:])])

    @pytest.mark.one_in(8)
    def test_its_values_are_those_of_the_composed_cell(self, cell, composed):
        layers = PROTOCOLS[cell[0]].entry("cells", "/".join(cell[1:]))
        expected = dict(leaves(combined(layers)))
        found = dict(leaves(as_dict(composed(*cell).config)))
        assert {key: found[key] for key in expected} == expected
        assert composed(*cell).modified == () and composed(*cell).differences == {}
        assert {"train.steps", "train.batch_size", "train.lr", "train.state_lr", "train.warmup_steps"} <= set(found)

    @pytest.mark.one_in(8)
    def test_the_system_can_be_built(self, cell, composed):
        made = composed(*cell).config
        spec = build_task(made).spec
        network = build_model(made, spec)
        assert network.supports(spec) is None
        assert len(network.blocks) == made.backbone.depth
        inside = [key for key, _ in network.named_modules() if not key.startswith("head")]
        assert any("feed_forward" in key for key in inside) == made.backbone.feed_forward


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("protocol", "model"), MECHANISMS)
def test_the_mechanism_of_a_protocol_restricts_at_its_training_length(protocol, model):
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
        ("listops", r"the section cells of protocol/published\.yaml has no entry listops/performer; .*model=.*s5"),
        ("recall", r"the section cells of protocol/published\.yaml has no entry recall/performer; .* another task"),
    ],
)
def test_a_cell_without_an_entry_names_it(task, words, tmp_path):
    with pytest.raises(UserError, match=rf"protocol=published: .*{words}"):
        plan(["protocol=published", f"task={task}", "model=performer", "hardware=cpu"], tmp_path)


def test_a_protocol_that_requires_recipes_refuses_other_tasks(tmp_path):
    words = r"the section tasks of protocol/lra_released\.yaml has no entry recall; choose task=.*listops.*text"
    with pytest.raises(UserError, match=words):
        plan(["protocol=lra_released", "task=recall", "model=transformer", "hardware=cpu"], tmp_path)


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a protocol file of the user and plans a cell with it."""

    def planned(name, text, *overrides):
        (tmp_path / "protocol").mkdir(exist_ok=True)
        (tmp_path / "protocol" / f"{name}.yaml").write_text(text)
        (found,) = plan([f"protocol={name}", "hardware=cpu", *overrides], tmp_path, tmp_path)
        return found.cell

    return planned


def test_a_file_of_the_user_adds_entries_to_a_protocol(write):
    text = "cells: {listops/performer: {backbone: {depth: 3}, train: {steps: 7}}, listops/fnet: listops/s5}"
    made = write("published", text, "task=listops", "model=performer")
    assert made.config.backbone.depth == 3 and made.config.train.steps == 7 and made.modified == ()
    assert write("published", text, "task=listops", "model=fnet").config.train.steps == 76800


def test_a_protocol_of_the_user_begins_with_the_values_of_its_base(write):
    text = "# Mine.\nbase: quick\nversion: 3\ncommon: {train: {lr: 1e-4}}\ntasks: {parity: copy}\n"
    made = write("mine", text, "task=parity", "model=local")
    assert made.key.protocol == "mine-v3" and made.modified == ()
    assert made.config.train.lr == 1e-4 and made.config.train.steps == 1500
    assert made.config.model["mixer"]["window"] == 8
    assert made.config.protocol.next is None


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("quick", "tasks: {listops: {train: {steps: 1}}}", r"replaces tasks\.listops of the protocol; remove it, or"),
        ("quick", "common: {train: {steps: 1}}", "replaces common of the protocol"),
        (
            "mine",
            "protocol: {name: mine}\ntrain: {steps: 1}",
            "protocol has a wrong form; a protocol has version, next",
        ),
        ("mine", "tasks: [listops]", "tasks has a wrong form"),
        ("mine", "tasks: {listops: 3}", r"tasks\.listops must be a mapping or the name of an entry"),
        ("mine", "tasks: {listops: lisop}", r"tasks\.listops: there is no entry lisop"),
        ("mine", "tasks: {listops: copy, copy: listops}", "its base is the entry itself"),
        ("mine", "base: mine", "its base is the protocol itself"),
        ("mine", "base: fast", "base: fast: there is no such protocol"),
        (
            "mine",
            "common: {train: {step: 1}}",
            r"protocol/mine\.yaml: common: train\.step: there is no such option; did you",
        ),
        ("mine", "common: {train: {steps: many}}", r"protocol/mine\.yaml: common: train\.steps=many: must be an int"),
        ("mine", "tasks: {listops: {}, listops: {}}", "the key listops occurs twice"),
        ("mine", "tasks: {", "a configuration file cannot be read"),
    ],
)
def test_a_wrong_protocol_file_gives_one_sentence(name, text, words, write):
    with pytest.raises(UserError, match=words) as raised:
        write(name, text)
    assert "\n" not in str(raised.value)


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
    assert refused.returncode == 2 and "no entry listops/local" in refused.stderr.strip().splitlines()[-1]
