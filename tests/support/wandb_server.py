"""A local replacement of the W&B server, which stores and returns runs, history, files and artifacts.

An operation of GraphQL is known by its name. Its response contains all fields of the run and the artifact that the
variables name, of which the clients read those that they requested.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

ENTITY = "tester"
KEY = "0123456789abcdef0123456789abcdef01234567"
AUTHORIZATION = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()
CREATED = "2026-11-20T09:00:00Z"
QUERIES = (
    "ServerFeaturesQuery", "Viewer", "GetDefaultEntity", "RunResumeStatus", "Runs", "Run", "RunOutputArtifacts",
    "ArtifactByID", "ArtifactType", "FetchArtifactManifest",
)  # fmt: skip
RUN_FIELDS = {
    "historyKeys": None, "sweepName": None, "commit": None, "description": None, "notes": None, "readOnly": False,
    "createdAt": CREATED, "heartbeatAt": CREATED, "projectId": "1", "systemMetrics": "{}", "logLineCount": 0,
    "eventsLineCount": 0, "eventsTail": "[]", "user": {"name": ENTITY, "username": ENTITY}, "wandbConfig": '{"t": {}}',
}  # fmt: skip
ARTIFACT_FIELDS = {
    "__typename": "Artifact", "description": None, "metadata": None, "historyStep": None, "ttlDurationSeconds": -2,
    "ttlIsInherited": True, "tags": [], "aliases": [], "createdAt": CREATED, "updatedAt": CREATED,
}  # fmt: skip
VIEWER = {"id": "viewer", "entity": ENTITY, "username": ENTITY, "email": "", "flags": "{}", "teams": {"edges": []}}


@dataclass
class Run:
    """A run; ``fields`` are the variables of ``UpsertBucket``, ``history`` is a list of rows, ``files`` are by name."""

    entity: str
    project: str
    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    exit_code: int | None = None

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the client, without values that wandb adds."""
        return {key: value["value"] for key, value in self.fields["config"].items() if key != "_wandb"}


@dataclass
class Artifact:
    """An artifact; ``blobs`` are its files by the path in ``manifest``, a JSON file."""

    id: str
    run: Run
    collection: str
    kind: str
    digest: str
    version: int
    state: str = "PENDING"
    manifest: bytes = b"{}"
    blobs: dict[str, bytes] = field(default_factory=dict)


class Request(NamedTuple):
    """A received request with decompressed body; ``operation`` is that of GraphQL, otherwise method and path."""

    operation: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Trouble(NamedTuple):
    """The response to a failing request: ``status`` and ``message``, after ``seconds``."""

    status: int = 500
    seconds: float = 0.0
    message: str = "trouble"


