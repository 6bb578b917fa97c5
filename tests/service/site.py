"""A server of files by https whose answers a test chooses."""

from __future__ import annotations

import http.server
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .certificates import authority, signed_by
from .serving import PATIENCE


@dataclass
class Site:
    """A server, and what it answers to every path."""

    port: int
    content: bytes = b"x,y\n1,2\n"
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    status: int = 206
    asked: list[str] = field(default_factory=list)
    #: Ranges that begin after this wait until the server ends.
    holds_after: int | None = None
    held: threading.Event = field(default_factory=threading.Event)
    ends: threading.Event = field(default_factory=threading.Event)


@contextmanager
def serving_files(folder: Path) -> Iterator[tuple[Site, Path]]:
    """A server on a free port of loopback, and the file of the CA that signed its certificate."""
    issuer = authority("ca")
    certificate, key = signed_by(issuer, "site").write(folder, "site")
    ca, _ = issuer.write(folder, "ca")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            start, stop = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            if site.holds_after is not None and start > site.holds_after:
                site.held.set()
                site.ends.wait(PATIENCE)
                return
            part = site.content[start : stop + 1]
            self.send_response(site.status)
            headers = {"Content-Length": str(len(part))}
            if site.status == 206:
                headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{len(site.content)}"
            for name, value in {**headers, **site.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(part)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    site = Site(server.server_address[1])
    yield site, ca
    site.ends.set()
    server.shutdown()
    thread.join()
    server.server_close()
