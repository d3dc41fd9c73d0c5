"""The hash of a cell changes if and only if something changes that determines its results."""

import importlib
import json
import re
import sys
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest

from lra_bench.config import compose as configuration
from lra_bench.config import hashing
from lra_bench.config.effective import effective
from lra_bench.config.hashing import config_hash
from lra_bench.config.import_path import importable
from lra_bench.config.serialization import as_dict
from lra_bench.options.backbone import Embedding, Experts, Hybrid, OutputHead, ProductKeys

MODELS = Path(__file__).parents[2] / "models"


@cache
def composed(*overrides):
    return configuration.compose(overrides).config


def key(config):
    return config_hash(config, "data")


def completed(config):
    """Return the options of a configuration with the defaults and revisions of its classes, as text."""
    return json.dumps(effective(as_dict(config), ""), sort_keys=True)


def with_mixer(**node):
    """Return a configuration whose mixer is this configuration node."""
    config = composed("task=listops", "model=performer")
    return replace(config, model={**config.model, "mixer": node})


def absolute(path):
    """Return the source of a module of ``models/``, with absolute imports."""
    package = ".".join(("lra_bench.models", *Path(path).parts[:-1]))
    text = (MODELS / path).read_text().replace("from ..", "from lra_bench.models.")
    return text.replace("from .", f"from {package}.")


