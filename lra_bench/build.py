"""Build objects from configuration nodes; options are checked against the signature of the constructor.

``hydra.utils.instantiate`` is not used: it recurses into untrusted nodes, and its behaviour changes between releases.
"""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from lra_bench.contracts import UserError
from lra_bench.runtime.hardware import first_line

T = TypeVar("T")

OWN_PACKAGE = __name__.partition(".")[0]

_trusted: ContextVar[tuple[str, str, frozenset[str]] | None] = ContextVar("trusted", default=None)


@contextmanager
def classes_of(packages: Iterable[str], origin: str, remedy: str) -> Iterator[None]:
    """Restrict ``load_class`` to classes of lra-bench and of ``packages`` inside the context.

    For configurations that the user did not write. Any other class raises ``UserError`` before its package is imported.

    Args:
        packages: Top-level packages whose classes may be loaded in addition to lra-bench.
        origin: Where the configuration comes from, for the error message.
        remedy: How the user can allow a package, for the error message.
    """
    token = _trusted.set((origin, remedy, frozenset({OWN_PACKAGE, *packages})))
    try:
        yield
    finally:
        _trusted.reset(token)


def check_trusted(target: str) -> None:
    """Raise ``UserError`` if ``classes_of`` is active and does not allow the package of ``target``."""
    if (restriction := _trusted.get()) is None:
        return
    origin, remedy, packages = restriction
    if target.partition(".")[0] not in packages:
        raise UserError(f"{origin} names {target}, a class of a package that is not allowed; {remedy}")


def load_class(target: str, base: type[T], option: str) -> type[T]:
    """Import and return the class ``target``.

    Args:
        target: Dotted path of the class.
        base: The class must be ``base`` or derive from it.
        option: Path of the configuration node, such as ``model.mixer``, for error messages.

    Returns:
        The class.

    Raises:
        UserError: If the class is not allowed (see ``classes_of``), cannot be imported, or does not derive from
            ``base``.
    """
    from hydra.utils import get_class

    check_trusted(target)
    logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # Hydra would log the error that is raised below
    try:
        found = get_class(target)
    except Exception as error:
        cause = error.__cause__ or error
        if isinstance(cause, UserError):
            raise UserError(f"{option}._target_={target}: {cause}") from error
        fault = f"cannot be imported ({first_line(cause)})"
        raise UserError(f"{option}._target_={target}: {fault}{_remedy(target, cause)}") from error
    if not issubclass(found, base):
        raise UserError(f"{option}._target_={target}: is no {base.__name__}; name a class that derives from it")
    # A target in a module of lra-bench may be a class that the module itself imported from another package.
    check_trusted(found.__module__)
    return found


def _remedy(target: str, cause: BaseException) -> str:
    """Return the end of the error message for a class that cannot be imported; empty if the remedy is unknown."""
    for name in (target, str(getattr(cause, "name", None) or "")):
        if hidden := _hidden_module(name.partition(".")[0]):
            return f"; {hidden}"
    path = target.rpartition(".")[0]
    names = vars(sys.modules[path]) if path in sys.modules else {}
    own = [name for name, each in names.items() if isinstance(each, type) and each.__module__ == path]
    return f"; {path} defines {', '.join(own)}" if own else ""


def _hidden_module(name: str) -> str:
    """Return a message if a module shadows a file of that name later on the import path, otherwise an empty string."""
    try:
        found = importlib.util.find_spec(name) if name else None
    except (ImportError, ValueError):
        return ""
    if found is None or not found.origin:
        return ""
    for folder in sys.path:
        for file in (Path(folder, f"{name}.py"), Path(folder, name, "__init__.py")):
            if file.is_file() and not (Path(found.origin).is_file() and file.samefile(found.origin)):
                return f"{file} is hidden by the installed module {name} ({found.origin}); rename the file"
    return ""


