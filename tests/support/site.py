"""Hooks of the site (``mkdocs.yml``): pages that are generated, pages outside of docs/, and links to other files."""

from __future__ import annotations

import logging
import posixpath
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # mkdocs loads this file by its path

LOG = logging.getLogger("mkdocs.hooks.site")
"""With ``--strict`` a warning of a logger below ``mkdocs`` is an error."""
OUTSIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the site by the file of the repository that they show."""
SYSTEMS = {"models/README.md": "systems/index.md"}
"""Page of the site that replaces a file of the repository."""
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)#\s:]+)(#[^)\s]*)?\)")
"""Link or image whose target is a relative path: mark of an image, label, path and heading."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of families to the navigation."""
    from tests.support.fidelity import title

    assert config.nav is not None
    [systems] = (entry["Systems"] for entry in config.nav if "Systems" in entry)
    systems += [{title(family): f"systems/{family}.md"} for family in found_families()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not files of docs/."""
    for file, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / file).read_text(encoding="utf-8")))
    for page, text in generated():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to files of the repository as links to pages of the site; other files are named without a link."""
    uri = page.file.src_uri
    source = next((file for file, each in OUTSIDE.items() if each == uri), f"docs/{uri}")
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda match: relinked(match, source, uri), part) for part in parts[::2]]
    # In a block of type console, lines without a prompt are shown as output.
    parts[1::2] = [part if "\n$ " in part else part.replace("```console", "```sh") for part in parts[1::2]]
    return "".join(parts)


def relinked(link: re.Match[str], source: str, uri: str) -> str:
    """Return a link in the file ``source`` of the repository as it is written on the page ``uri``.

    A label that is the name of the file is replaced by its title.
    """
    image, label, path, heading = link.groups(default="")
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    shown = (OUTSIDE | SYSTEMS).get(target) or (target.removeprefix("docs/") if target.startswith("docs/") else "")
    if shown:
        if label in (target, posixpath.basename(target)):
            label = (ROOT / target).read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        return f"{image}[{label}]({posixpath.relpath(shown, posixpath.dirname(uri) or '.')}{heading})"
    if not (ROOT / target).exists():
        LOG.warning(f"{source}: contains a link to {path}, which does not exist")
    return label if f"`{target}`" == label or target.endswith(label.strip("`")) else f"{label} (`{target}`)"


@cache
def found_families() -> Mapping[str, list[Any]]:
    """Return the systems by family."""
    from tests.support.fidelity import families

    return families()


def generated() -> Iterator[tuple[str, str]]:
    """Yield the pages that are written from the code, each with its text."""
    import lra_bench
    from lra_bench.config.details import option_list
    from lra_bench.figures import all_figures
    from lra_bench.tables.query import column_list
    from tests.support.fidelity import index, page

    yield SYSTEMS["models/README.md"], index()
    for family, rows in found_families().items():
        yield f"systems/{family}.md", page(family, rows)
    names = [name for name in lra_bench.__all__ if not name.startswith("_")]
    about = "# Python functions\n\n[Python](../python.md) shows how they are used.\n"
    yield "reference/python.md", "\n".join([about, *(f"::: lra_bench.{name}\n" for name in names)])
    yield "reference/commands.md", "\n".join(["# Commands\n", *_commands()])
    yield "reference/options.md", "\n".join(["# Options\n", OPTIONS, *_options(option_list())])
    yield "reference/columns.md", "\n".join(["# Columns\n", *_columns(column_list())])
    captions = (f"## `{name}`\n\n{figure.caption}\n" for name, figure in sorted(all_figures().items()))
    yield "reference/figures.md", "\n".join(["# Figures\n", *captions])


OPTIONS = """Every option of a cell can be set on the command line, such as `train.lr=3e-4`. The options of a task, a
model or a position are the arguments of its class, which commands such as `lra-bench list tasks listops` print.
"""


def _commands() -> Iterator[str]:
    """Yield a section for each command, with its help text."""
    from typer.main import get_group

    from lra_bench.cli.main import NAME, app

    def below(group: Any, words: tuple[str, ...]) -> Iterator[str]:
        for name, command in sorted(group.commands.items()):
            context = command.make_context(" ".join((*words, name)), ["--help"], resilient_parsing=True)
            context.max_content_width = 100
            if hasattr(command, "commands"):
                yield from below(command, (*words, name))
            else:
                yield f"## `{' '.join((*words, name))}`\n\n```text\n{command.get_help(context)}\n```\n"

    yield from below(get_group(app), (NAME,))


def _options(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a section for each section and group of options, with a list."""
    from tests.support.fidelity import escaped

    for row in rows:
        text = escaped(row["description"])
        if row["section"]:
            yield f"\n{'##' if '.' not in row['name'] else '###'} `{row['name']}`\n\n{text}\n"
        else:
            default = "" if row["default"] is None else f" = `{row['default']}`"
            yield f"- `{row['name']}`{default}{': ' if text else ''}{text}"


def _columns(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a section for each table, with the list of its columns."""
    from tests.support.fidelity import escaped

    table = ""
    for row in rows:
        if row["table"] != table:
            table = row["table"]
            yield f"\n## `{table}`\n"
        yield f"- `{row['name']}`: {escaped(row['description'])}"
