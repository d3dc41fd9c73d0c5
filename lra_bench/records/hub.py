"""Boards in data set repositories of the Hugging Face Hub, a folder each, which are pushed and pulled with digests."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from lra_bench.contracts import UserError
from lra_bench.data.download import OFFLINE_VARIABLES, is_safe
from lra_bench.runtime.files import replacing
from lra_bench.runtime.redaction import without_credentials

from .board import BOARD, FILE, files_of, overwritten, read_board
from .check import check_store
from .packed import LARGEST_BYTES, RECORDS
from .store import RUNS, root_in_errors, write_lock


class Transfer(NamedTuple):
    """A file that is transferred: its path in the repository, its size, and ``new``, ``unchanged`` or ``removed``."""

    file: str
    size_bytes: int
    status: str


def push(
    root: Path, repo: str, board: str, pull_request: bool = False, dry_run: bool = False
) -> tuple[list[Transfer], str]:
    """Commit a packed results folder as the folder ``board`` of a repository, or as a pull request.

    The files are returned, and the address of the commit or the pull request, which is empty if there is none. A dry
    run changes nothing. Raises ``UserError`` if the board is not valid, if a record of the repository would be lost or
    changed, or if the repository cannot be read or written.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    digests = checked_board(root, f"--results {root}")
    if not re.fullmatch(r"\w[\w.-]*", board):
        raise UserError(f"--board {board}: use letters, digits, points and hyphens only")
    local = {BOARD: root / BOARD, **files_of(root)}
    with _hub(f"results push {repo}") as api:
        found = _Repository(api, repo)
        with tempfile.TemporaryDirectory(prefix="lra-bench-") as folder:
            theirs: dict[str, str] = {}
            if board in found.boards:
                copy = found.download(board, found.files(board), Path(folder))
                theirs = checked_board(copy, f"results push {repo}: {board}")
                _refuse_loss(copy, root, f"--board {board}: the data set {repo}", "pull it and import its records")
        old = {name.removeprefix(f"{board}/") for name in found.sizes if name.startswith(f"{board}/")}
        stale = sorted(name for name in old - local.keys() if FILE.fullmatch(name))
        same = {name for name, digest in digests.items() if name in old and theirs.get(name) == digest}
        if len(same) == len(digests) and not stale:
            same.add(BOARD)
        transfers = [
            *(Transfer(f"{board}/{name}", path.stat().st_size, "unchanged" if name in same else "new")
              for name, path in local.items()),
            *(Transfer(f"{board}/{name}", found.sizes[f"{board}/{name}"], "removed") for name in stale),
        ]  # fmt: skip
        operations: list[Any] = [
            CommitOperationDelete(change.file)
            if change.status == "removed"
            else CommitOperationAdd(change.file, local[change.file.removeprefix(f"{board}/")])
            for change in transfers
            if change.status != "unchanged"
        ]
        if operations and not dry_run:
            # The commit fails if the repository has changed since it was compared.
            commit = api.create_commit(
                repo, operations, commit_message=f"Add {len(digests)} files of the board {board}",
                repo_type="dataset", parent_commit=found.commit, create_pr=pull_request,
            )  # fmt: skip
            return transfers, commit.pr_url or commit.commit_url
    return transfers, ""


def pull(repo: str, folder: Path, revision: str | None = None, dry_run: bool = False) -> list[Transfer]:
    """Download all boards of a repository to a folder of boards, and check them before a file is written.

    A dry run downloads ``board.json`` only and writes nothing. Raises ``UserError`` if a board is not valid, if a
    record in ``folder`` would be lost or changed, or if the repository cannot be read, and ``Unwritable`` if the folder
    cannot be written.
    """
    transfers: list[Transfer] = []
    with _hub(f"results pull {repo}") as api, tempfile.TemporaryDirectory(prefix="lra-bench-") as temporary:
        found = _Repository(api, repo, revision)
        if not found.boards:
            raise UserError(f"results pull {repo}: contains no board, a folder with {BOARD}")
        for board in found.boards:
            target, where = folder / board, f"results pull {repo}: {board}"
            mine = read_board(target)["sha256"] if (target / BOARD).is_file() else {}
            names = [BOARD] if dry_run else found.files(board)
            copy = found.download(board, names, Path(temporary))
            digests = read_board(copy)["sha256"] if dry_run else checked_board(copy, where)
            if (target / RECORDS).is_file() and not dry_run:
                _refuse_loss(target, copy, f"--to {folder}: {target}", "choose another folder")
            for name in found.files(board):
                same = mine == digests if name == BOARD else mine.get(name) == digests.get(name)
                size = found.sizes[f"{board}/{name}"]
                transfers.append(Transfer(f"{board}/{name}", size, "unchanged" if same else "new"))
            if not dry_run:
                _install(copy, target)
    return transfers