def build(node: Mapping[str, Any], base: type[T], option: str, **given: Any) -> T:
    """Build the object that a configuration node describes.

    Args:
        node: Mapping with the dotted path of the class in ``_target_``; all other items are keyword arguments.
        base: The class must be ``base`` or derive from it.
        option: Path of the node in the configuration, such as ``model.mixer``, for error messages.
        **given: Further keyword arguments, set by the harness. ``node`` must not contain them.

    Returns:
        The object.

    Raises:
        UserError: If ``_target_`` is missing, cannot be imported or does not derive from ``base``, if the constructor
            has no such option, or if it raises ``TypeError`` or ``ValueError``.
    """
    target = node.get("_target_")
    if not target:
        raise UserError(f"{option}: has no _target_; set it to the class to build")
    found = load_class(str(target), base, option)
    options = {str(key): value for key, value in node.items() if key != "_target_"}
    known = known_options(found)
    if known is not None and (unknown := [name for name in given if name not in known]):
        raise UserError(
            f"{option}: the constructor of {found.__name__} does not accept {', '.join(unknown)}; declare them, or add "
            "**common to its parameters and pass it on with super().__init__(…, **common)"
        )
    for name in options:
        if name in given:
            raise UserError(f"{option}.{name}: is set by the harness; remove it")
        if known is not None and name not in known:
            raise UserError(f"{option}.{name}: {found.__name__} has no such option{suggest(name, known - set(given))}")
    try:
        return found(**given, **options)
    except TypeError as error:
        defaults = default_options(found)
        texts = [
            name for name, value in options.items() if isinstance(value, str) > isinstance(defaults.get(name), str)
        ]
        named = ", ".join(f"{option}.{name}={options[name]}" for name in texts) or option
        raise UserError(f"{named}: {found.__name__} cannot be built ({first_line(error)})") from error
    except ValueError as error:
        raise UserError(f"{option}: {first_line(error)}") from error


def known_options(found: type) -> set[str] | None:
    """Return the names of the options that the constructor of a class accepts, following ``**kwargs`` to its bases.

    None if the last constructor found accepts any keyword.
    """
    parameters, complete = _parameters(found)
    return set(parameters) if complete else None


def default_options(found: type) -> dict[str, Any]:
    """Return the defaults of the options that the constructor of a class accepts, those of its bases included."""
    parameters, _ = _parameters(found)
    return {name: each.default for name, each in parameters.items() if each.default is not each.empty}


def _parameters(found: type) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return the parameters of a constructor by name, following ``**kwargs`` to its bases, and whether they are all.

    A parameter that a class and one of its bases declare is that of the class.
    """
    names: dict[str, inspect.Parameter] = {}
    for base in found.__mro__:
        if "__init__" not in base.__dict__:
            continue
        parameters = [*inspect.signature(base.__dict__["__init__"]).parameters.values()][1:]
        names = {p.name: p for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)} | names
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names, True
    return names, False


SUGGESTED = 10
"""Largest number of known names that an error message lists."""


def suggest(name: str, known: set[str] | list[str], listing: str = "") -> str:
    """Return the end of an error message about an unknown name: the closest known name and a list of known names.

    Args:
        name: The unknown name.
        known: Valid names. At most ``SUGGESTED`` of them are listed, those most similar to ``name`` first.
        listing: Command that lists all names, shown if the list is shortened.

    Returns:
        Text to append to the message; empty if ``known`` is empty.
    """
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {closest[0]}?" if closest else ""
    if not known:
        return hint
    if len(known) <= SUGGESTED:
        return f"{hint} (known: {', '.join(sorted(known))})"
    by_similarity = sorted(known, key=lambda each: (-difflib.SequenceMatcher(None, name, each).ratio(), each))
    more = f"and {len(known) - SUGGESTED} more{f': {listing}' if listing else ''}"
    return f"{hint} (known: {', '.join(by_similarity[:SUGGESTED])}, {more})"
