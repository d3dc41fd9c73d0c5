"""Mirror a cell as a run on Weights & Biases (W&B): live metrics during training, the complete record at the end."""

from __future__ import annotations

import hashlib
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra_bench.config.schema import TrackerOptions
from lra_bench.config.serialization import options_from
from lra_bench.progress import say
from lra_bench.records.key import CellKey
from lra_bench.records.schema import FINISHED, Record
from lra_bench.runtime.hardware import first_line
from lra_bench.runtime.redaction import shareable

from .account import default_mode, end_service, has_account, own_folders
from .contents import charts, figures, summary, tables, thinned

if TYPE_CHECKING:
    import pandas as pd


REACH_SECONDS = 15
"""Timeout in seconds for the first response of the server."""
UPLOAD_SECONDS = 60.0
"""Timeout in seconds for uploads at the end of a run."""
NAME_CHARACTERS = 128
"""Maximum number of characters of a name in W&B."""

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
"""Settings of W&B; those that the installed release does not have are left out.

They disable everything that would disturb measurements, print to the terminal, or upload more about the machine than
the record contains, and set the timeouts.
"""


class Tracker:
    """One W&B run per cell; the runs of all seeds form a group.

    A command calls ``destination`` before its first cell. A cell calls ``start``, then ``log`` after every evaluation,
    then ``finish``. For a stored record to which points were added, ``resume`` and then ``finish`` are called.

    An attempt that resumes the cell resumes its run. If the run already contains a result, a new attempt creates a
    separate run, so that curves are not overwritten. The first error is reported in one line; after it nothing more is
    mirrored.

    Args:
        project: Name of the W&B project.
        mode: ``online``, ``offline``, or ``disabled`` for methods that do nothing. None: ``$WANDB_MODE`` if set,
            otherwise online if there is an account. An online run becomes offline if the server cannot be reached at
            the start.
    """

    after_error = "the run continues without it; tracker=none disables it"

    def __init__(self, project: str, mode: str | None = None) -> None:
        self.project, self.mode = project, mode or default_mode()
        self.run: Any = None
        self.artifact: Any = None
        self.failed = False
        self.folder = Path()

    def destination(self, folder: Path, sync: str) -> str:
        """Return a sentence that says where runs are copied to, empty if they are not copied.

        It names the URL of the project, for which the server is asked, or the folder ``wandb`` of offline runs in the
        results folder ``folder`` and ``sync``, the command that uploads them.
        """
        if self.mode == "disabled":
            return ""
        if self.mode == "online" and has_account():
            try:
                with own_folders(folder.absolute() / "wandb"):
                    import wandb

                    where = f"uploaded to {wandb.Api(timeout=REACH_SECONDS).project(self.project).url}"
            except Exception as error:
                where = f"uploaded to the project {self.project} if its server can be reached ({first_line(error)})"
            finally:
                end_service()
        else:
            runs = shlex.quote(str(folder / "wandb"))
            where = f"stored in {runs} and not uploaded; {sync} {runs}/offline-run-* uploads them"
        return f"W&B: runs are {where}; tracker=none turns this off."

    def start(self, config: Mapping[str, Any], key: CellKey, folder: Path) -> None:
        """Start the run of a cell, offline if the server cannot be reached; files are stored in ``folder``/wandb."""
        if self.mode == "disabled":
            return
        self.folder = folder
        with self._reported("start a run"):
            self._use(_start_run(self.mode, self._arguments(config, key)))

    def resume(self, record: Record, folder: Path) -> None:
        """Resume the run that mirrors a stored record, so that ``finish`` can update it; print a message without one.

        Has no effect offline or without an account, because offline runs cannot be resumed.
        """
        if self.mode != "online" or not has_account():
            return
        self.folder, self.after_error = folder, "the record itself is complete"
        with self._reported("resume the run of the record"):
            import wandb

            arguments = self._arguments(record.config, record.key)
            try:
                for run in wandb.Api(timeout=REACH_SECONDS).runs(self.project, {"displayName": arguments["name"]}):
                    is_of_attempt = run.summary.get("started_at") == record.started_at
                    if is_of_attempt and run.config.get("key") == asdict(record.key):
                        arguments |= {"entity": run.entity, "id": run.id, "resume": "must"}
                        self._use(_init("online", arguments))
                        return
                say(f"W&B has no run of this record in the project {self.project}; nothing is updated there.")
            finally:
                if self.run is None:  # otherwise the service process is needed until ``finish``
                    end_service()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log metrics by name as ``live/…``, measured after training step ``step``."""
        if self.run is not None and not self.failed:
            with self._reported("log metrics"):
                self.run.log({f"live/{name}": value for name, value in values.items()}, step=step)

    def finish(self, record: Record, curves: pd.DataFrame | None = None) -> None:
        """Log the record, complete curves, tables, charts and figures; end the run."""
        if self.run is None:
            return
        if not self.failed:
            with self._reported("mirror the record"):
                self._mirror(record, curves)
        # End the run also after an error, because otherwise W&B's service process would keep running.
        with self._reported("end the run"):
            self._end(record)
        self.run = None

    @contextmanager
    def _reported(self, what: str) -> Iterator[None]:
        """Report an error in the context instead of raising it, unless there was one before."""
        try:
            with own_folders(self.folder / "wandb"):
                yield
        except Exception as error:
            if not self.failed:
                say(f"W&B could not {what} ({first_line(error)}); {self.after_error}.")
            self.failed = True

    def _arguments(self, config: Mapping[str, Any], key: CellKey) -> dict[str, Any]:
        """Create the folder of the run and return the arguments of ``wandb.init``."""
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

    def _use(self, run: Any) -> None:
        self.run = run
        # An interrupted and resumed run logs some steps of live metrics twice. Therefore the complete curves are logged
        # at the end, over their own step metric. W&B adds metrics to the summary by default; curves and live metrics
        # are excluded, because the summary contains the fields of the record only.
        self.run.define_metric("curves/step", hidden=True, summary="none")
        self.run.define_metric("curves/*", step_metric="curves/step", summary="none")
        self.run.define_metric("live/*", summary="none")

    def _mirror(self, record: Record, curves: pd.DataFrame | None) -> None:
        """Log the content of the record, the most important part first, because an error skips the remaining parts."""
        import wandb

        self.run.summary.update(summary(record))
        if record.path is not None:
            artifact = wandb.Artifact(artifact_name(record.key), "record", metadata={"status": record.status})
            for path in (record.path, *(record.path.with_name(name) for name in record.artifacts.values())):
                artifact.add_file(str(path))
            self.artifact = self.run.log_artifact(artifact)
        # Curves of unfinished attempts are not logged, because the attempt that resumes them logs them again.
        if curves is not None and record.status in FINISHED:
            for row in thinned(curves).to_dict("records"):
                # Leave out NaN, which is a value that was not measured at this step.
                self.run.log({f"curves/{name}": value for name, value in row.items() if value == value})
        with tempfile.TemporaryDirectory() as folder:
            images = {name: wandb.Image(str(path)) for name, path in figures(record, Path(folder)).items()}
            if logged := {**tables(record), **charts(record), **images}:
                self.run.log(logged)

    def _end(self, record: Record) -> None:
        """Finish the run and wait for its service process, which uploads the run or writes the log of an offline run.

        Online, an error is raised if the artifact with the record was not uploaded. Offline, the runs of earlier
        attempts are removed if the cell is finished.
        """
        try:
            self.run.finish(exit_code=0 if record.status == "ok" else 1)
            if self.artifact is not None and not self.run.offline:
                self.artifact.wait(timeout=1)  # raises an error if the upload is not complete
        finally:
            end_service(UPLOAD_SECONDS)
        if self.run.offline and record.status in FINISHED:  # then ``wandb sync`` uploads the cell once
            folder = Path(self.run.dir).parent
            for other in folder.parent.glob(f"offline-run-*-{self.run.id}"):
                if other != folder:
                    shutil.rmtree(other, ignore_errors=True)


def run_id(key: CellKey) -> str:
    """Return the id of a cell's first run in its W&B project: a digest of the key, the same for all attempts."""
    return hashlib.sha256(str(key).encode()).hexdigest()[:16]


