"""A proxy in front of a real MLflow server that can lose, duplicate or refuse single calls."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

# What happens to a call: it is processed, but its answer is lost; processed twice, and the answer is lost; or refused.
Fate = Literal["unanswered", "doubled", "refused"]
Rule = Callable[[str, str], Fate | None]


class MlflowProxy:
    """Passes on every call except those for which a rule (path and body → fate) returns something else."""

    def __init__(self, port: int) -> None:
        self.rule: Rule = lambda path, body: None  # noqa: ARG005
        self.fates: list[Fate] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_call(self) -> None:
                body = self._body()
                fate = proxy.rule(self.path, body.decode(errors="replace"))
                if fate is None:
                    self._answer(*self._passed_on(body))
                    return
                proxy.fates.append(fate)
                if fate == "refused":
                    refusal = {"error_code": "INVALID_PARAMETER_VALUE", "message": "the proxy does not want it"}
                    self._answer(400, {"Content-Type": "application/json"}, json.dumps(refusal).encode())
                    return
                for _ in range(2 if fate == "doubled" else 1):
                    assert self._passed_on(body)[0] == 200
                self.close_connection = True

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_call

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                whole = b""
                while size := int(self.rfile.readline(), 16):
                    whole += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return whole

            def _passed_on(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                try:
                    kept = {name: value for name, value in self.headers.items() if name != "Transfer-Encoding"}
                    connection.request(self.command, self.path, body, {**kept, "Connection": "close"})
                    answer = connection.getresponse()
                    return answer.status, dict(answer.getheaders()), answer.read()
                finally:
                    connection.close()

            def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
                self.send_response(status)
                for name in ("Content-Type", "Content-Encoding", "Content-Disposition"):
                    if name in headers:
                        self.send_header(name, headers[name])
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                """Ignore callers that have left."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def once(self, path: str, fate: Fate) -> None:
        """Apply this fate to the next call whose path ends so; ``fates`` records when it was made."""
        self.fates.clear()
        self.rule = lambda called, _: fate if called.endswith(path) and not self.fates else None

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
