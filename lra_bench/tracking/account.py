"""Whether there is an account of W&B, and where W&B keeps its files."""

from __future__ import annotations

import netrc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import psutil

SERVICE = "wandb-core"
SERVICE_SECONDS = 30.0

PUBLIC_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
"""The names under which wandb keeps the key of its public server; newer releases go by the second."""


def default_mode() -> str:
    """What W&B is told where ``tracker.mode`` is null: $WANDB_MODE, else online with an account, offline without."""
    return os.environ.get("WANDB_MODE") or ("online" if has_account() else "offline")


def has_account() -> bool:
    """Whether W&B would find credentials: in the environment, or in the netrc file for its server."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or f"https://{PUBLIC_HOSTS[0]}").netloc
    hosts = PUBLIC_HOSTS if host in PUBLIC_HOSTS else (host,)
    places = [Path(given)] if (given := os.environ.get("NETRC")) else [Path.home() / ".netrc", Path.home() / "_netrc"]
    for place in places:
        try:
            entries = netrc.netrc(str(place.expanduser()))
        except (OSError, netrc.NetrcParseError):
            continue
        return any(entries.authenticators(name) for name in hosts)
    return False


@contextmanager
def own_folders(folder: Path) -> Iterator[None]:
    """Keep what W&B stages, caches and prints out of the user's home and terminal, unless the user says where to."""
    own = {
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_ARTIFACT_DIR": str(folder / "artifacts"),
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


def end_service(seconds: float = SERVICE_SECONDS) -> None:
    """End the process through which W&B speaks to its server; kill it if it does not end within ``seconds``.

    W&B itself waits for it without a limit, for minutes if the server cannot be reached.
    """
    import psutil
    import wandb

    services = [child for child in psutil.Process().children() if SERVICE in _name_of(child)]
    ending = threading.Thread(target=wandb.teardown, daemon=True)
    ending.start()
    ending.join(seconds)
    if ending.is_alive():
        for service in services:
            with suppress(psutil.Error):
                service.kill()
        ending.join(seconds)


def _name_of(process: psutil.Process) -> str:
    import psutil

    try:
        return process.name()
    except psutil.Error:
        return ""


def first_line(error: BaseException) -> str:
    """What an error of W&B says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
