"""Tasks that a server repeats go on, whatever goes wrong in one of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2

from homophily_service.contract.errors import DataLoss, Unavailable
from homophily_service.runtime.background import repeat

from .serving import PROGRAM, SERVICE, eventually, running


def test_any_error_is_logged_and_the_task_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    errors = [Unavailable("the bucket is away"), DataLoss("lost"), ValueError("odd"), AssertionError()]
    done: list[int] = []

    async def action() -> None:
        if errors:
            raise errors.pop(0)
        done.append(1)
        if len(done) == 2:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(repeat("sweeping", action, 0.0))
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR", "ERROR", "ERROR"]
    assert "sweeping: postponed: the bucket is away" in caplog.text


ODD = """
import os
from homophily_service.api import server
from homophily_service.storage.database import Database

def odd_sweep(*_):
    with open("sweeps", "a") as file:
        file.write("x")
    raise RuntimeError("odd")

def odd_ping(_):
    if os.path.exists("odd"):
        raise RuntimeError("odd")

os.chdir(os.environ["HOMOPHILY_DATA_DIR"])
server.sweep = odd_sweep
Database.ping = odd_ping
"""


def test_sweeping_and_health_survive_errors_that_nobody_thought_of(tmp_path: Path) -> None:
    # Both loops ended for good, and the service stayed ready or not ready as it was.
    with running(tmp_path, program=ODD + PROGRAM, workers=0, predictors=0, sweep_seconds=0.05) as service:
        assert service.health(SERVICE) == health_pb2.HealthCheckResponse.SERVING
        (tmp_path / "odd").touch()
        eventually(lambda: service.health(SERVICE) == health_pb2.HealthCheckResponse.NOT_SERVING)
        (tmp_path / "odd").unlink()
        eventually(lambda: service.health(SERVICE) == health_pb2.HealthCheckResponse.SERVING)
        eventually(lambda: (tmp_path / "sweeps").stat().st_size > 3)
