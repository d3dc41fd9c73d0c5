"""The Makefile passes options on unchanged, installs only when necessary, and reports an unsupported Python version."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Create a folder with a space in its name, the Makefile, and an environment whose programs log their calls."""
    folder = tmp_path / "a clone"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copyfile(ROOT / name, folder / name)
    for name in ("pip", "lra-bench", "pytest"):
        script(folder / ".venv" / "bin" / name, f'printf "%s\\n" {name} "$@" > called')
    return folder


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Remove the variables of an outer make, such as `make test`.
    outside = (
        "MAKEFLAGS",
        "MAKELEVEL",
        "MFLAGS",
        "TASK",
        "MODEL",
        "POSITION",
        "PROTOCOL",
        "HARDWARE",
        "SEED",
        "RECORD",
        "A",
        "B",
        "ARGS",
    )
    environment = {name: value for name, value in os.environ.items() if name not in outside}
    return subprocess.run(
        ["make", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def called(folder: Path) -> list[str]:
    """Return the program that ran last and its arguments."""
    return (folder / "called").read_text().splitlines()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["bench", "MODEL=performer", "TASK=listops"], ["bench", "task=listops", "model=performer"]),
        (
            ["bench", "SEED=0,1,2", "ARGS=train.lr=1e-4 --dry-run"],
            ["bench", "seed=0,1,2", "train.lr=1e-4", "--dry-run"],
        ),
        (["bench", "TASK=a b"], ["bench", "task=a b"]),
        (["bench"], ["bench"]),
        (["profile", "HARDWARE=cpu", "POSITION=none"], ["profile", "position=none", "hardware=cpu"]),
        (["data", "TASK=listops", "PROTOCOL=small"], ["data", "prepare", "listops", "--protocol", "small"]),
        (["evaluate", "RECORD=a b.json"], ["evaluate", "a b.json"]),
        (["leaderboard", "PROTOCOL=quick", "ARGS=--json"], ["leaderboard", "--protocol", "quick", "--json"]),
        (["leaderboard"], ["leaderboard"]),
        (["plots"], ["plot"]),
        (["plots", "TASK=listops", "PROTOCOL=smoke"], ["plot", "--task", "listops", "--protocol", "smoke"]),
        (
            ["compare", "A=performer features=64", "B=#0a1b local", "TASK=listops"],
            ["compare", "performer features=64", "#0a1b local", "--task", "listops"],
        ),
    ],
)
def test_options_are_passed_on_unchanged(clone: Path, arguments: list[str], expected: list[str]) -> None:
    (clone / ".venv" / ".installed").touch()
    done = make(clone, *arguments)
    assert done.returncode == 0, done.stderr
    assert called(clone) == ["lra-bench", *expected]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["bench", "model=performer", "ARGS=--dry-run"],
            'model: make accepts MODEL=…; write other options as ARGS="train.lr=3e-4"',
        ),
        (["bench", "Model=performer"], "Model: make accepts MODEL=…"),
        (["bench", "MODEL=performer", "train.lr=3e-4"], 'train.lr: write ARGS="train.lr=3e-4"'),
        (["bench", "ARGS=seed=1 --dry-run", "model.name=a b"], 'model.name: write ARGS="model.name=a b"'),
        (
            ["bench", "MODLE=performer"],
            "MODLE: make bench accepts TASK MODEL POSITION PROTOCOL HARDWARE SEED ARGS PYTHON VENV; "
            'write other options as ARGS="train.lr=3e-4"',
        ),
        (["profile", "task=listops"], "task: make accepts TASK=…"),
        (["leaderboard", "MODEL=performer"], "MODEL: make leaderboard accepts TASK PROTOCOL ARGS PYTHON VENV;"),
        (["compare", "A=performer", "B=local", "C=full"], "C: make compare accepts A B TASK PROTOCOL ARGS"),
        (["evaluate", "record=a.json"], "record: make accepts RECORD=…"),
        (["data", "MODEL=performer"], "MODEL: make data accepts TASK PROTOCOL ARGS"),
        (["plots", "MODEL=local"], "MODEL: make plots accepts TASK PROTOCOL ARGS"),
        (["grid", "TASK=listops"], "TASK: make grid accepts ARGS"),
        (["test", "k=circle"], "k: make test accepts ARGS"),
        (["test-slow", "k=circle"], "k: make test-slow accepts ARGS"),
        (["setup", "python=python3.12"], "python: make accepts PYTHON=…"),
        (["check", "train.lr=3e-4"], "train.lr: make check accepts PYTHON VENV"),
        (["MODEL=performer"], "MODEL: make help accepts PYTHON VENV"),
    ],
)
def test_a_variable_that_a_target_does_not_read_is_an_error(clone: Path, arguments: list[str], sentence: str) -> None:
    done = make(clone, *arguments)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert sentence in line
    assert not (clone / "called").exists() and not done.stdout


