"""Declarations of classes, parsed from their source code, so that planning does not load torch."""

from __future__ import annotations

import ast
import importlib.util
import math
import operator
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from lra_bench.build import check_trusted

ROOTS = frozenset({"builtins.object", "abc.ABC", "torch.nn.Module", "typing.Generic", "typing.Protocol"})
"""Base classes that declare nothing; their source code is not read."""

OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: operator.pow,
}

CONDITIONAL = (ast.If, ast.For, ast.While, ast.With, ast.Try)
"""Statements whose effect on the body of a class is unknown before they are executed."""


MOST_IMPORTS = 20
"""Largest number of modules through which a name may be imported; a cycle of imports has no end."""

Stamp = tuple[int, int]


class Unreadable(Exception):
    """Raised if a declaration cannot be determined from source code, so that the class must be imported."""


@dataclass(frozen=True)
class Module:
    """A parsed module.

    Attributes:
        name: Dotted path of the module.
        file: Its source file.
        bindings: For each name that the module defines once, the statement that defines it, or the dotted path of the
            object that is imported under this name. None for names that are defined several times.
    """

    name: str
    file: Path
    bindings: Mapping[str, ast.stmt | str | None]

    def place(self, node: ast.expr) -> str:
        """Return the dotted path of the object that an expression names, without following re-exports.

        Raises ``Unreadable`` if the expression is not a name, an attribute of one, or one with type arguments.
        """
        match node:
            case ast.Name(id=name):
                bound = self.bindings.get(name, f"builtins.{name}")
                return bound if isinstance(bound, str) else f"{self.name}.{name}"
            case ast.Attribute(value=value, attr=name):
                return f"{self.place(value)}.{name}"
            case ast.Subscript(value=value):
                return self.place(value)
        raise Unreadable(f"{self.name}: {ast.unparse(node)} is computed")


@dataclass(frozen=True)
class StaticClass:
    """The source code of a class: its ``body`` and the ``module`` that defines it; ``sources`` reads what it names."""

    body: ast.ClassDef
    module: Module
    sources: Sources

    @property
    def name(self) -> str:
        """Dotted path of the class in the module that defines it."""
        return f"{self.module.name}.{self.body.name}"

    def assigned(self, attribute: str) -> ast.expr | None:
        """Return the expression that the class body assigns to ``attribute``, None if it assigns nothing to it."""
        found: ast.expr | None = None
        for statement in self.body.body:
            match statement:
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == attribute:
                    found = value
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name == attribute:
                    found = value
        return found

    def value(self, node: ast.expr) -> Any:
        """Return the value of an expression in the class. Raises ``Unreadable`` if it cannot be determined."""
        return self.sources.value(node, self.module)

    def constructor(self) -> ast.arguments | None:
        """Return the parameters of ``__init__``, None if the class body does not define it.

        Raises ``Unreadable`` if the constructor may be another one than the class body shows.
        """
        found: list[ast.FunctionDef] = []
        for statement in self.body.body:
            match statement:
                case ast.FunctionDef(name="__init__", decorator_list=[]):
                    found.append(statement)
                case ast.FunctionDef(name="__init__"):
                    raise Unreadable(f"{self.name}: the constructor has a decorator")
        if len(found) > 1 or self.assigned("__init__") is not None:
            raise Unreadable(f"{self.name}: defines several constructors")
        return found[0].args if found else None


