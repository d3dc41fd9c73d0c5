"""Composition of configurations: precedence, error messages, and the options that the hash covers."""

from pathlib import Path

import pytest
import yaml

from lra_bench.config import compose as config
from lra_bench.config import loading
from lra_bench.config.compose import Loader
from lra_bench.config.groups import GROUPS, option_files
from lra_bench.config.hashing import config_hash
from lra_bench.config.listing import options
from lra_bench.config.objects import build_task
from lra_bench.config.schema import CellConfig
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.contracts import UserError
from lra_bench.grid.expand import expand
from lra_bench.grid.status import incompatible

CONF = Path(__file__).parents[2] / "conf"


LOADER = Loader(None)
"""Loader that composes each choice of groups once, as the planning of a grid does."""


def compose(*overrides, config_dir=None, load=None):
    if config_dir is None and load is None:
        load = LOADER
    return config.compose(list(overrides), config_dir, load)


MODELS = sorted(option_files("model"))


def check_composed(composed, protocol):
    assert composed.config.protocol.name == protocol
    assert composed.config.model["label"]
    assert composed.modified == ()
    assert composed.differences == {}


PROTOCOLS = sorted(option_files("protocol"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_transformer_composes_under_every_protocol(protocol):
    check_composed(compose("model=transformer", f"protocol={protocol}", "hardware=cpu"), protocol)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes_under_every_protocol(model):
    for protocol in PROTOCOLS:
        check_composed(compose(f"model={model}", f"protocol={protocol}", "hardware=cpu"), protocol)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("model", MODELS)
def test_every_model_composes(model):
    composed = compose(f"model={model}", "protocol=quick", "hardware=cpu")
    check_composed(composed, "quick")
    content = yaml.safe_load(option_files("model")[model].read_text())
    stack = (content.get("backbone") or {}).get("_target_", "lra_bench.models.backbone.SequenceModel")
    assert composed.config.backbone._target_ == stack


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("group", [group for group in GROUPS if group != "protocol"])
def test_option_files_are_read_as_hydra_reads_them(group, every):
    names = sorted(option_files(group))
    for name in names if every else names[:1]:
        assert loading.option_file(group, name, None) == loading.by_hydra(group, name, None), name


def test_hydra_composes_a_file_with_a_defaults_list_or_another_package(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "short.yaml").write_text('defaults: [listops, _self_]\nwindow: [3, "${backbone.width}"]\n')
    (tmp_path / "task" / "nested.yaml").write_text("# @package task.rows\n# Mine.\ntrain: 7\n")
    made = compose("task=short", config_dir=tmp_path).config.task
    assert made["_target_"] == "lra_bench.tasks.listops.ListOps" and made["window"] == [3, 64]
    assert compose("task=nested", config_dir=tmp_path).config.task == {"rows": {"train": 7}}


def test_options_are_listed_with_a_description():
    for kind in ("models", "tasks", "positions", "protocols", "hardware", "trackers", "launchers"):
        for entry in options(kind):
            assert entry["description"], f"{kind}: {entry['name']}"


def test_later_sections_override_earlier_ones_and_the_user_overrides_all(tmp_path):
    (tmp_path / "protocol").mkdir()
    sections = ["common", "tasks: {listops", "models: {performer", "cells: {listops/performer"]
    for count, section in enumerate(sections, 1):
        text = "".join(
            f"{each}: {{train: {{steps: {n}}}}}{'}' * ('{' in each)}\n" for n, each in enumerate(sections[:count], 1)
        )
        (tmp_path / "protocol" / "mine.yaml").write_text(text)
        assert compose("protocol=mine", "model=performer", config_dir=tmp_path).config.train.steps == count, section
    assert compose("protocol=mine", "model=performer", "train.steps=7", config_dir=tmp_path).config.train.steps == 7
    # The file of a model overrides the sections common and tasks, and the sections models and cells override the file.
    text = "tasks: {listops: {backbone: {position: rope}}}\nmodels: {mega: {backbone: {position: none}}}\n"
    (tmp_path / "protocol" / "mine.yaml").write_text(text)
    assert compose("protocol=mine", "model=s4", config_dir=tmp_path).config.backbone.position == "none"
    assert compose("protocol=mine", "model=mega", config_dir=tmp_path).config.backbone.position == "none"


def test_options_changed_by_the_user_are_listed():
    composed = compose("model=performer", "model.mixer.features=32", "train.lr=5e-3", "backbone.depth=3", "seed=4")
    assert set(composed.modified) == {"train.lr", "backbone.depth"}
    assert composed.differences == {"model.mixer.features": 32}


def test_only_a_modified_protocol_ends_training_early():
    assert not [path for path in CONF.rglob("*.yaml") if "stop_at" in path.read_text()]
    composed = compose("model=performer", "train.stop_at=0.9")
    assert composed.modified == ("train.stop_at",) and composed.config.train.stop_at == 0.9
    for value in ("1", "1.5", "nan"):
        with pytest.raises(UserError, match=r"train\.stop_at=.*: must be below 1"):
            compose("model=performer", f"train.stop_at={value}")


def test_knobs_are_written_in_quotes():
    """Parse knobs as the documentation writes them: Hydra's grammar requires quotes around an equals sign."""
    text = 'measure.extrapolation_knobs=["position.scaling=yarn","model.mixer.log_n=true"]'
    assert [text] in expand([text])
    measure = compose("task=recall", text).config.measure
    assert measure.extrapolation_knobs == ["position.scaling=yarn", "model.mixer.log_n=true"]


def test_the_direction_is_part_of_the_variant_and_not_of_the_protocol():
    composed = compose("task=retrieval_synthetic", "backbone.causal=true")
    assert composed.modified == () and composed.differences == {"backbone.causal": True}
    plain = compose("task=retrieval_synthetic")
    assert plain.config.backbone.causal is None
    assert len({config_hash(each.config, "data") for each in (composed, plain)}) == 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("model", "causal", "reason"),
    [
        ("fnet", "true", "has no exact causal form, which backbone.causal=true needs"),
        ("transformer", "true", None),
        ("transformer", "false", None),
        ("rfa_gated", "false", "has no bidirectional form, which backbone.causal=false needs"),
    ],
)
def test_an_unsupported_direction_is_reported_before_the_cell_runs(model, causal, reason):
    composed = compose("task=recall", f"model={model}", f"backbone.causal={causal}").config
    found = incompatible(composed, build_task(composed).spec)
    assert found is None if reason is None else found.endswith(reason)


def test_the_automatic_position_is_that_of_the_protocol_if_the_mixer_supports_it():
    assert compose("protocol=small").choices["position"] == "rope"
    assert compose("protocol=small", "model=fnet").choices["position"] == "learned"
    assert compose("protocol=small", "position=none").choices["position"] == "none"
    assert compose("protocol=smoke").choices["position"] == "none"
    assert compose("protocol=small", "backbone.position=sinusoidal").choices["position"] == "sinusoidal"


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("model", "position"),
    [("transformer", "rope"), ("performer", "rope"), ("linformer", "sinusoidal"), ("s4d", "sinusoidal")],
)
def test_the_automatic_position_is_the_first_of_several_that_the_mixer_supports(model, position):
    named = "backbone.position=rope|sinusoidal"
    assert compose(f"model={model}", named).choices["position"] == position


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model=perfomer", "model=perfomer: there is no such model; did you mean performer?"),
        ("task=listop", "task=listop: there is no such task; did you mean listops?"),
        ("train.stepz=3", "train.stepz: there is no such option; did you mean train.steps?"),
        ("trian.steps=3", "did you mean"),
        ("train.steps=many", "train.steps"),
        ("train.steps=0", "train.steps=0: must be at least 1"),
        ("backbone.dropout=1", "backbone.dropout=1.0: must be at least 0 and below 1"),
        ("train.lr=nan", "train.lr=nan: must be above 0 and at most 1e100"),
        ("train.lr=-1", "train.lr=-1.0: must be above 0 and at most 1e100"),
        ("train.lr=inf", "train.lr=inf: must be above 0 and at most 1e100"),
        ("train.state_lr=0", "train.state_lr=0.0: must be above 0 and at most 1e100"),
        ("train.eps=0", "train.eps=0.0: must be above 0 and at most 1e100"),
        ("train.weight_decay=nan", "train.weight_decay=nan: must be at least 0 and at most 1e100"),
        ("train.warmup_steps=-1", "train.warmup_steps=-1: must be at least 0 and at most 1e100"),
        ("train.clip=-1", "train.clip=-1.0: must be at least 0 and at most 1e100"),
        ("model.width=64", "model.width: there is no such option; did you mean backbone.width?"),
        ("model.features=64", "model.features: there is no such option; did you mean model.mixer.features?"),
        ("train.betas=[2,3]", "train.betas=[2.0,3.0]: must be at least 0 and below 1"),
        ("train.betas=[0.9]", "train.betas=[0.9]: must be two numbers"),
        ("train.beta1_cycle=[0.9,1]", "train.beta1_cycle=[0.9,1.0]: must be at least 0 and below 1"),
        ("train.beta1_cycle=[0.9]", "train.beta1_cycle=[0.9]: must be two numbers"),
        ("backbone.readout_hidden=[0]", "backbone.readout_hidden=[0]: must be at least 1"),
        ("backbone.embedding_scale=-1", "backbone.embedding_scale=-1.0: must be at least 0 and at most 1e100"),
        ("backbone.attention_dropout=1", "backbone.attention_dropout=1.0: must be at least 0 and below 1"),
        ("train.window=0", "train.window=0: must be at least 1"),
        ("backbone.head_dim=0", "backbone.head_dim=0: must be at least 1"),
        ("backbone.dropout=nan", "backbone.dropout=nan: must be at least 0 and below 1"),
        (
            "measure.extrapolation_ratios=[1,-1]",
            "measure.extrapolation_ratios=[1.0,-1.0]: must be above 0 and at most 1e100",
        ),
        ("measure.speed_lengths=[0]", "measure.speed_lengths=[0]: must be at least 1"),
        ("measure.speed_batches=[0]", "measure.speed_batches=[0]: not a batch size; use positive integers"),
        ("measure.speed_batches=[big]", "measure.speed_batches=[big]: not a batch size"),
        ("measure.speed_batches=[true]", "measure.speed_batches=[True]: not a batch size"),
        ("tracker.name=mlflow", "tracker.name=mlflow: choose wandb or none"),
        ("tracker.mode=on", "tracker.mode=on: choose online, offline or disabled"),
        ("measure.memory_limit_gigabytes=0", "measure.memory_limit_gigabytes=0.0: must be above 0"),
        ("hardware.memory_limit_gigabytes=0", "hardware.memory_limit_gigabytes=0.0: must be above 0"),
        ("hardware.checkpoint_seconds=-1", "hardware.checkpoint_seconds=-1.0: must be at least 0 and at most 1e100"),
        ("hardware.timeout_seconds=-1", "hardware.timeout_seconds=-1: must be at least 1"),
        ("backbone.depth=10000000", "backbone.depth=10000000: must be at least 1 and at most 4096"),
        ("backbone.width=1" + "0" * 400, "must be at least 1 and below 2^63"),
        ("hardware.threads=65536", "hardware.threads=65536: must be 1 to 4096"),
        ("train.lr=1" + "0" * 400, "int too large to convert to float"),
        (f"measure.speed_lengths=[{','.join(['9'] * 1001)}]", "measure.speed_lengths: has 1,001 entries"),
        (f"measure.speed_lengths=[{','.join(['512'] * 10001)}]", "measure.speed_lengths: has 40,027 characters"),
        ("seed=-1", "seed=-1: must be at least 0 and below 2^63"),
        ("seed=9223372036854775808", "seed=9223372036854775808: must be at least 0 and below 2^63"),
        ("train.steps=1,2", "train.steps=1,2: has several values"),
        ("+train.steps=5", "+train.steps=5: the option has a value; write it without +"),
        ("backbone.position=rotten", "backbone.position=rotten: there is no such position"),
        ("performer", "performer: write model=performer"),
    ],
)
def test_invalid_overrides_give_one_sentence(override, sentence):
    with pytest.raises(UserError) as caught:
        compose(override)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_misspelt_task_option_is_named_when_the_task_is_built():
    composed = compose("task.windov=[1,2]").config
    with pytest.raises(UserError, match=r"task\.windov: ListOps has no such option; did you mean window\?"):
        build_task(composed)


