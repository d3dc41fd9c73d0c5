"""Read YAML files as Hydra reads them, but faster and without keys that occur twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from lra_bench.contracts import UserError

MOST_ALIASES = 20
"""Largest number of nested aliases in a file, those inside of a node with an anchor.

They can expand to a size that is exponential in their number.
"""

DEEPEST = 100
"""Largest depth of nested lists and mappings; libyaml ends the process at a depth of some ten thousand."""

PACKAGE = re.compile(r"\s*#\s*@package\s+(\S+)")
"""The header of a file, which Hydra reads only before all other comments."""


def read(path: Path, choice: str) -> tuple[Any, str]:
    """Return the content of a file, and the package that its header names, empty if it names none.

    Raises ``UserError``, which begins with ``choice``, if the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = load(text)
    except (yaml.YAMLError, UnicodeDecodeError, OSError) as error:
        fault = " ".join(str(error).split())  # the message has several lines, with file and line number
        raise UserError(f"{choice}: a configuration file cannot be read ({path}: {fault})") from error
    header = PACKAGE.match(text)
    return content, header[1] if header else ""


def load(text: str) -> Any:
    """Return the value of a YAML document. Raises ``YAMLError``, also for deep nesting and many nested aliases."""
    aliases, anchored = 0, [False]  # whether each open node, or one around it, has an anchor
    for event in yaml.parse(text, _Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            anchored.append(anchored[-1] or event.anchor is not None)
        elif isinstance(event, yaml.CollectionEndEvent):
            anchored.pop()
        else:
            aliases += anchored[-1] and isinstance(event, yaml.AliasEvent)
        if aliases > MOST_ALIASES or len(anchored) > DEEPEST:
            raise yaml.YAMLError(f"it has more than {MOST_ALIASES} nested aliases or {DEEPEST} levels of nesting")
    return yaml.load(text, _Loader)


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Loader that reads ``1e-3`` as a number and refuses a key that occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        if len(set(map(str, keys))) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice} occurs twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)
