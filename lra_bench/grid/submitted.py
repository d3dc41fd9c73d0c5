"""A submitted grid on disk: which cells, as which jobs, and how far each has come."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.files import replacing, why

GRIDS = "grids"


@dataclass
class SubmittedCell:
    """A cell, its job's id, and what is asked of Slurm for it; ``key`` names no hardware, for that is known there."""

    key: dict[str, Any]
    overrides: list[str]
    place: list[Any]
    resources: dict[str, Any]
    job: str = ""


@dataclass
class SubmittedGrid:
    """What ``grid.json`` in ``<results>/grids/<name>`` holds; logs of jobs lie beside it."""

    name: str
    submitted_at: str
    cluster: str
    config_dir: str | None
    rerun: str
    cells: list[SubmittedCell] = field(default_factory=list)

    def folder(self, results: Path) -> Path:
        """Where the grid is kept."""
        return results / GRIDS / self.name

    def write(self, results: Path) -> None:
        """Write the grid, whole or not at all; ``UserError`` where the folder cannot be written."""
        try:
            with replacing(self.folder(results) / "grid.json") as path:
                path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        except OSError as error:
            raise UserError(f"--results {results}: {why(error)}; choose another folder with --results") from error


def new_name(results: Path) -> str:
    """A name that no other grid has, by the time; its folder is made."""
    for number in range(1000):
        name = f"{datetime.now(UTC):%Y%m%d-%H%M%S}{f'-{number}' if number else ''}"
        try:
            (results / GRIDS / name).mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"--results {results}: {why(error)}; choose another folder with --results") from error
        return name
    raise UserError(f"--results {results}: has a thousand grids of this second; wait for the next")


def read(results: Path, name: str | None) -> SubmittedGrid:
    """The grid of a name, the latest by default; ``UserError`` where there is none."""
    known = sorted(path.parent.name for path in (results / GRIDS).glob("*/grid.json"))
    if not known:
        raise UserError(f"--results {results}: holds no submitted grid; submit one with bench … launcher=slurm")
    if name is not None and name not in known:
        raise UserError(f"{name}: there is no such grid (known: {', '.join(known[-10:])})")
    path = results / GRIDS / (name or known[-1]) / "grid.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return SubmittedGrid(**{**raw, "cells": [SubmittedCell(**cell) for cell in raw["cells"]]})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: cannot be read as a grid ({error})") from error


@contextmanager
def changing(results: Path, name: str | None) -> Iterator[SubmittedGrid]:
    """A grid that no other process changes meanwhile; it is written where the context ends well."""
    from filelock import FileLock

    with FileLock(read(results, name).folder(results) / "grid.lock"):
        grid = read(results, name)
        yield grid
        grid.write(results)


@dataclass
class Arrival:
    """What a job says of its cell: its true ``key``, where it began, and how it ended (``code``)."""

    job: str
    key: str | None = None
    host: str = field(default_factory=socket.gethostname)
    code: int | None = None
    reason: str = ""

    def write(self, path: Path) -> None:
        """Write it, whole or not at all."""
        with replacing(path) as aside:
            aside.write_text(json.dumps(asdict(self)), encoding="utf-8")


def arrival_file(folder: Path, number: int) -> Path:
    """Where the job of a grid's cell says how it fares."""
    return folder / "cells" / f"{number}.json"


def arrival(folder: Path, number: int) -> Arrival | None:
    """What the job of a cell has said, None before it has begun."""
    with suppress(OSError, ValueError, TypeError):
        return Arrival(**json.loads(arrival_file(folder, number).read_text(encoding="utf-8")))
    return None