def key(*overrides, fingerprint="data"):
    return config_hash(compose(*overrides).config, fingerprint)


def test_the_hash_covers_exactly_the_options_that_determine_results():
    base = key("model=performer")
    assert len(base) == 8
    same = ["seed=3", "tracker=none", "hardware=cpu", "model.label=Other", "hardware.threads=1"]
    for override in same:
        assert key("model=performer", override) == base, override
    for override in [
        "train.lr=3e-3",
        "model.mixer.features=8",
        "backbone.depth=3",
        "position=none",
        "task.window=[9,99]",
    ]:
        assert key("model=performer", override) != base, override
    assert key("model=performer", fingerprint="other data") != base
    assert key("model=performer", "position=rope") == base, "naming the default position must not change the hash"


def test_an_option_with_its_default_does_not_change_the_hash():
    composed = compose("model=performer").config
    raw = as_dict(composed)
    del raw["train"]["order"]
    assert composed.train.order == CellConfig().train.order == "shuffled"
    assert config_hash(from_dict(raw), "data") == config_hash(composed, "data")


@pytest.mark.parametrize(("group", "option"), [("model", "model"), ("grid", "grid"), ("task_group", "task")])
def test_a_file_with_nested_aliases_or_of_great_depth_is_refused(tmp_path, group, option):
    (tmp_path / group).mkdir()
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (tmp_path / group / "bomb.yaml").write_text("\n".join(["a0: &a0 [x]", *levels]))
    with pytest.raises(UserError, match="it has more than 20 nested aliases"):
        for cell in expand([f"{option}=bomb"], tmp_path):
            compose(*cell, config_dir=tmp_path)
    (tmp_path / group / "bomb.yaml").write_text("[" * 100_000)  # libyaml ends the process at such a depth
    with pytest.raises(UserError, match="100 levels of nesting"):
        for cell in expand([f"{option}=bomb"], tmp_path):
            compose(*cell, config_dir=tmp_path)


