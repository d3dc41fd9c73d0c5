"""A cell as a run of W&B: begun, followed, and at the end the whole record."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.progress import say
from lra_bench.records.key import CellKey
from lra_bench.records.schema import FINISHED, Record
from lra_bench.runtime.redaction import shareable

from .account import default_mode, end_service, first_line, has_account, own_folders
from .contents import charts, figures, summary, tables, thinned

if TYPE_CHECKING:
    import pandas as pd


class Tracker:
    """Follows a run: ``start`` or ``resume``, ``log`` at every evaluation, ``finish`` with the record.

    This one does nothing.
    """

    def start(self, config: Mapping[str, Any], key: CellKey, folder: Path) -> None:
        """Begin following the cell ``key``; files go under ``folder``/wandb."""

    def resume(self, record: Record, folder: Path) -> None:
        """Take up the run of a record that was evaluated again; files go under ``folder``/wandb."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show figures of a step while the run goes on."""

    def finish(self, record: Record, curves: pd.DataFrame | None = None) -> None:
        """Mirror the record, its curves and figures, and end."""


REACH_SECONDS = 15
UPLOAD_SECONDS = 60.0
NAME_CHARACTERS = 128
"""The longest name that W&B takes."""

# What would disturb a measurement, print over our own output, or tell more of the machine than the record does, is off.
QUIET: Mapping[str, Any] = {
    "console": "off",
    "silent": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_save_requirements": False,
    "save_code": False,
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "program": "lra-bench",
    "init_timeout": REACH_SECONDS,
    "finish_timeout": UPLOAD_SECONDS,
    "finish_timeout_raises": True,
}


class WandbTracker(Tracker):
    """A run of W&B per cell, grouped over seeds. An attempt that resumes the cell resumes its run; one that begins
    again, although the run holds a result, has a run of its own, so that no curve is drawn over another.

    ``mode`` None means online with an account that can be reached, else offline. The first error is told in a line,
    and the mirror ends there.
    """

    after_error = "the run goes on without it, and tracker=none turns it off"

    def __init__(self, project: str, mode: str | None = None) -> None:
        self.project, self.mode = project, mode
        self.run: Any = None
        self.artifact: Any = None
        self.failed = False
        self.folder = Path()

    def start(self, config: Mapping[str, Any], key: CellKey, folder: Path) -> None:
        """Begin a run; offline where the server cannot be reached."""
        self.folder = folder
        self._try("start", lambda: self._start(config, key))

    def resume(self, record: Record, folder: Path) -> None:
        """Take up the run that holds the record, for ``finish`` to bring it up to date.

        Nothing is asked or said without an account or offline, for what waits there cannot be taken up.
        """
        if (self.mode or default_mode()) == "online" and has_account():
            self.folder, self.after_error = folder, "the record itself is whole"
            self._try("take up the run of the record", lambda: self._resume(record))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log figures as ``live/…``, for the eye while the run goes on."""
        if self.run is not None:
            self._try("log", lambda: self.run.log({f"live/{name}": value for name, value in values.items()}, step=step))

    def finish(self, record: Record, curves: pd.DataFrame | None = None) -> None:
        """Log the record, whole curves, tables, charts and figures; end the run."""
        if self.run is None:
            return
        self._try("mirror the record", lambda: self._mirror(record, curves))
        # Ended even where something before failed: the process behind it would stay otherwise.
        told, self.failed = self.failed, False
        self._try("end", lambda: self._end(record), quiet=told)
        self.run = None

    def _try(self, what: str, action: Callable[[], Any], quiet: bool = False) -> None:
        if self.failed:
            return
        try:
            with own_folders(self.folder / "wandb"):
                action()
        except Exception as error:
            self.failed = True
            if not quiet:
                say(f"W&B could not {what} ({first_line(error)}); {self.after_error}.")

    def _start(self, config: Mapping[str, Any], key: CellKey) -> None:
        import wandb

        self._follow(_begun(wandb, self.mode or default_mode(), self._arguments(config, key)))

    def _resume(self, record: Record) -> None:
        import wandb

        arguments = self._arguments(record.config, record.key)
        try:
            runs = wandb.Api(timeout=REACH_SECONDS).runs(self.project, {"displayName": arguments["name"]})
            found = _holding(runs, record)
            if found is None:
                say(f"W&B has no run of this record in the project {self.project}; nothing is updated there.")
                return
            arguments |= {"entity": found.entity, "id": found.id, "resume": "must"}
            self._follow(_init(wandb, "online", arguments))
        finally:
            if self.run is None:
                end_service()

    def _arguments(self, config: Mapping[str, Any], key: CellKey) -> dict[str, Any]:
        (self.folder / "wandb").mkdir(parents=True, exist_ok=True)
        return {
            "project": self.project,
            "dir": str(self.folder),
            "id": run_id(key),
            "name": str(key)[:NAME_CHARACTERS],
            "group": str(key.folder())[:NAME_CHARACTERS],
            "job_type": "bench",
            "config": shareable({**config, "key": asdict(key)}),
        }

    def _follow(self, run: Any) -> None:
        self.run = run
        # Curves come whole at the end, with steps of their own: an interrupted run logs part of its steps twice.
        # Neither they nor what was seen live is a field of the record, so their last values stay out of the summary.
        self.run.define_metric("curves/step", hidden=True, summary="none")
        self.run.define_metric("curves/*", step_metric="curves/step", summary="none")
        self.run.define_metric("live/*", summary="none")

    def _mirror(self, record: Record, curves: pd.DataFrame | None) -> None:
        """What matters most goes first, for whatever comes after an error is left out."""
        import wandb

        self.run.summary.update(summary(record))
        if record.path is not None:
            artifact = wandb.Artifact(artifact_name(record.key), "record", metadata={"status": record.status})
            for path in (record.path, *(record.path.with_name(name) for name in record.artifacts.values())):
                artifact.add_file(str(path))
            self.artifact = self.run.log_artifact(artifact)
        # Only of what is not measured again, or the attempt that resumes it would draw them twice.
        if curves is not None and record.status in FINISHED:
            for row in thinned(curves).to_dict("records"):
                self.run.log({f"curves/{name}": value for name, value in row.items() if value == value})
        with tempfile.TemporaryDirectory() as folder:
            images = {name: wandb.Image(str(path)) for name, path in figures(record, Path(folder)).items()}
            if shown := {**tables(wandb, record), **charts(wandb, record), **images}:
                self.run.log(shown)

    def _end(self, record: Record) -> None:
        """Finish the run, and hear whether the record arrived.

        The log is whole on disk only when the process that writes it has ended too.
        """
        try:
            self.run.finish(exit_code=0 if record.status == "ok" else 1)
            if self.artifact is not None and not self.run.offline:
                self.artifact.wait(timeout=1)
        finally:
            end_service(UPLOAD_SECONDS)
        if self.run.offline and record.status in FINISHED:
            self._drop_earlier()

    def _drop_earlier(self) -> None:
        """Remove what earlier attempts left to be sent, so that ``wandb sync`` sends the cell once."""
        folder = Path(self.run.dir).parent
        for earlier in folder.parent.glob(f"offline-run-*-{self.run.id}"):
            if earlier != folder:
                shutil.rmtree(earlier, ignore_errors=True)


def run_id(key: CellKey) -> str:
    """The identifier of a cell's run in its W&B project, the same for every attempt and every machine of its kind."""
    return hashlib.sha256(str(key).encode()).hexdigest()[:16]


