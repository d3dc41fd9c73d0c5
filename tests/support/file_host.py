"""A local file server with configurable behaviour."""

import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Host:
    """State and settings of the server.

    Attributes:
        files: Contents by path.
        redirects: Target URLs by path.
        headers: Additional response headers.
        requests: Received requests as (path, first requested byte).
        statuses: Status codes of the next responses, before files are served.
        ranges: Whether range requests are supported.
        versions: Whether ETags are sent.
        breaks: Number of connections that are closed after ``break_after`` bytes of the body.
        break_after: See ``breaks``.
        pause_seconds: Delay before each response.
        trickle_seconds: Delay after every 64 KiB of a body.
        excess: Number of bytes sent beyond the reported length.
        lengths: Whether Content-Length is sent.
        spans: Content-Range of partial responses, instead of the correct one.
        sent: Number of bytes of bodies sent so far.
        port: Port of the server.
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
            requested_range = self.headers.get("Range")
            first = int(requested_range.removeprefix("bytes=").rstrip("-")) if requested_range else 0
            host.requests.append((path, first))
            time.sleep(host.pause_seconds)
            if path in host.redirects:
                return self.respond(302, b"", Location=host.redirects[path])
            if host.statuses or path not in host.files:
                return self.respond(host.statuses.pop(0) if host.statuses else 404, b"sorry")
            content = host.files[path]
            tag = f'"{hash(content)}"'
            version_header = {"ETag": tag} if host.versions else {}
            if not requested_range or not host.ranges or self.headers.get("If-Range", tag) != tag:
                return self.respond(200, content, **version_header)
            if first >= len(content):
                return self.respond(416, b"", **{"Content-Range": f"bytes */{len(content)}"})
            span = host.spans or f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self.respond(206, content[first:], **{"Content-Range": span}, **version_header)

        def respond(self, status, body, **headers):
            self.send_response(status)
            length = {"Content-Length": str(len(body))} if host.lengths else {"Connection": "close"}
            # A client stops reading at Content-Length, unless the body is chunked.
            chunked = bool(host.excess and host.lengths)
            coding = {"Transfer-Encoding": "chunked"} if chunked else {}
            for name, value in {**headers, **host.headers, **length, **coding}.items():
                self.send_header(name, value)
            self.end_headers()
            if host.excess and body:
                self.send_excess(body, chunked)
                return
            if host.breaks and body:
                host.breaks -= 1
                body = body[: host.break_after]
                self.close_connection = True
            with suppress(ConnectionError):  # the client may have disconnected
                for start in range(0, len(body), 1 << 16):
                    self.wfile.write(body[start : start + (1 << 16)])
                    host.sent += 1 << 16
                    time.sleep(host.trickle_seconds)

        def send_excess(self, body, chunked):
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
