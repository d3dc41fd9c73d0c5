"""The notebooks run from top to bottom on any results folder, and are stored with outputs."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest

from lra_bench.records import store
from tests.project.test_docs import ROOT, files_of
from tests.support.notebooks import NOTEBOOKS, executed
from tests.support.record_factory import make_curves, make_record

READERS = [path for path in NOTEBOOKS if not path.stem.startswith("01")]

STORE = "run python -m tests.support.notebooks"
LARGEST = 300_000  # bytes of a stored notebook


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


def shown_by(content: dict[str, Any]) -> str:
    outputs = [output for cell in content["cells"] for output in cell.get("outputs", [])]
    assert [each["output_type"] for each in outputs if each["output_type"] == "error"] == []
    data = [output.get("data", {"text/plain": output.get("text", "")}) for output in outputs]
    texts = [each.get("text/html") or each.get("text/plain", "") for each in data]
    return "\n".join("".join(text) for text in texts)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_use_the_public_functions_only(path: Path) -> None:
    own = re.findall(r"^(?:from|import) (lra_bench[\w.]*)", code_of(path), re.MULTILINE)
    assert set(own) <= {"lra_bench", "lra_bench.models.mixer"}  # the second one is the interface of the mixer
    assert "subprocess" not in code_of(path)


def test_every_notebook_is_named_in_the_readme() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04"]
    readme = (ROOT / "README.md").read_text()
    assert [path.name for path in NOTEBOOKS if f"notebooks/{path.name}" not in readme] == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_stored_with_the_outputs_of_one_run(path: Path) -> None:
    cells = [cell for cell in notebook(path)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), STORE
    for cell in cells:
        last = ast.parse("".join(cell["source"])).body[-1]
        assert bool(cell["outputs"]) == isinstance(last, ast.Expr), STORE
    drawn = [output for cell in cells for output in cell["outputs"] if "image/png" in output.get("data", {})]
    assert len(drawn) == code_of(path).count("plot(")
    text = path.read_text()
    assert shown_by(notebook(path)) and len(text.encode()) < LARGEST
    assert re.findall(r"/(?:home|root|tmp|Users|var|work)/\S*", text) == []
    assert set(notebook(path)["metadata"]) == {"kernelspec", "language_info"}


@pytest.mark.slow
@pytest.mark.parametrize("path", READERS, ids=lambda path: path.stem)
def test_notebooks_run_on_any_results_folder(path: Path, results: Path, tmp_path: Path) -> None:
    printed = shown_by(executed(path, tmp_path, LRA_BENCH_RESULTS=str(results)))
    assert f"13 records under {results}" in printed
    drawn = {file.name.split("-")[0] for file in (results / "figures").iterdir()}
    shown = set(re.findall(r'plot\("(\w+)"\)', code_of(path)))
    assert shown and shown <= drawn
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_notebook_with_a_new_mixer_measures_it(tmp_path: Path) -> None:
    [path] = set(NOTEBOOKS) - set(READERS)
    folders = {"TMPDIR": str(tmp_path), "LRA_BENCH_CACHE": str(tmp_path / "cache")}
    printed = shown_by(executed(path, tmp_path, **folders))
    assert "my_mixer" in printed
    [record] = tmp_path.glob("lra-bench-*/results/runs/listops/my_mixer/*/*/seed0.json")
    assert json.loads(record.read_text())["status"] == "ok"


def test_the_mixer_of_the_notebook_is_that_of_the_guide() -> None:
    [path] = set(NOTEBOOKS) - set(READERS)
    guide = files_of(ROOT / "docs" / "adding-a-model.md")["ideas/my_mixer.py"]
    assert guide.partition("\n\n")[2].strip() in code_of(path)