def artifact_name(key: CellKey) -> str:
    """The name of a cell's artifact: readable, unique, and of the characters and length that W&B takes."""
    mark = run_id(key)
    readable = re.sub(r"[^\w.-]", "-", str(key).replace("/", "."), flags=re.ASCII)
    return f"{readable[: NAME_CHARACTERS - len(mark) - 1]}-{mark}"


def _begun(wandb: Any, mode: str, arguments: Mapping[str, Any]) -> Any:
    """A run of W&B, offline and told so where one online cannot be had."""
    if mode == "online":
        try:
            return _online(wandb, arguments)
        except Exception as error:
            kept = "the run is kept offline, and wandb sync sends it later; tracker.mode=offline asks no more"
            say(f"W&B cannot be reached ({first_line(error)}); {kept}.")
            mode = "offline"
            end_service()  # its process still holds a run of this name
    return _init(wandb, mode, arguments)


def _online(wandb: Any, arguments: Mapping[str, Any]) -> Any:
    """The run of the cell, resumed; another one where that holds a result, or was deleted, for its name stays taken."""
    try:
        run = _init(wandb, "online", {**arguments, "resume": "allow"})
    except Exception as error:
        if "created and deleted" not in str(error):
            raise
        end_service()
    else:
        if not run.resumed or run.summary.get("status") not in FINISHED:
            return run
        run.finish(exit_code=0 if run.summary["status"] == "ok" else 1)
    return _init(wandb, "online", {**arguments, "id": None})


def _holding(runs: Iterable[Any], record: Record) -> Any:
    """The run that mirrors this very record, not another attempt of its cell; None where there is none."""
    key = asdict(record.key)
    began = record.started_at
    return next((run for run in runs if run.config.get("key") == key and run.summary.get("started_at") == began), None)


def _init(wandb: Any, mode: str, arguments: Mapping[str, Any]) -> Any:
    known = wandb.Settings.model_fields
    settings = wandb.Settings(**{name: value for name, value in QUIET.items() if name in known})
    return wandb.init(mode=mode, settings=settings, **arguments)
