"""A local server that answers the calls of ``datasets`` and ``huggingface_hub`` to the Hub for one data set."""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REVISION = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def hub(name, files, token=None):
    """Serve the files (contents by path) of the data set ``name``; yield the address and the list of requests.

    Commits with the token change ``files``, unless they are pull requests or their parent is not ``REVISION``.
    """
    requests = []

    def entry(path):
        return {"type": "file", "path": path, "size": len(files[path]), "oid": hashlib.sha1(files[path]).hexdigest()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self):
            self.answer(b"")

        def do_GET(self):
            self.answer(b"")

        def do_POST(self):
            self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

        def answer(self, sent):
            path = unquote(urlsplit(self.path).path)
            requests.append(f"{self.command} {path}")
            api, resolved = f"/api/datasets/{name}", f"/datasets/{name}/resolve/"
            if path in (api, f"{api}/revision/main", f"{api}/revision/{REVISION}"):
                siblings = [{"rfilename": each, "size": len(files[each])} for each in files]
                return self.send({"id": name, "sha": REVISION, "private": False, "tags": [], "siblings": siblings})
            if path.startswith(f"{api}/tree/"):
                folder = path.removeprefix(f"{api}/tree/").partition("/")[2]
                if inside := [entry(each) for each in files if not folder or each.startswith(f"{folder}/")]:
                    return self.send(inside)
                return self.send({"error": "not found"}, 404, **{"X-Error-Code": "EntryNotFound"})
            if path.startswith(f"{api}/paths-info/"):
                kind = self.headers.get("Content-Type", "")
                asked = json.loads(sent)["paths"] if "json" in kind else parse_qs(sent.decode())["paths"]
                return self.send([entry(each) for each in asked if each in files])
            if path == f"{api}/preupload/main":
                asked = [each["path"] for each in json.loads(sent)["files"]]
                modes = [{"path": each, "uploadMode": "regular", "shouldIgnore": False} for each in asked]
                return self.send({"files": modes})
            if path == f"{api}/commit/main":
                return self.commit([json.loads(line) for line in sent.splitlines()])
            file = path.removeprefix(resolved).partition("/")[2] if path.startswith(resolved) else ""
            if file in files:
                tag = {"ETag": f'"{entry(file)["oid"]}"', "X-Repo-Commit": REVISION, "Accept-Ranges": "bytes"}
                return self.send(files[file], 200, **tag)
            code = {"X-Error-Code": "EntryNotFound" if path.startswith(resolved) else "RepoNotFound"}
            return self.send({"error": "not found"}, 404, **code)

        def commit(self, entries):
            if self.headers.get("Authorization") != f"Bearer {token}":
                return self.send({"error": "not permitted"}, 403)
            if entries[0]["value"]["parentCommit"] != REVISION:
                return self.send({"error": "the branch has changed"}, 412)
            if "create_pr=1" not in self.path:
                for entry in entries[1:]:
                    if entry["key"] == "deletedFile":
                        del files[entry["value"]["path"]]
                    else:
                        files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"http://{self.headers['Host']}/datasets/{name}"
            answer = {"commitUrl": f"{url}/commit/1", "pullRequestUrl": f"{url}/discussions/1", "commitOid": "1"}
            return self.send(answer)

        def send(self, body, status=200, **headers):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(status)
            kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
            for key, value in {"Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
