"""Each mistake of a user gives one sentence that names the option to change, exit code 2 and no record."""

import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from lra_bench.build import suggest
from lra_bench.cli import main
from lra_bench.config.groups import option_files
from lra_bench.config.hints import SYNONYMS, WORDS
from lra_bench.config.validation import check_override, option_names
from lra_bench.contracts import UserError
from tests.support.command import COMMAND, TINY, Folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = Folder(tmp_path_factory.mktemp("mistakes"))
    (folder.root / "broken").mkdir()
    for split in ("train", "val", "test"):
        lines = [
            "Source\tTarget",
            "( ( [MAX 2 ) 9 ) ]\t9",
            "( ( [MIN 2 ) 9 ) ]\t9" if split == "val" else "( ( [SM 2 ) 9 ) ]\t1",
        ]
        (folder.root / "broken" / f"basic_{split}.tsv").write_text("\r\n".join(lines) + "\r\n")
    (folder.root / "plain.py").write_text("class NotAMixer:\n    pass\n")
    (folder.root / "a_file").write_text("")
    return folder


CASES = {
    "unknown model": (["model=perfomer"], ["perfomer", "did you mean performer", "transformer"]),
    "misspelt key": (["train.stepz=3"], ["train.stepz", "train.steps"]),
    "misspelt model option": (["model=performer", "model.mixer.feature=3"], ["model.mixer.feature", "features"]),
    "broken line in a TSV": (["--source", "broken"], ["basic_val.tsv", "line 3"]),
    "results in a file": (["--results", "a_file/results"], ["--results", "a_file/results"]),
    "target that is not a mixer": (["++model.mixer._target_=torch.nn.Linear"], ["torch.nn.Linear", "not a mixer"]),
    "target that does not exist": (["++model.mixer._target_=no.such.Thing"], ["no.such.Thing"]),
    "unknown command": (None, ["nope"]),
    "no device": (["hardware=cuda"], ["hardware.device=cuda"]),
    "heads that do not divide the width": (["backbone.heads=3"], ["backbone.heads=3"]),
    "negative width": (["backbone.width=-1"], ["backbone.width=-1"]),
    "an override with a line break": (["train.lr=\n"], ["train.lr= : cannot be read as key=value"]),
    "unknown order": (["train.order=sorted", "tracker=none"], ["train.order=sorted", "shuffled or stream"]),
    "a name without its group": (["performer", "text"], ["performer text: write model=performer task=text"]),
    "a misspelt name without its group": (
        ["perfomer"],
        ["perfomer: is not an override; did you mean model=performer?"],
    ),
    "an option as a flag": (["--model", "performer"], ["No such option: --model; write model=performer"]),
    "an option as a flag with a value": (["--lr=3e-4"], ["No such option: --lr; write train.lr=3e-4"]),
    "an unknown flag": (["--nothing"], ["No such option: --nothing; write key=value"]),
    "an option without its section": (["lr=3e-4"], ["lr: there is no such option; did you mean train.lr=3e-4?"]),
    "an option of another section": (["train.depth=3"], ["did you mean backbone.depth=3?"]),
    "an option of two sections": (
        ["memory_limit_gigabytes=2"],
        ["did you mean hardware.memory_limit_gigabytes or measure.memory_limit_gigabytes?"],
    ),
    "a synonym of an option": (["train.learning_rate=1e-3"], ["did you mean train.lr?"]),
    "a group in the plural": (["models=performer"], ["did you mean model=performer?"]),
    "an option as a make variable": (["MODEL=performer"], ["did you mean model=performer?"]),
    "a misspelt option without its section": (["stepz=3"], ["did you mean train.steps?"]),
    "unknown schedule": (["train.schedule=steep"], ["train.schedule=steep", "cosine"]),
    "a group without a value": (["model="], ["model=: has no value; lra-bench list models lists the choices"]),
    "a comma at the end": (["model=performer,"], ["model=performer,: ", "(a value is missing after the last comma)"]),
    "a number instead of a list": (["measure.extrapolation_ratios=2"], ["extrapolation_ratios=2: must be a list"]),
    "a text instead of a number": (
        ["model=performer", "model.mixer.features=many"],
        ["model.mixer.features=many: Performer cannot be built"],
    ),
    "a range of seeds": (["seed=0-2"], ["seed=0-2: must be an integer", "seed=range(0,3)"]),
    "a word as a seed": (["seed=abc"], ["seed=abc: must be an integer"]),
    "an integer in scientific notation": (["train.steps=1e3"], ["train.steps=1e3: must be an integer", "1000"]),
    "a removed option": (["~train.lr"], ["~train.lr: options cannot be removed", "train.lr=…"]),
    "a length instead of a list": (
        ["measure.speed_lengths=1024"],
        ["measure.speed_lengths=1024: must be a list", "measure.speed_lengths=[1024]"],
    ),
    "a misspelt group": (["modle=performer"], ["modle: there is no such option; did you mean model=performer?"]),
    "another name of CUDA": (["hardware=gpu"], ["hardware=gpu: ", "write hardware=cuda"]),
    "a device without support": (["hardware=mps"], ["hardware=mps: ", "auto, cpu"]),
    "all in lower case": (["model=all"], ["model=all: ", "write model=ALL"]),
    "a protocol with its version": (["protocol=quick-v2"], ["protocol=quick-v2: ", "write protocol=quick"]),
    "a flag without its hyphen": (["--dryrun"], ["No such option: --dryrun", "--dry-run"]),
    "a group twice": (
        ["model=performer", "model=local"],
        ["model=local: model is given twice", "model=performer,local"],
    ),
    "a pattern of names": (["model=glob(local*)"], ["model=glob(local*): ", "lra-bench list models"]),
    "a comma between two words": (["model=local", ",", "performer"], [",: is not an override"]),
    "unknown optimizer": (["train.optimizer=lion"], ["train.optimizer=lion", "adamw, adam, sgd"]),
}

