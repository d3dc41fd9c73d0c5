"""Whatever is wrong with what is read, the user is told in a sentence, and nothing changes on the disk.

Each kind of input is spoiled at random: a few times here, hundreds of times among the slow tests. What loads none the
less must be harmless: everything that reads it afterwards ends in order too.
"""

import functools
import json
import math
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_model

from lra_bench.data.archives import read_files
from lra_bench.data.cache import Cache
from lra_bench.data.pickles import load_arrays
from lra_bench.leaderboard.published import COLUMNS, load_published
from lra_bench.records import store
from lra_bench.tasks.listops_files import read_examples
from lra_bench.tasks.retrieval_files import find_pairs, read_pairs
from lra_bench.training.checkpoint import BEST, LAST, Checkpoints
from lra_bench.training.loop import State
from lra_bench.training.optimizer import Optimizer
from tests.malformed import as_json, disk, spoiled_bytes, spoiled_tree, told
from tests.record_factory import make_curves, make_predictions, make_record
from tests.test_archives import FILES, write
from tests.test_training import CPU, RECIPE, equal, toy, weights

FEW, MANY = 25, 400
TABLE = b"Source\tTarget\r\n" + b"( ( [MAX 2 ) 9 ) ]\t9\r\n( ( [MIN ( [SM 1 ) 2 ) ] ) 9 ) ]\t3\r\n" * 3
PAIRS = b"0.0\tone\ttwo\tsome text\tanother text\n1.0\tone\tthree\tsome text\tits own\n" * 3


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """A folder of results with three records, which no command but those asked for may change."""
    root = tmp_path_factory.mktemp("malformed")
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


def spoil_record(aside, data):
    raw = json.loads(json.dumps(make_record().to_dict()))
    content = data.draw(st.one_of(spoiled_bytes(as_json(raw)), spoiled_tree(raw).map(as_json)))
    return told(lambda: store.read(content, "record.json"))


def spoil_table(aside, data):
    """Curves and predictions beside a record: bits, or whole columns of another kind."""
    record = make_record()
    made = {"curves": make_curves(), "predictions": make_predictions()}
    path = store.write(record, aside, *made.values())
    name = data.draw(st.sampled_from(sorted(made)))
    file = path.with_name(record.artifacts[name])
    if data.draw(st.booleans()):
        file.write_bytes(data.draw(spoiled_bytes(file.read_bytes())))
    else:
        frame = made[name]
        column = data.draw(st.sampled_from(list(frame.columns)))
        kind = data.draw(st.sampled_from(["gone", "text", "lists", "bytes"]))
        other = {"text": "x", "lists": [1, 2], "bytes": b"\xff"}
        frame = frame.drop(columns=column) if kind == "gone" else frame.assign(**{column: [other[kind]] * len(frame)})
        frame.to_parquet(file, index=False)
    before = disk(aside)
    loaded = store.load(path)
    sentence = told(lambda: (store.curves if name == "curves" else store.predictions)(loaded))
    assert disk(aside) == before
    return sentence


def spoil_listops(aside, data):
    (aside / "basic_train.tsv").write_bytes(data.draw(spoiled_bytes(TABLE)))
    return told(lambda: list(read_examples(aside / "basic_train.tsv", 100, 100, lambda *_: None)))


def spoil_pairs(aside, data):
    for split in ("train", "eval", "test"):
        (aside / f"new_aan_pairs.{split}.tsv").write_bytes(data.draw(spoiled_bytes(PAIRS)))
    return told(lambda: list(read_pairs(find_pairs(aside), "train", 100, lambda *_: None)))


def spoil_archive(aside, data):
    form = data.draw(st.sampled_from(["w:", "w:gz", "w:bz2", "w:xz", "zip"]))
    path = write(aside / "data", form, FILES)
    path.write_bytes(data.draw(spoiled_bytes(path.read_bytes())))
    before = disk(aside)
    sentence = told(lambda: list(read_files(path, lambda name: True)))
    assert disk(aside) == before
    return sentence


def spoil_pickle(aside, data):
    content = pickle.dumps({b"data": np.arange(12).reshape(3, 4), b"labels": [1, 2, 3]}, protocol=2)
    return told(lambda: load_arrays(data.draw(spoiled_bytes(content)), "batch"))


def spoil_cache(aside, data):
    """A prepared data set is its own remedy: what is damaged is made again."""
    import datasets

    cache = Cache(aside / "cache")
    rows = datasets.Dataset.from_dict({"tokens": [[1, 2], [3]], "target": [0, 1]})
    folder = cache.path("toy", "key")
    shutil.rmtree(aside / "cache", ignore_errors=True)
    cache.dataset("toy", "key", lambda advance: rows, 2, "toy")
    file = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    if file == "manifest.json" and data.draw(st.booleans()):
        spoiled = data.draw(spoiled_tree(json.loads((folder / file).read_text())).map(as_json))
    else:
        spoiled = data.draw(spoiled_bytes((folder / file).read_bytes()))
    (folder / file).write_bytes(spoiled)
    (aside / "outside").write_text("kept")
    assert isinstance(cache.verify("toy", "key"), list) and isinstance(cache.entries(), list)
    again = cache.dataset("toy", "key", lambda advance: rows, 2, "toy")
    assert len(again) == 2 and (aside / "outside").read_text() == "kept"
    return ""


@functools.cache
def checkpoint() -> tuple[bytes, bytes]:
    """A checkpoint to continue from, and the best weights."""
    import tempfile
    from pathlib import Path

    model = toy()
    with tempfile.TemporaryDirectory() as place:
        checkpoints = Checkpoints(Path(place), math.inf)
        optimizer = Optimizer(model, RECIPE, CPU)
        optimizer.backward(model.head.bias.sum())
        optimizer.step(0)
        checkpoints.save(State(step=3, curve=[(1.0, 1e-3, 2.0, 30)] * 3), model, optimizer)
        checkpoints.keep_best(model)
        return Path(place, LAST).read_bytes(), Path(place, BEST).read_bytes()


