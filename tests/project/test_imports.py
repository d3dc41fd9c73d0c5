"""Imports follow the order of the packages without cycles, and planning a run loads no heavy library."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {
    "lra_bench": ROOT / "lra_bench",
    "lra_bench.tasks": ROOT / "tasks",
    "lra_bench.models": ROOT / "models",
    "lra_bench.conf": ROOT / "conf",
    "lra_bench.published": ROOT / "results" / "published",
}
MAY_IMPORT = {
    "lra_bench.tasks": ("lra_bench.contracts", "lra_bench.data", "lra_bench.progress", "lra_bench.runtime.processor"),
    "lra_bench.models": (
        *("lra_bench.contracts", "lra_bench.build", "lra_bench.options.backbone", "lra_bench.data.compiled"),
    ),
}
TOP_LEVEL_FILES = {"__init__.py", "py.typed"} | {f"{name}.py" for name in ("__main__", "build", "errors", "progress")}
CHEAP = (
    "lra_bench.api",
    "lra_bench.contracts",
    "lra_bench.build",
    "lra_bench.config.compose",
    "lra_bench.cli.main",
    "lra_bench.grid.execute",
    "lra_bench.records.schema",
    "lra_bench.records.store",
)
HEAVY = ("torch", "datasets", "pyarrow", "pandas", "numba", "scipy", "matplotlib", "wandb")


@dataclass(frozen=True)
class Import:
    """An import of a module of this package: its dotted name, its line, and whether it is a relative import."""

    target: str
    line: int
    relative: bool = False


def module_paths() -> dict[str, Path]:
    """Return every module of the package, by its name in the installed package."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = module_paths()