def artifact_name(key: CellKey) -> str:
    """Return the name of a cell's artifact: readable, unique, and valid in W&B."""
    digest = run_id(key)
    readable = re.sub(r"[^\w.-]", "-", str(key).replace("/", "."), flags=re.ASCII)
    return f"{readable[: NAME_CHARACTERS - len(digest) - 1]}-{digest}"


def _start_run(mode: str, arguments: Mapping[str, Any]) -> Any:
    """Start a run and return it. If the server cannot be reached, print a message and start it offline."""
    if mode == "online":
        try:
            return _start_online(arguments)
        except Exception as error:
            say(
                f"W&B cannot be reached ({first_line(error)}); the run is kept offline, wandb sync uploads it later; "
                "set tracker.mode=offline to skip the connection."
            )
            mode = "offline"
            end_service()  # the service process still has a run with this id
    return _init(mode, arguments)


def _start_online(arguments: Mapping[str, Any]) -> Any:
    """Start or resume the online run of a cell and return it.

    A run with another id is created if the cell's run already contains a result, or if it was deleted, because W&B does
    not reuse the id of a deleted run.
    """
    try:
        run = _init("online", {**arguments, "resume": "allow"})
    except Exception as error:
        if "created and deleted" not in str(error):  # part of the server's message about a deleted run
            raise
        end_service()
    else:
        if not run.resumed or run.summary.get("status") not in FINISHED:
            return run
        # End the resumed run again, with the exit code of its result.
        run.finish(exit_code=0 if run.summary["status"] == "ok" else 1)
    return _init("online", {**arguments, "id": None})


def _init(mode: Any, arguments: Mapping[str, Any]) -> Any:
    """Call ``wandb.init`` with the settings of ``QUIET`` that this release of wandb has."""
    import wandb

    known = wandb.Settings.model_fields
    settings = wandb.Settings(**{name: value for name, value in QUIET.items() if name in known})
    return wandb.init(mode=mode, settings=settings, **arguments)


def tracker(options: TrackerOptions) -> Tracker:
    """Return the tracker of ``config.tracker``, whose methods do nothing if its name is ``none``."""
    return Tracker(options.project, "disabled" if options.name == "none" else options.mode)


def update(record: Record) -> None:
    """Update the W&B run of a record: its summary, tables, figures and files.

    Does nothing without an account, offline, or if the cell was not mirrored.
    """
    if "tracker" not in record.config:
        return
    run_tracker = tracker(options_from(TrackerOptions, record.config["tracker"], "tracker"))
    # The run is online, so its local files are not needed afterwards.
    with tempfile.TemporaryDirectory() as folder:
        run_tracker.resume(record, Path(folder))
        run_tracker.finish(record)
