"""Load the records of a W&B project, with the same checks as for files; only JSON files are downloaded."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any

from lra_bench.contracts import UserError
from lra_bench.data.cache import Cache
from lra_bench.progress import bar, say
from lra_bench.records.key import CellKey
from lra_bench.records.machines import name_machines
from lra_bench.records.schema import Record
from lra_bench.records.store import LARGEST_BYTES, precedence, read
from lra_bench.runtime.files import replacing
from lra_bench.runtime.hardware import first_line

from .account import end_service, has_account, own_folders
from .mirror import REACH_SECONDS, artifact_name

PATH = re.compile(r"([\w.-]+)/([^/\\#?%:\s]+)")
RECORD = re.compile(r"seed\d+\.json")


def load_project(path: str, option: str = "--from-wandb", broken: Callable[[str], None] = say) -> list[Record]:
    """Load the records of all runs of a W&B project, one per cell.

    Of several records of a cell the one with the highest ``precedence`` is kept, as in ``results import``. Downloads
    are stored in the cache.

    Args:
        path: The project as ``ENTITY/PROJECT``.
        option: The option that names the project, for error messages.
        broken: Called with an error message for each artifact without a valid record.

    Returns:
        The records, sorted by path.

    Raises:
        UserError: If there is no account or no such project, or if the server does not respond.
    """
    if not PATH.fullmatch(path):
        raise UserError(f"{option} {path}: is not a W&B project; set it to ENTITY/PROJECT")
    if not has_account():
        raise UserError(f"{option} {path}: no W&B account is configured; run wandb login or set WANDB_API_KEY")
    say(f"Requesting the runs of {path} from W&B.")
    folder = Cache().root / "wandb"
    best: dict[CellKey, Record] = {}
    with own_folders(folder), _as_user_error(f"{option} {path}"):
        for source, artifact in _artifacts(path, option):
            try:
                record = read(_content(artifact, folder, source), source)
                if artifact.name.split(":")[0] != artifact_name(record.key):
                    raise UserError(f"{source}: contains the record of another cell, {record.key}")
            except UserError as error:
                broken(f"{error}; left out")
                continue
            if record.key not in best or precedence(record) > precedence(best[record.key]):
                best[record.key] = record
    records = sorted(best.values(), key=lambda record: record.key.file("json"))
    name_machines(records)
    return records


def _artifacts(path: str, option: str) -> Iterator[tuple[str, Any]]:
    """Yield the artifacts of type ``record`` of all runs of a project, each with a description of its location."""
    import wandb

    runs = wandb.Api(timeout=REACH_SECONDS).runs(path)
    try:
        number = len(runs)
    except ValueError as error:
        raise UserError(f"{option} {path}: W&B has no such project, or this account has no access to it") from error
    with bar(number, f"Reading {path} from W&B", unit="runs") as advance:
        for run in runs:
            for artifact in run.logged_artifacts():
                if artifact.type == "record":
                    yield f"{path}, run {run.id}, artifact {artifact.name}", artifact
            advance(1)


def _content(artifact: Any, folder: Path, source: str) -> bytes:
    """Return the JSON of an artifact's record, from the cache if it was downloaded before; artifacts never change."""
    from requests import HTTPError

    name = hashlib.sha256(f"{artifact.id} {artifact.digest}".encode()).hexdigest()[:32]
    cached = folder / "records" / f"{name}.json"
    if cached.is_file():
        return cached.read_bytes()
    paths = [path for path in artifact.manifest.entries if RECORD.fullmatch(str(path))]
    entry = artifact.get_entry(paths[0]) if len(paths) == 1 else None
    # A reference can point to any location, including files of this machine.
    if entry is None or entry.ref is not None:
        raise UserError(f"{source}: contains no record")
    if (entry.size or 0) > LARGEST_BYTES:
        raise UserError(f"{source}: is too large for a record ({entry.size / 2**20:,.0f} MiB)")
    with tempfile.TemporaryDirectory() as temporary:
        try:
            content = Path(entry.download(root=temporary, skip_cache=True)).read_bytes()
        except HTTPError as error:
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
            raise UserError(f"{source}: its file does not exist") from error
    read(content, source)  # invalid records are not cached
    with suppress(OSError), replacing(cached) as target:  # the cache is optional
        target.write_bytes(content)
    return content


@contextmanager
def _as_user_error(where: str) -> Iterator[None]:
    """Convert errors of W&B to ``UserError``, and end its service process at the end of the context."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        message = first_line(error)
        if _http_status(error) in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise UserError(f"{where}: W&B rejects the configured account ({message}); run wandb login") from error
        raise UserError(f"{where}: W&B cannot be reached ({message}); try again later") from error
    finally:
        end_service(REACH_SECONDS)


def _http_status(error: BaseException | None) -> int | None:
    """Return the HTTP status of an error of W&B or of one of its causes, or None."""
    while error is not None:
        response = getattr(error, "response", None)
        if status := getattr(response, "http_status", None) or getattr(response, "status_code", None):
            return int(status)
        error = error.__cause__
    return None
