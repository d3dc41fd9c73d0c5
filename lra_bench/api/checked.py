"""Checks of the arguments of the public functions, whose errors name arguments instead of options of commands."""

from __future__ import annotations

import inspect
import os
import re
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from lra_bench.config.groups import listing
from lra_bench.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

Folder = str | os.PathLike[str]

ACCEPTED: dict[str, tuple[type | tuple[type, ...], str]] = {
    "str": (str, "text"),
    "Folder": ((str, os.PathLike), "path"),
}
"""Types of the values of an argument, and their description, by annotation."""

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")
"""Suffixes of files that ``task_from`` reads."""


def spelled(message: str) -> str:
    """Return a message with the options of commands as arguments: ``--results x`` as ``results=x``."""
    message = message.replace("--all", "everything=True")

    def argument(option: re.Match[str]) -> str:
        return option[1].replace("-", "_") + ("=" if option[2] else "")

    return re.sub(r"--([a-z]+(?:-[a-z]+)*)( (?=\S))?", argument, message)


@contextmanager
def in_python() -> Iterator[None]:
    """Replace names of command-line options in errors by names of arguments (``spelled``)."""
    try:
        yield
    except UserError as error:
        error.args = (spelled(str(error)),)
        raise


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function check its arguments with an annotation in ``ACCEPTED`` and name arguments in its errors."""
    parameters = inspect.signature(function).parameters

    @wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        for name, value in {**dict(zip(parameters, arguments, strict=False)), **options}.items():
            annotation, _, other = str(parameters[name].annotation if name in parameters else "").partition(" | ")
            if annotation not in ACCEPTED or other not in ("", "None") or (other and value is None):
                continue
            types, kind = ACCEPTED[annotation]
            if not isinstance(value, types):
                raise UserError(f"{name}={_shown(value)}: must be a {kind}")
        with in_python():
            return function(*arguments, **options)

    return checked


def names_in(argument: str, value: str | Sequence[str]) -> list[str]:
    """Return the names in an argument. Raises ``UserError`` if it is neither a name nor a sequence of names."""
    names = [value] if isinstance(value, str) else list(value) if isinstance(value, Sequence) else []
    own = "; make a task of a table with lra_bench.task_from" if argument == "task" else ""
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise UserError(f"{argument}={_shown(value)}: must be a name or a sequence of names ({listing(argument)}){own}")
    for name in names:
        if own and (os.sep in name or Path(name).suffix in TABLES):
            raise UserError(f"task={name!r}: is not a name; write task=lra_bench.task_from({name!r})")
        if not re.fullmatch(r"[\w.+-]+", name):
            parts = [part.strip() for part in name.rpartition("=")[2].split(",")]
            written = parts if parts[1:] else parts[0]
            remedy = listing(argument) if written in ("", name) else f"write {argument}={written!r}"
            raise UserError(f"{argument}={name!r}: is not a name; {remedy}")
    return names


def _shown(value: object) -> str:
    """Return the start and end of a value in one line."""
    return " ".join(reprlib.repr(value).split())