def order() -> list[str]:
    """Return the modules and packages of ``lra_bench`` in the order of the table in docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Packages")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)(?:\.py|/)` \|", table, re.MULTILINE)


ORDER = order()


def imports_of(name: str, source: str, known: set[str], *, is_package: bool = False) -> Iterator[Import]:
    """Yield the imports from this package in the source of module ``name``, also inside functions and for types.

    ``from a import b`` is an import of ``a.b`` if that is a module in ``known``, otherwise of ``a``.
    """
    for node in ast.walk(ast.parse(source)):
        found = []
        if isinstance(node, ast.Import):
            found = [Import(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join((*package, *([node.module] if node.module else [])))
            targets = (f"{base}.{alias.name}" for alias in node.names)
            found = [Import(each if each in known else base, node.lineno, node.level > 0) for each in targets]
        yield from (each for each in found if within(each.target, "lra_bench"))


def graph_of(modules: Mapping[str, Path]) -> dict[str, list[Import]]:
    """Return the imports of each module from this package."""
    return {
        name: list(imports_of(name, path.read_text(), set(modules), is_package=path.name == "__init__.py"))
        for name, path in modules.items()
    }


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def part(name: str) -> str:
    """Return the package or module directly below ``lra_bench`` that contains ``name``; empty for ``lra_bench``."""
    return name.partition(".")[2].partition(".")[0]


def wrong_way(name: str, imports: list[Import]) -> list[str]:
    """Return the imports of module ``name`` that break a rule, each with the rule."""
    home = next((package for package in MAY_IMPORT if within(name, package)), None)
    return [
        f"{name}:{each.line} imports {each.target}: {rule}" for each in imports if (rule := broken(name, home, each))
    ]


def broken(name: str, home: str | None, found: Import) -> str:
    """Return the rule that an import breaks, or an empty string."""
    if home is None:
        if any(within(found.target, package) for package in MAY_IMPORT):
            return "lra_bench/ must not import tasks and models; they are loaded by _target_"
        imported, importing = part(found.target), part(name)
        if importing and not imported:
            return "lra_bench/__init__.py is the public interface; packages must not import it"
        if importing and ORDER.index(imported) > ORDER.index(importing):
            return f"{imported} comes after {importing} in the table of docs/architecture.md"
        return ""
    if within(found.target, home):
        return "" if found.relative else "modules of the same package must be imported relatively"
    if found.relative or not any(within(found.target, allowed) for allowed in MAY_IMPORT[home]):
        return f"may import {' and '.join(MAY_IMPORT[home])}"
    return ""


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """Return a cycle of imports, with its first member repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folders(graph: Mapping[str, list[Import]], modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return the import graph between folders: the packages whose modules each package imports."""

    def folder(name: str) -> str:
        return name if modules[name].name == "__init__.py" else name.rpartition(".")[0]

    found: dict[str, set[str]] = {}
    for name, imports in graph.items():
        if part(name) in ORDER and folder(name) != "lra_bench":
            targets = {folder(each.target) for each in imports if each.target in modules}
            found.setdefault(folder(name), set()).update(targets - {folder(name), "lra_bench"})
    return found


def test_modules_of_every_folder_are_found() -> None:
    assert {"lra_bench.contracts", "lra_bench.models.mixer", "lra_bench.tasks", "lra_bench.conf.model"} <= set(MODULES)


def test_the_top_level_contains_only_shared_modules_and_packages() -> None:
    # Folders that contain only byte code remain from an older layout.
    files = (path for path in (ROOT / "lra_bench").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    entries = {path.relative_to(ROOT / "lra_bench").parts[0] for path in files}
    packages = {path.parent.name for path in (ROOT / "lra_bench").glob("*/__init__.py")}
    assert entries - packages == TOP_LEVEL_FILES


def test_the_order_names_every_module_and_package_once() -> None:
    assert sorted(ORDER) == sorted(
        {part(name) for name in MODULES if not any(within(name, f) for f in list(FOLDERS)[1:])} - {""}
    )


def test_imports_follow_the_order() -> None:
    assert [wrong for name, imports in graph_of(MODULES).items() for wrong in wrong_way(name, imports)] == []


def test_no_module_and_no_folder_imports_itself_through_others() -> None:
    graph = graph_of(MODULES)
    assert cycle({name: {each.target for each in imports} - {name} for name, imports in graph.items()}) == []
    assert cycle(folders(graph, MODULES)) == []


def test_the_nine_modules_of_a_run_do_not_import_earlier_ones() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"^\d\. `lra_bench/([\w/]+)\.py`", text.partition("## Steps of a run")[2], re.MULTILINE)
    modules = ["lra_bench." + path.replace("/", ".") for path in paths]
    assert len(modules) == 9 and set(modules) <= set(MODULES)
    graph = {name: {each.target for each in imports} for name, imports in graph_of(MODULES).items()}
    for number, module in enumerate(modules):
        assert not reached(module, graph) & set(modules[:number]), module


def reached(name: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Return all modules that ``name`` imports, directly or indirectly."""
    found: set[str] = set()
    stack = [name]
    while stack:
        new = graph.get(stack.pop(), set()) - found
        found |= new
        stack += new
    return found


@pytest.mark.parametrize("name", CHEAP)
def test_planning_modules_load_no_heavy_library(name: str) -> None:
    assert heavy_after(f"import {name}") == []


def heavy_after(statement: str) -> list[str]:
    """Return the heavy libraries that a new interpreter has loaded after ``statement``."""
    code = f"import sys; {statement}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# Tests of the rules themselves.


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("lra_bench.tasks.listops.task", "from lra_bench.training import loop"),
        ("lra_bench.tasks.listops.task", "import lra_bench.models.mixer"),
        ("lra_bench.tasks.listops.task", "import lra_bench"),
        ("lra_bench.tasks.listops.task", "from ...contracts import Task"),
        ("lra_bench.tasks.listops.task", "from lra_bench.tasks.text import Text"),
        ("lra_bench.tasks.listops.task", "def later():\n    from lra_bench.cells import run"),
        ("lra_bench.models.full.softmax", "from lra_bench.data import batches"),
        ("lra_bench.models.full.softmax", "from lra_bench.models.mixer import Mixer"),
        ("lra_bench.models.full.softmax", "from ...build import build"),
        ("lra_bench.models.full.softmax", "if TYPE_CHECKING:\n    from lra_bench.tasks.listops import ListOps"),
        ("lra_bench.cells.run", "from lra_bench.models.backbone import SequenceModel"),
        ("lra_bench.cells.run", "from lra_bench import tasks"),
        ("lra_bench.cells.run", "from lra_bench import load_records"),
        ("lra_bench.profiling.timing", "from ..models import mixer"),
        ("lra_bench.profiling.timing", "def later():\n    import lra_bench.tasks.listops"),
        ("lra_bench.records.check", "from lra_bench.cli import doctor"),
        ("lra_bench.training.rank", "def later():\n    from lra_bench.cells.run import run"),
        ("lra_bench.contracts", "if TYPE_CHECKING:\n    from lra_bench.data.cache import Cache"),
    ],
)
def test_an_import_against_the_order_is_detected(name: str, source: str) -> None:
    assert wrong_way(name, list(imports_of(name, source, {*MODULES, name})))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("lra_bench.tasks.listops.task", "import numpy as np\nfrom lra_bench.contracts import Task"),
        ("lra_bench.tasks.listops.task", "from lra_bench.data import cache\nfrom ..options import at_least"),
        ("lra_bench.models.full.softmax", "from ..mixer import HeadMixer\nfrom lra_bench.build import build"),
        (
            "lra_bench.cells.run",
            "from lra_bench.training import loop\nfrom lra_bench.config.objects import build_model",
        ),
        ("lra_bench.cells.run", "from .cell import Cell\nfrom ..records import store"),
        ("lra_bench", "def load_records():\n    from lra_bench.tracking import reading"),
    ],
)
def test_an_import_that_follows_the_order_is_accepted(name: str, source: str) -> None:
    assert wrong_way(name, list(imports_of(name, source, set(MODULES)))) == []


