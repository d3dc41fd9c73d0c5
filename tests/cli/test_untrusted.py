"""What strangers made is read without running it; what is no input at all is a sentence, from every command."""

import json
import math
import os
import pickle
import shutil
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from lra_bench.build import classes_of, load_class
from lra_bench.cells.locks import checkpoint_folder
from lra_bench.cli import main
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.serialization import as_dict
from lra_bench.contracts import Task, UserError
from lra_bench.data.pickles import load_arrays
from lra_bench.grid.plan import plan
from lra_bench.records import store, tables
from lra_bench.training.checkpoint import BEST, LAST, Checkpoints, State
from lra_bench.training.optimizer import Optimizer
from tests.support.command import TINY, Folder
from tests.support.golden_losses import composed
from tests.support.malformed import GARBAGE, STRANGE, as_json, command, disk, is_refused, spoiled_tree, told
from tests.support.record_factory import make_curves, make_predictions, make_record
from tests.training.test_loop import CPU, RECIPE, toy

FEW, MANY = 25, 250


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A folder of results with two records, which no command but those asked for may change."""
    root = tmp_path_factory.mktemp("untrusted")
    for model in ("transformer", "local"):
        store.write(make_record(model), root / "results", make_curves(), make_predictions())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("LRA_BENCH_RESULTS", str(root / "results"))
        patch.setenv("LRA_BENCH_CACHE", str(root / "cache"))
        patch.delenv("LRA_BENCH_DEBUG", raising=False)
        yield root


@pytest.fixture
def aside(tmp_path):
    return tmp_path


@pytest.fixture(scope="module")
def tested(folder):
    """The path of a record with kept weights, as ``evaluate`` wants it, in a folder of results of its own."""
    config = composed("local")
    record = make_record("local", hash="beef0000", config=as_dict(config))
    record.data = None
    path = store.write(record, folder / "tested")
    model = build_model(config, build_task(config).spec)
    checkpoints = Checkpoints(checkpoint_folder(record.key), 0)
    checkpoints.keep_best(model)
    checkpoints.save(State(), model, Optimizer(model, RECIPE, CPU))
    return path


@pytest.mark.parametrize("examples", [FEW // 3, pytest.param(MANY, marks=pytest.mark.slow)])
def test_a_record_with_a_spoiled_configuration_is_refused(folder, tested, aside, examples):
    """By ``evaluate``, which builds what it says: in the end by exit code 2, whatever the configuration is."""
    raw = json.loads(tested.read_text())
    refused = []

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(spoiled_tree(raw, ("config",)))
    def spoil(spoiled):
        path = aside / "record.json"
        path.write_bytes(as_json(spoiled))
        before = disk(aside, folder / "results")
        refused.append(is_refused(*command("evaluate", path, "--no-write", "--lengths", "16")))
        assert disk(aside, folder / "results") == before

    spoil()
    assert len(refused) >= examples and sum(refused) >= examples // 5


@pytest.mark.parametrize("threads", [-3, 2**63, [2], "many"], ids=str)
def test_hardware_of_a_record_that_cannot_be_is_refused(tested, aside, threads):
    raw = json.loads(tested.read_text())
    raw["config"]["hardware"]["threads"] = threads
    path = aside / "record.json"
    path.write_bytes(as_json(raw))
    code, errors = command("evaluate", path, "--no-write", "--lengths", "16")
    assert is_refused(code, errors) and "hardware" in errors


def told_of_a_class(tested, aside, target, *options, section="model"):
    """What ``evaluate`` says of a record that names ``target``."""
    raw = json.loads(tested.read_text())
    node = raw["config"]["model"]["mixer"] if section == "model" else raw["config"][section]
    node["_target_"] = target
    path = aside / "record.json"
    path.write_bytes(as_json(raw))
    code, errors = command("evaluate", path, "--no-write", "--lengths", "16", *options)
    assert is_refused(code, errors)
    return errors.strip().splitlines()[-1]


@pytest.mark.parametrize("section", ["model", "task", "position", "backbone"])
def test_a_record_cannot_have_a_strangers_class_imported(tested, aside, monkeypatch, section):
    """Not even the module is looked at, for importing it would run what stands in it."""
    package = aside / f"stranger_{section}"
    package.mkdir()
    (package / "__init__.py").write_text(f"import pathlib\n\npathlib.Path({str(aside / 'ran')!r}).touch()\n")
    monkeypatch.syspath_prepend(str(aside))
    target = f"{package.name}.mixer.Mixer"
    sentence = told_of_a_class(tested, aside, target, section=section)
    assert target in sentence and "--trust" in sentence and "--config-dir" in sentence
    assert not (aside / "ran").exists()
    sentence = told_of_a_class(tested, aside, target, "--trust", package.name, section=section)
    assert (aside / "ran").exists() and "cannot be imported" in sentence


def test_the_users_folder_is_the_users_word(tested, aside):
    own = aside / "own"
    own.mkdir()
    (own / "mine.py").write_text(f"import pathlib\n\npathlib.Path({str(aside / 'ran')!r}).touch()\n")
    assert "cannot be imported" in told_of_a_class(tested, aside, "mine.Mixer", "--config-dir", str(own))
    assert (aside / "ran").exists()


@pytest.mark.parametrize(
    "target", ["os.system", "torch.nn.Linear", "lra_bench.cells.stages.torch.nn.Linear", "", "x", 3]
)
def test_targets_that_are_none_of_ours_are_refused(tested, aside, target):
    assert told_of_a_class(tested, aside, target)


def test_classes_of_others_are_loaded_outside_of_records_alone():
    assert load_class("torch.nn.Linear", nn.Module, "x") is nn.Linear
    with classes_of((), "a record", "trust it"), pytest.raises(UserError, match="a record names torch"):
        load_class("torch.nn.Linear", nn.Module, "x")
    with classes_of(("torch",), "a record", "trust it"):
        assert load_class("torch.nn.Linear", nn.Module, "x") is nn.Linear
    with classes_of((), "a record", "trust it"):
        assert load_class("lra_bench.tasks.listops.ListOps", Task, "x")  # type: ignore[type-abstract]


@pytest.mark.parametrize("where", ["last", "best", "archive", "batch"])
def test_a_pickle_that_calls_something_is_not_called(aside, where):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {aside / 'ran'}",)

    model = toy()
    if where == "batch":
        assert "os.system" in told(lambda: load_arrays(pickle.dumps(Evil()), "batch")).replace("posix", "os")
    elif where == "archive":
        with zipfile.ZipFile(aside / LAST, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({"state": Evil(), "model": {}, "optimizer": {}}, 2))
            archive.writestr("archive/version", "3\n")
        assert math.isnan(Checkpoints(aside, 0).resume(model, Optimizer(model, RECIPE, CPU)).best_score)
    elif where == "last":
        torch.save({"state": Evil(), "model": {}, "optimizer": {}}, aside / LAST)
        assert math.isnan(Checkpoints(aside, 0).resume(model, Optimizer(model, RECIPE, CPU)).best_score)
    else:
        torch.save({"state": Evil()}, aside / BEST)
        assert told(lambda: Checkpoints(aside, 0).load_best(model))
    assert not (aside / "ran").exists()


def test_a_table_that_names_a_pickled_type_is_numbers_or_refused(aside):
    """Arrow can name a Python class in a file, with a pickle of it beside the name."""

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {aside / 'ran'}",)

    record = make_record()
    path = store.write(record, aside, make_curves(), make_predictions())
    table = pa.Table.from_pandas(make_curves())
    named = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(Evil())}
    schema = pa.schema([field.with_metadata(named) for field in table.schema])
    pq.write_table(table.cast(schema), path.with_name(record.artifacts["curves"]))
    told(lambda: tables.curves(store.load(path)))
    assert not (aside / "ran").exists()


NO_FILES = {
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "pipe": lambda path: os.mkfifo(path),
    "nothing": lambda path: None,
    "name too long": None,
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("arguments", [["show"], ["evaluate"]], ids=" ".join)
def test_what_is_no_file_is_no_record(aside, kind, arguments):
    path = aside / ("x" * 300 if kind == "name too long" else "record.json")
    if NO_FILES[kind]:
        NO_FILES[kind](path)
    code, errors = command(*arguments, path)
    assert is_refused(code, errors) and code == 2 and str(path) in errors


def test_folders_of_records_leave_out_what_is_none(folder, aside):
    """Commands over many records go on without those that cannot be read, and say which."""
    shutil.copytree(folder / "results", aside / "results")
    places = [path.parent for path in sorted((aside / "results" / "runs").rglob("*.json"))]
    for number, content in enumerate(GARBAGE):
        (places[number % 2] / f"seed{number + 1}.json").write_bytes(content)
    (places[0] / "seed90.json").mkdir()
    (places[0] / "seed91.json").symlink_to(places[0] / "seed91.json")
    before = disk(aside)
    for arguments in (["leaderboard"], ["results", "list"], ["compare", "transformer", "local"]):
        code, errors = command(*arguments, "--results", aside / "results")
        assert code == 0 and errors.count("left out") == len(GARBAGE) + 2, errors
        assert disk(aside) == before
    code, errors = command("results", "import", aside / "results", "--results", aside / "merged")
    assert code == 0 and len(list((aside / "merged").rglob("*.json"))) == 2


CONTROLS = "\x1b\x07\x9b\u202e\u2066\x08\r"


def test_no_control_character_of_a_record_or_a_file_name_is_printed(folder, aside, monkeypatch, capsys):
    nasty = f"[/red]{CONTROLS}]0;owned"
    record = make_record("performer", status="failed")
    changes = {"reason": nasty, "last_lines": [nasty], "command": nasty, "finished_at": nasty}
    raw = {**json.loads(json.dumps(record.to_dict())), **changes}
    raw["variant"]["differences"] = {f"x{nasty}": nasty}
    root = aside / f"results{CONTROLS}"
    path = root / "runs" / record.key.file("json")
    path.parent.mkdir(parents=True)
    path.write_bytes(as_json(raw))
    path.with_name("seed1.json").write_bytes(b"{}")

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lra-bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main.main()
        printed = capsys.readouterr()
        assert not set(printed.out + printed.err) & set(CONTROLS), printed
        assert "\ufffd" in printed.out + printed.err
        return ended.value.code

    for arguments in (["leaderboard"], ["leaderboard", "--format", "csv"], ["results", "list"]):
        assert run(*arguments, "--results", root) == 0
    assert run("results", "check", "--results", root) == 1
    assert run("results", "import", root, "--results", aside / "ours") == 0
    assert run("show", path) == 0
    assert run("show", f"{path}{CONTROLS}") == 2

    def fail(record):
        raise RuntimeError(CONTROLS)

    monkeypatch.setattr("lra_bench.leaderboard.describe.describe", fail)
    assert run("show", path) == 1


KEYS = (
    *("train.lr", "train.betas", "task.window", "model.mixer.window", "backbone.heads", "measure.speed_lengths"),
    *("hardware.compile", "seed", "task", "model", "model.mixer._target_", "tracker.mode", "nonsense"),
)


@pytest.mark.parametrize("examples", [FEW // 5, pytest.param(MANY, marks=pytest.mark.slow)])
def test_overrides_of_all_kinds_are_planned_or_refused(folder, examples):
    values = st.one_of(st.text(max_size=20), st.sampled_from([str(each) for each in STRANGE if each != "\ud800"]))
    before = disk(folder / "results")

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(KEYS), values)
    def spoil(key, value):
        told(lambda: plan([*TINY, f"{key}={value}"], folder / "results"))

    spoil()
    assert disk(folder / "results") == before


CONFIGURATIONS = {
    "no YAML": b"model: {label: [}",
    "another encoding": "model: {label: \u00e9}".encode("utf-16"),
    "no mapping": b"- 1\n- 2\n",
    "a tag that builds": b"model: !!python/object/apply:os.system ['touch ran']\n",
    "aliases that grow": b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\nmodel: {mixer: {_target_: x.Y, b: *b}}\n",
    "a mixer of no class": b"# @package _global_\nmodel: {label: x, mixer: {_target_: 3}}\n",
    "nothing": b"",
    "an interpolation in a circle": b"# @package _global_\nmodel: {label: '${model.label}'}\n",
    "a zero byte": b"model: {label: a\x00}",
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_spoiled_configuration_file_is_refused(folder, aside, kind):
    (aside / "own" / "model").mkdir(parents=True)
    (aside / "own" / "model" / "spoiled.yaml").write_bytes(CONFIGURATIONS[kind])
    before = disk(aside, folder / "results")
    code, errors = command("bench", *TINY, "model=spoiled", "--config-dir", aside / "own", "--dry-run")
    assert is_refused(code, errors), errors
    assert disk(aside, folder / "results") == before


@pytest.mark.parametrize("how", ["folder", "loop"])
def test_a_configuration_file_that_is_none_is_refused(folder, aside, how):
    (aside / "own" / "model").mkdir(parents=True)
    NO_FILES[how](aside / "own" / "model" / "spoiled.yaml")
    assert is_refused(*command("bench", *TINY, "model=spoiled", "--config-dir", aside / "own", "--dry-run"))


def test_the_installed_command_does_the_same(tmp_path):
    folder = Folder(tmp_path)
    (tmp_path / "bad.json").write_bytes(b'{"a": NaN}')
    (tmp_path / "tables").mkdir()
    for split in ("train", "val", "test"):
        (tmp_path / "tables" / f"basic_{split}.tsv").write_bytes(b"\xff\xfe\t\n" * 3)
    before = disk(tmp_path / "tables")
    for arguments in (["show", "bad.json"], ["data", "prepare", "listops", "--source", "tables"]):
        done = folder.run(*arguments, check=False)
        assert is_refused(done.returncode, done.stderr), done.stderr
    assert disk(tmp_path / "tables") == before and not folder.results.exists()
