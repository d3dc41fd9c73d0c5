"""A model of the user outside the package: each mistake gives one sentence, and an edit is measured again."""

import json
import sys

import pytest

from lra_bench.config import compose as configuration
from lra_bench.config.hashing import config_hash
from lra_bench.config.import_path import importable
from lra_bench.config.objects import build_model, build_task
from lra_bench.config.serialization import as_dict, from_dict
from lra_bench.contracts import UserError
from tests.support.command import TINY, Folder

CODE = """from lra_bench.models.mixer import HeadMixer, MixerSpec


class Other(HeadMixer):
    spec = MixerSpec(family="own", paper="none")


class Mine(HeadMixer):
    spec = MixerSpec(family="own", paper="none")

    def __init__(self, width, heads, *, scale: float = 1.0, **common):
        super().__init__(width, heads, **common)
        self.scale = scale

    def attend(self, q, k, v, context):
        return self.scale * q.sigmoid() * v
"""
MODEL = "# @package _global_\nmodel:\n  label: Mine\n  mixer: {_target_: mine.Mine}\n"
FORWARD = "    def forward(self, x, context):\n        return {}\n\n    def attend"
INIT = """    def __init__(self, width, heads, *, scale: float = 1.0, **common):
        super().__init__(width, heads, **common)"""

MISTAKES = {
    "no package": (
        {"yaml": ("# @package _global_\n", "")},
        ["mine.yaml must begin with the line `# @package _global_`"],
    ),
    "no label": ({"yaml": ("  label: Mine\n", "")}, ["mine.yaml has no label; write `label: …`"]),
    "no mixer": ({"yaml": ("  mixer: {_target_: mine.Mine}\n", "")}, ["defines neither model.mixer nor model.network"]),
    "wrong class": ({"yaml": ("mine.Mine", "mine.Mnie")}, ["_target_=mine.Mnie", "mine defines Other, Mine"]),
    "wrong value": (
        {"code": ('"none")\n\n    def', '"none", causal="yes")\n\n    def')},
        ["mine.Mine: causal='yes'", "choose exact, pseudo, none"],
    ),
    "no common": (
        {"code": (INIT, "    def __init__(self, width, heads, *, scale=1.0):\n        super().__init__(width, heads)")},
        ["the constructor of Mine does not accept layer, depth", "add **common to its parameters"],
    ),
    "one value": (
        {"code": ("    def attend", FORWARD.format("x"))},
        ["Mine.forward (mine.py, line 15)", "write `return y, context`"],
    ),
    "short output": (
        {"code": ("    def attend", FORWARD.format("x[:, 1:], context"))},
        ["Mine.forward (mine.py, line 15)", "y must have the shape of x"],
    ),
    "wrong shape": ({"code": ("* v\n", "* v.mean(2)\n")}, ["RuntimeError in mine.py, line 16: The size of tensor"]),
    "undefined name": ({"code": ("* v\n", "* nothing\n")}, ["NameError in mine.py, line 16: name 'nothing'"]),
    "constructor": ({"code": ("= scale\n", "= self.nothing\n")}, ["AttributeError in mine.py, line 13"]),
    "leak": (
        {"code": ("* v\n", "* v.mean(2, keepdim=True)\n")},
        ["model (Mine): content of padding: outputs depend on the content of padding; exclude it by context.padding"],
    ),
    "nan": ({}, ["model.mixer.scale=nan: must be a number"]),
    "hidden module": (
        {"yaml": ("mine.Mine", "copy.Mine"), "name": ("mine.py", "copy.py")},
        ["copy.py is hidden by the installed module copy", "rename the file"],
    ),
    "hidden import": (
        {"code": ("from", "from yaml import own\nfrom"), "more": ("yaml.py", "own = 1\n")},
        ["yaml.py is hidden by the installed module yaml", "rename the file"],
    ),
}