@pytest.mark.parametrize("name", ["ideas", "my ideas, (2nd) = über"])
def test_config_dir_adds_options(tmp_path, name):
    tmp_path = tmp_path / name
    (tmp_path / "model").mkdir(parents=True)
    (tmp_path / "model" / "mine.yaml").write_text(
        "# @package _global_\n# Mine.\n"
        "model: {label: Mine, mixer: {_target_: lra_bench.models.full.softmax_attention.SoftmaxAttention}}\n"
    )
    composed = compose("model=mine", config_dir=tmp_path)
    assert composed.config.model["label"] == "Mine"
    assert {"name": "mine", "description": "Mine."} in options("models", tmp_path)


def test_listed_models_have_their_declared_capabilities():
    without = ("bag_of_tokens", "csalr", "gaussian_transformer", "lowrank_band", "lstm")  # no paper on arXiv
    rows = {row["name"]: row for row in options("models", declared=True)}
    for row in rows.values():
        assert {"family", "paper", "bidirectional", "causal", "length", "growth", "positions"} <= set(row)
        assert "arxiv" in row or row["name"] in without
    assert rows["transformer"]["growth"] == 2 and "rotate" in rows["transformer"]["positions"]
    assert rows["mqa"]["arxiv"] == "1911.02150" and rows["mqa"]["growth"] == 2  # a file may name its own source
    assert "family" not in options("models")[0]


UNUSUAL_NAMES = ["a #=,([{'\"é数+~%41: ${b}", "null \\", "'"]


def test_a_path_may_contain_any_character(tmp_path):
    for name in UNUSUAL_NAMES:
        override = f"task.source={tmp_path / name}"
        ((*cell,),) = expand(["task=text", override])
        assert compose(*cell).config.task["source"] == str(tmp_path / name)
    for given, value in (("null", None), ("'a b'", "a b"), ('"a,b"', "a,b")):
        assert compose("task=text", f"task.source={given}").config.task["source"] == value


def test_a_folder_of_options_may_have_any_name(tmp_path):
    for name in UNUSUAL_NAMES:
        (tmp_path / name / "task").mkdir(parents=True)
        (tmp_path / name / "task" / "mine.yaml").write_text("_target_: lra_bench.tasks.text.Text\n")
        assert compose("task=mine", config_dir=tmp_path / name).choices["task"] == "mine"
