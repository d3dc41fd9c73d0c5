"""A mirror of runs on Weights & Biases: never needed, never in the way of what is measured."""

from __future__ import annotations

import netrc
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lra_bench.contracts import UserError
from lra_bench.leaderboard.runs import length_points
from lra_bench.progress import say
from lra_bench.records.schema import CellKey, Record

if TYPE_CHECKING:
    import pandas as pd

PUBLIC_SERVER = "https://api.wandb.ai"
CURVE_ROWS = 1000
REACH_SECONDS = 15.0
UPLOAD_SECONDS = 60.0

# What would disturb a measurement, or print over our own output, is off.
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
    "init_timeout": REACH_SECONDS,
    "finish_timeout": UPLOAD_SECONDS,
}


class Tracker:
    """Follows a run: ``start``, ``log`` at every evaluation, ``finish`` with the record. This one does nothing."""

    def start(self, config: Mapping[str, Any], key: CellKey, folder: Path) -> None:
        """Begin following the cell ``key``; files go under ``folder``/wandb."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show figures of a step while the run goes on."""

    def finish(self, record: Record, curves: pd.DataFrame | None = None) -> None:
        """Mirror the record, its curves and figures, and end."""


def tracker(options: Mapping[str, Any]) -> Tracker:
    """The tracker that ``config.tracker`` asks for: ``wandb`` or ``none``."""
    if options["name"] == "none" or options["mode"] == "disabled":
        return Tracker()
    if options["name"] != "wandb":
        raise UserError(f"tracker.name={options['name']}: choose wandb or none")
    if options["mode"] not in (None, "online", "offline"):
        raise UserError(f"tracker.mode={options['mode']}: choose online, offline, disabled or null")
    return WandbTracker(options["project"], options["mode"])


class WandbTracker(Tracker):
    """A run of W&B per attempt, grouped by cell. Its first error is told in a line, and the mirror ends there.

    ``mode`` None means online with an account that can be reached, else offline.
    """

    def __init__(self, project: str, mode: str | None = None) -> None:
        self.project, self.mode = project, mode
        self.run: Any = None
        self.failed = False
        self.folder = Path()

    def start(self, config: Mapping[str, Any], key: CellKey, folder: Path) -> None:
        """Begin a run; offline where the server cannot be reached."""
        self.folder = folder
        self._try("start", lambda: self._start(config, key))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Log figures as ``live/…``, for the eye while the run goes on."""
        if self.run is not None:
            self._try("log", lambda: self.run.log({f"live/{name}": value for name, value in values.items()}, step=step))

    def finish(self, record: Record, curves: pd.DataFrame | None = None) -> None:
        """Log whole curves, tables, figures and the record; end the run."""
        if self.run is None:
            return
        self._try("mirror the record", lambda: self._mirror(record, curves))
        # Ended even where something before failed: the process behind it would stay otherwise.
        self.failed = False
        self._try("end", lambda: self._end(record))
        self.run = None

    def _try(self, what: str, action: Callable[[], Any]) -> None:
        if self.failed:
            return
        try:
            with _own_folders(self.folder):
                action()
        except Exception as error:
            self.failed = True
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"W&B could not {what} ({reason}); the run goes on without it, and tracker=none turns it off.")

    def _start(self, config: Mapping[str, Any], key: CellKey) -> None:
        import wandb

        mode: Any = self.mode or default_mode()
        (self.folder / "wandb").mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(**{name: value for name, value in QUIET.items() if name in _setting_names(wandb)})
        arguments = {
            "project": self.project,
            "dir": str(self.folder),
            "name": str(key),
            "group": str(key.folder()),
            "config": dict(config),
            "settings": settings,
        }
        try:
            self.run = wandb.init(mode=mode, **arguments)
        except wandb.errors.CommError as error:
            if self.mode == "online":
                say(f"W&B cannot be reached ({str(error).splitlines()[0]}); tracker.mode=offline from here on.")
            self.run = wandb.init(mode="offline", **arguments)
        # Curves come whole at the end, with steps of their own: an interrupted run logs part of its steps twice.
        self.run.define_metric("curves/step", hidden=True)
        self.run.define_metric("curves/*", step_metric="curves/step")

    def _mirror(self, record: Record, curves: pd.DataFrame | None) -> None:
        import wandb

        if curves is not None:
            for row in thinned(curves).to_dict("records"):
                self.run.log({f"curves/{name}": value for name, value in row.items() if value == value})
        tables = {"speed": record.speed, "extrapolation": record.extrapolation and record.extrapolation["points"]}
        self.run.log({name: table(wandb, rows) for name, rows in tables.items() if rows})
        self.run.summary.update(summary(record))
        with tempfile.TemporaryDirectory() as folder:
            self.run.log({name: wandb.Image(str(path)) for name, path in figures(record, Path(folder)).items()})
        if record.path is not None:
            artifact = wandb.Artifact(str(record.key).replace("/", "."), "record", metadata={"status": record.status})
            for path in (record.path, *(record.path.with_name(name) for name in record.artifacts.values())):
                artifact.add_file(str(path))
            self.run.log_artifact(artifact)

    def _end(self, record: Record) -> None:
        """Finish the run; its log is whole on disk only when the process that writes it has ended too."""
        import wandb

        self.run.finish(exit_code=0 if record.status == "ok" else 1)
        wandb.teardown()


def summary(record: Record) -> dict[str, Any]:
    """The record's main figures as ``test/accuracy``, ``length/2x`` and their like, those unknown left out."""
    sections: dict[str, Mapping[str, Any]] = {
        "": {"status": record.status, "attempt": record.attempt, "wall_seconds": record.wall_seconds},
        **{f"{split}/": metric for split, metric in record.metrics.items()},
        "floor/": record.floors,
        "parameters/": record.parameters or {},
        "training/": record.training or {},
        "flops/": record.flops or {},
        **{f"growth/{mode}/": growth for mode, growth in record.growth.items()},
        "length/": {name: point["score"] for name, point in length_points(record).items()},
        **_curves(record),
    }
    return {
        prefix + name: value
        for prefix, values in sections.items()
        for name, value in values.items()
        if isinstance(value, int | float | str)
    }


