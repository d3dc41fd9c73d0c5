"""Tests marked ``agrees``: which system each of them compares with what, read from the sources of the tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Agreement:
    """A marker ``agrees`` of a test.

    Attributes:
        systems: Names of model files, and of position encodings as ``position=kerple``. Empty for a test of all mixers.
        compared: What the system is compared with.
        within: Largest accepted absolute difference.
        file: File of the test, relative to the repository.
        test: Name of the test function.
        is_used: Whether the test takes its tolerance from the fixture ``within``.
    """

    systems: tuple[str, ...]
    compared: str
    within: float
    file: str
    test: str
    is_used: bool


def agreements() -> list[Agreement]:
    """Return the markers of all tests, ordered by file and line."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [
        each for file in files for each in read(file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix())
    ]


def read(source: str, file: str) -> list[Agreement]:
    """Return the markers of a file of tests.

    As in pytest, the markers of a test replace those of its class, and these replace ``pytestmark`` of the module.

    Args:
        source: Text of the file.
        file: Path of the file.

    Raises:
        ValueError: If an argument of a marker is not a literal, is missing or is unknown.
    """
    if "agrees" not in source:
        return []
    module = ast.parse(source)
    return list(_in_body(module.body, _assigned(module.body), [], file))


def _in_body(
    body: list[ast.stmt], names: dict[str, ast.expr], inherited: list[ast.Call], file: str
) -> Iterator[Agreement]:
    """Yield the markers of the tests in a module or class whose parents have the markers ``inherited``."""
    own = _assigned(body).get("pytestmark")
    inherited = (_markers([own], names) if own is not None else []) or inherited
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _in_body(node.body, names, _markers(node.decorator_list, names) or inherited, file)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            arguments = {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
            for call in _markers(node.decorator_list, names) or inherited:
                yield _agreement(call, file, node.name, "within" in arguments)


def _assigned(body: list[ast.stmt]) -> dict[str, ast.expr]:
    """Return the expressions that are assigned to single names."""
    return {
        node.targets[0].id: node.value
        for node in body
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name)
    }


def _markers(expressions: list[ast.expr], names: dict[str, ast.expr]) -> list[ast.Call]:
    """Return the calls of ``pytest.mark.agrees`` in decorators, also in ``pytest.param`` and in named decorators."""
    named = [names[each.id] if isinstance(each, ast.Name) and each.id in names else each for each in expressions]
    calls = (node for each in named for node in ast.walk(each) if isinstance(node, ast.Call))
    return [call for call in calls if ast.unparse(call.func) == "pytest.mark.agrees"]


def _agreement(call: ast.Call, file: str, test: str, is_used: bool) -> Agreement:
    """Return the arguments of a marker."""
    where = f"{file}:{call.lineno}: {ast.unparse(call)}"
    try:
        systems = tuple(ast.literal_eval(each) for each in call.args)
        options = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except ValueError:
        raise ValueError(f"{where}: arguments must be literals") from None
    if set(options) != {"compared", "within"}:
        raise ValueError(f"{where}: must have the arguments compared and within")
    return Agreement(systems, options["compared"], float(options["within"]), file, test, is_used)
