"""The records of a W&B project, read back: the same checks as for a file, and nothing but JSON is looked at."""

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
from lra_bench.records.schema import Record
from lra_bench.records.store import LARGEST_BYTES, precedence, read
from lra_bench.runtime.files import replacing

from .account import end_service, first_line, has_account, own_folders
from .mirror import REACH_SECONDS, artifact_name

PATH = re.compile(r"([\w.-]+)/([^/\\#?%:\s]+)")
RECORD = re.compile(r"seed\d+\.json")


def load_project(path: str, option: str = "--from-wandb", broken: Callable[[str], None] = say) -> list[Record]:
    """The records of all runs of a W&B project ``ENTITY/PROJECT``, one per cell, in the order of their keys.

    Of several records of a cell the one stands that ``results import`` would keep. ``broken`` hears of each artifact
    that holds no record. What was downloaded once is kept in the cache. Raises ``UserError``, which names ``option``,
    where there is no account, no such project, or no answer.
    """
    if not PATH.fullmatch(path):
        raise UserError(f"{option} {path}: name a project of W&B as ENTITY/PROJECT")
    if not has_account():
        raise UserError(f"{option} {path}: there is no account of W&B here; run wandb login or set WANDB_API_KEY")
    say(f"Asking W&B for the runs of {path}.")
    folder = Cache().root / "wandb"
    best: dict[CellKey, Record] = {}
    with own_folders(folder), _told(f"{option} {path}"):
        for source, artifact in _artifacts(path, option):
            try:
                record = read(_content(artifact, folder, source), source)
                if artifact.name.split(":")[0] != artifact_name(record.key):
                    raise UserError(f"{source}: holds the record of {record.key}, which is another cell's")
            except UserError as error:
                broken(f"{error}; left out")
                continue
            if record.key not in best or precedence(record) > precedence(best[record.key]):
                best[record.key] = record
    return sorted(best.values(), key=lambda record: record.key.file("json"))


def _artifacts(path: str, option: str) -> Iterator[tuple[str, Any]]:
    """Artifacts of the type ``record`` that runs of the project logged, with words for where they are."""
    import wandb

    runs = wandb.Api(timeout=REACH_SECONDS).runs(path)
    try:
        number = len(runs)
    except ValueError as error:
        raise UserError(f"{option} {path}: W&B has no such project, or does not show it to this account") from error
    with bar(number, f"Reading {path} from W&B", unit="runs") as advance:
        for run in runs:
            for artifact in run.logged_artifacts():
                if artifact.type == "record":
                    yield f"{path}, run {run.id}, artifact {artifact.name}", artifact
            advance(1)


def _content(artifact: Any, folder: Path, source: str) -> bytes:
    """The bytes of an artifact's record, from the cache where they were read before; an artifact never changes."""
    from requests import HTTPError

    name = hashlib.sha256(f"{artifact.id} {artifact.digest}".encode()).hexdigest()[:32]
    kept = folder / "records" / f"{name}.json"
    if kept.is_file():
        return kept.read_bytes()
    places = [place for place in artifact.manifest.entries if RECORD.fullmatch(str(place))]
    entry = artifact.get_entry(places[0]) if len(places) == 1 else None
    # A reference would be fetched from wherever it points to, this machine's own files included.
    if entry is None or entry.ref is not None:
        raise UserError(f"{source}: holds no record")
    if (entry.size or 0) > LARGEST_BYTES:
        raise UserError(f"{source}: is too large for a record ({entry.size / 2**20:,.0f} MiB)")
    with tempfile.TemporaryDirectory() as aside:
        try:
            content = Path(entry.download(root=aside, skip_cache=True)).read_bytes()
        except HTTPError as error:
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
            raise UserError(f"{source}: its file is gone") from error
    read(content, source)  # what is damaged is not kept
    with suppress(OSError), replacing(kept) as target:  # without a cache it is only slower
        target.write_bytes(content)
    return content


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Turn what W&B objects to into one sentence; end the process that speaks to its server."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        said = first_line(error)
        if _http_status(error) in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise UserError(
                f"{where}: W&B refuses the account that is set up here ({said}); run wandb login"
            ) from error
        raise UserError(f"{where}: W&B cannot be reached ({said}); try again later") from error
    finally:
        end_service(REACH_SECONDS)


def _http_status(error: BaseException | None) -> int | None:
    """The status of the answer that an error of W&B, or one of its causes, came from."""
    while error is not None:
        answer = getattr(error, "response", None)
        if status := getattr(answer, "http_status", None) or getattr(answer, "status_code", None):
            return int(status)
        error = error.__cause__
    return None
