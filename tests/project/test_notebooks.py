"""The notebooks run from top to bottom on any results folder, and are stored without their output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lra_bench.records import store
from tests.project.test_docs import ROOT, files_of
from tests.support.record_factory import make_curves, make_record

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
READERS = [path for path in NOTEBOOKS if not path.stem.startswith("04")]

# Runs the cells sequentially in one namespace, as a new kernel does. Images are checked and not displayed.
RUNNER = """
import json, sys, types
from pathlib import Path

def image(filename, width):
    assert Path(filename).read_bytes().startswith(b"\\x89PNG"), filename

display = types.ModuleType("IPython.display")
display.Image = image
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].version_info = (8, 24)  # matplotlib checks for older versions
sys.modules["IPython.display"] = display
space = {"__name__": "__main__"}
for cell in json.loads(Path(sys.argv[1]).read_text())["cells"]:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"{sys.argv[1]}:{cell['id']}", "exec"), space)
"""


def notebook(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def code_of(path: Path) -> str:
    return "\n".join("".join(cell["source"]) for cell in notebook(path)["cells"] if cell["cell_type"] == "code")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with records of three systems on two tasks, two seeds each, and one record without scores."""
    root = tmp_path_factory.mktemp("results")
    for model in ("transformer", "performer", "local"):
        for task in ("listops", "text"):
            for seed in (0, 1):
                store.write(make_record(model, task, seed), root, make_curves())
    store.write(make_record("reformer", status="diverged"), root)
    store.write(make_record("luna", protocol="smoke"), root, make_curves())
    return root


def run(path: Path, folder: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(path)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_notebook_is_named_in_the_readme() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]
    readme = (ROOT / "README.md").read_text()
    assert [path.name for path in NOTEBOOKS if f"notebooks/{path.name}" not in readme] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_without_output(path: Path) -> None:
    for cell in notebook(path)["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None), "clear all outputs before you commit"
    assert set(notebook(path)["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.slow
@pytest.mark.parametrize("path", READERS, ids=lambda path: path.stem)
def test_notebooks_run_on_any_results_folder(path: Path, results: Path, tmp_path: Path) -> None:
    printed = run(path, tmp_path, LRA_BENCH_RESULTS=str(results))
    assert f"13 records under {results}" in printed
    drawn = {file.name.split("-")[0] for file in (results / "figures").iterdir()}
    shown = set(re.findall(r'show\("(\w+)"\)', code_of(path)))
    assert shown and shown <= drawn
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_notebook_with_a_new_mixer_measures_it(tmp_path: Path) -> None:
    [path] = set(NOTEBOOKS) - set(READERS)
    printed = run(path, tmp_path, TMPDIR=str(tmp_path), LRA_BENCH_CACHE=str(tmp_path / "cache"))
    assert "my_mixer" in printed
    [record] = tmp_path.glob("lra-bench-*/results/runs/listops/my_mixer/*/*/seed0.json")
    assert json.loads(record.read_text())["status"] == "ok"


def test_the_mixer_of_the_notebook_is_that_of_the_guide() -> None:
    [path] = set(NOTEBOOKS) - set(READERS)
    code = code_of(path).replace('\\"', '"')
    files = files_of(ROOT / "docs" / "adding-a-model.md")
    assert all(files[f"ideas/{name}"] in code for name in ("my_mixer.py", "model/my_mixer.yaml"))
