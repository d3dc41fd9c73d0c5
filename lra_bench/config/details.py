"""Everything that one option says of itself: its file, the docstring of its class, sources, deviations from them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import cleandoc, getdoc
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import Any, get_args, get_type_hints

from lra_bench.build import load_class, suggest
from lra_bench.contracts import UserError

from . import yaml_files
from .groups import option_files
from .listing import capabilities, describe, group_of
from .measurements import our_measurements
from .schema import CellConfig

AROUND = ("retrieval", "controller", "mixer", "network")
"""Nodes of a model file that name a class; the first one that a file has is the class of the system."""
DEVIATIONS = re.compile(r"(?:^|(?<=[.!?])\s)Deviations?(?P<source>\sfrom\s[^:]+)?:(?P<text>.*)", re.DOTALL)
"""Statement of deviations in a paragraph of a docstring, up to the end of the paragraph."""


def details(kind: str, name: str, config_dir: Path | None = None) -> dict[str, Any]:
    """Return what is known of one option.

    Args:
        kind: Name of its group, in the singular or plural.
        name: Name of its file.
        config_dir: Folder of additional configuration and classes.

    Returns:
        ``name``, ``description``, ``file``; of a model also ``label``, ``position`` (None for that of the protocol) and
        the declared capabilities; if the file names a class ``class``, its docstring as ``documentation``, and
        ``deviations``, otherwise the text of the file as ``documentation``.

    Raises:
        UserError: If there is no such group or option, or its class cannot be imported.
    """
    group = group_of(kind)
    files = option_files(group, config_dir)
    if name not in files:
        raise UserError(f"list {kind} {name}: there is no such {group}{suggest(name, set(files))}")
    file = files[name]
    text = file.read_text(encoding="utf-8")
    node: dict[str, Any] = yaml_files.load(text) or {}
    found: dict[str, Any] = {"name": name, "description": describe(file), "file": str(file)}
    if group == "model":
        position = (node.get("backbone") or {}).get("position")
        found |= {"label": str(node["model"].get("label", name)), **capabilities(file), "position": position}
    classes = classes_of(group, node)
    if not classes:
        return {**found, "documentation": text.strip()}
    stated = [*stated_in_comments(text), *(each for cls in classes for each in deviations(cls))]
    path = f"{classes[0].__module__}.{classes[0].__qualname__}"
    return {**found, "class": path, "documentation": getdoc(classes[0]) or "", "deviations": stated}


def shown(found: Mapping[str, Any]) -> str:
    """Return the result of ``details`` as text. Deviations that the docstring states are not repeated."""
    facts = {
        "paper": found.get("paper") and " · arXiv ".join(filter(None, (found["paper"], found.get("arxiv")))),
        "authors' code": found.get("code"),
        "family": found.get("family"),
        "position": found.get("position"),
        "class": found.get("class"),
        "file": found["file"],
    }
    lines = [f"{found['name']}: {found['description']}", ""]
    lines += [f"{name:<15}{value}" for name, value in facts.items() if value]
    own = stated_deviations(found["documentation"])
    rest = [each for each in found.get("deviations", ()) if each not in own]
    more = ["", "Deviations of its options and base classes:", *(f"- {each}" for each in rest)] if rest else []
    return "\n".join([*lines, "", found["documentation"], *more])


def option_list() -> list[dict[str, Any]]:
    """Return every option that belongs to no task, model or position, with its default and description.

    Returns:
        One mapping per option, with the keys ``name``, ``default``, ``description`` and ``section``, which is true for
        the row of a section or group that precedes its options.
    """
    return [row for row in _options_below("", CellConfig) if row["name"]]


def option_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a list of options; those of a section or group follow its description."""
    width = max((len(row["name"]) for row in rows), default=0)
    for row in rows:
        text = row["description"].replace("``", "`")
        if row["section"]:
            yield from ("", *wrap(f"{row['name']}: {text}", 100))
            continue
        default = "" if row["default"] is None else f"(default: {row['default']})"
        lines = wrap(f"{text} {default}".strip(), max(100 - width, 40)) or [""]
        yield from (
            f"  {name:<{width}}  {line}".rstrip() for name, line in zip_longest([row["name"]], lines, fillvalue="")
        )


