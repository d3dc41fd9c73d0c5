"""Untrusted input is read without running code in it, and every command reports invalid input in one sentence."""

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
from lra_bench.grid.plan import plan
from lra_bench.records import store, tables
from lra_bench.tasks.image.unpickle import load_batch
from lra_bench.training.checkpoint import BEST, LAST, Checkpoints, State
from lra_bench.training.optimizer import Optimizer
from tests.support.command import TINY, Folder
from tests.support.golden_losses import composed
from tests.support.malformed import GARBAGE, STRANGE, as_json, command, disk, error_message, is_refused, spoiled_tree
from tests.support.record_factory import make_curves, make_predictions, make_record
from tests.training.test_loop import CPU, RECIPE, toy

FEW, MANY = 25, 250


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Yield a folder with the results of two records, which the tested commands must not change."""
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
def workspace(tmp_path):
    return tmp_path


@pytest.fixture(scope="module")
def tested(folder):
    """Return the path of a record with best weights, as ``evaluate`` needs it, in a separate results folder."""
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
def test_a_record_with_a_corrupted_configuration_is_refused(folder, tested, workspace, examples):
    """Evaluate records with corrupted configurations: each is accepted or refused with exit code 2."""
    raw = json.loads(tested.read_text())
    refused = []

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(spoiled_tree(raw, ("config",)))
    def spoil(spoiled):
        path = workspace / "record.json"
        path.write_bytes(as_json(spoiled))
        before = disk(workspace, folder / "results")
        refused.append(is_refused(*command("evaluate", path, "--no-write", "--lengths", "16")))
        assert disk(workspace, folder / "results") == before

    spoil()
    assert len(refused) >= examples and sum(refused) >= examples // 5


@pytest.mark.parametrize("threads", [-3, 2**63, [2], "many"], ids=str)
def test_invalid_hardware_of_a_record_is_refused(tested, workspace, threads):
    raw = json.loads(tested.read_text())
    raw["config"]["hardware"]["threads"] = threads
    path = workspace / "record.json"
    path.write_bytes(as_json(raw))
    code, errors = command("evaluate", path, "--no-write", "--lengths", "16")
    assert is_refused(code, errors) and "hardware" in errors


def error_for_class(tested, workspace, target, *options, section="model"):
    """Return the error message of ``evaluate`` for a record that names the class ``target``."""
    raw = json.loads(tested.read_text())
    node = raw["config"]["model"]["mixer"] if section == "model" else raw["config"][section]
    node["_target_"] = target
    path = workspace / "record.json"
    path.write_bytes(as_json(raw))
    code, errors = command("evaluate", path, "--no-write", "--lengths", "16", *options)
    assert is_refused(code, errors)
    return errors.strip().splitlines()[-1]


@pytest.mark.parametrize("section", ["model", "task", "position", "backbone"])
def test_a_record_cannot_import_an_untrusted_class(tested, workspace, monkeypatch, section):
    """Check that the module is not imported either, because an import would run its code."""
    package = workspace / f"stranger_{section}"
    package.mkdir()
    (package / "__init__.py").write_text(f"import pathlib\n\npathlib.Path({str(workspace / 'ran')!r}).touch()\n")
    monkeypatch.syspath_prepend(str(workspace))
    target = f"{package.name}.mixer.Mixer"
    sentence = error_for_class(tested, workspace, target, section=section)
    assert target in sentence and "--trust" in sentence and "--config-dir" in sentence
    assert not (workspace / "ran").exists()
    sentence = error_for_class(tested, workspace, target, "--trust", package.name, section=section)
    assert (workspace / "ran").exists() and "cannot be imported" in sentence


def test_classes_in_config_dir_are_trusted(tested, workspace):
    own = workspace / "own"
    own.mkdir()
    (own / "mine.py").write_text(f"import pathlib\n\npathlib.Path({str(workspace / 'ran')!r}).touch()\n")
    assert "cannot be imported" in error_for_class(tested, workspace, "mine.Mixer", "--config-dir", str(own))
    assert (workspace / "ran").exists()


@pytest.mark.parametrize(
    "target", ["os.system", "torch.nn.Linear", "lra_bench.cells.stages.torch.nn.Linear", "", "x", 3]
)
def test_targets_outside_lra_bench_are_refused(tested, workspace, target):
    assert error_for_class(tested, workspace, target)


def test_classes_of_other_packages_are_refused_only_for_records():
    assert load_class("torch.nn.Linear", nn.Module, "x") is nn.Linear
    with classes_of((), "a record", "trust it"), pytest.raises(UserError, match="a record names torch"):
        load_class("torch.nn.Linear", nn.Module, "x")
    with classes_of(("torch",), "a record", "trust it"):
        assert load_class("torch.nn.Linear", nn.Module, "x") is nn.Linear
    with classes_of((), "a record", "trust it"):
        assert load_class("lra_bench.tasks.listops.ListOps", Task, "x")  # type: ignore[type-abstract]


@pytest.mark.parametrize("where", ["last", "best", "archive", "batch"])
def test_a_function_named_in_a_pickle_is_not_called(workspace, where):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {workspace / 'ran'}",)

    model = toy()
    if where == "batch":
        assert "os.system" in error_message(lambda: load_batch(pickle.dumps(Evil()), "batch")).replace("posix", "os")
    elif where == "archive":
        with zipfile.ZipFile(workspace / LAST, "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps({"state": Evil(), "model": {}, "optimizer": {}}, 2))
            archive.writestr("archive/version", "3\n")
        assert math.isnan(Checkpoints(workspace, 0).resume(model, Optimizer(model, RECIPE, CPU)).best_value)
    elif where == "last":
        torch.save({"state": Evil(), "model": {}, "optimizer": {}}, workspace / LAST)
        assert math.isnan(Checkpoints(workspace, 0).resume(model, Optimizer(model, RECIPE, CPU)).best_value)
    else:
        torch.save({"state": Evil()}, workspace / BEST)
        assert error_message(lambda: Checkpoints(workspace, 0).load_best(model))
    assert not (workspace / "ran").exists()


def test_a_pickled_extension_type_in_a_table_is_not_loaded(workspace):
    """Check a table whose Arrow schema contains an extension type with a pickled Python class."""

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {workspace / 'ran'}",)

    record = make_record()
    path = store.write(record, workspace, make_curves(), make_predictions())
    table = pa.Table.from_pandas(make_curves())
    named = {b"ARROW:extension:name": b"arrow.py_extension_type", b"ARROW:extension:metadata": pickle.dumps(Evil())}
    schema = pa.schema([field.with_metadata(named) for field in table.schema])
    pq.write_table(table.cast(schema), path.with_name(record.artifacts["curves"]))
    error_message(lambda: tables.curves(store.load(path)))
    assert not (workspace / "ran").exists()


NOT_REGULAR_FILES = {
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path),
    "pipe": lambda path: os.mkfifo(path),
    "nothing": lambda path: None,
    "name too long": None,
}


@pytest.mark.parametrize("kind", NOT_REGULAR_FILES)
@pytest.mark.parametrize("arguments", [["show"], ["evaluate"]], ids=" ".join)
def test_a_record_that_is_not_a_regular_file_is_refused(workspace, kind, arguments):
    path = workspace / ("x" * 300 if kind == "name too long" else "record.json")
    if NOT_REGULAR_FILES[kind]:
        NOT_REGULAR_FILES[kind](path)
    code, errors = command(*arguments, path)
    assert is_refused(code, errors) and code == 2 and str(path) in errors


def test_unreadable_records_in_a_folder_are_left_out(folder, workspace):
    """Check that commands over many records continue without unreadable ones and report each of them."""
    shutil.copytree(folder / "results", workspace / "results")
    folders = [path.parent for path in sorted((workspace / "results" / "runs").rglob("*.json"))]
    for number, content in enumerate(GARBAGE):
        (folders[number % 2] / f"seed{number + 1}.json").write_bytes(content)
    (folders[0] / "seed90.json").mkdir()
    (folders[0] / "seed91.json").symlink_to(folders[0] / "seed91.json")
    before = disk(workspace)
    for arguments in (["leaderboard"], ["results", "list"], ["compare", "transformer", "local"]):
        code, errors = command(*arguments, "--results", workspace / "results")
        assert code == 0 and errors.count("left out") == len(GARBAGE) + 2, errors
        assert disk(workspace) == before
    code, errors = command("results", "import", workspace / "results", "--results", workspace / "merged")
    assert code == 0 and len(list((workspace / "merged").rglob("*.json"))) == 2


CONTROLS = "\x1b\x07\x9b\u202e\u2066\x08\r"


def test_no_control_character_of_a_record_or_a_file_name_is_printed(folder, workspace, monkeypatch, capsys):
    text = f"[/red]{CONTROLS}]0;owned"
    record = make_record("performer", status="failed")
    changes = {"reason": text, "last_lines": [text], "command": text, "finished_at": text}
    raw = {**json.loads(json.dumps(record.to_dict())), **changes}
    raw["variant"]["differences"] = {f"x{text}": text}
    root = workspace / f"results{CONTROLS}"
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
    assert run("results", "import", root, "--results", workspace / "imported") == 0
    assert run("show", path) == 0
    assert run("show", f"{path}{CONTROLS}") == 2

    def fail(record):
        raise RuntimeError(CONTROLS)

    monkeypatch.setattr("lra_bench.tables.describe.describe", fail)
    assert run("show", path) == 1


KEYS = (
    *("train.lr", "train.betas", "task.window", "model.mixer.window", "backbone.heads", "measure.speed_lengths"),
    *("hardware.compile", "seed", "task", "model", "model.mixer._target_", "tracker.mode", "nonsense"),
)


@pytest.mark.parametrize("examples", [FEW // 5, pytest.param(MANY, marks=pytest.mark.slow)])
def test_arbitrary_override_values_are_planned_or_refused(folder, examples):
    values = st.one_of(st.text(max_size=20), st.sampled_from([str(each) for each in STRANGE if each != "\ud800"]))
    before = disk(folder / "results")

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(KEYS), values)
    def spoil(key, value):
        error_message(lambda: plan([*TINY, f"{key}={value}"], folder / "results"))

    spoil()
    assert disk(folder / "results") == before


CONFIGURATIONS = {
    "no YAML": b"model: {label: [}",
    "another encoding": "model: {label: \u00e9}".encode("utf-16"),
    "no mapping": b"- 1\n- 2\n",
    "a tag that calls a function": b"model: !!python/object/apply:os.system ['touch ran']\n",
    "aliases that grow": b"a: &a [x,x,x]\nb: &b [*a,*a,*a]\nmodel: {mixer: {_target_: x.Y, b: *b}}\n",
    "a mixer without a class": b"# @package _global_\nmodel: {label: x, mixer: {_target_: 3}}\n",
    "nothing": b"",
    "a circular interpolation": b"# @package _global_\nmodel: {label: '${model.label}'}\n",
    "a zero byte": b"model: {label: a\x00}",
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
def test_a_malformed_configuration_file_is_refused(folder, workspace, kind):
    (workspace / "own" / "model").mkdir(parents=True)
    (workspace / "own" / "model" / "corrupted.yaml").write_bytes(CONFIGURATIONS[kind])
    before = disk(workspace, folder / "results")
    code, errors = command("bench", *TINY, "model=corrupted", "--config-dir", workspace / "own", "--dry-run")
    assert is_refused(code, errors), errors
    assert disk(workspace, folder / "results") == before


@pytest.mark.parametrize("how", ["folder", "loop"])
def test_a_configuration_file_that_is_not_a_regular_file_is_refused(folder, workspace, how):
    (workspace / "own" / "model").mkdir(parents=True)
    NOT_REGULAR_FILES[how](workspace / "own" / "model" / "corrupted.yaml")
    assert is_refused(*command("bench", *TINY, "model=corrupted", "--config-dir", workspace / "own", "--dry-run"))


@pytest.mark.slow
def test_the_installed_command_refuses_invalid_input_too(tmp_path):
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