@pytest.fixture
def ideas(tmp_path, monkeypatch):
    """Return a function that writes a module to a folder on the import path, whose modules are then imported again."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which Python also uses after an edit in the same second

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        for file in tmp_path.glob("*.py"):
            sys.modules.pop(file.stem, None)

    with importable(tmp_path):
        yield write


def variants(ideas, path, edit, name="idea"):
    """Write a copy of a module and an edited copy under the same name; return what their classes declare."""
    text = absolute(path)
    changed = edit(text)
    assert changed != text
    (kind,) = re.findall(r"^class (\w+)", text, re.MULTILINE)
    found = []
    for each in (text, changed):
        ideas(name, each)
        found.append(completed(with_mixer(_target_=f"{name}.{kind}")))
    return found


UNCHANGED = {
    "comment": lambda text: text.replace("    spec = ", "    # A comment.\n    spec = "),
    "docstring": lambda text: text.replace("FAVOR+:", "Another text:"),
    "formatting": lambda text: text.replace(
        "redraw_every: int = 0,\n", "redraw_every: int = (\n            0\n        ),\n"
    ),
    "name of a type": lambda text: text.replace("features: int | None", "features: None | int"),
    "explicit first revision": lambda text: text.replace("    draws =", "    revision = 1\n    draws ="),
}
CHANGED = {
    "default": lambda text: text.replace("hyperbolic: bool = False", "hyperbolic: bool = True"),
    "default that is None": lambda text: text.replace("features: int | None = None", "features: int | None = 8"),
    "new option": lambda text: text.replace(
        "        redraw_every: int", "        new: float = 0.5,\n        redraw_every: int"
    ),
    "revision": lambda text: text.replace("    draws =", "    revision = 2\n    draws ="),
    "computation and revision": lambda text: text.replace("-0.5 / math", "-0.25 / math").replace(
        "    draws =", "    revision: int = 2\n    draws ="
    ),
}


@pytest.mark.parametrize("edit", UNCHANGED.values(), ids=UNCHANGED)
def test_edits_that_change_no_number_change_no_declaration(ideas, edit):
    before, after = variants(ideas, "linear/performer.py", edit)
    assert before == after


@pytest.mark.parametrize("edit", CHANGED.values(), ids=CHANGED)
def test_changed_defaults_and_revisions_change_the_declaration(ideas, edit):
    before, after = variants(ideas, "linear/performer.py", edit)
    assert before != after


def test_defaults_and_revisions_of_a_base_class_are_covered(ideas):
    ideas("subclass", "from base import Base\nclass Mine(Base):\n    revision = 3\n")
    text = absolute("mixer.py").replace("class HeadMixer", "class Base")
    found = []
    for each in (
        text,
        text.replace("qkv_bias: bool = True", "qkv_bias: bool = False"),
        text.replace("shows_heads: ClassVar", "revision: ClassVar[int] = 2\n    shows_heads: ClassVar"),
        text.replace("revision: ClassVar[int] = 1", "revision: ClassVar[int] = 2"),
        text.replace("MERGES", "RENAMED").replace("LOSSES, RENAMED", "LOSSES, MERGES as RENAMED"),
    ):
        ideas("base", each)
        found.append(completed(with_mixer(_target_="subclass.Mine")))
    assert len(set(found[:4])) == 3, "the second and third revision are both that of one base class"
    assert found[4] == found[0]


def test_defaults_of_a_class_that_an_option_names_are_covered(ideas):
    ideas("parts", "class Merge:\n    def __init__(self, *, rounds=3): pass\n")
    ideas(
        "merging",
        "from lra_bench.models.mixer import HeadMixer\nCLASSES = {'mine': 'parts.Merge'}\n"
        "class Mine(HeadMixer):\n    named_classes = {'merge': CLASSES}\n",
    )
    by_name, by_mapping, explicit = (
        with_mixer(_target_="merging.Mine", merge=merge)
        for merge in ("mine", {"name": "mine"}, {"_target_": "parts.Merge", "rounds": 3})
    )
    before = completed(by_name)
    assert completed(by_mapping) == before and key(by_name) == key(by_mapping) == key(explicit)
    assert completed(with_mixer(_target_="merging.Mine")) != before
    ideas("parts", "class Merge:\n    def __init__(self, *, rounds=4): pass\n")
    assert completed(by_name) == completed(by_mapping) != before


UNDECAYED = {
    "class": lambda text: text.replace("    draws =", "    not_decayed = ('scale',)\n    draws ="),
    "no class": lambda text: text.replace("    draws =", "    not_decayed = ()\n    draws ="),
}


@pytest.mark.parametrize("train", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decay_all": True}], ids=str)
@pytest.mark.parametrize("edit", UNDECAYED)
def test_parameters_without_weight_decay_are_covered_if_others_have_it(ideas, edit, train, monkeypatch):
    monkeypatch.setattr(hashing, "source_digests", lambda node: {})  # the source of the class is covered anyway
    text = absolute("linear/performer.py")
    keys = set()
    for each in (text, UNDECAYED[edit](text)):
        ideas("idea", each)
        config = with_mixer(_target_="idea.Performer")
        keys.add(key(replace(config, train=replace(config.train, **train))))
    assert len(keys) == (2 if edit == "class" and train == {"weight_decay": 0.1} else 1)


@pytest.mark.parametrize("option", [{"experts": Experts(count=2)}, {"embedding": Embedding(rank=2)}], ids=str)
@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_options_of_the_backbone_cover_parameters_without_weight_decay(monkeypatch, option, decay):
    config = composed("task=listops", "model=performer")
    config = replace(
        config, train=replace(config.train, weight_decay=decay), backbone=replace(config.backbone, **option)
    )
    covered = key(config)
    monkeypatch.setattr(hashing, "BY_ROLE", {})
    assert (key(config) == covered) == (decay == 0)


@pytest.mark.parametrize("option", ["merge", "head_losses"])
def test_the_classes_that_options_of_head_mixers_name_are_completed(option):
    name = {"merge": "capsule_em", "head_losses": "disagreement"}[option]
    defaults: dict[str, dict] = {"merge": {"iterations": 3}, "head_losses": {"of": "output", "weight": 1}}
    target = "lra_bench.models.full.softmax_attention.SoftmaxAttention"
    named = key(with_mixer(_target_=target, **{option: name}))
    assert key(with_mixer(_target_=target, **{option: {"name": name, **defaults[option]}})) == named
    assert key(with_mixer(_target_=target)) != named


def test_a_computed_default_is_covered_by_its_value(ideas):
    sizes = []
    for number, word in enumerate(("ab", "cd", "efg")):
        ideas(f"computed_{number}", f"class Mine:\n    def __init__(self, *, size=len('{word}')): pass\n")
        sizes.append(effective({"_target_": f"computed_{number}.Mine"}, "model.mixer")["size"])
    assert sizes == [2, 2, 3]


def test_defaults_and_revisions_of_the_backbone_are_covered(ideas):
    base = composed("task=listops", "model=sac")
    config = replace(base, backbone=replace(base.backbone, _target_="stack.ReinforcedModel"))
    text = absolute("routed/reinforced.py")
    found = []
    for each in (
        text,
        text.replace("baseline_steps: int = 100", "baseline_steps: int = 50"),
        text.replace("    rewards: Tensor\n", "    rewards: Tensor\n    revision = 2\n"),
        text.replace("The gradient of this loss", "The derivative of this loss"),
    ):
        ideas("stack", each)
        found.append(key(config))
    assert len(set(found)) == 3 and found[3] == found[0]


OTHER = {
    "str": "other",
    "int": 77,
    "float": 0.077,
    "bool": True,
    "list[float]": [0.7, 0.7],
    "list[int]": [5],
    "list[list[int]]": [[64, 5]],
    "Hybrid": Hybrid(every=2),
    "Embedding": Embedding(rank=2),
    "OutputHead": OutputHead(kind="mixture"),
    "Experts": Experts(count=2),
    "ProductKeys": ProductKeys(layer=1),
}


@pytest.mark.parametrize("section", ["backbone", "train"])
def test_the_value_of_every_option_is_covered(section):
    config = composed("task=listops", "model=performer")
    options = getattr(config, section)
    found = {"no change": key(config)}
    for entry in fields(options):
        if (section, entry.name) not in hashing.NOT_HASHED and entry.name != "_target_":
            value = getattr(options, entry.name)
            other = not value if isinstance(value, bool) else OTHER[str(entry.type).partition(" ")[0]]
            found[entry.name] = key(replace(config, **{section: replace(options, **{entry.name: other})}))
    assert len(found) > 10
    assert len(set(found.values())) == len(found)


def test_an_option_with_the_default_of_the_constructor_keeps_the_key():
    target = "lra_bench.models.linear.performer.Performer"
    plain = key(with_mixer(_target_=target))
    assert key(with_mixer(_target_=target, redraw_every=0, features=None, qkv_bias=True)) == plain
    assert key(with_mixer(_target_=target, redraw_every=0.0)) == plain
    assert key(with_mixer(_target_=target, redraw_every=1)) != plain


def test_the_revision_of_training_is_covered(monkeypatch):
    config = composed("task=listops", "model=performer")
    before = key(config)
    monkeypatch.setattr(hashing, "TRAINING_REVISION", hashing.TRAINING_REVISION + 1)
    assert key(config) != before


def test_the_version_of_the_hash_is_covered(monkeypatch):
    config = composed("task=listops", "model=performer")
    before = key(config)
    monkeypatch.setattr(hashing, "HASH_VERSION", 1)
    assert key(config) != before