def _options_below(name: str, cls: type) -> Iterator[dict[str, Any]]:
    """Yield the row of a dataclass, then those of its options."""
    sources = [*cls.__mro__, *(each.Options for each in our_measurements().values())]
    texts = [cleandoc(each.__dict__.get("__doc__") or "") for each in sources if is_dataclass(each)]
    described = {key: text for each in reversed(texts) for key, text in _attributes(each).items()}
    about = one_line(texts[0].partition("\nAttributes:")[0])
    yield {"name": name, "default": None, "description": about, "section": True}
    hints = get_type_hints(cls)
    groups = {}
    for each in fields(cls):
        path = f"{name}.{each.name}".lstrip(".")
        kinds = (hints[each.name], *get_args(hints[each.name]))
        inner = [kind for kind in kinds if isinstance(kind, type) and is_dataclass(kind)]
        if inner:
            groups[path] = inner[0]
        elif name or hints[each.name] != dict[str, Any]:
            default = each.default_factory() if callable(each.default_factory) else each.default
            text = described.get(each.name, "")
            yield {"name": path, "default": default, "description": text, "section": False}
    for path, group in groups.items():
        yield from _options_below(path, group)


def _attributes(docstring: str) -> dict[str, str]:
    """Return the descriptions in the section ``Attributes`` of a docstring by name."""
    section = docstring.partition("\nAttributes:\n")[2]
    found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section, re.MULTILINE)
    return {name: one_line(text) for name, text in found}


def classes_of(group: str, node: Mapping[str, Any]) -> list[type]:
    """Return the classes that the content of an option file names, that of the option first.

    Those of a model are the class of the system and the classes that options of its mixer select by name.
    """
    if group != "model":
        return [load_class(str(node["_target_"]), object, group)] if "_target_" in node else []
    model = node["model"]
    around = next(name for name in AROUND if name in model)
    system = load_class(str(model[around]["_target_"]), object, f"model.{around}")
    return [system, *_selected(model["mixer"])] if "mixer" in model else [system]


def _selected(mixer: Mapping[str, Any]) -> Iterator[type]:
    """Yield the classes that options of a mixer select by name, such as ``merge``."""
    options = getattr(load_class(str(mixer["_target_"]), object, "model.mixer"), "named_classes", {})
    for option, classes in options.items():
        given = mixer.get(option) or []
        for each in given if isinstance(given, list) else [given]:
            name = each.get("name") if isinstance(each, Mapping) else each
            if name in classes:
                yield load_class(classes[name], object, f"model.mixer.{option}")


def deviations(cls: type) -> tuple[str, ...]:
    """Return the deviations in the docstring of a class, or in that of the nearest base class that states any.

    A docstring states them after "Deviations from the paper:" or similar words. They end with the paragraph, or with
    the list that follows it. "Deviations as in ``Name``" adds those of the base class ``Name``.
    """
    for base in cls.__mro__:
        text = cleandoc(base.__dict__.get("__doc__") or "")
        found = [stated for stated in stated_deviations(text) if not re.search(r"(^|: )none\b", stated)]
        named = re.search(r"[Dd]eviations\s(?:are\s)?(?:as\sin|those\sof)\s``(\w+)``", text)
        parents = [parent for parent in cls.__mro__ if named and parent.__name__ == named[1] and parent is not base]
        found += [stated for parent in parents for stated in deviations(parent)]
        if found or parents or re.search(r"^Deviations?\b", text, re.MULTILINE):
            return tuple(found)
    return ()


def stated_deviations(docstring: str) -> list[str]:
    """Return the deviations that a docstring states itself: "from the paper: ...", or "...".

    Items of a list are on lines of their own, indented by two spaces.
    """
    found: list[str] = []
    in_list = False
    for paragraph in docstring.split("\n\n"):
        if match := DEVIATIONS.search(paragraph):
            source = one_line(match["source"] or "")
            text = _items(match["text"])
            found.append(f"{source}: {text}".strip(": ") if text and not text.startswith("\n") else f"{source}:{text}")
            in_list = True
        elif in_list and paragraph.startswith("- "):
            found[-1] += _items(paragraph)
        else:
            in_list = False
    return found


def stated_in_comments(text: str) -> list[str]:
    """Return the deviations from the paper that the comments of an option file describe."""
    lines = [line.strip().lstrip("# ") for line in text.splitlines() if line.strip().startswith("#")]
    return stated_deviations("\n".join(f"\n{line}" if re.match("Deviation|Defaults", line) else line for line in lines))


def _items(text: str) -> str:
    """Return text of a docstring on one line, with the items of a list on lines of their own."""
    first, *items = map(one_line, re.split(r"^- ", text, flags=re.MULTILINE))
    return first + "".join(f"\n  - {item}" for item in items)


def one_line(text: str) -> str:
    """Return text without line breaks."""
    return " ".join(text.split())
