"""Commands of those who run the service on several machines: migrate, and what `health` asks a worker."""

from __future__ import annotations

import math
import time
from typing import Annotated

import typer

from homophily_service.cli.screen import AsJson, print_json, tell
from homophily_service.cli.serving import ConfigFile, DataDir, Set, settings_from

# The worker's metrics of how long ago it last went its round, and of whether it can take a job.
SILENT, READY = "homophily_worker_silent_seconds", "homophily_worker_ready"


def migrate(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the database.")] = 0.0,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Bring the database's tables to this version. `serve` does so itself on SQLite, and on nothing else."""
    from homophily_service.errors import Unavailable
    from homophily_service.store.database import Database

    database = Database(settings_from(config, assignments, data_dir=data_dir).database)
    give_up = time.monotonic() + wait
    try:
        while True:
            try:
                database.migrate()
                break
            except Unavailable:
                if time.monotonic() >= give_up:
                    raise
                time.sleep(1.0)
        database.check_version()
    finally:
        database.close()
    if as_json:
        print_json({"migrated": True})
    else:
        tell("The database is of this version.")


def worker_state(endpoint: str, timeout: float, silence: float, *, only_alive: bool) -> str | None:
    """Whether a worker goes its rounds and can compute, by its Prometheus endpoint HOST:PORT; None if none answers."""
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    try:
        # Not through a proxy: the worker is on this machine.
        with build_opener(ProxyHandler({})).open(f"http://{endpoint}/metrics", timeout=timeout) as answer:
            lines = answer.read().decode().splitlines()
    except (URLError, OSError, ValueError):
        return None
    told = {name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name in (SILENT, READY)}
    alive = told.get(SILENT, math.inf) <= silence
    return "SERVING" if alive and (only_alive or told.get(READY)) else "NOT_SERVING"
