"""The choice of who follows a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lra_bench.contracts import UserError

from .mirror import WandbTracker
from .tracker import Tracker


def tracker(options: Mapping[str, Any]) -> Tracker:
    """The tracker that ``config.tracker`` asks for: ``wandb`` or ``none``."""
    if options["name"] == "none" or options["mode"] == "disabled":
        return Tracker()
    if options["name"] != "wandb":
        raise UserError(f"tracker.name={options['name']}: choose wandb or none")
    if options["mode"] not in (None, "online", "offline"):
        raise UserError(f"tracker.mode={options['mode']}: choose online, offline, disabled or null")
    return WandbTracker(options["project"], options["mode"])
