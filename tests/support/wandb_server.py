"""A local replacement of the W&B server, which stores and returns runs, history, files and artifacts.

Unsupported requests are stored in ``unknown`` and fail. ``trouble`` makes requests fail. All requests are stored in
``received``, so that tests can check their content.
"""

from __future__ import annotations

import base64
import gzip
import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

from tests.support.graphql import Document, GraphQLError

ENTITY = "tester"
KEY = "0123456789abcdef0123456789abcdef01234567"
AUTHORIZATION = "Basic " + base64.b64encode(f"api:{KEY}".encode()).decode()
CREATED = "2026-11-20T09:00:00Z"


@dataclass
class Run:
    """A run on the server; ``files`` by name, ``history`` by line."""

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
    """An artifact on the server; ``blobs`` by the path in the manifest."""

    id: str
    run: Run
    collection: str
    kind: str
    digest: str
    metadata: str | None
    version: int
    state: str = "PENDING"
    manifest: bytes = b"{}"
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        """The entries of the manifest by path."""
        return json.loads(self.manifest).get("contents", {})


@dataclass(frozen=True)
class Request:
    """A received request with decompressed body.

    ``operation`` is the name of the GraphQL operation, for other requests method and path.
    """

    operation: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Trouble:
    """The response to a failing request: ``status`` and ``message``, after ``seconds``."""

    status: int = 500
    seconds: float = 0.0
    message: str = "trouble"