class Sources:
    """Reader of source files.

    Attributes:
        files: The files that were read, each with the result of ``stamp``.
    """

    def __init__(self) -> None:
        self.files: dict[Path, Stamp] = {}

    def ancestry(self, target: str) -> tuple[StaticClass, ...]:
        """Return a class and its base classes in method resolution order, without ``ROOTS``.

        Raises ``Unreadable`` if a source is not available or a class is not a plain definition, such as one with a
        decorator, and ``UserError`` if ``build.classes_of`` does not allow the class.
        """
        module, statement = self._definition(target)
        if not isinstance(statement, ast.ClassDef) or statement.decorator_list or statement.keywords:
            raise Unreadable(f"{target}: is not a plain class definition")
        if any(isinstance(each, CONDITIONAL) for each in statement.body):
            raise Unreadable(f"{target}: the class body contains conditional statements")
        places = [module.place(base) for base in statement.bases]
        chains = [self.ancestry(place) for place in places if place not in ROOTS]
        found = StaticClass(statement, module, self)
        return found, *_merged([*chains, tuple(chain[0] for chain in chains)])

    def value(self, node: ast.expr, module: Module) -> Any:
        """Return the value of an expression in a module. Raises ``Unreadable`` if it cannot be determined."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.List(elts=entries) | ast.Tuple(elts=entries):
                return [self.value(entry, module) for entry in entries]
            case ast.Dict(keys=keys, values=values) if None not in keys:
                names = [self.value(key, module) for key in keys if key is not None]
                return dict(zip(names, (self.value(value, module) for value in values), strict=True))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand, module)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](self.value(left, module), self.value(right, module))
            case ast.Name() | ast.Attribute():
                return self._constant(module.place(node))
        raise Unreadable(f"{module.name}: {ast.unparse(node)} is computed")

    def _constant(self, place: str) -> Any:
        """Return the value of a constant of a module, or of Python's module ``math``."""
        package, _, name = place.rpartition(".")
        if package == "math":
            return getattr(math, name)
        module, statement = self._definition(place)
        match statement:
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                return self.value(value, module)
        raise Unreadable(f"{place}: is computed")

    def _definition(self, place: str) -> tuple[Module, ast.stmt]:
        """Return the statement that defines the object with the dotted path ``place``, and its module."""
        for _ in range(MOST_IMPORTS):
            name, _, attribute = place.rpartition(".")
            module = self._module(name)
            bound = module.bindings.get(attribute)
            if bound is None:
                raise Unreadable(f"{place}: is not defined exactly once in its module")
            if not isinstance(bound, str):
                return module, bound
            place = bound
        raise Unreadable(f"{place}: is imported through more than {MOST_IMPORTS} modules")

    def _module(self, name: str) -> Module:
        if name.partition(".")[0] == "torch":
            raise Unreadable(f"{name}: looking for its source would import torch")
        check_trusted(name)  # find_spec imports the parent packages of a module
        file = _source_file(name, tuple(sys.path))
        self.files[file] = stamp(file)
        return _parsed(name, file, self.files[file])


def stamp(file: Path) -> Stamp:
    """Return modification time in ns and size of a source file. Raises ``Unreadable`` if it does not exist."""
    try:
        status = file.stat()
    except OSError as error:
        raise Unreadable(str(error)) from error
    return status.st_mtime_ns, status.st_size


def _merged(chains: Sequence[Sequence[StaticClass]]) -> Iterator[StaticClass]:
    """Yield the classes of several chains in the order of the C3 linearisation, which Python uses."""
    while chains := [chain for chain in chains if chain]:
        later = {each.name for chain in chains for each in chain[1:]}
        first = next((chain[0].name for chain in chains if chain[0].name not in later), None)
        if first is None:
            raise Unreadable("base classes in an inconsistent order")
        yield next(chain[0] for chain in chains if chain[0].name == first)
        chains = [chain[1:] if chain[0].name == first else chain for chain in chains]


@cache
def _source_file(name: str, import_path: tuple[str, ...]) -> Path:
    """Return the source file of a module, found on the current import path. Raises ``Unreadable`` if it has none."""
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError) as error:
        raise Unreadable(str(error)) from error
    if found is None or not found.origin or not found.origin.endswith(".py"):
        raise Unreadable(f"{name}: has no source file")
    return Path(found.origin)


@cache
def _parsed(name: str, file: Path, changed: Stamp) -> Module:
    """Parse a module, once per modification of its file."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise Unreadable(f"{file}: {error}") from error
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    bindings: dict[str, ast.stmt | str | None] = {}
    for bound, value in _bound(tree, package):
        bindings[bound] = None if bound in bindings else value
    return Module(name, file, bindings)


def _bound(tree: ast.Module, package: str) -> Iterator[tuple[str, ast.stmt | str]]:
    """Yield the names that the statements of a module define, except nested statements and ``import *``."""
    for statement in tree.body:
        match statement:
            case ast.ImportFrom(names=aliases):
                origin = origin_of(statement, package)
                yield from ((alias.asname or alias.name, f"{origin}.{alias.name}") for alias in aliases)
            case ast.Import(names=aliases):
                for alias in aliases:
                    top = alias.name.partition(".")[0]
                    yield alias.asname or top, alias.name if alias.asname else top
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name, statement
            case ast.Assign(targets=targets):
                yield from ((target.id, statement) for target in targets if isinstance(target, ast.Name))
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
                yield name, statement


def origin_of(statement: ast.ImportFrom, package: str) -> str:
    """Return the dotted path of the module from which a statement in a module of ``package`` imports."""
    level = statement.level
    parents = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    return ".".join([*parents, *([statement.module] if statement.module else [])])