NOT_FORKED = "misspelt model option"
"""The case that runs the installed command in a new interpreter; all other cases use a forked one."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
def test_a_mistake_gives_one_sentence_and_exit_code_2(folder, case, forks):
    import torch

    if case == "no device" and torch.cuda.is_available():
        pytest.skip("a CUDA device is available")
    arguments, named = CASES[case]
    command = (
        ["nope"]
        if arguments is None
        else ["bench", *[a for a in TINY if a.split("=")[0] not in str(arguments)], *arguments]
    )
    run = folder.run if case == NOT_FORKED else partial(forks.command, folder)
    done = run(*command, check=False)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr
    for word in named:
        assert word in last, last
    assert not folder.records()


@pytest.mark.parametrize(
    "command",
    ["leaderboard", "leaderboard --format csv", "compare local performer", "plot", "results list", "results check"],
)
def test_a_missing_results_folder_is_refused(folder, command, monkeypatch, capfd):
    monkeypatch.chdir(folder.root)
    monkeypatch.delenv("LRA_BENCH_RESULTS", raising=False)
    monkeypatch.setattr(sys, "argv", ["lra-bench", *command.split(), "--results", "not/there"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    assert capfd.readouterr().err.startswith("lra-bench: --results not/there: there is no such folder")
    assert not (folder.root / "not").exists()


@pytest.mark.parametrize("exists", [False, True])
def test_the_default_results_folder_may_be_missing_or_empty(exists, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_BENCH_RESULTS", raising=False)
    if exists:
        (tmp_path / "results").mkdir()
    monkeypatch.setattr(sys, "argv", ["lra-bench", "leaderboard"])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 0
    assert capfd.readouterr().out == "No records yet; create one with lra-bench bench.\n"


def test_the_error_for_a_misspelt_name_lists_ten_names_and_the_command_that_lists_all():
    with pytest.raises(UserError) as caught:
        check_override("model=perfomer", None)
    listed = re.search(r"\(known: (.*), and (\d+) more: lra-bench list models\)", str(caught.value))
    names = listed[1].split(", ")
    assert names[0] == "performer" and len(names) == 10
    assert len(names) + int(listed[2]) == len(option_files("model"))
    with pytest.raises(UserError, match=r"\(known: cpu, slurm\)"):
        raise UserError(suggest("slrm", ["slurm", "cpu"], "lra-bench list launchers"))


def test_synonyms_refer_to_existing_options():
    assert set(WORDS) <= option_names()
    assert not set(SYNONYMS) & option_names()


def test_a_position_that_the_mixer_does_not_support_is_refused(folder, forks):
    (folder.root / "own" / "position").mkdir(parents=True)
    (folder.root / "own" / "position" / "spun.yaml").write_text("# Rotates.\n_target_: spun.Spun\n")
    (folder.root / "own" / "spun.py").write_text(
        "from lra_bench.models.positions.position import Position\n\n\n"
        "class Spun(Position):\n    hooks = frozenset({'rotate'})\n    name = 'spun'\n"
    )
    forks.command(folder, "bench", *TINY, "model=bag_of_tokens", "position=none", "--dry-run")
    (folder.root / "own" / "model").mkdir()
    (folder.root / "own" / "model" / "deaf.yaml").write_text(
        "# @package _global_\n# Deaf.\nmodel: {label: Deaf, mixer: {_target_: deaf.Deaf}}\n"
    )
    (folder.root / "own" / "deaf.py").write_text(
        "from lra_bench.models.mixer import Mixer, MixerSpec\n\n\n"
        "class Deaf(Mixer):\n    spec = MixerSpec(family='test', paper='none', positions=('embed',))\n\n"
        "    def forward(self, x, context):\n        return x, context\n"
    )
    arguments = [*TINY, "--config-dir", "own", "model=deaf", "position=spun"]
    done = forks.command(folder, "bench", *arguments, check=False)
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert "position=spun" in last
    assert "Deaf" in last


@pytest.mark.parametrize(
    "arguments",
    [
        ["bench", *TINY, "model=bag_of_tokens"],
        ["leaderboard"],
        ["results", "check"],
        ["results", "list"],
        ["show", "last"],
        ["clean"],
        ["data", "list"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_folders_without_permission_are_named(arguments: list[str], folder: Folder, tmp_path: Path) -> None:
    for closed in ("results", "cache"):
        (tmp_path / closed).mkdir()
        (tmp_path / closed).chmod(0)
    last = refusal(folder, tmp_path, *arguments)
    assert str(tmp_path) in last and "Permission denied" in last


def test_an_unwritable_results_folder_is_refused(folder: Folder, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    assert "--results" in refusal(folder, tmp_path, "bench", *TINY, "--results", str(locked / "results"))


def refusal(folder: Folder, root: Path, *arguments: str) -> str:
    """Return the last line of a command that fails without the rights of root; its own folders are under ``root``."""
    prefix = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    if prefix and shutil.which(prefix[0]) is None:
        pytest.skip("root needs setpriv (util-linux) to give up its access to all files")
    done = subprocess.run(
        [*prefix, *COMMAND, *arguments],
        cwd=folder.root,
        env=Folder(root).environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_missing_argument_names_the_command(folder, forks):
    done = forks.command(folder, "compare", "performer", check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "lra-bench: compare: name two variants, such as lra-bench compare performer local, or set --base\n",
    )


def test_debug_prints_the_traceback(folder):
    done = folder.run("bench", "model=perfomer", "--debug", check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
