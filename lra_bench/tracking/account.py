"""Account, folders and service process of W&B."""

from __future__ import annotations

import netrc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

SERVICE = "wandb-core"
"""Name of the process through which W&B communicates with its server."""
SERVICE_SECONDS = 30.0
"""Default timeout for ending that process."""

PUBLIC_HOSTS = ("api.wandb.ai", "api.forge.coreweave.com")
"""Host names under which wandb stores the key of its public server; newer releases use the second."""


def default_mode() -> str:
    """Return the mode if ``tracker.mode`` is null: ``$WANDB_MODE``, or online with an account and offline without."""
    return os.environ.get("WANDB_MODE") or ("online" if has_account() else "offline")


def has_account() -> bool:
    """Return whether there are credentials for W&B in the environment or, for its server, in the netrc file."""
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or f"https://{PUBLIC_HOSTS[0]}").netloc
    hosts = PUBLIC_HOSTS if host in PUBLIC_HOSTS else (host,)
    for path in [netrc_path] if (netrc_path := os.environ.get("NETRC")) else ["~/.netrc", "~/_netrc"]:
        try:
            entries = netrc.netrc(os.path.expanduser(path))  # noqa: PTH111
        except (OSError, netrc.NetrcParseError):
            continue
        return any(entries.authenticators(name) for name in hosts)
    return False


@contextmanager
def own_folders(folder: Path) -> Iterator[None]:
    """Redirect W&B's data, caches and artifacts to ``folder`` and disable its output inside the context.

    Environment variables set by the user take precedence.
    """
    defaults = {
        "WANDB_DATA_DIR": str(folder / "data"),
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_ARTIFACT_DIR": str(folder / "artifacts"),
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
    }
    added = [name for name in defaults if name not in os.environ]
    os.environ.update({name: defaults[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def end_service(seconds: float = SERVICE_SECONDS) -> None:
    """End W&B's service process; kill it if it does not end within ``seconds``.

    W&B itself waits without a timeout, for minutes if the server cannot be reached.
    """
    import psutil
    import wandb

    services = []
    for child in psutil.Process().children():
        with suppress(psutil.Error):  # it has ended
            services += [child] if SERVICE in child.name() else []
    teardown = threading.Thread(target=wandb.teardown, daemon=True)
    teardown.start()
    teardown.join(seconds)
    if teardown.is_alive():
        for service in services:
            with suppress(psutil.Error):
                service.kill()
        teardown.join(seconds)