def test_variables_of_make_and_of_the_environment_are_accepted(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (clone / ".venv" / ".installed").touch()
    monkeypatch.setenv("train.lr", "3e-4")
    monkeypatch.setenv("model", "local")
    assert make(clone, "bench", "SHELL=/bin/bash", "VENV=.venv", "PYTHON=python3", "MODEL=performer").returncode == 0
    assert called(clone) == ["lra-bench", "bench", "model=performer"]
    assert make(clone, "grid", "data", "TASK=listops").returncode == 0, "one of the targets reads it"


def test_variables_of_an_outer_make_are_accepted(clone: Path) -> None:
    (clone / ".venv" / ".installed").touch()
    (clone / "outer.mk").write_text("all:\n\t+$(MAKE) -f Makefile bench MODEL=performer\n")
    done = make(clone, "-f", "outer.mk", "OUTER=1")
    assert done.returncode == 0, done.stderr
    assert called(clone) == ["lra-bench", "bench", "model=performer"]


def test_compare_requires_two_variants(clone: Path) -> None:
    (clone / ".venv" / ".installed").touch()
    done = make(clone, "compare", "A=performer")
    assert done.returncode != 0 and "name two variants" in done.stderr
    assert not (clone / "called").exists()


def test_setup_runs_once_and_again_after_the_requirements_changed(clone: Path) -> None:
    assert make(clone, "setup").returncode == 0
    assert called(clone) == ["pip", "install", "-c", "constraints.txt", "-e", "."]
    (clone / "called").unlink()
    assert make(clone, "setup").returncode == 0
    assert not (clone / "called").exists()
    later = (clone / ".venv" / ".installed").stat().st_mtime + 10
    os.utime(clone / "constraints.txt", (later, later))
    assert make(clone, "setup").returncode == 0
    assert called(clone)[0] == "pip"


@pytest.mark.parametrize("target", ["test", "test-slow", "check"])
def test_targets_that_test_install_the_extra_dev_once(clone: Path, target: str) -> None:
    (clone / ".venv" / ".installed").touch()
    script(clone / ".venv" / "bin" / "pip", 'echo "$@" >> installed')
    for _ in range(2):
        make(clone, target)
        assert (clone / "installed").read_text() == "install -c constraints.txt -e .[dev]\n"
    assert make(clone, "bench").returncode == 0, "what is installed suffices"
    assert (clone / "installed").read_text().count("\n") == 1


def test_a_wheel_is_built_without_files_of_earlier_builds(clone: Path) -> None:
    (clone / ".venv" / ".installed").touch()
    (clone / "build" / "lib").mkdir(parents=True)
    assert make(clone, "wheel").returncode == 0
    assert called(clone) == ["pip", "wheel", "--no-deps", "--wheel-dir", "dist", "."]
    assert not (clone / "build" / "lib").exists()


def test_a_failed_setup_is_repeated(clone: Path) -> None:
    script(clone / ".venv" / "bin" / "pip", "exit 1")
    assert make(clone, "bench").returncode != 0
    assert not (clone / ".venv" / ".installed").exists()
    assert not (clone / "called").exists()


def test_an_unsupported_python_version_is_reported(clone: Path, tmp_path: Path) -> None:
    script(tmp_path / "old", 'case "$1" in -V) echo "Python 3.9.2";; *) exit 1;; esac')
    done = make(clone, "setup", f"PYTHON={tmp_path / 'old'}")
    assert done.returncode != 0
    assert "needs Python 3.11, 3.12 or 3.13" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert "make setup PYTHON=" in make(clone, "setup", "PYTHON=no-such-python").stderr
