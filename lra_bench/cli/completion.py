"""Shell completion of ``key=value`` overrides."""

from __future__ import annotations

import io
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout

from lra_bench.config.groups import GROUPS, option_files
from lra_bench.config.task_groups import group_names

BASH = "complete_bash"
REQUEST = "_LRA_BENCH_COMPLETE"


def override(incomplete: str) -> list[str]:
    """Complete the name of a group, or the last option of a comma list."""
    group, given, value = incomplete.partition("=")
    if not given:
        found = [name for name in GROUPS if name.startswith(group)]
        # A single completion would be followed by a space; return the options of the group instead.
        return override(f"{found[0]}=") if len(found) == 1 else [f"{name}=" for name in found]
    if group not in GROUPS:
        return []
    before, comma, last = value.rpartition(",")
    names = (*option_files(group), *(group_names() if group == "task" else ()), "ALL")
    return [f"{group}={before}{comma}{name}" for name in names if name.startswith(last)]


def in_bash(answer: Callable[[], object]) -> None:
    """Handle a completion request from bash, which splits ``key=value`` into three words and completes the last.

    ``answer`` prints the completions for the words in the environment. It is called only for words that contain ``=``.
    """
    if os.environ.get(REQUEST) != BASH:
        return
    try:
        words = os.environ["COMP_WORDS"].split("\n")
        cursor = int(os.environ["COMP_CWORD"])
    except (KeyError, ValueError):
        return
    start = next((place - 1 for place in (cursor, cursor - 1) if 1 < place < len(words) and words[place] == "="), None)
    if start is None:
        return
    prefix = f"{words[start]}="
    joined = prefix + "".join(words[start + 2 : cursor + 1])
    os.environ["COMP_WORDS"] = "\n".join([*map(shlex.quote, words[:start]), joined])
    os.environ["COMP_CWORD"] = str(start)
    answers = io.StringIO()
    try:
        with redirect_stdout(answers):
            answer()
    finally:
        sys.stdout.writelines(f"{line.removeprefix(prefix)}\n" for line in answers.getvalue().splitlines())