class Server:
    """Runs by entity, project and name; started and stopped by ``serving``."""

    def __init__(self) -> None:
        self.url = ""
        self.released = threading.Event()
        self.clear()

    def clear(self) -> None:
        """Remove all data and release waiting requests."""
        self.released.set()
        self.runs: dict[tuple[str, str, str], Run] = {}
        self.artifacts: dict[str, Artifact] = {}
        self.stored_files: dict[str, tuple[dict[str, bytes], str]] = {}
        self.received: list[Request] = []
        self.unknown: list[str] = []
        self.trouble: Callable[[Request], Trouble | None] = lambda _: None
        self.released = threading.Event()
        self.lock = threading.RLock()

    def only_run(self, project: str) -> Run:
        """Return the only run of a project."""
        (run,) = self.runs_of(ENTITY, project)
        return run

    def runs_of(self, entity: str, project: str) -> list[Run]:
        """Return the runs of a project in the order of their creation."""
        return [run for run in self.runs.values() if (run.entity, run.project) == (entity, project)]

    def answer(self, request: Request) -> tuple[int, bytes]:
        """Return status and body of the response to a request."""
        with self.lock:
            self.received.append(request)
        if request.path == "/graphql":
            return self._graphql(request)
        if request.operation == "POST /sdk/otel/v1/metrics":  # telemetry of wandb sync
            return 200, b""
        parts = request.path.strip("/").split("/")
        with self.lock:
            if parts[0] == "store" and parts[1] in self.stored_files:
                files, name = self.stored_files[parts[1]]
                if request.operation.startswith("PUT"):
                    files[name] = request.body
                    return 200, b""
                return (200, files[name]) if name in files else (404, b"")
            if parts[0] == "artifactsV2" and request.headers.get("Authorization") == AUTHORIZATION:
                return self._blob(unquote(parts[-3]), parts[-2])
            if parts[0] == "files" and parts[-1] == "file_stream":
                return self._file_stream(self.runs[parts[1], parts[2], parts[3]], json.loads(request.body))
        self.unknown.append(f"{request.operation}: {request.body[:200]!r}")
        return 404, b""

    def _blob(self, artifact: str, digest: str) -> tuple[int, bytes]:
        found = self.artifacts[artifact]
        for name, entry in found.entries.items():
            if base64.b64decode(entry["digest"]).hex() == digest and name in found.blobs:
                return 200, found.blobs[name]
        return 404, b""

    def _graphql(self, request: Request) -> tuple[int, bytes]:
        request_body = json.loads(request.body)
        with self.lock:
            try:
                document = Document(request_body["query"])
                roots = {"query": self._queries(), "mutation": self._mutations()}
                data = document.resolve(roots[document.kind], request_body.get("variables") or {})
                return 200, json.dumps({"data": data}).encode()
            except Exception as error:
                self.unknown.append(f"{request.operation}: {type(error).__name__}: {error}")
                return 200, json.dumps({"errors": [{"message": str(error)}]}).encode()

    def _file_stream(self, run: Run, sent: Mapping[str, Any]) -> tuple[int, bytes]:
        for name, part in sent.get("files", {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                run.history[part["offset"] :] = lines
            elif name == "wandb-summary.json":
                run.summary = lines[-1]
            elif name != "output.log":
                self.unknown.append(f"file_stream: {name}")
        if sent.get("complete"):
            run.exit_code = sent["exitcode"]
            run.fields["state"] = "finished" if run.exit_code == 0 else "failed"
        return 200, b"{}"

    def _file_url(self, files: dict[str, bytes], name: str) -> str:
        """Return a URL for writing and reading a file."""
        token = uuid.uuid4().hex
        self.stored_files[token] = files, name
        return f"{self.url}/store/{token}"

    def _queries(self) -> dict[str, Any]:
        return {
            "__typename": "Query",
            "serverInfo": {"features": []},
            "viewer": {
                "id": "VXNlcjox",
                "entity": ENTITY,
                "username": ENTITY,
                "email": "tester@example.org",
                "flags": "{}",
                "teams": {"edges": []},
            },
            "entity": lambda name: {"xxhashDigestsEnabled": False},
            "project": lambda name, entityName: self._project(entityName, name),
            "model": lambda name, entityName: self._model(entityName or ENTITY, name),
            "artifact": lambda id: self._artifact(self.artifacts[id]),
        }

    def _model(self, entity: str, project: str) -> dict[str, Any] | None:
        if not self.runs_of(entity, project):
            return None
        return {**_project(entity, project), "bucket": lambda name, missingOk: self._bucket(entity, project, name)}

    def _bucket(self, entity: str, project: str, name: str) -> dict[str, Any] | None:
        run = self.runs.get((entity, project, name))
        if run is None:
            return None
        wandb_config = run.fields["config"].get("_wandb", {}).get("value", {})
        return {
            **self._run(run),
            "logLineCount": 0,
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
            "eventsTail": "[]",
            "wandbConfig": lambda keys: json.dumps({key: wandb_config[key] for key in keys if key in wandb_config}),
        }

    def _project(self, entity: str, name: str) -> dict[str, Any] | None:
        runs = self.runs_of(entity, name)
        if not runs:
            return None
        return {
            **_project(entity, name),
            "runCount": lambda filters: len(runs),
            "readOnly": False,
            "runs": lambda filters, after, first, order: _page(
                [self._run(run) for run in runs if _passes(run, json.loads(filters))], after, first
            ),
            "run": lambda name: self._run(self.runs[entity, runs[0].project, name]),
            "artifact": lambda name: self._find_artifact(entity, runs[0].project, name),
        }

    def _find_artifact(self, entity: str, project: str, name: str) -> dict[str, Any] | None:
        collection, _, version = name.partition(":")
        found = [
            artifact
            for artifact in self.artifacts.values()
            if (artifact.run.entity, artifact.run.project, artifact.collection) == (entity, project, collection)
            and version in ("latest", f"v{artifact.version}")
        ]
        return self._artifact(found[-1]) if found else None

    def _run(self, run: Run) -> dict[str, Any]:
        return {
            "__typename": "Run",
            "id": _identifier("Run", run.name),
            "projectId": "1",
            "name": run.name,
            "displayName": run.fields["displayName"],
            "group": run.fields["groupName"],
            "jobType": run.fields["jobType"],
            "tags": run.fields["tags"] or [],
            "state": run.fields.get("state", "running"),
            "config": json.dumps(run.fields["config"]),
            "summaryMetrics": json.dumps(run.summary),
            "systemMetrics": "{}",
            "historyKeys": None,
            "historyLineCount": len(run.history),
            "sweepName": None,
            "commit": None,
            "readOnly": False,
            "createdAt": CREATED,
            "heartbeatAt": CREATED,
            "description": None,
            "notes": None,
            "user": {"name": ENTITY, "username": ENTITY},
            "project": _project(run.entity, run.project),
            "outputArtifacts": lambda after, first: _page(
                [self._artifact(each) for each in run.artifacts if each.state == "COMMITTED"], after, first
            ),
        }

    def _artifact(self, artifact: Artifact) -> dict[str, Any]:
        run = artifact.run
        sequence = {
            "__typename": "ArtifactSequence",
            "id": _identifier("ArtifactCollection", artifact.collection),
            "name": artifact.collection,
            "project": _project(run.entity, run.project),
            "latestArtifact": None,
        }
        manifest_file = {"wandb_manifest.json": artifact.manifest}
        return {
            "__typename": "Artifact",
            "id": artifact.id,
            "artifactSequence": sequence,
            "versionIndex": artifact.version,
            "artifactType": {"name": artifact.kind},
            "description": None,
            "metadata": artifact.metadata,
            "ttlDurationSeconds": -2,
            "ttlIsInherited": True,
            "tags": [],
            "historyStep": None,
            "state": artifact.state,
            "size": sum(map(len, artifact.blobs.values())),
            "digest": artifact.digest,
            "digestAlgorithm": "MANIFEST_MD5",
            "commitHash": artifact.digest,
            "fileCount": len(artifact.blobs),
            "createdAt": CREATED,
            "updatedAt": CREATED,
            "aliases": [],
            "currentManifest": {"file": {"directUrl": self._file_url(manifest_file, "wandb_manifest.json")}},
        }

    def _mutations(self) -> dict[str, Any]:
        return {
            "__typename": "Mutation",
            "upsertBucket": self._upsert_run,
            "createRunFiles": self._create_run_files,
            "createArtifact": self._create_artifact,
            "createArtifactManifest": self._create_manifest,
            "createArtifactFiles": self._create_artifact_files,
            "commitArtifact": self._commit,
        }

    def _upsert_run(self, input: Mapping[str, Any]) -> dict[str, Any]:
        known = next((run for run in self.runs.values() if _identifier("Run", run.name) == input.get("id")), None)
        if known is None:
            key = input["entityName"] or ENTITY, input["modelName"], input["name"]
            known = self.runs.setdefault(key, Run(*key, {**dict.fromkeys(input), "config": {}}))
        given = {name: value for name, value in input.items() if value is not None}
        for name, holder in (("config", known.fields), ("summaryMetrics", None)):
            if name in given:
                value = json.loads(given.pop(name))
                if holder is None:
                    known.summary = value
                else:
                    holder[name] = value
        known.fields |= given
        return {
            "bucket": {
                **self._run(known),
                "description": None,
                "config": json.dumps(known.fields["config"]),
            },
            "inserted": True,
        }

    def _create_run_files(self, input: Mapping[str, Any]) -> dict[str, Any]:
        run = self.runs[input["entityName"] or ENTITY, input["projectName"], input["runName"]]
        files = [{"name": name, "uploadUrl": self._file_url(run.files, name)} for name in input["files"]]
        return {"runID": _identifier("Run", run.name), "uploadHeaders": [], "files": files}

    def _create_artifact(self, input: Mapping[str, Any]) -> dict[str, Any]:
        run = self.runs[input["entityName"] or ENTITY, input["projectName"], input["runName"]]
        collection = input["artifactCollectionNames"][0] if input.get("artifactCollectionNames") else ""
        collection = input.get("artifactCollectionName") or collection
        siblings = [each for each in self.artifacts.values() if each.collection == collection]
        same = next((each for each in siblings if each.digest == input["digest"]), None)
        artifact = same or Artifact(
            _identifier("Artifact", uuid.uuid4().hex),
            run,
            collection,
            input["artifactTypeName"],
            input["digest"],
            input.get("metadata"),
            len(siblings),
        )
        self.artifacts[artifact.id] = artifact
        if artifact not in run.artifacts:
            run.artifacts.append(artifact)
        return {"__typename": "CreateArtifactPayload", "artifact": self._artifact(artifact)}

    def _create_manifest(self, input: Mapping[str, Any]) -> dict[str, Any]:
        artifact = self.artifacts[input["artifactID"]]
        file_url = self._file_url(_Manifest(artifact), input["name"])
        file = {"id": _identifier("File", artifact.id), "uploadUrl": file_url, "uploadHeaders": []}
        return {"artifactManifest": {"id": _identifier("ArtifactManifest", artifact.id), "file": file}}

    def _create_artifact_files(self, input: Mapping[str, Any]) -> dict[str, Any]:
        edges = []
        for each in input["artifactFiles"]:
            artifact = self.artifacts[each["artifactID"]]
            node = {
                "storagePath": f"wandb_artifacts/{artifact.id}/{each['name']}",
                "uploadUrl": self._file_url(artifact.blobs, each["name"]),
                "uploadHeaders": [],
                "uploadMultipartUrls": None,
                "artifact": {"id": artifact.id},
            }
            edges.append({"node": node})
        return {"files": {"edges": edges}}

    def _commit(self, input: Mapping[str, Any]) -> dict[str, Any]:
        artifact = self.artifacts[input["artifactID"]]
        missing = artifact.entries.keys() - artifact.blobs.keys()
        if missing or not artifact.entries:
            raise GraphQLError(f"commitArtifact: {sorted(missing)} were not uploaded")
        artifact.state = "COMMITTED"
        return {"artifact": self._artifact(artifact)}


class _Manifest(dict[str, bytes]):
    """A mapping of files that stores a written manifest in its artifact."""

    def __init__(self, artifact: Artifact) -> None:
        super().__init__()
        self.artifact = artifact

    def __setitem__(self, name: str, content: bytes) -> None:
        super().__setitem__(name, content)
        self.artifact.manifest = content


def _project(entity: str, name: str) -> dict[str, Any]:
    owner = {"id": _identifier("Entity", entity), "name": entity}
    return {
        "__typename": "Project",
        "id": _identifier("Project", name),
        "internalId": "1",
        "name": name,
        "entity": owner,
    }


def _passes(run: Run, filters: Mapping[str, Any]) -> bool:
    """Return whether a run has the filtered values; raises ``KeyError`` for an unknown field."""
    return all(run.fields[name] == value for name, value in filters.items())


def _page(nodes: list[dict[str, Any]], after: str | None, first: int | None) -> dict[str, Any]:
    begin = int(after) if after else 0
    end = begin + (first or 50)
    return {
        "totalCount": len(nodes),
        "pageInfo": {"__typename": "PageInfo", "endCursor": str(end), "hasNextPage": end < len(nodes)},
        "edges": [{"node": node, "cursor": str(begin + n + 1)} for n, node in enumerate(nodes[begin:end])],
    }


def _identifier(kind: str, name: str) -> str:
    return base64.b64encode(f"{kind}:{name}".encode()).decode()


@contextmanager
def serving() -> Iterator[Server]:
    """Start a server on a free local port; it is stopped at the end of the context."""
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            name = f"{self.command} {self.path}"
            if self.path == "/graphql":
                name = json.loads(body).get("operationName") or Document(json.loads(body)["query"]).name
            request = Request(name, self.path, dict(self.headers), body)
            trouble = server.trouble(request)
            if trouble is None:
                status, answer = server.answer(request)
            else:
                server.released.wait(trouble.seconds)
                status, answer = trouble.status, json.dumps({"errors": [{"message": trouble.message}]}).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            with suppress(ConnectionError):  # the client may have disconnected
                self.wfile.write(answer)

        do_GET = do_POST = do_PUT = _handle

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        listener.daemon_threads = True
        server.url = f"http://127.0.0.1:{listener.server_port}"
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.released.set()
            listener.shutdown()
            thread.join()
