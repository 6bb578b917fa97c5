"""The command `homophily studio` in a process of its own, and calls of its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from .serving import PATIENCE, eventually


@dataclass
class Studio:
    """A running studio."""

    url: str

    @property
    def origin(self) -> str:
        return self.url.partition("/#")[0]

    @property
    def token(self) -> str:
        return self.url.partition("#")[2]

    def send(self, path: str, body: bytes = b"{}", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of an answer."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"{self.origin}{path}", data=body, headers=names, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, dict(answer.headers), answer.read()
        except HTTPError as error:
            with error:
                return error.code, dict(error.headers), error.read()

    def bytes(self, name: str, /, **body: Any) -> bytes:
        """The content of a call that must succeed."""
        status, _, content = self.send(f"/api/{name}", json.dumps(body).encode(), authorization=f"Bearer {self.token}")
        assert status == 200, content
        return content

    def call(self, name: str, /, **body: Any) -> Any:
        return json.loads(self.bytes(name, **body))

    def refusal(self, name: str, /, **body: Any) -> tuple[int, str]:
        """Status and sentence of a call that must fail."""
        status, _, content = self.send(f"/api/{name}", json.dumps(body).encode(), authorization=f"Bearer {self.token}")
        assert status != 200
        return status, json.loads(content)["error"]

    def upload(self, path: Path, name: str | None = None) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {self.token}", "x_file_name": name or path.name}
        status, _, content = self.send("/api/file", path.read_bytes(), **headers)
        return status, json.loads(content)

    def made(self, job: str) -> dict[str, Any]:
        """What a job made, once it has ended."""

        def ended() -> Any:
            info = self.call("job", job=job)
            return info if info["final"] else None

        found: dict[str, Any] = eventually(ended, pause=0.1)
        return found


@contextmanager
def studio(target: str, *arguments: str | Path, project: str = "default") -> Iterator[Studio]:
    """A studio beside a service, on a free port."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMOPHILY_")}
    command = [sys.executable, "-m", "homophily_service", "studio", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        [*command, "--target", target, "--project", project], env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        with process.stdout as stdout:
            line = stdout.readline()
        assert line.startswith("Open http://127.0.0.1:"), line
        yield Studio(line.removeprefix("Open ").strip())
    finally:
        process.terminate()
        process.wait(PATIENCE)
