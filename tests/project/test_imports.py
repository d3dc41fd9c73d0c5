"""Imports run one way, in no circle, and planning a run loads no heavy library."""

import ast
import subprocess
import sys
from collections.abc import Iterator
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
    """One imported module of this package: its dotted name, the line, whether by dots, whether for types alone."""

    target: str
    line: int
    relative: bool = False
    for_types: bool = False


def module_paths() -> dict[str, Path]:
    """Every module of the package by the name that it has once installed."""
    found = {}
    for package, folder in FOLDERS.items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


MODULES = module_paths()


def is_type_guard(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def imports_of(name: str, source: str, known: set[str], *, is_package: bool = False) -> Iterator[Import]:
    """Imports of this package that the source of module ``name`` makes, inside functions too.

    ``from a import b`` means ``a.b`` where that is a module among ``known``, else ``a``.
    """

    def visit(node: ast.AST, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, False, for_types)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".")[: len(name.split(".")) - node.level + is_package]
                base = ".".join((*package, *([node.module] if node.module else [])))
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield Import(inner if inner in known else base, node.lineno, node.level > 0, for_types)
        elif isinstance(node, ast.If) and is_type_guard(node):
            for statement in node.body:
                yield from visit(statement, True)
            for statement in node.orelse:
                yield from visit(statement, for_types)
        else:
            for child in ast.iter_child_nodes(node):
                yield from visit(child, for_types)

    for found in visit(ast.parse(source), False):
        if within(found.target, "lra_bench"):
            yield found


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def wrong_way(name: str, imports: list[Import]) -> list[str]:
    """What in ``imports`` of module ``name`` runs against the direction of the house, in words."""
    home = next((package for package in MAY_IMPORT if within(name, package)), None)
    if home is None:
        return [
            f"{name}:{found.line} imports {found.target}: lra_bench/ meets tasks and models through _target_ alone"
            for found in imports
            if any(within(found.target, package) for package in MAY_IMPORT)
        ]
    wrong = []
    for found in imports:
        if within(found.target, home):
            if not found.relative:
                wrong.append(f"{name}:{found.line} imports {found.target}: neighbours are imported relatively")
        elif found.relative or not any(within(found.target, allowed) for allowed in MAY_IMPORT[home]):
            wrong.append(f"{name}:{found.line} imports {found.target}: may import {' and '.join(MAY_IMPORT[home])}")
    return wrong


def circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of imports, its first module repeated at the end; empty where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_folder_of_the_house_is_read() -> None:
    assert {"lra_bench.contracts", "lra_bench.models.mixer", "lra_bench.tasks", "lra_bench.conf.model"} <= set(MODULES)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_imports_run_one_way(name: str) -> None:
    path = MODULES[name]
    found = list(imports_of(name, path.read_text(), set(MODULES), is_package=path.name == "__init__.py"))
    assert wrong_way(name, found) == []


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        name: {
            found.target
            for found in imports_of(name, path.read_text(), set(MODULES), is_package=path.name == "__init__.py")
            if not found.for_types and found.target != name
        }
        for name, path in MODULES.items()
    }
    assert circle(graph) == []


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
        ("lra_bench.tasks.listops.task", "from ..contracts import Task"),
        ("lra_bench.tasks.listops.task", "from lra_bench.tasks.text.task import Text"),
        ("lra_bench.tasks.listops.task", "def later():\n    from lra_bench import cell"),
        ("lra_bench.models.full.softmax", "from lra_bench.data import batches"),
        ("lra_bench.models.full.softmax", "from lra_bench.models.mixer import Mixer"),
        ("lra_bench.models.full.softmax", "from ...build import build"),
        ("lra_bench.models.full.softmax", "if TYPE_CHECKING:\n    from lra_bench.tasks.listops.task import ListOps"),
        ("lra_bench.cells.run", "from lra_bench.models.backbone import SequenceModel"),
        ("lra_bench.cells.run", "from lra_bench import tasks"),
        ("lra_bench.profiling.timing", "from ..models import mixer"),
        ("lra_bench.profiling.timing", "def later():\n    import lra_bench.tasks.listops.task"),
    ],
)
def test_an_import_against_the_direction_is_caught(name: str, source: str) -> None:
    known = {
        *MODULES,
        "lra_bench.cells.run",
        "lra_bench.tasks.text.task",
        "lra_bench.data.batches",
        "lra_bench.training.loop",
    }
    assert wrong_way(name, list(imports_of(name, source, known)))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("lra_bench.tasks.listops.task", "import numpy as np\nfrom lra_bench.contracts import Task"),
        ("lra_bench.tasks.listops.task", "from lra_bench.data import cache\nfrom .floors import majority"),
        ("lra_bench.models.full.softmax", "from ..mixer import HeadMixer\nfrom lra_bench.build import build"),
        ("lra_bench.cells.run", "from lra_bench.training import loop\nfrom lra_bench.build import build_model"),
    ],
)
def test_an_import_in_the_direction_is_accepted(name: str, source: str) -> None:
    assert wrong_way(name, list(imports_of(name, source, set(MODULES)))) == []


def test_relative_imports_are_resolved_from_modules_and_from_packages() -> None:
    known = {"lra_bench.models.mixer", "lra_bench.models.full"}
    for name, is_package in (("lra_bench.models.full.softmax", False), ("lra_bench.models.full", True)):
        assert [found.target for found in imports_of(name, "from .. import mixer", known, is_package=is_package)] == [
            "lra_bench.models.mixer"
        ]


def test_a_circle_is_caught_even_where_it_closes_inside_a_function() -> None:
    sources = {
        "lra_bench.a": "from lra_bench import b",
        "lra_bench.b": "def later():\n    from lra_bench.c import x",
        "lra_bench.c": "import lra_bench.a",
    }
    graph = {name: {found.target for found in imports_of(name, text, set(sources))} for name, text in sources.items()}
    assert set(circle(graph)) == set(sources)
    graph["lra_bench.c"] = set()
    assert circle(graph) == []


def test_an_import_for_types_alone_closes_no_circle() -> None:
    source = "if TYPE_CHECKING:\n    from lra_bench import cell\nelse:\n    from lra_bench import build"
    found = list(imports_of("lra_bench.x", source, {"lra_bench.cells.run", "lra_bench.build"}))
    assert [(one.target, one.for_types) for one in found] == [("lra_bench.cells.run", True), ("lra_bench.build", False)]


def test_a_heavy_library_behind_a_planning_module_is_caught() -> None:
    assert "pandas" in heavy_after("import pandas")
