"""Objects from configuration nodes: the class by name, its options by its own constructor.

``hydra.utils.instantiate`` is not used: it recurses into untrusted nodes and changes behaviour between releases.
"""

from __future__ import annotations

import difflib
import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from lra_bench.contracts import UserError

T = TypeVar("T")

OWN_PACKAGE = __name__.partition(".")[0]

_trusted: ContextVar[tuple[str, str, frozenset[str]] | None] = ContextVar("trusted", default=None)


@contextmanager
def classes_of(packages: Iterable[str], origin: str, remedy: str) -> Iterator[None]:
    """Load classes of lra-bench and of ``packages`` alone while the context lasts, and import nothing else for them.

    For configurations that are not the user's own words: ``origin`` says whose they are and ``remedy`` what lets a
    package in, both for the ``UserError`` that any other class raises.
    """
    token = _trusted.set((origin, remedy, frozenset({OWN_PACKAGE, *packages})))
    try:
        yield
    finally:
        _trusted.reset(token)


def check_trusted(target: str) -> None:
    """Raise ``UserError`` where ``target`` lies in a package whose classes are not to be loaded now."""
    if (restriction := _trusted.get()) is None:
        return
    origin, remedy, packages = restriction
    if target.partition(".")[0] not in packages:
        raise UserError(f"{origin} names {target}, a class of a package that was not asked for; {remedy}")


def load_class(target: str, base: type[T], option: str) -> type[T]:
    """The class that ``target`` names, which must be a ``base``; ``option`` is named in the error."""
    from hydra.utils import get_class

    check_trusted(target)
    logging.getLogger("hydra.utils").setLevel(logging.CRITICAL)  # it would say a second time what is said below
    try:
        found = get_class(target)
    except Exception as error:
        cause = error.__cause__ or error
        raise UserError(f"{option}._target_={target}: cannot be imported ({_first_line(cause)})") from error
    if not issubclass(found, base):
        raise UserError(f"{option}._target_={target}: is no {base.__name__}; name a class that derives from it")
    # A module of ours has names in it of what it imports itself.
    check_trusted(found.__module__)
    return found


def build(node: Mapping[str, Any], base: type[T], option: str, **given: Any) -> T:
    """Build the object that ``node`` describes: ``_target_`` plus keyword arguments, beside those ``given``.

    ``option`` is where the node stands in the configuration (``model.mixer``), for error messages.
    Raises ``UserError`` where the class is missing, is no ``base``, or has no such option.
    """
    target = node.get("_target_")
    if not target:
        raise UserError(f"{option}: has no _target_; name the class to build")
    found = load_class(str(target), base, option)
    options = {str(key): value for key, value in node.items() if key != "_target_"}
    known = known_options(found)
    for name in options:
        if name in given:
            raise UserError(f"{option}.{name}: is set by the harness, not by hand")
        if known is not None and name not in known:
            raise UserError(f"{option}.{name}: {found.__name__} has no such option{suggest(name, known - set(given))}")
    try:
        return found(**given, **options)
    except TypeError as error:
        raise UserError(f"{option}: {found.__name__} cannot be built ({_first_line(error)})") from error
    except ValueError as error:
        raise UserError(f"{option}: {_first_line(error)}") from error


def known_options(found: type) -> set[str] | None:
    """Names that a class's constructor accepts, following ``**kwargs`` to its bases; None where that is open-ended."""
    names: set[str] = set()
    for base in found.__mro__:
        if "__init__" not in base.__dict__:
            continue
        parameters = inspect.signature(base.__dict__["__init__"]).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            return names - {"self"}
    return None


SUGGESTED = 10


def suggest(name: str, known: set[str] | list[str], listing: str = "") -> str:
    """The tail of an error about an unknown name: the nearest known one, and all, or the ten nearest of them.

    ``listing`` is the command that lists all.
    """
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    if not known:
        return hint
    if len(known) <= SUGGESTED:
        return f"{hint} (known: {', '.join(sorted(known))})"
    by_nearness = sorted(known, key=lambda each: (-difflib.SequenceMatcher(None, name, each).ratio(), each))
    more = f"and {len(known) - SUGGESTED} more{f': {listing}' if listing else ''}"
    return f"{hint} (known: {', '.join(by_nearness[:SUGGESTED])}, {more})"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
