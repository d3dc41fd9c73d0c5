"""Every public name is documented in docs/python.md with its arguments, and in its docstring with an example."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import lra_bench
from lra_bench.records import store
from tests.project.test_docs import ROOT, run_as_written
from tests.support.record_factory import make_curves, make_record

FUNCTIONS = [name for name in lra_bench.__all__ if name not in ("Results", "UserError", "__version__")]
TRAINS = {"Results", "bench", "evaluate", "load_model"}
"""Names whose examples read the record that the example of ``bench`` writes."""


def documented() -> dict[str, str]:
    """Return the public names in the list of docs/python.md, each with its arguments as written."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^- `(\w+)(?:\(([^`]*)\))?`: \S", text, re.MULTILINE))


def arguments_of(function: Any) -> str:
    """Return the names of the arguments, with ``*`` before those that must be named."""
    names = [(each.name, each.kind) for each in inspect.signature(function).parameters.values()]
    first = next((place for place, (_, kind) in enumerate(names) if kind == inspect.Parameter.KEYWORD_ONLY), None)
    plain = [name for name, _ in names]
    return ", ".join(plain if first is None else [*plain[:first], "*", *plain[first:]])


def test_the_page_lists_every_public_name() -> None:
    assert sorted(documented()) == sorted(lra_bench.__all__)


@pytest.mark.parametrize("name", [*FUNCTIONS, "Results"])
def test_the_page_and_the_docstring_name_the_arguments_of_the_signature(name: str) -> None:
    public = getattr(lra_bench, name)
    assert documented()[name] == arguments_of(public)
    text = inspect.getdoc(public)
    assert text is not None and "Examples:\n" in text
    if name != "Results":
        arguments = text.partition("Args:\n")[2].partition("\n\n")[0]
        described = re.findall(r"^    (?:\*\*)?(\w+): ", arguments, re.MULTILINE)
        assert described == list(inspect.signature(public).parameters)
        assert "Returns:\n" in text and "Raises:\n" in text


def test_only_public_names_are_public() -> None:
    own = {name for name in dir(lra_bench) if not name.startswith("_")}
    submodules = {name for name in own if inspect.ismodule(getattr(lra_bench, name))}
    assert own - submodules - {"annotations", "TYPE_CHECKING", "Any"} == set(lra_bench.__all__) - {"__version__"}


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = "import sys, lra_bench; lra_bench.bench; print({'torch', 'pandas', 'hydra', 'numpy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a results folder with two seeds of two models."""
    root = tmp_path_factory.mktemp("stored")
    for model in ("local", "performer"):
        for seed in (0, 1):
            store.write(make_record(model, seed=seed), root, make_curves())
    return root


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an empty results folder, which the example of ``bench`` fills."""
    return tmp_path_factory.mktemp("trained")


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in {*TRAINS, "profile", "plot", "check"}])
def test_examples_run(name: str, stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_example(name, stored, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plot", "check", "profile", "bench", "Results", "evaluate", "load_model"])
def test_slow_examples_run(name: str, stored: Path, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    if name in ("evaluate", "load_model"):
        run_example("bench", trained, monkeypatch)
    run_example(name, trained if name in {*TRAINS, "profile"} else stored, monkeypatch)


def run_example(name: str, results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_BENCH_RESULTS", str(results))
    finder = doctest.DocTestFinder(recurse=False)
    [example] = finder.find(getattr(lra_bench, name), name, globs={"lra_bench": lra_bench})
    assert example.examples
    output: list[str] = []
    assert doctest.DocTestRunner().run(example, out=output.append).failed == 0, "".join(output)


@pytest.mark.slow
def test_the_script_of_the_page_prints_a_table(tmp_path: Path) -> None:
    records = run_as_written(ROOT / "docs" / "python.md", tmp_path)
    measured = sorted((record["key"]["model"], record["key"]["seed"], record["status"]) for record in records)
    names = [("gru_wrapped", 0), ("local", 0), ("local", 1), ("transformer", 0), ("transformer", 1)]
    assert measured == [(*name, "ok") for name in names]
