"""Definitions of Python objects: their syntax trees, the names that they use, and code that makes them again."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import pickle
import symtable
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


def literal(value: Any) -> str | None:
    """Return code for a number, text, boolean, None, or a tuple, list, set or dictionary of these; otherwise None."""
    kind = type(value)
    if value is None or kind in (bool, int, complex, str, bytes):
        return repr(value)
    if kind is float:
        return repr(value) if value - value == 0 else f"float({str(value)!r})"
    if kind is dict:
        pairs = [(literal(key), literal(each)) for key, each in value.items()]
        return (
            None if any(None in pair for pair in pairs) else f"{{{', '.join(f'{key}: {each}' for key, each in pairs)}}}"
        )
    if kind not in (tuple, list, set, frozenset):
        return None
    parts = [part for part in map(literal, value) if part is not None]
    if len(parts) < len(value):
        return None
    if kind in (set, frozenset):
        parts.sort()  # the order of a set differs between processes
    listed = f"[{', '.join(parts)}]"
    return listed if kind is list else f"{kind.__name__}({listed})"


def origin(value: Any) -> tuple[str, str] | None:
    """Return the module and the qualified name by which a value can be imported; None if it cannot be."""
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", None)
    if not isinstance(name, str):
        return None
    module = pickle.whichmodule(value, name)  # type: ignore[attr-defined]
    found: Any = sys.modules.get(str(module))
    for part in name.split("."):
        found = getattr(found, part, None)
    return (str(module), name) if found is value and module != "__main__" else None


def original(value: Any, name: str) -> Any:
    """Return the function ``name`` that decorators replaced by ``value``; otherwise ``value`` itself."""
    if hasattr(value, "__wrapped__"):
        return original(value.__wrapped__, name)
    if isinstance(value, FunctionType) and value.__name__ != name:
        decorated = (each for each in closure_of(value).values() if getattr(each, "__name__", None) == name)
        return next(decorated, value)
    return value


def definition(value: FunctionType | type) -> Definition | None:
    """Return the syntax tree of the definition of a function or class; None if its file or cell is not available."""
    functions = [value] if isinstance(value, FunctionType) else methods(value)
    if functions:
        files = [functions[0].__code__.co_filename]
    else:  # a class without methods does not refer to its file
        module = getattr(sys.modules.get(value.__module__), "__file__", None)
        cells = (name for name in reversed(linecache.cache) if not Path(name).exists())
        files = [*cells, *([module] if module else [])]
    for file in files:
        try:
            tree = ast.parse("".join(linecache.getlines(file)))
        except SyntaxError:
            continue
        method = functions[0].__code__ if functions else None
        nodes = (node for node in ast.walk(tree) if isinstance(node, Definition) and _defines(node, value, method))
        if inside := [*nodes]:  # the smallest one; of classes without methods the last one
            return min(inside, key=lambda node: ((node.end_lineno or 0) - node.lineno if method else 0, -node.lineno))
    return None


def _defines(node: Definition, value: FunctionType | type, code: CodeType | None) -> bool:
    """Return whether a node may be the definition of a function, or of a class of which ``code`` is a method."""
    if isinstance(node, ast.Lambda):
        return isinstance(value, FunctionType) and value.__name__ == "<lambda>" and _contains(node, value.__code__)
    if isinstance(node, ast.ClassDef):
        inside = code is None or node.lineno <= code.co_firstlineno <= (node.end_lineno or 0)
        return isinstance(value, type) and node.name == value.__name__ and inside
    first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
    own = getattr(value, "__code__", None)
    return own is not None and (node.name, first) == (own.co_name, own.co_firstlineno)


def _contains(node: ast.Lambda, code: CodeType) -> bool:
    """Return whether the instructions of a lambda function are in the body of a node with the same arguments."""
    body, arguments = node.body, node.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    count = code.co_argcount + code.co_kwonlyargcount
    spans = [
        ((line, column), (end_line, end_column))
        for line, end_line, column, end_column in code.co_positions()
        if line is not None and end_line is not None and column is not None and end_column
    ]
    start, end = (body.lineno, body.col_offset), (body.end_lineno or 0, body.end_col_offset or 0)
    return names == list(code.co_varnames[:count]) and all(start <= first and last <= end for first, last in spans)


def methods(cls: type) -> list[FunctionType]:
    """Return the functions that the body of a class defines, without those of nested classes."""
    found = []
    for each in vars(cls).values():
        function = getattr(each, "__func__", None) or getattr(each, "fget", None) or getattr(each, "func", None) or each
        function = inspect.unwrap(function) if callable(function) else function
        if isinstance(function, FunctionType) and function.__qualname__.startswith(f"{cls.__qualname__}."):
            found.append(function)
    return [each for each in found if each.__code__.co_filename != "<string>"]  # those of decorators


def closure_of(value: FunctionType | type) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function, or the methods of a class, use."""
    if isinstance(value, type):
        found = {name: each for method in methods(value) for name, each in closure_of(method).items()}
        return {name: each for name, each in found.items() if name != "__class__"}
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != type(cell)()}


def namespace_of(value: FunctionType | type) -> Mapping[str, Any]:
    """Return the global variables of the module in which a function or class is defined."""
    functions = [value] if isinstance(value, FunctionType) else methods(value)
    return functions[0].__globals__ if functions else vars(sys.modules[value.__module__])


def used_names(node: Definition) -> set[str]:
    """Return the names that a definition reads from outside of it, except those in annotations."""
    text = ast.unparse(_WithoutAnnotations().visit(copy.deepcopy(node)))
    return set(_global_names(symtable.symtable(text, "<definition>", "exec"), True))


def submodules(node: Definition, name: str, value: Any) -> list[str]:
    """Return the modules that a definition reads as attributes of ``name``, such as ``b`` in ``a.b.c``."""
    if not isinstance(value, ModuleType):
        return []
    chains = (ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Attribute))
    paths = {value.__name__ + chain.removeprefix(name) for chain in chains if chain.startswith(f"{name}.")}
    return sorted(path for path in paths if path in sys.modules)


def _global_names(table: symtable.SymbolTable, outermost: bool) -> Iterator[str]:
    for symbol in table.get_symbols():
        name = symbol.get_name()
        if symbol.is_referenced() and (outermost or symbol.is_global()) and name[:2] != "__":
            yield name
    for inner in table.get_children():
        yield from _global_names(inner, False)


class _WithoutAnnotations(ast.NodeTransformer):
    """Remove the annotations of arguments, results and variables."""

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)
