"""Commands that run the service and cannot: each says why in one sentence."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


def homophily(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "homophily_service", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.parametrize("command", ["serve", "ui"])
def test_a_port_in_use_is_one_sentence(command: str, taken_port: int, tmp_path: Path) -> None:
    """gRPC printed a line of its own, and MLflow a page, after which the command ended with 0."""
    (tmp_path / "homophily.db").touch()
    ended = homophily(command, "--data-dir", tmp_path, "--port", str(taken_port))
    assert ended.returncode == 1, ended
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert line == (
        f"Error: cannot listen on 127.0.0.1 port {taken_port}: another process uses it; "
        "choose another with --port, or --port 0 for a free one"
    )


def test_a_server_that_cannot_listen_leaves_no_store_behind(taken_port: int, tmp_path: Path) -> None:
    homophily("serve", "--data-dir", tmp_path / "new", "--port", str(taken_port))
    assert not (tmp_path / "new").exists()


def test_pages_of_a_directory_without_a_store_are_refused(tmp_path: Path) -> None:
    """An empty MLflow was made there and served."""
    for folder in (tmp_path, tmp_path / "missing"):
        ended = homophily("ui", "--data-dir", folder, "--port", "0")
        assert ended.returncode == 2, ended
        assert ended.stdout == ""
        [line] = ended.stderr.splitlines()
        assert line.startswith(f"Error: {folder} is no data directory of Homophily: give --data-dir")
    assert list(tmp_path.iterdir()) == []
