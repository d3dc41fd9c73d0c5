"""Run the workflow of docs/ci.md on a commit that changes no result, and on one that lowers speed and scores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.test_docs import ROOT, files_of

# Timed models share a process, so that profiles take seconds.
COMMAND = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from lra_bench.cli.main import main
from lra_bench.profiling import interleave
from tests.support.in_process_workers import InProcess
interleave.WorkerProcess = InProcess
main()
"""
CELLS = (
    "model=my_mixer task=csv task.path=reviews.csv protocol=smoke train.steps=100 train.lr=1e-2 hardware=cpu "
    "hardware.threads=1 tracker=none measure.flops=false measure.energy=false measure.extrapolation_ratios=[1] "
    "measure.speed_seconds=0.2"
)
FAIL_IF = "score<-1 or speed<0.5 or inference_speed<0.5"
"""Speeds far below those that other processes cause: the planted sleep is several times as long as a step."""
LAST = "        return q.sigmoid()"
COMMITS = {
    "equal": ("# My mixer", "# Mixer"),
    "worse": (LAST, f"        import time\n\n        time.sleep(0.02)\n        return 1e4 + 0 * v\n{LAST}"),
}


def git(*arguments: str, folder: Path) -> None:
    own = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *own, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the base and one checkout per commit of a repository with the mixer of the README."""
    root = tmp_path_factory.mktemp("checkouts")
    for name, text in files_of(ROOT / "README.md").items():
        file = root / "base" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    git("init", "--initial-branch", "main", folder=root / "base")
    git("add", ".", folder=root / "base")
    git("commit", "-m", "Add a mixer", folder=root / "base")
    for name, (old, new) in COMMITS.items():
        git("clone", str(root / "base"), str(root / name), folder=root)
        for file in root.glob(f"{name}/ideas/**/my_mixer.*"):
            file.write_text(file.read_text().replace(old, new))
        git("commit", "--all", "-m", f"Make it {name}", folder=root / name)
    exec(
        files_of(ROOT / "docs" / "own-data.md")["make_reviews.py"].replace('"reviews.csv"', repr(f"{root}/reviews.csv"))
    )
    return root


@pytest.mark.slow
@pytest.mark.parametrize(("commit", "fails"), [pytest.param("equal", False, marks=pytest.mark.long), ("worse", True)])
def test_the_workflow_refuses_a_slower_and_a_worse_commit_only(checkouts, tmp_path, commit, fails) -> None:
    for name, source in (("base", "base"), ("head", commit)):
        shutil.copytree(checkouts / source, tmp_path / name)
    shutil.copy(checkouts / "reviews.csv", tmp_path)
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "lra-bench"
    command.write_text(COMMAND)
    command.chmod(0o755)
    workflow: dict[str, Any] = yaml.safe_load(files_of(ROOT / "docs" / "ci.md")[".github/workflows/compare.yml"])
    job = workflow["jobs"]["compare"]
    own = {"CELLS": CELLS, "LENGTHS": "[64]", "ROUNDS": "1", "FAIL_IF": FAIL_IF}
    own["GITHUB_STEP_SUMMARY"] = str(tmp_path / "summary")
    environment = {name: str(value) for name, value in {**os.environ, **job["env"], **own}.items()}
    environment |= {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "LRA_BENCH_CACHE": str(tmp_path / "cache"),
    }

    def run(script: str, **variables: str) -> int:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(shell, cwd=tmp_path, env=environment | variables, capture_output=True, text=True)
        print(done.stdout, done.stderr)
        return done.returncode

    steps = {step["name"]: step["run"].replace("seed=0,1", "seed=0") for step in job["steps"] if "run" in step}
    del steps["Install"]  # lra-bench is installed
    codes = {name: run(script) for name, script in steps.items()}
    assert codes == {"Train": 0, "Profile in turn": 0, "Compare": int(fails)}
    summary = (tmp_path / "summary").read_text()
    assert ("FAILS" in summary) is fails and f"{int(fails)} of 1 rows fail: score<-1" in summary
    assert ("equal" in summary) is not fails
    for condition in FAIL_IF.split(" or "):
        assert run(steps["Compare"], FAIL_IF=condition, GITHUB_STEP_SUMMARY=os.devnull) == int(fails), condition
