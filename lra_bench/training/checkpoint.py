"""What an interrupted run continues from, and the best weights of a finished one."""

from __future__ import annotations

import errno
import shutil
import time
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import nn

from lra_bench.contracts import Unwritable, UserError
from lra_bench.data.locks import hold
from lra_bench.progress import say
from lra_bench.runtime.files import replacing, sweep, system_error, why
from lra_bench.runtime.hardware import first_line

from .optimizer import Optimizer
from .parallel import ALONE, Group, gather_full, named_once, shard_like

LAST, BEST = "last.pt", "best.safetensors"
NEXT = "next.safetensors"
"""Weights that did better than those of the last checkpoint; they become the best with the next one."""

ATTEMPT = "attempt"


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A path to write in place of ``path``; ``Unwritable`` where the checkpoint folder does not take it."""
    try:
        with replacing(path) as aside:
            yield aside
    except Exception as error:
        refused = system_error(error)  # torch and safetensors have errors of their own for a full disk
        if refused is None:
            raise
        raise Unwritable(
            f"LRA_BENCH_CACHE: the checkpoint {path} {why(refused)}; "
            "free space there or set LRA_BENCH_CACHE to another folder"
        ) from error


def writer(folder: Path) -> AbstractContextManager[Any]:
    """The right of ranks to write into a checkpoint folder, held until the last of them that writes has ended.

    They may outlive the process that started them by the time that a step takes.
    """
    return hold(folder.with_name(f"{folder.name}-ranks"), f"{folder}: the ranks of an earlier attempt are ending")


@dataclass
class State:
    """How far training has come, beside weights and optimizer; everything that a resumed run must know.

    ``curve`` has one row per step: loss, learning rate, gradient norm, tokens seen. ``validations`` has one per
    evaluation: step, loss, score. ``best_digest`` names the content of the best weights. ``seconds`` are those already
    spent, by phase, so that a resumed run reports the time of the whole run.
    """

    step: int = 0
    curve: list[tuple[float, float, float, int]] = field(default_factory=list)
    validations: list[tuple[int, float, float]] = field(default_factory=list)
    best_step: int = -1
    best_score: float = float("nan")
    best_digest: str = ""
    memory: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    timed: dict[str, float] = field(default_factory=dict)


class Checkpoints:
    """The checkpoint folder of one cell: ``last.pt`` to continue from, ``best.safetensors`` to test and keep.

    The best weights are those of the last checkpoint's state at any time: better ones wait for the next. Files hold
    whole tensors, whatever the ``group`` that trains, and its first rank alone writes them.
    """

    def __init__(self, folder: Path, every_seconds: float, group: Group = ALONE) -> None:
        self.folder = folder
        self.every_seconds = every_seconds
        self.group = group
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Whether the last checkpoint is old enough for a new one."""
        return time.monotonic() - self._saved >= self.every_seconds

    def save(self, state: State, model: nn.Module, optimizer: Optimizer) -> None:
        """Write everything that continuing needs."""
        content = {
            "state": {**vars(state), "memory": self.group.join(state.memory)},
            "model": gather_full(model.state_dict()),
            "optimizer": optimizer.state_dict(),
        }
        if self.group.first:
            # Through a file of Python's: its errors say what the disk objects to, those of torch's own do not.
            with writing(self.folder / LAST) as path, path.open("wb") as stream:
                torch.save(content, stream)
            if (self.folder / NEXT).exists():
                (self.folder / NEXT).replace(self.folder / BEST)
        self._saved = time.monotonic()

    def resume(self, model: nn.Module, optimizer: Optimizer) -> State:
        """The state to continue from, with weights and optimizer loaded; a fresh one where there is none."""
        path = self.folder / LAST
        content = self._read(path)
        if content is None:
            return State()
        own = model.state_dict()
        model.load_state_dict({name: shard_like(tensor, own[name]) for name, tensor in content["model"].items()})
        optimizer.load_state_dict(content["optimizer"])
        return State(**{**content["state"], "memory": self.group.own(content["state"]["memory"])})

    def last_state(self) -> State:
        """The state of the last checkpoint, which must be there; its weights are not read."""
        return State(**torch.load(self.folder / LAST, map_location="cpu", weights_only=True, mmap=True)["state"])

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The content of a checkpoint; None, and the files removed, where it is not there or broken."""
        content, broken = None, ""
        if self.group.first:
            sweep(self.folder)
        if path.exists():
            try:
                if self.group.first:
                    with ZipFile(path) as archive:  # torch writes checksums, and does not look at them
                        if damaged := archive.testzip():
                            raise BadZipFile(f"{damaged} has another checksum")
                content = torch.load(path, map_location="cpu", weights_only=True)
                if self.group.first:
                    self._settle_best(content["state"].get("best_digest", ""))
            except Exception as error:
                # Of this process or its disk, which says nothing of the checkpoint; a wrong place to read from does.
                if isinstance(error, OSError | MemoryError) and getattr(error, "errno", None) != errno.EINVAL:
                    raise
                broken = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else path.name}"
        if found := next(filter(None, self.group.gather(broken)), ""):
            say(f"The checkpoint {path} cannot be read ({found}); training starts again from step 0.")
            for name in (LAST, BEST, NEXT):
                (self.folder / name).unlink(missing_ok=True)
            return None
        return content

    def _settle_best(self, digest: str) -> None:
        """Let the best weights be those that the checkpoint names; ``ValueError`` where they are not there whole."""
        if digest:
            whole_ones = (self.folder / name for name in (BEST, NEXT) if checksum(self.folder / name) == digest)
            if (best := next(whole_ones, None)) is None:
                raise ValueError("its best weights are damaged or gone")
            best.replace(self.folder / BEST)
        (self.folder / NEXT).unlink(missing_ok=True)

    def keep_best(self, model: nn.Module) -> str:
        """Write the weights that did best on validation so far; their digest on the rank that writes, else empty."""
        from safetensors.torch import save_file, save_model

        tensors = named_once(model) if self.group.sharded else {}
        if not self.group.first:
            return ""
        with writing(self.folder / NEXT) as path:
            if self.group.sharded:
                save_file(dict(tensors), path)
            else:
                save_model(model, str(path))
            return checksum(path)

    def check_best(self) -> None:
        """Raise ``UserError`` where no best weights are kept."""
        if not (self.folder / BEST).exists():
            raise UserError(f"{self.folder / BEST}: no kept checkpoint of this cell; run lra-bench bench for it first")

    def load_best(self, model: nn.Module) -> None:
        """Load the best weights back, from the file; ``UserError`` where there are none."""
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        self.check_best()
        try:
            load_model(model, str(self.folder / BEST))
        except (SafetensorError, RuntimeError, OSError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.folder / BEST}: cannot be read as weights of this model ({first_line(error)}); "
                "run lra-bench bench --rerun all for its cell"
            ) from error

    def reset(self, attempt: int) -> None:
        """Drop what earlier attempts left; what this one left stays, so that it goes on where it was cut short."""
        mark = self.folder / ATTEMPT
        if mark.exists() and mark.read_text(encoding="utf-8") == str(attempt):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        with writing(mark) as path:
            path.write_text(str(attempt), encoding="utf-8")

    def ended(self, finished: bool) -> None:
        """Drop what only continuing needs, once the record is written: all but the best weights if ``finished``."""
        for name in (ATTEMPT, LAST, NEXT) if finished else (ATTEMPT,):
            (self.folder / name).unlink(missing_ok=True)


def checksum(path: Path) -> str:
    """A checksum of a file, to find damage and not deceit; empty where there is no such file."""
    if not path.exists():
        return ""
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            value = zlib.crc32(block, value)
    return f"{value:08x}"
