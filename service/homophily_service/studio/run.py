"""Runs the page's server until it is stopped."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any

import uvicorn

from homophily_service.studio.server import MakeWorkspace, application

#: Names under which a browser on this machine reaches it.
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(
    make: MakeWorkspace,
    first: dict[str, Any],
    host: str,
    port: int,
    started: Callable[[str], object],
    image_hosts: Sequence[str] = (),
) -> None:
    """Serve until Ctrl-C or SIGTERM. ``started`` is told the address to open, with its token."""
    token = secrets.token_urlsafe(24)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # A browser that is quick waits for the first answer.
        listener.listen()
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{listener.getsockname()[1]}/#{token}"
        app = application(make, token, (*LOOPBACK, host), first, image_hosts)
        config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, ws="none")
        server = uvicorn.Server(config)
        server.config.load()
        started(address)
        server.run(sockets=[listener])
