"""The commands of ``lra-bench data``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lra_bench.contracts import UserError
from lra_bench.progress import bar, say

from .options import ConfigDir, Json, Source, print_json, print_table, with_source

if TYPE_CHECKING:
    from lra_bench.contracts import Task
    from lra_bench.data.cache import Entry

SPLITS = ("train", "validation", "test")

app = typer.Typer(help="Prepare, verify and find the data of tasks.")

NAMED = "Names of tasks or groups of tasks, ALL for all tasks"
Tasks = Annotated[list[str] | None, typer.Argument(help=f"{NAMED}; and task.key=value options")]
Names = Annotated[list[str] | None, typer.Argument(help="Names of tasks or groups of tasks; default: all tasks")]
Protocol = Annotated[str, typer.Option(help="Protocol that defines the sizes of the data sets")]


@app.command("prepare")
def prepare(
    tasks: Tasks = None, protocol: Protocol = "quick", source: Source = None, config_dir: ConfigDir = None
) -> None:
    """Prepare the data of tasks in the cache.

    Data is read from files, generated or downloaded, unless it is already in the cache.
    """
    from lra_bench.data.cache import Cache

    def make(name: str, task: Task) -> None:
        task.prepare(Cache())
        print(f"{name}: {', '.join(f'{len(task.split(split)):,} {split}' for split in SPLITS)} rows", flush=True)

    _for_each(tasks, protocol, source, config_dir, make)


@app.command("verify")
def verify(
    tasks: Tasks = None, protocol: Protocol = "quick", source: Source = None, config_dir: ConfigDir = None
) -> None:
    """Verify the checksums of cached data.

    If tasks are named, their labels, value ranges and duplicates are checked too.
    """
    from lra_bench.data.cache import Cache
    from lra_bench.data.checks import check_split

    cache = Cache()

    def check(name: str, task: Task) -> None:
        task.prepare(cache)
        for split in SPLITS:
            check_split(task.split(split), task.spec, split)
            task.check(split)
        print(f"{name}: labels, ranges and duplicates are correct", flush=True)

    names, overrides = _split(tasks, config_dir)
    if names or overrides or source:
        _for_each(tasks, protocol, source, config_dir, check)
    entries = list(_entries_of(names, cache.entries()))
    wrong = []
    with bar(len(entries), "Verifying checksums") as advance:
        for entry in entries:
            if files := cache.verify(entry.name, entry.key):
                wrong.append(f"{entry.path / files[0]}")
            advance(1)
    print(f"{len(entries) - len(wrong)} of {len(entries)} data sets match their checksums")
    if wrong:
        raise UserError(f"{', '.join(wrong)}: wrong checksum; remove the folder, and the next run creates it again")


@app.command("path")
def path(tasks: Names = None, config_dir: ConfigDir = None) -> None:
    """Print the cache folder, or the folders of tasks in it."""
    from lra_bench.data.cache import Cache

    cache = Cache()
    if not tasks:
        print(cache.root)
        return
    names = _known(tasks, config_dir)
    folders = [folder for name in names if (folder := cache.root / "raw" / name).is_dir()]
    folders += [entry.path for entry in _entries_of(names, cache.entries())]
    if not folders:
        named = " ".join(names)
        raise UserError(f"{named}: has no data in the cache {cache.root}; run lra-bench data prepare {named}")
    for folder in folders:
        print(folder)


@app.command("list")
def list_entries(tasks: Names = None, config_dir: ConfigDir = None, as_json: Json = False) -> None:
    """List the data sets in the cache."""
    from lra_bench.data.cache import Cache

    entries = _entries_of(_known(tasks, config_dir), Cache().entries())
    if as_json:
        values = [(e.name, e.key, e.rows, e.size_bytes, str(e.path)) for e in entries]
        print_json([dict(zip(("name", "key", "rows", "bytes", "path"), each, strict=True)) for each in values])
        return
    print_table(
        [{"name": e.name, "rows": f"{e.rows:,}", "size": _readable(e.size_bytes), "path": e.path} for e in entries]
    )


def _for_each(
    tasks: list[str] | None,
    protocol: str,
    source: str | None,
    config_dir: Path | None,
    act: Callable[[str, Task], None],
) -> None:
    """Build each named task and call ``act`` with its name and the task.

    If a task fails, the others are still processed; ``UserError`` is raised at the end.
    """
    from lra_bench.config import compose
    from lra_bench.config.import_path import importable
    from lra_bench.config.objects import build_task

    names, overrides = _split(tasks, config_dir)
    if not names:
        given = (overrides or [*(["--source"] if source else []), "data prepare"])[0]
        raise UserError(
            f"{given}: needs a task; name one, such as task=listops, or task=ALL for all of them (lra-bench list tasks)"
        )
    if source and len(names) > 1:
        raise UserError(f"--source: applies to one task, {len(names)} are named ({' '.join(names)}); name one")
    failed = []
    with importable(config_dir):
        for name in names:
            try:
                options = [f"task={name}", f"protocol={protocol}", *with_source(overrides, source)]
                act(name, build_task(compose.compose(options, config_dir).config))
            except UserError as error:
                if len(names) == 1:
                    raise
                say(f"{name}: {error}")
                failed.append(name)
    if failed:
        raise UserError(
            f"{', '.join(failed)}: failed, see the messages above; {len(names) - len(failed)} of {len(names)} done"
        )


def _split(tasks: list[str] | None, config_dir: Path | None) -> tuple[list[str], list[str]]:
    """Split the arguments into task names (plain or ``task=NAME``, separated by commas) and overrides.

    Names of groups are replaced by those of their tasks.
    """
    from lra_bench.config.task_groups import expand_tasks

    names: list[str] = []
    overrides = []
    for text in tasks or []:
        key, given, value = text.partition("=")
        if given and key != "task":
            overrides.append(text)
        else:
            names += (value if given else text).split(",")
    return expand_tasks(names, config_dir), overrides


def _known(tasks: list[str] | None, config_dir: Path | None) -> list[str]:
    """Return the task names among the arguments.

    Raises ``UserError`` if a task does not exist or an argument is an override.
    """
    from lra_bench.build import suggest
    from lra_bench.config.groups import listing, option_files

    names, overrides = _split(tasks, config_dir)
    for text in overrides:
        raise UserError(f"{text}: this command accepts only task names")
    known = set(option_files("task", config_dir)) if names else set()
    for name in names:
        if name not in known:
            raise UserError(f"{name}: there is no such task{suggest(name, known, listing('task'))}")
    return names


def _entries_of(names: list[str], entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries of the named tasks, or all entries if no task is named."""
    return [e for e in entries if not names or any(e.name == name or e.name.startswith(f"{name}-") for name in names)]


def _readable(size_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size_bytes < 1000:
            return f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.2f} GiB"