BACKBONE = """from lra_bench.models.backbone import SequenceModel


class Mine(SequenceModel):
    def __init__(self, *, temperature: float = 1.0, pool=(1, 2), **common):
        super().__init__(**common)
        self.temperature, self.pool = temperature, pool

    def forward(self, batch, memory=None):
        output = super().forward(batch, memory)
        return output._replace(logits=output.logits / self.temperature)
"""
INTERRUPTED = """        folder = Path(__file__).parent
        if self.training:
            with (folder / "steps").open("a") as file:
                file.write(".")
            if (folder / "steps").stat().st_size == 12:
                os.kill(os.getpid(), signal.SIGTERM)
        return output"""
STACK = "# @package _global_\nmodel:\n  label: Mine\n  mixer: {_target_: mine.Mine}\nbackbone: {_target_: stack.Mine}\n"


def written(root, code=CODE, model=MODEL, name="mine.py"):
    (root / "ideas" / "model").mkdir(parents=True)
    (root / "ideas" / name).write_text(code)
    (root / "ideas" / "model" / "mine.yaml").write_text(model)


def command(*more, folder="ideas"):
    return ["bench", *TINY, "tracker=none", "--config-dir", folder, "model=mine", *more]


@pytest.mark.one_in(8)
@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_model_gives_one_sentence_and_no_record(tmp_path, forks, case):
    edits, words = MISTAKES[case]
    code, model = CODE, MODEL
    for kind, (before, after) in edits.items():
        if kind == "code":
            assert before in code
            code = code.replace(before, after, 1)
        elif kind == "yaml":
            assert before in model
            model = model.replace(before, after)
    folder = Folder(tmp_path)
    written(tmp_path, code, model, edits.get("name", ("", "mine.py"))[1])
    if "more" in edits:
        name, text = edits["more"]
        (tmp_path / "ideas" / name).write_text(text)
    done = forks.command(folder, *command(*(["model.mixer.scale=nan"] if case == "nan" else [])), check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    for word in words:
        assert word in last, last
    assert not folder.records()


@pytest.mark.slow
def test_an_edited_mixer_is_measured_again_and_its_record_keeps_the_code(tmp_path):
    """The folder has a colon in its name, modules with names of libraries, and a model file with a byte order mark."""
    folder = Folder(tmp_path)
    written(tmp_path, model="\ufeff" + MODEL)
    for name in ("datasets", "copy"):
        (tmp_path / "ideas" / f"{name}.py").write_text("raise RuntimeError('this file is not the library')\n")
    (tmp_path / "ideas").rename(tmp_path / "10:30:00")
    profiled = "measure.speed_lengths=[32]"  # in another process, which imports the class as well
    folder.run(*command(profiled, folder="10:30:00"))
    first = folder.record()
    assert first["status"] == "ok" and first["code"]["sources"] == {"mine": CODE}
    assert first["parameters"]["without_gradient"] > 0 and first["speed"]
    assert "done" in folder.run(*command(profiled, "--dry-run", folder="10:30:00")).stdout
    changed = folder.run(*command("model.mixer.scale=2", "--dry-run", folder="10:30:00")).stdout
    assert "model.mixer.scale 1 → 2" in " ".join(changed.split())
    edited = CODE.replace("q.sigmoid() * v", "v")
    (tmp_path / "10:30:00" / "mine.py").write_text(edited)
    folder.run(*command(profiled, folder="10:30:00"))
    assert {record["code"]["sources"]["mine"] for record in folder.records()} == {CODE, edited}
    assert len({record["key"]["hash"] for record in folder.records()}) == 2


@pytest.fixture
def backbone(tmp_path):
    """Return a function that composes a cell with a backbone of the user, and the folder of the user."""
    written(tmp_path, model=STACK)
    (tmp_path / "ideas" / "stack.py").write_text(BACKBONE)

    def compose(*overrides):
        return configuration.compose(["task=listops", "protocol=smoke", "model=mine", *overrides], tmp_path / "ideas")

    with importable(tmp_path / "ideas"):
        yield compose, tmp_path / "ideas"
    for name in ("mine", "stack"):
        sys.modules.pop(name, None)


def test_a_backbone_has_options_of_its_own_which_are_checked_hashed_and_stored(backbone):
    compose, folder = backbone
    plain, changed = compose(), compose("backbone.temperature=4", "backbone.pool=[3]", "backbone.pooling=last")
    assert (plain.config.backbone.temperature, plain.config.backbone.pool) == (1.0, [1, 2])
    assert plain.differences == {} and plain.modified == ()
    assert changed.differences == {"backbone.temperature": 4, "backbone.pool": [3]}
    assert changed.modified == ("backbone.pooling",)
    assert from_dict(json.loads(json.dumps(as_dict(changed.config)))) == changed.config
    network = build_model(changed.config, build_task(changed.config).spec)
    assert (network.temperature, network.pool, network.pooling) == (4, [3], "last")
    by_override = compose("model=transformer", "backbone._target_=stack.Mine", "backbone.temperature=4")
    assert by_override.differences == {"backbone._target_": "stack.Mine", "backbone.temperature": 4}
    before = {config_hash(each.config, "") for each in (plain, changed)}
    (folder / "stack.py").write_text(BACKBONE.replace("/ self", "* self"))
    assert len(before | {config_hash(plain.config, "")}) == 3


@pytest.mark.parametrize(
    ("code", "overrides", "message"),
    [
        (
            BACKBONE,
            ["backbone.temperatures=2"],
            r"^backbone\.temperatures: there is no such option; did you mean .*temp",
        ),
        (BACKBONE, ["model=transformer", "backbone.temperature=2"], r"^backbone\.temperature: there is no such option"),
        (BACKBONE, ["backbone._target_=stack.Mien"], r"^backbone\._target_=stack\.Mien: .*stack defines Mine"),
        (BACKBONE.replace("pool", "depth"), [], r"^backbone\._target_=stack\.Mine: its argument depth is an option"),
    ],
)
def test_a_mistake_in_a_backbone_gives_one_sentence(backbone, code, overrides, message):
    compose, folder = backbone
    (folder / "stack.py").write_text(code)
    with pytest.raises(UserError, match=message):
        compose(*overrides)


@pytest.mark.slow
def test_a_backbone_of_the_user_trains_and_resumes(tmp_path, forks):
    """The first run is interrupted in its forward pass 12, the third is not."""
    folder, given = Folder(tmp_path), ["backbone.temperature=4", "hardware.checkpoint_seconds=0"]
    written(tmp_path, model=STACK)
    code = BACKBONE.replace("        return output", INTERRUPTED)
    (tmp_path / "ideas" / "stack.py").write_text(f"import os\nimport signal\nfrom pathlib import Path\n{code}")
    records, passes = [], [0]
    for rerun in ("failed", "failed", "all"):
        forks.command(folder, *command("--rerun", rerun, *given), check=False)
        records.append(folder.record())
        passes.append((tmp_path / "ideas" / "steps").stat().st_size)
    assert [record["status"] for record in records] == ["interrupted", "ok", "ok"]
    assert passes == [0, 12, 12 + 1 + 9, 22 + 1 + 20]  # one pass of each run is that of the check before training
    assert records[1]["metrics"] == records[2]["metrics"]
    assert {record["config"]["backbone"]["temperature"] for record in records} == {4}


def test_cells_of_an_own_model_are_compared(tmp_path, forks):
    folder = Folder(tmp_path)
    written(tmp_path)
    cells = ("model=mine", "model=mine model.mixer.scale=2")
    assert "model.mixer.scale" in forks.command(folder, "diff", *cells, "--config-dir", "ideas").stdout


def test_check_prints_one_line_per_property(tmp_path, forks):
    folder = Folder(tmp_path)
    written(tmp_path)
    done = forks.command(folder, "check", "--config-dir", "ideas", "model=mine", "protocol=smoke")
    lines = done.stdout.splitlines()
    assert "ok      content of padding" in lines and len(lines) > 10
    (tmp_path / "ideas" / "mine.py").write_text(CODE.replace("* v", "* v.mean(0, keepdim=True)"))
    done = forks.command(folder, "check", "--config-dir", "ideas", "model=mine", "protocol=smoke", check=False)
    assert done.returncode == 1
    assert (
        "wrong   batch: outputs of a row depend on other rows of the batch; compute each row by itself" in done.stdout
    )
