"""The manifest describes the classes of lra-bench, so that planning does not import them; others are imported."""

import json
import subprocess
import sys

import pytest

from lra_bench.config import sources
from lra_bench.config.compose import compose
from lra_bench.config.effective import declared, mixer_capability, position_hooks
from lra_bench.config.objects import build_model
from lra_bench.config.sources import manifest
from lra_bench.contracts import UserError
from lra_bench.models.linear.performer import Performer
from tests.support.golden_outputs import CASES
from tests.support.manifest import COMMAND, current, named
from tests.support.model_cases import task

PERFORMER = "lra_bench.models.linear.performer.Performer"


@pytest.fixture(scope="module")
def code():
    """Return the manifest of the current code, as it is read from its file."""
    return json.loads(json.dumps(current()))


def test_the_manifest_describes_the_classes(code):
    assert manifest()["classes"] == code["classes"], f"a class of models/ or tasks/ changed; run {COMMAND}"


def test_the_manifest_contains_the_syntax_trees_of_the_modules(code):
    trees = [{name: tree for name, (_, tree) in each["modules"].items()} for each in (manifest(), code)]
    assert trees[0] == trees[1], f"a module of models/ or tasks/ changed; run {COMMAND}"


def test_no_class_that_a_configuration_of_lra_bench_names_is_imported():
    paths = sorted(named() | {node["_target_"] for node, _ in CASES.values()})
    code = (
        "import sys; from lra_bench.config.effective import declared; "
        f"[declared(target, 'test') for target in {paths!r}]; print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert len(paths) > 120
    assert not {"torch", "numpy", "pandas", "lra_bench.models.mixer", "lra_bench.tasks.copy"} & set(loaded)


@pytest.mark.parametrize(
    ("edited", "imported"),
    [
        ("lra_bench.models.linear.performer", True),
        ("lra_bench.models.mixer", True),
        ("lra_bench.models.heads.choice", True),
        ("lra_bench.models.full.softmax_attention", False),
    ],
)
def test_a_class_is_imported_if_its_module_or_that_of_a_base_was_edited(monkeypatch, edited, imported):
    monkeypatch.setattr(Performer, "revision", 7, raising=False)
    assert declared(PERFORMER, "test").revisions == []
    monkeypatch.setattr(sources, "_edited", lambda: frozenset({edited}))
    assert declared(PERFORMER, "test").revisions == ([7] if imported else [])


@pytest.mark.parametrize("changed", [{"revision": 7}, {"not_decayed": ("scale",)}, {"spec": None}], ids=str)
def test_a_model_is_not_built_from_a_class_that_the_manifest_does_not_describe(monkeypatch, changed):
    config = compose(["task=listops", "model=performer"]).config
    build_model(config, task())
    for name, value in changed.items():
        monkeypatch.setattr(Performer, name, value, raising=False)
    with pytest.raises(UserError, match=rf"^{PERFORMER}: .*manifest\.json does not describe this class"):
        build_model(config, task())


def test_capabilities_of_a_class_of_another_kind_are_refused():
    with pytest.raises(UserError, match="is not a mixer"):
        mixer_capability({"_target_": "lra_bench.models.positions.rope.RotaryPosition"})
    with pytest.raises(UserError, match="is not a position"):
        position_hooks(PERFORMER)
