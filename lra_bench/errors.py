"""Errors that are shown to the user as one sentence, without a stack trace, and how to install missing packages."""

import os
import re
import shlex
import sys
from pathlib import Path

DISTRIBUTION = "lra-bench"
CHECKOUT = Path(__file__).resolve().parents[1]
"""Folder of the checkout; of all installed packages if lra-bench was installed from a wheel."""

LONGEST = 1600
"""Maximum length of a message in characters; the middle of a longer one is left out."""


class UserError(Exception):
    """An error that the user can correct (exit code 2).

    The message is one sentence that names the option to change: ``option=value: what is wrong; what to set instead``.
    """

    def __str__(self) -> str:
        # Quoted text may have many lines.
        sentence = " ".join(super().__str__().splitlines())
        if len(sentence) <= LONGEST:
            return sentence
        return f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"


class Unwritable(UserError):
    """A results or cache folder that is full or read-only.

    The request itself is valid: a cell that fails with it is recorded as ``interrupted``, and the same command resumes
    it once the folder can be written.
    """


def extras() -> dict[str, list[str]]:
    """Return the requirements of each optional extra of the installed distribution, except those for developers."""
    from importlib.metadata import PackageNotFoundError, requires

    found: dict[str, list[str]] = {}
    try:
        requirements = requires(DISTRIBUTION) or []
    except PackageNotFoundError:  # a checkout on the import path that is not installed
        requirements = []
    for requirement in requirements:
        if (extra := re.search(r"extra == ['\"]([\w-]+)", requirement)) and extra[1] not in ("dev", "docs"):
            found.setdefault(extra[1], []).append(requirement.partition(";")[0].strip())
    return found


def install_command(extra: str) -> str:
    """Return the command that installs an extra: of the checkout, or the packages of the extra without a checkout."""
    install = [from_here(Path(sys.executable)), "-m", "pip", "install"]
    if (CHECKOUT / "pyproject.toml").is_file():
        constraints = from_here(CHECKOUT / "constraints.txt")
        return shlex.join([*install, "-c", constraints, "-e", f"{from_here(CHECKOUT)}[{extra}]"])
    return shlex.join([*install, *extras()[extra]])


def from_here(path: Path) -> str:
    """Return a path relative to the working folder if it is inside it, otherwise unchanged."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
