"""What an interrupted run continues from, and the best weights of a finished one."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import nn

from lra_bench.contracts import UserError
from lra_bench.files import replacing, why
from lra_bench.hardware import first_line
from lra_bench.progress import say

from .optimizer import Optimizer
from .parallel import ALONE, Group, cut_like, named_once, whole

LAST, BEST = "last.pt", "best.safetensors"


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A path to write in place of ``path``; ``UserError`` where the checkpoint folder does not take it."""
    try:
        with replacing(path) as aside:
            yield aside
    except OSError as error:
        raise UserError(
            f"LRA_BENCH_CACHE: the checkpoint {path} {why(error)}; "
            "free space there or set LRA_BENCH_CACHE to another folder"
        ) from error


@dataclass
class State:
    """How far training has come, beside weights and optimizer; everything that a resumed run must know.

    ``curve`` has one row per step: loss, learning rate, gradient norm, tokens seen. ``validations`` has one per
    evaluation: step, loss, score. ``seconds`` are those already spent, by phase, so that a resumed run reports
    the time of the whole run.
    """

    step: int = 0
    curve: list[tuple[float, float, float, int]] = field(default_factory=list)
    validations: list[tuple[int, float, float]] = field(default_factory=list)
    best_step: int = -1
    best_score: float = float("nan")
    memory: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    timed: dict[str, float] = field(default_factory=dict)


class Checkpoints:
    """The checkpoint folder of one cell: ``last.pt`` to continue from, ``best.safetensors`` to test and keep.

    Files hold whole tensors, whatever the ``group`` that trains, and its first rank alone writes them.
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
            "model": whole(model.state_dict()),
            "optimizer": optimizer.state_dict(),
        }
        if self.group.first:
            with writing(self.folder / LAST) as path:
                torch.save(content, path)
        self._saved = time.monotonic()

    def resume(self, model: nn.Module, optimizer: Optimizer) -> State:
        """The state to continue from, with weights and optimizer loaded; a fresh one where there is none."""
        path = self.folder / LAST
        content = self._read(path)
        if content is None:
            return State()
        own = model.state_dict()
        model.load_state_dict({name: cut_like(tensor, own[name]) for name, tensor in content["model"].items()})
        optimizer.load_state_dict(content["optimizer"])
        return State(**{**content["state"], "memory": self.group.own(content["state"]["memory"])})

    def last_state(self) -> State:
        """The state of the last checkpoint, which must be there; its weights are not read."""
        return State(**torch.load(self.folder / LAST, map_location="cpu", weights_only=True, mmap=True)["state"])

    def _read(self, path: Path) -> dict[str, Any] | None:
        """The content of a checkpoint; None, and the file removed, where it is not there or broken."""
        content, broken = None, ""
        if path.exists():
            try:
                with ZipFile(path) as archive:  # torch writes checksums, and does not look at them
                    if damaged := archive.testzip():
                        raise BadZipFile(f"{damaged} has another checksum")
                content = torch.load(path, map_location="cpu", weights_only=True)
            except Exception as error:
                broken = type(error).__name__
        if found := next(filter(None, self.group.gather(broken)), ""):
            say(f"The checkpoint {path} cannot be read ({found}); training starts again from step 0.")
            path.unlink(missing_ok=True)
            return None
        return content

    def keep_best(self, model: nn.Module) -> None:
        """Write the weights that did best on validation so far."""
        from safetensors.torch import save_file, save_model

        if self.group.sharded:
            tensors = named_once(model)
            if self.group.first:
                with writing(self.folder / BEST) as path:
                    save_file(dict(tensors), path)
        elif self.group.first:
            with writing(self.folder / BEST) as path:
                save_model(model, str(path))

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
                "run lra-bench bench --rerun for its cell"
            ) from error

    def forget_last(self) -> None:
        """Drop what only continuing needs, once the record is written."""
        (self.folder / LAST).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove the folder and all in it."""
        shutil.rmtree(self.folder, ignore_errors=True)