def checked_board(root: Path, where: str) -> dict[str, str]:
    """Return the digests of a valid board by file. Raises ``UserError``, which begins with ``where``, if it is not."""
    digests = read_board(root)["sha256"]
    for finding in check_store(root):
        if finding.ok is False:
            raise UserError(f"{where}: {finding.what}: {finding.found}")
    if next((root / RUNS).rglob("seed*.json"), None) is not None:
        raise UserError(f"{where}: contains records that are not packed; run lra-bench results pack")
    if files_of(root).keys() != digests.keys():
        raise UserError(f"{where}: {BOARD} does not list all files of the board; lra-bench results pack writes it")
    return digests


class _Repository:
    """The files of a data set at one commit: ``sizes`` in bytes by path, and the names of its ``boards``."""

    def __init__(self, api: Any, repo: str, revision: str | None = None) -> None:
        info = api.dataset_info(repo, revision=revision, files_metadata=True)
        self.api, self.repo, self.commit = api, repo, info.sha
        self.sizes: dict[str, int] = {each.rfilename: each.size or 0 for each in info.siblings or ()}
        folders = {re.fullmatch(rf"(\w[\w.-]*)/{re.escape(BOARD)}", name) for name in self.sizes}
        self.boards = sorted(match[1] for match in folders if match)

    def files(self, board: str) -> list[str]:
        """Return the paths of the files of a board inside its folder."""
        inside = (name.removeprefix(f"{board}/") for name in sorted(self.sizes) if name.startswith(f"{board}/"))
        return [name for name in inside if name == BOARD or FILE.fullmatch(name)]

    def download(self, board: str, names: Sequence[str], folder: Path) -> Path:
        """Download files of a board below ``folder`` and return their folder; no digests are compared."""
        for name in names:
            if (size := self.sizes[f"{board}/{name}"]) > LARGEST_BYTES:
                raise UserError(f"{self.repo}: {board}/{name} is too large ({size / 2**20:,.0f} MiB)")
            self.api.hf_hub_download(
                self.repo, f"{board}/{name}", repo_type="dataset", revision=self.commit, local_dir=folder
            )
        return folder / board


def _refuse_loss(old: Path, new: Path, where: str, instead: str) -> None:
    lost = list(overwritten(old, new))
    if lost:
        raise UserError(
            f"{where} contains {len(lost):,} other records, such as {lost[0]}; {instead}, or choose another name"
        )


def _install(copy: Path, target: Path) -> None:
    """Copy the files of a board to ``target``; ``records.jsonl`` follows the tables that it names."""
    files = files_of(copy)
    with root_in_errors(target), write_lock(target):
        for name in (*sorted(files, key=RECORDS.__eq__), BOARD):
            with replacing(target / name) as temporary:
                shutil.copyfile(copy / name, temporary)
        for name, path in files_of(target).items():
            if name.endswith(".parquet") and name not in files:
                path.unlink()


@contextmanager
def _hub(command: str) -> Iterator[Any]:
    """Yield the client of the Hub with the stored token. Raises ``UserError`` instead of errors of the Hub."""
    for name in OFFLINE_VARIABLES:
        if os.environ.get(name):
            raise UserError(f"{command}: {name} disables network access; unset it")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    if not is_safe(api.endpoint):
        raise UserError(f"HF_ENDPOINT={without_credentials(api.endpoint)}: only https is supported")
    http_error = HfHubHTTPError.__mro__[1]  # of all errors of the HTTP library, which differs between releases
    login = "log in by hf auth login with a token that may write, or use --pull-request"
    try:
        yield api
    except RepositoryNotFoundError as error:
        raise UserError(
            f"{command}: there is no such data set, or you may not read it; create it by hf repos create --repo-type "
            "dataset, or log in by hf auth login"
        ) from error
    except RevisionNotFoundError as error:
        raise UserError(f"{command}: there is no such revision; name a branch, a commit or refs/pr/NUMBER") from error
    except (http_error, OSError, ValueError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403):
            raise UserError(f"{command}: not permitted; {login}") from error
        if status in (409, 412):
            raise UserError(f"{command}: the data set has changed in the meantime; repeat the command") from error
        reason = without_credentials(str(error).strip().partition("\n")[0]) or type(error).__name__
        if isinstance(error, http_error) and status is None:
            reason = f"{without_credentials(api.endpoint)} cannot be reached ({reason})"
        raise UserError(f"{command}: {reason}") from error
