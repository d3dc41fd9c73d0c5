"""Checkpoints from which an interrupted run resumes, and the best weights of a finished run."""

from __future__ import annotations

import errno
import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import nn

from lra_bench.contracts import Unwritable, UserError
from lra_bench.data.digest import sha256_of_file
from lra_bench.data.locks import hold
from lra_bench.progress import say
from lra_bench.runtime.files import replacing, sweep, system_error, why
from lra_bench.runtime.hardware import first_line

from .optimizer import Optimizer
from .parallel import ALONE, Group, gather_full, named_once, shard_like

LAST, BEST = "last.pt", "best.safetensors"
NEXT = "next.safetensors"
"""File of weights that are better on the validation split than ``BEST``; the next checkpoint renames it."""

DAMAGED = "damaged"
"""Folder of files from which a run could not be resumed, until the run is finished."""

PRETRAINING = "pretraining"
"""Folder of the checkpoints of the pretraining, until the run is finished."""

ATTEMPT = "attempt"
"""File that contains the number of the attempt that wrote the folder."""


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield the path of a temporary file that replaces ``path`` when the context exits.

    Raises ``Unwritable`` if the checkpoint folder cannot be written.
    """
    try:
        with replacing(path) as temporary:
            yield temporary
    except Exception as error:
        cause = system_error(error)  # torch and safetensors raise their own errors if the disk is full
        if cause is None:
            raise
        raise Unwritable(
            f"LRA_BENCH_CACHE: the checkpoint {path} {why(cause)}; "
            "free space there or set LRA_BENCH_CACHE to another folder"
        ) from error


def writer(folder: Path) -> AbstractContextManager[Any]:
    """Acquire the lock that ranks hold while they may write to a checkpoint folder.

    The ranks of a previous attempt can outlive the process that started them by up to one training step.
    """
    return hold(folder.with_name(f"{folder.name}-ranks"), f"{folder}: the ranks of an earlier attempt are ending")


@dataclass
class State:
    """Training state that a resumed run needs in addition to weights and optimizer state.

    ``step`` is the number of completed steps. ``curve`` has one entry per step: loss, learning rate, gradient norm,
    tokens seen. ``validations`` has one entry per evaluation: step, loss, score; ``validation_seconds`` is the training
    time until each evaluation. ``best_step`` is the step of the best weights, ``best_value`` their validation loss, or
    their score if ``TaskSpec.select_by`` is ``metric``, and ``best_digest`` the SHA-256 of the file that contains
    them. ``memory`` is the recurrent memory after the last batch of a stream. ``seconds`` is the time already spent, by
    phase, and ``timed`` the totals of the timed steps, so that a resumed run reports the time and throughput of the
    entire run.
    """

    step: int = 0
    curve: list[tuple[float, float, float, int]] = field(default_factory=list)
    validations: list[tuple[int, float, float]] = field(default_factory=list)
    validation_seconds: list[float] = field(default_factory=list)
    best_step: int = -1
    best_value: float = float("nan")
    best_digest: str = ""
    memory: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    timed: dict[str, float] = field(default_factory=dict)


class Checkpoints:
    """The checkpoint folder of one cell: ``last.pt`` to resume from, ``best.safetensors`` to test and keep.

    ``best.safetensors`` always matches the state in ``last.pt``: better weights are written to
    ``next.safetensors`` and renamed at the next checkpoint. Files contain full tensors for every training strategy, and
    only the first rank of ``group`` writes them. A checkpoint is due every ``every_seconds`` seconds.

    A checkpoint of another ``cell``, with other weights than those of the model or with a wrong digest is moved to the
    folder ``damaged`` and not used.
    """

    def __init__(self, folder: Path, every_seconds: float, group: Group = ALONE, cell: str = "") -> None:
        self.folder, self.every_seconds, self.group, self.cell = folder, every_seconds, group, cell
        self._saved = time.monotonic()

    def due(self) -> bool:
        """Return whether ``every_seconds`` have passed since the last checkpoint."""
        return time.monotonic() - self._saved >= self.every_seconds

    def of_pretraining(self) -> Checkpoints:
        """Return the checkpoints of the pretraining of the same cell."""
        return Checkpoints(self.folder / PRETRAINING, self.every_seconds, self.group, self.cell)

    def save(self, state: State, model: nn.Module, optimizer: Optimizer) -> None:
        """Write everything that a resumed run needs, and make pending best weights the best ones."""
        content = {
            "cell": self.cell,
            "state": {**vars(state), "memory": self.group.join(state.memory)},
            "model": gather_full(model.state_dict()),
            "optimizer": optimizer.state_dict(),
        }
        if self.group.first:
            content["digest"] = _digest(content)
            # A Python file object raises OSError with the cause of a write error; torch's own writer does not.
            with writing(self.folder / LAST) as path, path.open("wb") as stream:
                torch.save(content, stream)
            if (self.folder / NEXT).exists():
                (self.folder / NEXT).replace(self.folder / BEST)
        self._saved = time.monotonic()

    def resume(self, model: nn.Module, optimizer: Optimizer) -> State:
        """Load weights and optimizer state, and return the training state; without a checkpoint, an initial state.

        A checkpoint of other learning rates is not used: a search may choose another rate than before.
        """
        path = self.folder / LAST
        own = model.state_dict()
        content = self._read(path, own)
        if content is None:
            return State()
        if not optimizer.has_rates_of(content["optimizer"]):
            say(f"The checkpoint {path} is of another learning rate; training starts again from step 0.")
            return State()
        model.load_state_dict({name: shard_like(tensor, own[name]) for name, tensor in content["model"].items()})
        optimizer.load_state_dict(content["optimizer"])
        return State(**{**content["state"], "memory": self.group.own(content["state"]["memory"])})

    def last_state(self) -> State:
        """Return the training state of the last checkpoint, which must exist, without reading its weights."""
        return State(**torch.load(self.folder / LAST, map_location="cpu", weights_only=True, mmap=True)["state"])

    def _read(self, path: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, Any] | None:
        """Return the content of a checkpoint, None if it does not exist, is damaged or does not belong to ``weights``.

        If any rank finds it damaged, all files of the checkpoint are moved to ``DAMAGED``. Errors of the process or the
        disk, such as ``MemoryError``, do not prove damage and are raised.
        """
        content, damage = None, ""
        if self.group.first:
            sweep(self.folder)
        if path.exists():
            try:
                content = self._checked(path, weights)
            except Exception as error:
                # Memory and disk errors do not prove damage. EINVAL does: the file contains an invalid offset.
                if isinstance(error, OSError | MemoryError) and getattr(error, "errno", None) != errno.EINVAL:
                    raise
                damage = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else path.name}"
        if reason := next(filter(None, self.group.gather(damage)), ""):
            say(f"The checkpoint {path} cannot be used ({reason}); training starts again from step 0.")
            if self.group.first:
                aside = self.folder / DAMAGED
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir()
                for name in (LAST, BEST, NEXT):
                    with suppress(FileNotFoundError):
                        (self.folder / name).rename(aside / name)
            return None
        return content

    def _checked(self, path: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        """Return the content of a checkpoint; the first rank checks it. Raises ``ValueError`` if it is not valid."""
        if not path.is_file():
            raise ValueError("it is not a regular file")
        if self.group.first:
            with ZipFile(path) as archive:  # torch writes checksums but does not verify them
                if damaged := archive.testzip():
                    raise BadZipFile(f"{damaged} has a wrong checksum")
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        if self.group.first:
            if content.pop("digest", None) != _digest(content):
                raise ValueError("its digest is missing or wrong")
            if content["cell"] != self.cell:
                raise ValueError(f"it belongs to {content['cell'] or 'no cell'}")
            if content["state"].keys() != {each.name for each in fields(State)}:
                raise ValueError("it was written by another version of lra-bench")
            shapes = {name: tensor.shape for name, tensor in content["model"].items()}
            if shapes != {name: tensor.shape for name, tensor in weights.items()}:
                raise ValueError("its weights are those of another model")
            self._restore_best(content["state"]["best_digest"])
        return content

    def _restore_best(self, digest: str) -> None:
        """Make the file whose SHA-256 is ``digest`` the best weights, and remove other weights that are not the best.

        Raises ``ValueError`` if no file has this digest.
        """
        if digest:
            kept = [path for name in (BEST, NEXT) if (path := self.folder / name).is_file()]
            if (best := next((path for path in kept if sha256_of_file(path) == digest), None)) is None:
                raise ValueError("its best weights are damaged or missing")
            best.replace(self.folder / BEST)
        (self.folder / NEXT).unlink(missing_ok=True)

    def keep_best(self, model: nn.Module) -> str:
        """Write the weights as the best so far; return the SHA-256 of the file, on other ranks than the first ``""``.

        All ranks must call it.
        """
        from safetensors.torch import save_file

        tensors = named_once(model)
        if not self.group.first:
            return ""
        with writing(self.folder / NEXT) as path:
            # ``save_model`` would add the names of shared tensors in an order that differs from file to file.
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
            return sha256_of_file(path)

    def check_best(self) -> None:
        """Raise ``UserError`` if there are no best weights."""
        if not (self.folder / BEST).is_file():
            raise UserError(f"{self.folder / BEST}: no kept checkpoint of this cell; measure it again with --rerun all")

    def load_best(self, model: nn.Module, expected: str | None = None) -> str:
        """Load the best weights into ``model`` and return the SHA-256 of their file.

        Raises ``UserError`` if the file does not exist, has another digest than ``expected`` or does not contain the
        weights of this model.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_model

        self.check_best()
        path = self.folder / BEST
        remedy = "run lra-bench bench --rerun all for its cell"
        try:
            digest = sha256_of_file(path)
            if expected not in (None, digest):
                raise UserError(f"{path}: are not the weights that the record was measured with; {remedy}")
            load_model(model, str(path))
        except (SafetensorError, RuntimeError, OSError, LookupError, TypeError, ValueError) as error:
            raise UserError(
                f"{path}: cannot be read as weights of this model ({first_line(error)}); {remedy}"
            ) from error
        return digest

    def load_last(self, model: nn.Module) -> None:
        """Load the weights of the last checkpoint, which must exist, into ``model``."""
        model.load_state_dict(torch.load(self.folder / LAST, map_location="cpu", weights_only=True, mmap=True)["model"])

    def reset(self, attempt: int) -> None:
        """Remove files of earlier attempts. Files of the same attempt stay, so that it resumes from its checkpoint."""
        marker = self.folder / ATTEMPT
        if marker.exists() and marker.read_text(encoding="utf-8") == str(attempt):
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        with writing(marker) as path:
            path.write_text(str(attempt), encoding="utf-8")

    def ended(self, finished: bool) -> None:
        """Clean up after the record is written: remove all files but the best weights if the run is ``finished``.

        After an unfinished run only the number of the attempt is removed, so that the run can be resumed.
        """
        for name in (ATTEMPT, LAST, NEXT) if finished else (ATTEMPT,):
            (self.folder / name).unlink(missing_ok=True)
        for name in (DAMAGED, PRETRAINING) if finished else ():
            shutil.rmtree(self.folder / name, ignore_errors=True)


def _digest(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of nested mappings and sequences of tensors, numbers and text."""
    digest, nested = hashlib.sha256(), torch.Tensor | Mapping | list | tuple

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, Mapping):
            for name, each in value.items():
                digest.update(repr(name).encode())
                add(each)
        elif isinstance(value, list | tuple) and any(isinstance(each, nested) for each in value):
            for each in value:
                add(each)
        else:
            digest.update(repr(value).encode())

    add(content)
    return digest.hexdigest()
