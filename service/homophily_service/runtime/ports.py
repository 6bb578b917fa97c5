"""Ports of this machine."""

from __future__ import annotations

import errno
import socket

from homophily_service.contract.errors import FailedPrecondition


def check_port(host: str, port: int) -> None:
    """Refuse a port that another process listens on; 0 stands for any free one.

    gRPC and MLflow report it too, but later, and in many lines.
    """
    if not port:
        return
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        # The server that is about to listen says what is wrong with the host.
        return
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                # As servers do: connections that ended a moment ago do not matter.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise FailedPrecondition(
                    f"cannot listen on {host} port {port}: another process uses it; choose another with --port, "
                    "or --port 0 for a free one"
                ) from error


def is_free(host: str, port: int) -> bool:
    """Whether no other process listens on a port."""
    try:
        check_port(host, port)
    except FailedPrecondition:
        return False
    return True