def test_relative_imports_are_resolved_from_modules_and_from_packages() -> None:
    known = {"lra_bench.models.mixer", "lra_bench.models.full"}
    for name, is_package in (("lra_bench.models.full.softmax", False), ("lra_bench.models.full", True)):
        assert [found.target for found in imports_of(name, "from .. import mixer", known, is_package=is_package)] == [
            "lra_bench.models.mixer"
        ]


@pytest.mark.parametrize(
    "closing", ["import lra_bench.data.a", "if TYPE_CHECKING:\n    from lra_bench.data import a", "from .a import X"]
)
def test_a_cycle_is_detected_also_inside_a_function_or_for_types_only(closing: str) -> None:
    sources = {
        "lra_bench.data.a": "from lra_bench.data import b",
        "lra_bench.data.b": "def later():\n    from lra_bench.data.c import x",
        "lra_bench.data.c": closing,
    }
    graph = {name: {found.target for found in imports_of(name, text, set(sources))} for name, text in sources.items()}
    assert set(cycle(graph)) == set(sources)
    graph["lra_bench.data.c"] = set()
    assert cycle(graph) == []


def test_a_cycle_between_folders_is_detected_even_without_a_cycle_between_modules() -> None:
    modules = {
        "lra_bench.grid": Path("__init__.py"),
        "lra_bench.grid.plan": Path("plan.py"),
        "lra_bench.grid.cost": Path("cost.py"),
        "lra_bench.grid.slurm": Path("__init__.py"),
        "lra_bench.grid.slurm.job": Path("job.py"),
    }
    graph = {
        "lra_bench.grid.cost": [Import("lra_bench.grid.slurm.job", 1)],
        "lra_bench.grid.slurm.job": [Import("lra_bench.grid.plan", 1)],
    }
    assert set(cycle(folders(graph, modules))) == {"lra_bench.grid", "lra_bench.grid.slurm"}


def test_a_loaded_heavy_library_is_detected() -> None:
    assert "pandas" in heavy_after("import pandas")
