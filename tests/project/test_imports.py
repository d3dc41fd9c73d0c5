"""Imports run one way, in no cycle, and planning a run loads no heavy library."""

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
    "lra_bench.tasks": ("lra_bench.contracts", "lra_bench.data", "lra_bench.progress"),
    "lra_bench.models": ("lra_bench.contracts", "lra_bench.build", "lra_bench.data.compiled"),
}
TOP_LEVEL_FILES = {"__init__.py", "contracts.py", "build.py", "errors.py", "progress.py", "py.typed"}
CHEAP = (
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
    """One imported module of this package: its dotted name, the line, whether it is written with dots."""

    target: str
    line: int
    relative: bool = False


def module_paths() -> dict[str, Path]:
    """Every module of the package by the name that it has once installed."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = module_paths()


def order() -> list[str]:
    """Modules and packages of ``lra_bench``, lowest first, as the table of docs/architecture.md lists them."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## The packages")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)(?:\.py|/)` \|", table, re.MULTILINE)


ORDER = order()


def imports_of(name: str, source: str, known: set[str], *, is_package: bool = False) -> Iterator[Import]:
    """Imports of this package that the source of module ``name`` makes, inside functions and for types too.

    ``from a import b`` means ``a.b`` where that is a module among ``known``, else ``a``.
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
    """What each module imports of this package."""
    return {
        name: list(imports_of(name, path.read_text(), set(modules), is_package=path.name == "__init__.py"))
        for name, path in modules.items()
    }


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def part(name: str) -> str:
    """The package or module directly below ``lra_bench`` that ``name`` belongs to; empty for ``lra_bench`` itself."""
    return name.partition(".")[2].partition(".")[0]


def wrong_way(name: str, imports: list[Import]) -> list[str]:
    """Each import of module ``name`` that breaks a rule, with the rule."""
    home = next((package for package in MAY_IMPORT if within(name, package)), None)
    return [
        f"{name}:{each.line} imports {each.target}: {rule}" for each in imports if (rule := broken(name, home, each))
    ]


def broken(name: str, home: str | None, found: Import) -> str:
    """The rule that an import breaks, empty if none."""
    if home is None:
        if any(within(found.target, package) for package in MAY_IMPORT):
            return "lra_bench/ reaches tasks and models through _target_ only"
        above, own = part(found.target), part(name)
        if own and not above:
            return "lra_bench/__init__.py is the public interface; packages must not import it"
        if own and ORDER.index(above) > ORDER.index(own):
            return f"{above} comes after {own} in the table of docs/architecture.md"
        return ""
    if within(found.target, home):
        return "" if found.relative else "neighbours are imported relatively"
    if found.relative or not any(within(found.target, allowed) for allowed in MAY_IMPORT[home]):
        return f"may import {' and '.join(MAY_IMPORT[home])}"
    return ""


def cycle(graph: Mapping[str, set[str]]) -> list[str]:
    """One cycle of imports, its first member repeated at the end; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def folders(graph: Mapping[str, list[Import]], modules: Mapping[str, Path]) -> dict[str, set[str]]:
    """The same graph between folders: which package imports modules of which other."""

    def folder(name: str) -> str:
        return name if modules[name].name == "__init__.py" else name.rpartition(".")[0]

    found: dict[str, set[str]] = {}
    for name, imports in graph.items():
        if part(name) in ORDER and folder(name) != "lra_bench":
            targets = {folder(each.target) for each in imports if each.target in modules}
            found.setdefault(folder(name), set()).update(targets - {folder(name), "lra_bench"})
    return found


def test_every_folder_of_the_project_is_read() -> None:
    assert {"lra_bench.contracts", "lra_bench.models.mixer", "lra_bench.tasks", "lra_bench.conf.model"} <= set(MODULES)


def test_the_top_level_holds_the_shared_modules_and_packages_alone() -> None:
    # Folders that hold byte code alone were left by an older layout.
    files = (path for path in (ROOT / "lra_bench").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    there = {path.relative_to(ROOT / "lra_bench").parts[0] for path in files}
    packages = {path.parent.name for path in (ROOT / "lra_bench").glob("*/__init__.py")}
    assert there - packages == TOP_LEVEL_FILES


def test_the_order_names_every_module_and_package_once() -> None:
    assert sorted(ORDER) == sorted(
        {part(name) for name in MODULES if not any(within(name, f) for f in list(FOLDERS)[1:])} - {""}
    )


def test_imports_run_one_way() -> None:
    assert [wrong for name, imports in graph_of(MODULES).items() for wrong in wrong_way(name, imports)] == []


def test_no_module_and_no_folder_imports_itself_through_others() -> None:
    graph = graph_of(MODULES)
    assert cycle({name: {each.target for each in imports} - {name} for name, imports in graph.items()}) == []
    assert cycle(folders(graph, MODULES)) == []


def test_the_way_of_a_run_is_nine_files_and_none_reaches_back() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    way = re.findall(r"^\d\. `lra_bench/([\w/]+)\.py`", text.partition("## The way of a run")[2], re.MULTILINE)
    stations = ["lra_bench." + station.replace("/", ".") for station in way]
    assert len(stations) == 9 and set(stations) <= set(MODULES)
    graph = {name: {each.target for each in imports} for name, imports in graph_of(MODULES).items()}
    for number, station in enumerate(stations):
        assert not reached(station, graph) & set(stations[:number]), station


def reached(name: str, graph: Mapping[str, set[str]]) -> set[str]:
    """Every module that ``name`` imports, directly or through others."""
    found: set[str] = set()
    left = [name]
    while left:
        new = graph.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("name", CHEAP)
def test_planning_modules_load_no_heavy_library(name: str) -> None:
    assert heavy_after(f"import {name}") == []


def heavy_after(statement: str) -> list[str]:
    """Heavy libraries that a fresh interpreter has loaded after ``statement``."""
    code = f"import sys; {statement}; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


# Each rule must catch what it forbids.


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
def test_an_import_against_the_order_is_caught(name: str, source: str) -> None:
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
def test_an_import_along_the_order_is_accepted(name: str, source: str) -> None:
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
def test_a_cycle_is_caught_even_inside_a_function_or_for_types_alone(closing: str) -> None:
    sources = {
        "lra_bench.data.a": "from lra_bench.data import b",
        "lra_bench.data.b": "def later():\n    from lra_bench.data.c import x",
        "lra_bench.data.c": closing,
    }
    graph = {name: {found.target for found in imports_of(name, text, set(sources))} for name, text in sources.items()}
    assert set(cycle(graph)) == set(sources)
    graph["lra_bench.data.c"] = set()
    assert cycle(graph) == []


def test_a_cycle_between_folders_is_caught_even_if_no_module_is_in_one() -> None:
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


def test_a_heavy_library_behind_a_planning_module_is_caught() -> None:
    assert "pandas" in heavy_after("import pandas")
