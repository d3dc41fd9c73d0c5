"""The contract of launchers, which run the cells of a grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


@dataclass(frozen=True, eq=False)
class CellJob:
    """A cell to run.

    Attributes:
        key: Its key, the path of its record. The hardware in it is ``elsewhere`` if another machine may run the cell.
        command: Words of a command that measures the cell on the machine on which it is run, and writes the record to
            ``results``. It measures nothing if the cell has a record. After SIGTERM it writes a checkpoint and exits
            with code 130. The machine needs the same file system, for ``results``, the cache and the environment of
            Python.
        cores: Number of cores that the cell uses.
        gpus: Number of GPUs that the cell uses.
        results: The results folder.
        restart: Whether to ignore the checkpoints of earlier attempts; ``command`` contains it.
        planned: The plan of the cell (``grid.status.Planned``).
    """

    key: str
    command: tuple[str, ...]
    cores: int
    gpus: int
    results: Path
    restart: bool
    planned: Any


class Outcome(NamedTuple):
    """A job that has ended, and the exit code of its command."""

    job: CellJob
    code: int


class Launcher(ABC):
    """Base class of launchers. The arguments of the constructor are the options ``launcher.…``.

    If the class is a dataclass, the types of the options and their rules (``options.declaration``) are checked, too.

    Attributes:
        place: Names of its options that determine on what kind of machine a cell runs. A cell is done if it has a
            record with the same values of these options and of those of ``hardware``.
    """

    place: ClassVar[Sequence[str]] = ()

    @abstractmethod
    def launch(self, jobs: Sequence[CellJob]) -> Iterator[Outcome]:
        """Run the cells and yield each as it ends.

        After SIGINT or SIGTERM, start no further cell, send SIGTERM to the running commands, and raise
        ``KeyboardInterrupt`` when they have ended. Raise ``UserError`` if an option does not fit the cells.
        """

    def adapted(self, config: Any) -> Any:
        """Return the configuration of a cell with what the launcher determines, such as the number of threads.

        Called on the machine that runs the cell. Raise ``UserError`` if the cell does not fit the launcher there.
        """
        return config

    def parallel(self) -> int | None:
        """Return how many cells run at the same time, to estimate the duration of a grid; None if it is unknown."""
        return None