def _curves(record: Record) -> dict[str, Mapping[str, Any]]:
    """What the curves over length amount to, those with something set for evaluation under its name."""
    summaries = record.extrapolation["summary"] if record.extrapolation else []
    return {"/".join(filter(None, ("curve", curve["variant"], curve["knob"], ""))): curve for curve in summaries}


def thinned(curves: pd.DataFrame, rows: int = CURVE_ROWS) -> pd.DataFrame:
    """At most about ``rows`` evenly spread rows of ``curves``, and all that hold an evaluation."""
    every = max(1, -(-len(curves) // rows))
    kept = (curves.index % every == 0) | curves["validation_score"].notna()
    return curves[kept]


def table(wandb: Any, rows: list[Any]) -> Any:
    """A W&B table of a record's entries; what is no plain value is left out."""
    columns = [name for name in rows[0] if not any(isinstance(row.get(name), dict | list) for row in rows)]
    return wandb.Table(columns=columns, data=[[row.get(name) for name in columns] for row in rows])


def figures(record: Record, folder: Path) -> dict[str, Path]:
    """The figures over length of one record as PNG files in ``folder``, by name."""
    from lra_bench.figures import NothingToDrawError, draw

    drawn = {}
    for name in ("extrapolation", "evaluation_knobs", "loss_by_position", "speed_vs_length"):
        with suppress(NothingToDrawError):
            drawn[f"figures/{name}"] = next(path for path in draw(name, [record], folder) if path.suffix == ".png")
    return drawn


def default_mode() -> str:
    """What W&B is told where ``tracker.mode`` is null: $WANDB_MODE, else online with an account, offline without."""
    return os.environ.get("WANDB_MODE") or ("online" if has_account() else "offline")


def has_account() -> bool:
    """Whether W&B would find credentials: in the environment, or in the netrc file for its server."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or PUBLIC_SERVER).netloc
    places = [Path(given)] if (given := os.environ.get("NETRC")) else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for place in places:
        try:
            return netrc.netrc(str(place.expanduser())).authenticators(host) is not None
        except (OSError, netrc.NetrcParseError):
            continue
    return False


def _setting_names(wandb: Any) -> set[str]:
    return set(wandb.Settings.model_fields)


@contextmanager
def _own_folders(folder: Path) -> Iterator[None]:
    """Keep what W&B stages, caches and prints out of the user's home and terminal, unless the user says where to."""
    own = {
        "WANDB_DATA_DIR": str(folder / "wandb" / "data"),
        "WANDB_CACHE_DIR": str(folder / "wandb" / "cache"),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    added = [name for name in own if name not in os.environ]
    os.environ.update({name: own[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
