"""A host of files on this machine whose manners can be chosen."""

import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Host:
    """Serves ``files`` (path to bytes) and notes every request as (path, first byte asked for).

    ``ranges``: whether parts are served. ``versions``: whether ETags are sent. ``breaks``: how often a connection ends
    after ``break_after`` bytes of its answer. ``statuses``: answers to give first, before files. ``headers``: further
    headers. ``redirects``: path to another address. ``pause_seconds``: how long an answer is held back, and
    ``trickle_seconds`` every 64 KiB of it. ``excess``: bytes sent beyond the length that is told. ``lengths``: whether
    lengths are told. ``spans``: Content-Range of parts, in place of the true one. ``sent`` counts bytes of bodies.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, int]] = []
        self.statuses: list[int] = []
        self.ranges, self.versions = True, True
        self.breaks, self.break_after = 0, 0
        self.pause_seconds = self.trickle_seconds = 0.0
        self.excess, self.lengths, self.spans, self.sent = 0, True, "", 0
        self.port = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


@contextmanager
def serving():
    host = Host()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            path = self.path.lstrip("/")
            asked = self.headers.get("Range")
            first = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            host.requests.append((path, first))
            time.sleep(host.pause_seconds)
            if path in host.redirects:
                return self.answer(302, b"", Location=host.redirects[path])
            if host.statuses or path not in host.files:
                return self.answer(host.statuses.pop(0) if host.statuses else 404, b"sorry")
            content = host.files[path]
            tag = f'"{hash(content)}"'
            named = {"ETag": tag} if host.versions else {}
            if not asked or not host.ranges or self.headers.get("If-Range", tag) != tag:
                return self.answer(200, content, **named)
            if first >= len(content):
                return self.answer(416, b"", **{"Content-Range": f"bytes */{len(content)}"})
            span = host.spans or f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self.answer(206, content[first:], **{"Content-Range": span}, **named)

        def answer(self, status, body, **headers):
            self.send_response(status)
            length = {"Content-Length": str(len(body))} if host.lengths else {"Connection": "close"}
            # A client stops at the length that is told, unless the body comes in chunks.
            chunked = bool(host.excess and host.lengths)
            coding = {"Transfer-Encoding": "chunked"} if chunked else {}
            for name, value in {**headers, **host.headers, **length, **coding}.items():
                self.send_header(name, value)
            self.end_headers()
            if host.excess and body:
                self.overdo(body, chunked)
                return
            if host.breaks and body:
                host.breaks -= 1
                body = body[: host.break_after]
                self.close_connection = True
            with suppress(ConnectionError):  # whoever asked may be gone
                for start in range(0, len(body), 1 << 16):
                    self.wfile.write(body[start : start + (1 << 16)])
                    host.sent += 1 << 16
                    time.sleep(host.trickle_seconds)

        def overdo(self, body, chunked):
            self.close_connection = True
            with suppress(ConnectionError):
                for start in range(0, len(body) + host.excess, 1 << 16):
                    piece = body[start : start + (1 << 16)].ljust(min(1 << 16, len(body) + host.excess - start), b"x")
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                    host.sent += len(piece)
                if chunked:
                    self.wfile.write(b"0\r\n\r\n")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    host.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield host
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
