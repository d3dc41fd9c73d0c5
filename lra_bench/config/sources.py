"""Source files of classes outside lra-bench, and of edited classes of lra-bench, which the hash of a cell covers."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import json
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from lra_bench.build import OWN_PACKAGE

MANIFEST = Path(__file__).with_name("manifest.json")
"""File with digests of modules and declarations of classes, see ``manifest``."""

EDITABLE = ("lra_bench.models", "lra_bench.tasks")
"""Packages of lra-bench that users may edit in a checkout."""

UNCOVERED = {*sys.stdlib_module_names, OWN_PACKAGE, "numpy", "torch"}
"""Modules whose version is not part of the hash of a cell that imports them."""

DIGITS = 16

Stamp = tuple[int, int]
"""Modification time in ns and size of a file."""


def targets(node: Any) -> Iterator[str]:
    """Yield every ``_target_`` in a part of a configuration."""
    if isinstance(node, Mapping):
        if target := node.get("_target_"):
            yield str(target)
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from targets(value)


def is_outside(target: str) -> bool:
    """Return whether a class does not belong to lra-bench."""
    return target.partition(".")[0] != OWN_PACKAGE


def is_installed(module: str) -> bool:
    """Return whether a module is part of lra-bench, the standard library or an installed package."""
    folder = top_folder(top := module.partition(".")[0], tuple(sys.path))
    return top == OWN_PACKAGE or folder is None or _has_libraries(folder)


def outside_modules(node: Any) -> dict[str, Path]:
    """Return the source files of the classes outside lra-bench that a part of a configuration names, by module.

    Modules that they import are included, also indirectly, if they are in the same folder (that of ``--config-dir``)
    or, for installed packages, in the same package. Libraries are left out, see ``libraries``.
    """
    found: dict[str, Path] = {}
    for target in filter(is_outside, targets(node)):
        module, path = target.rpartition(".")[0], tuple(sys.path)
        top = module.partition(".")[0]
        if _library_version(top, path) is None:
            _collect(module, partial(_users_file, top=top, path=path), found)
    return found


def libraries(node: Any) -> dict[str, str]:
    """Return the version of each installed package whose classes a section of a configuration names or imports.

    A library is an installed package that does not require lra-bench, such as timm. Of the packages that the modules of
    the user import, those in ``UNCOVERED`` are left out.
    """
    tops = {target.partition(".")[0] for target in filter(is_outside, targets(node))}
    imported = (name for module, file in outside_modules(node).items() for name in _imports(module, file, stamp(file)))
    tops |= {name.partition(".")[0] for name in imported} - UNCOVERED
    found = {top: _library_version(top, tuple(sys.path)) for top in sorted(tops)}
    return {top: version for top, version in found.items() if version is not None}


def edited_modules(node: Any) -> dict[str, Path]:
    """Return the edited source files of lra-bench from which the classes of a part of a configuration are made."""
    edited, found = _edited(), dict[str, Path]()
    if edited:
        files = editable_files()
        for target in targets(node):
            _collect(target.rpartition(".")[0], files.get, found)
    return {name: file for name, file in found.items() if name in edited}


def source_digests(node: Any) -> dict[str, str]:
    """Return the digests of the ``outside_modules`` and ``edited_modules`` of a part of a configuration, by module.

    They are followed by the versions of ``libraries``, by package.
    """
    files = outside_modules(node) | edited_modules(node)
    return {name: _structure_of(file, stamp(file)) for name, file in sorted(files.items())} | libraries(node)


def source_texts(node: Any) -> dict[str, str]:
    """Return the text of the ``outside_modules`` and ``edited_modules`` of a part of a configuration, by module."""
    files = outside_modules(node) | edited_modules(node)
    return {name: file.read_text(encoding="utf-8", errors="replace") for name, file in sorted(files.items())}


@cache
def manifest() -> dict[str, dict[str, Any]]:
    """Return digests of the modules and declarations of the classes of this version, read without importing models.

    Returns:
        ``modules``: digests of file and syntax tree of each module of ``EDITABLE``; ``classes``: the fields of
        ``effective.Declared`` of each class that a configuration can name, by dotted path, without empty ones.
    """
    return json.loads(MANIFEST.read_text(encoding="utf-8"))


def current_digests() -> dict[str, list[str]]:
    """Return the digests of file and syntax tree of each module of ``EDITABLE``."""
    contents = {name: file.read_bytes() for name, file in sorted(editable_files().items())}
    return {name: [_digest(content), _tree_digest(content)] for name, content in contents.items()}


@cache
def editable_files() -> dict[str, Path]:
    """Return the source files of the packages of ``EDITABLE``, by module."""
    folders = {package: Path(str(importlib.import_module(package).__path__[0])) for package in EDITABLE}
    return {
        ".".join((package, *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): file
        for package, folder in folders.items()
        for file in folder.rglob("*.py")
    }


def stamp(file: Path) -> Stamp:
    """Return modification time and size of a file."""
    status = file.stat()
    return status.st_mtime_ns, status.st_size


@cache
def _edited() -> frozenset[str]:
    """Return the modules of ``EDITABLE`` whose syntax tree differs from the stored one, determined once per process."""
    return differing(editable_files(), manifest()["modules"])


def differing(files: Mapping[str, Path], stored: Mapping[str, Sequence[str]]) -> frozenset[str]:
    """Return the modules whose syntax tree differs from the stored one; an equal file is not parsed."""
    return frozenset(
        name
        for name, file in files.items()
        if _digest(content := file.read_bytes()) != (digests := stored.get(name, ("", "")))[0]
        and _tree_digest(content) != digests[1]
    )


def _tree_digest(content: bytes) -> str:
    """Return a digest of the syntax tree of a module, which comments, docstrings and formatting do not change.

    It is the same under every supported version of Python. If the content cannot be parsed, it is that of the bytes.
    """
    try:
        return _digest(repr(_plain(ast.parse(content))).encode())
    except (SyntaxError, ValueError):
        return _digest(content)


def _collect(module: str, locate: Callable[[str], Path | None], found: dict[str, Path]) -> None:
    """Add the file of a module and of those that it imports, also indirectly, if ``locate`` returns one, by module."""
    if module in found or (file := locate(module)) is None:
        return
    found[module] = file
    for imported in _imports(module, file, stamp(file)):
        _collect(imported, locate, found)


def _users_file(module: str, top: str, path: tuple[str, ...]) -> Path | None:
    """Return the file of a module in the folder of the module ``top``; None if it is not there, or not the user's.

    If ``top`` is installed, only its own modules are the user's.
    """
    folder, first = top_folder(top, path), module.partition(".")[0]
    if folder is None or top_folder(first, path) != folder or (_has_libraries(folder) and first != top):
        return None
    base = folder.joinpath(*module.split("."))
    return next((file for file in (base.with_suffix(".py"), base / "__init__.py") if file.is_file()), None)


@cache
def top_folder(top: str, path: tuple[str, ...]) -> Path | None:
    """Return the folder that contains a top-level module with source code on the import path, or None."""
    try:
        found = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if found is None:
        return None
    if found.submodule_search_locations:
        return Path(next(iter(found.submodule_search_locations))).parent
    return Path(found.origin).parent if found.origin and found.origin.endswith(".py") else None


@cache
def _library_version(top: str, path: tuple[str, ...]) -> str | None:
    """Return the version of an installed package that does not require lra-bench; None for any other module.

    The version has no local part, such as ``+cpu``.
    """
    if (folder := top_folder(top, path)) is None or not _has_libraries(folder):
        return None
    for each in metadata.distributions(path=[str(folder)]):
        files = {file.parts[0] for file in each.files or ()}
        if top in files or f"{top}.py" in files:
            requires = (re.split(r"[^\w.-]", text)[0] for text in each.requires or ())
            own = any(re.sub(r"[-_.]+", "_", name.lower()) == OWN_PACKAGE for name in requires)
            return None if own else each.version.partition("+")[0]
    return None


@cache
def _imports(module: str, file: Path, changed: Stamp) -> tuple[str, ...]:
    """Return the modules that a module may import, with their parent packages; once per modification of its file."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ()
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # a relative import beyond the top-level package
                origin = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
                names = [f"{origin}.{alias.name}" for alias in node.names]
        parts = [name.split(".") for name in names]
        found |= {".".join(each[:end]): None for each in parts for end in range(1, len(each) + 1)}
    return tuple(found)


@cache
def _structure_of(file: Path, changed: Stamp) -> str:
    """Return the digest of a module's syntax tree, of its bytes if it has none, once per modification of its file."""
    return _tree_digest(file.read_bytes())


def _has_libraries(folder: Path) -> bool:
    """Return whether a folder is that of the standard library or of installed packages."""
    return folder.name in ("site-packages", "dist-packages") or folder == Path(sysconfig.get_path("stdlib"))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:DIGITS]


def _plain(node: Any) -> Any:
    """Return a syntax tree as tuples and lists, without empty fields, which differ between versions of Python."""
    if isinstance(node, list):
        return [_plain(each) for each in node if not (isinstance(each, ast.Expr) and _is_text(each.value))]
    if not isinstance(node, ast.AST):
        return node
    values = [(name, _plain(value)) for name, value in ast.iter_fields(node)]
    return type(node).__name__, [(name, value) for name, value in values if value is not None and value != []]


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