class Server:
    """The server; ``received`` are all requests, ``unknown`` the errors, and ``trouble`` makes requests fail."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clear()

    def clear(self) -> None:
        """Remove all data."""
        self.runs: dict[tuple[str, str, str], Run] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.uploads: list[Callable[[bytes], None]] = []
        self.received: list[Request] = []
        self.unknown: list[str] = []
        self.trouble: Callable[[Request], Trouble | None] = lambda _: None
        self.lock = threading.Lock()

    def only_run(self, project: str) -> Run:
        """Return the only run of a project."""
        (run,) = self.runs_of(ENTITY, project)
        return run

    def runs_of(self, entity: str, project: str) -> list[Run]:
        """Return the runs of a project in the order of their creation."""
        return [run for run in self.runs.values() if (run.entity, run.project) == (entity, project)]

    def answer(self, request: Request) -> tuple[int, bytes]:
        """Return status and body of the response to a request."""
        if trouble := self.trouble(request):
            time.sleep(trouble.seconds)
            return trouble.status, json.dumps({"errors": [{"message": trouble.message}]}).encode()
        with self.lock:
            self.received.append(request)
            try:
                if request.path == "/graphql":
                    variables = json.loads(request.body).get("variables") or {}
                    data = self._answer_query(request.operation, variables.get("input") or variables)
                    return 200, json.dumps({"data": data}).encode()
                return self._answer_file(request, request.path.strip("/").split("/"))
            except Exception as error:
                self.unknown.append(f"{request.operation}: {error!r}, {request.body[:200]!r}")
                return 400, b""

    def _answer_file(self, request: Request, parts: list[str]) -> tuple[int, bytes]:
        if parts[0] == "store":
            self.uploads[int(parts[1])](request.body)
        elif parts[0] == "manifests":
            return 200, self.artifacts[parts[1]].manifest
        elif parts[0] == "artifactsV2" and request.headers.get("Authorization") == AUTHORIZATION:
            artifact, digest = self.artifacts[parts[-3]], base64.b64encode(bytes.fromhex(parts[-2])).decode()
            entries = json.loads(artifact.manifest)["contents"]
            (name,) = [name for name, entry in entries.items() if entry["digest"] == digest]
            return (200, artifact.blobs[name]) if name in artifact.blobs else (404, b"")
        elif parts[-1] == "file_stream":
            run, sent = self.runs[parts[1], parts[2], parts[3]], json.loads(request.body)
            files = sent.get("files", {})
            if history := files.get("wandb-history.jsonl"):
                run.history[history["offset"] :] = map(json.loads, history["content"])
            if summary := files.get("wandb-summary.json"):
                run.summary = json.loads(summary["content"][-1])
            if sent.get("complete"):
                run.exit_code = sent["exitcode"]
                run.fields["state"] = "finished" if run.exit_code == 0 else "failed"
            return 200, b"{}"
        elif request.path != "/sdk/otel/v1/metrics":  # telemetry of wandb sync
            raise LookupError(request.path)
        return 200, b""  # the client does not read a body

    def _answer_query(self, operation: str, sent: dict[str, Any]) -> dict[str, Any]:
        """Return the response to an operation, after the changes of a mutation."""
        names = [sent.get(f"{kind}Name") or sent.get(kind) for kind in ("entity", "project", "run")]
        key = names[0] or ENTITY, names[1] or "", names[2] or sent.get("name") or ""
        collection = (sent.get("artifactCollectionName") or key[2]).partition(":")[0]
        versions = [each for each in self.artifacts.values() if each.collection == collection]
        run: Any = self.runs.get(key)
        artifact: Any = self.artifacts.get(sent.get("artifactID") or sent.get("id") or "") or (versions or [None])[-1]
        files: list[dict[str, Any]] = []
        if operation == "UpsertBucket":
            known = [each for each in self.runs.values() if each.name == sent["id"]]
            run = known[0] if known else run or Run(*key, {**sent, "config": {}, "state": "running"})
            given = {name: value for name, value in sent.items() if value is not None}
            given["config"] = json.loads(given["config"]) if "config" in given else run.fields["config"]
            run.summary = json.loads(given.pop("summaryMetrics", json.dumps(run.summary)))
            run.fields |= given
            self.runs[run.entity, run.project, run.name] = run
        elif operation == "CreateRunFiles":
            files = [self._upload(partial(run.files.__setitem__, name), name=name) for name in sent["files"]]
        elif operation == "CreateArtifact":
            same = [each for each in versions if each.digest == sent["digest"]]
            new = f"artifact{len(self.artifacts)}", run, collection, sent["artifactTypeName"], sent["digest"]
            artifact = same[0] if same else Artifact(*new, len(versions))
            self.artifacts[artifact.id] = artifact
            run.artifacts += [artifact] if artifact not in run.artifacts else []
        elif operation == "CreateArtifactManifest":
            files = [self._upload(partial(setattr, artifact, "manifest"), id="file")]
        elif operation == "CreateArtifactFiles":
            for each in sent["artifactFiles"]:
                blobs, name = self.artifacts[each["artifactID"]].blobs, each["name"]
                upload = self._upload(partial(blobs.__setitem__, name), storagePath=name)
                files.append({**upload, "artifact": {"id": each["artifactID"]}})
        elif operation == "CommitArtifact":
            assert json.loads(artifact.manifest)["contents"].keys() == artifact.blobs.keys()
            artifact.state = "COMMITTED"
        elif operation not in QUERIES or sent.get("cursor"):
            raise LookupError(operation)
        found_run, found_artifact = run and self._run(run), artifact and self._artifact(artifact)
        runs = self.runs_of(*key[:2])
        project = runs and {
            **_project(runs[0]), "runCount": len(runs), "runs": _page([self._run(each) for each in runs]),
            "readOnly": False, "run": found_run, "bucket": found_run, "artifact": found_artifact,
        }  # fmt: skip
        return {
            "serverInfo": {"features": []}, "viewer": VIEWER, "model": project or None, "project": project or None,
            "artifact": found_artifact, "upsertBucket": {"bucket": found_run, "inserted": True},
            "createRunFiles": {"runID": key[2], "uploadHeaders": [], "files": files},
            "createArtifact": {"__typename": "CreateArtifactPayload", "artifact": found_artifact},
            "createArtifactManifest": {"artifactManifest": {"id": "manifest", "file": files[0] if files else None}},
            "createArtifactFiles": {"files": _page(files)}, "commitArtifact": {"artifact": found_artifact},
        }  # fmt: skip

    def _upload(self, store: Callable[[bytes], None], **names: Any) -> dict[str, Any]:
        """Return a file with a URL to which its content can be written."""
        self.uploads.append(store)
        return {**names, "uploadUrl": f"{self.url}/store/{len(self.uploads) - 1}", "uploadHeaders": []}

    def _run(self, run: Run) -> dict[str, Any]:
        sent, artifacts = run.fields, [self._artifact(each) for each in run.artifacts if each.state == "COMMITTED"]
        return RUN_FIELDS | {
            "id": run.name, "name": run.name, "project": _project(run), "displayName": sent["displayName"],
            "jobType": sent["jobType"], "state": sent["state"], "group": sent["groupName"], "tags": sent["tags"] or [],
            "config": json.dumps(sent["config"]), "summaryMetrics": json.dumps(run.summary),
            "historyLineCount": len(run.history), "artifacts": _page(artifacts),
            "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
        }  # fmt: skip

    def _artifact(self, artifact: Artifact) -> dict[str, Any]:
        sequence = {"name": artifact.collection, "project": _project(artifact.run), "latestArtifact": None}
        return ARTIFACT_FIELDS | {
            "id": artifact.id, "artifactSequence": {"__typename": "ArtifactSequence", **sequence},
            "versionIndex": artifact.version, "artifactType": {"name": artifact.kind}, "state": artifact.state,
            "size": sum(map(len, artifact.blobs.values())), "digest": artifact.digest, "commitHash": artifact.digest,
            "fileCount": len(artifact.blobs),
            "currentManifest": {"file": {"directUrl": f"{self.url}/manifests/{artifact.id}"}},
        }  # fmt: skip


def _project(run: Run) -> dict[str, Any]:
    return {"id": "project", "internalId": "1", "name": run.project, "entity": {"id": "entity", "name": run.entity}}


def _page(nodes: list[dict[str, Any]]) -> dict[str, Any]:
    edges = [{"node": node, "cursor": ""} for node in nodes]
    info = {"__typename": "PageInfo", "endCursor": "", "hasNextPage": False}
    return {"totalCount": len(edges), "pageInfo": info, "edges": edges}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        operation = re.search(r"(?:query|mutation)\s+(\w+)", body.decode()) if self.path == "/graphql" else None
        name = operation[1] if operation else f"{self.command} {self.path}"
        status, answer = self.server.respond(Request(name, self.path, dict(self.headers), body))  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        with suppress(ConnectionError):  # the client may have disconnected
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def serving() -> Iterator[Server]:
    """Start a server on a free local port; it is stopped at the end of the context."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as listener:
        listener.daemon_threads = True
        server = Server(f"http://127.0.0.1:{listener.server_port}")
        listener.respond = server.answer  # type: ignore[attr-defined]
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()