def spoil_best_weights(aside, data):
    model, checkpoints = toy(), Checkpoints(aside, math.inf)
    save_model(model, str(aside / BEST))
    (aside / BEST).write_bytes(data.draw(spoiled_bytes(checkpoint()[1])))
    before = disk(aside)
    sentence = told(lambda: checkpoints.load_best(model))
    assert disk(aside) == before
    return sentence


def spoil_last_checkpoint(aside, data):
    """Training begins again where it cannot be continued."""
    spoiled = data.draw(spoiled_bytes(checkpoint()[0]))
    (aside / LAST).write_bytes(spoiled)
    model = toy(seed=5)
    before = weights(model)
    state = Checkpoints(aside, math.inf).resume(model, Optimizer(model, RECIPE, CPU))
    assert state.step == 3 or ((state == State() or math.isnan(state.best_score)) and equal(before, weights(model)))
    return ""


def spoil_published(aside, data):
    row = ["m", "listops", "", "accuracy", "37.1", "%", "Table 1", "Title", "2011.04006", "", "2020", *[""] * 4]
    content = "\n".join([",".join(COLUMNS), *[",".join([f"m{n}", *row[1:]]) for n in range(4)]]).encode() + b"\n"
    (aside / "numbers.csv").write_bytes(data.draw(spoiled_bytes(content)))
    return told(lambda: load_published(aside))


KINDS = {
    name.removeprefix("spoil_"): check
    for name, check in dict(globals()).items()
    if name.startswith("spoil_")
}  # fmt: skip
REPAIRED = {"cache", "last_checkpoint"}


def spoil_often(kind, aside, examples):
    """How many of so many spoiled inputs of a kind were refused."""
    refused = []

    @settings(
        max_examples=examples, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(st.data())
    def spoil(data):
        refused.append(bool(KINDS[kind](aside, data)))

    spoil()
    return sum(refused), len(refused)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_spoiled_is_a_sentence(kind, aside, capsys):
    refused, count = spoil_often(kind, aside, FEW)
    assert count >= FEW and (refused >= count // 3 or kind in REPAIRED), (refused, count)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_spoiled_hundreds_of_times_is_a_sentence(kind, aside, capsys):
    refused, count = spoil_often(kind, aside, MANY)
    assert count >= MANY and (refused >= count // 3 or kind in REPAIRED), (refused, count)


@pytest.fixture(scope="module")
def tested(folder):
    """The path of a record with kept weights, as ``evaluate`` wants it, in a folder of results of its own."""
    config = composed("local")
    record = make_record("local", hash="beef0000", config=config)
    record.data = None
    path = store.write(record, folder / "tested")
    model = build_model(config, build_task(config).spec)
    Checkpoints(checkpoint_folder(record.key), 0).keep_best(model)
    return path


@pytest.mark.parametrize("examples", [FEW, pytest.param(10 * FEW, marks=pytest.mark.slow)])
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
    package = aside / "stranger"
    package.mkdir()
    (package / "__init__.py").write_text(f"open({str(aside / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(aside))
    sentence = told_of_a_class(tested, aside, "stranger.mixer.Mixer", section=section)
    assert "stranger.mixer.Mixer" in sentence and "--trust" in sentence and "--config-dir" in sentence
    assert not (aside / "ran").exists()
    sentence = told_of_a_class(tested, aside, "stranger.mixer.Mixer", "--trust", "stranger", section=section)
    assert (aside / "ran").exists() and "cannot be imported" in sentence


def test_the_users_folder_is_the_users_word(tested, aside):
    own = aside / "own"
    own.mkdir()
    (own / "mine.py").write_text(f"open({str(aside / 'ran')!r}, 'w')\n")
    assert "cannot be imported" in told_of_a_class(tested, aside, "mine.Mixer", "--config-dir", str(own))
    assert (aside / "ran").exists()


@pytest.mark.parametrize(
    "target", ["os.system", "torch.nn.Linear", "lra_bench.stages.torch.nn.Linear", "", "x", 3, None]
)
def test_targets_that_are_none_of_ours_are_refused(tested, aside, target):
    assert told_of_a_class(tested, aside, target)


def test_classes_of_others_are_loaded_outside_of_records_alone():
    from torch import nn

    assert load_class("torch.nn.Linear", nn.Module, "x") is nn.Linear
    with classes_of((), "a record", "trust it"), pytest.raises(UserError, match="a record names torch.nn.Linear"):
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
    told(lambda: store.curves(store.load(path)))
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


@pytest.mark.parametrize("examples", [FEW // 5, pytest.param(10 * FEW, marks=pytest.mark.slow)])
def test_overrides_of_all_kinds_are_planned_or_refused(folder, examples):
    keys = ["train.lr", "train.betas", "task.window", "model.mixer.window", "backbone.heads", "measure.speed_lengths",
            "hardware.compile", "seed", "task", "model", "model.mixer._target_", "tracker.mode", "nonsense"]  # fmt: skip
    values = st.one_of(st.text(max_size=20), st.sampled_from([str(each) for each in STRANGE if each != "\ud800"]))
    before = disk(folder / "results")

    @settings(max_examples=examples, deadline=None, database=None, derandomize=True)
    @given(st.sampled_from(keys), values)
    def spoil(key, value):
        told(lambda: grid.plan([*TINY, f"{key}={value}"], folder / "results"))

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
