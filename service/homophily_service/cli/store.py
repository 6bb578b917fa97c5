"""Commands for operators: migrate, fsck, store, and the part of `health` that asks a worker."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from homophily_service.cli.failures import FAILED, NOT_FOUND
from homophily_service.cli.flags import Command, Group
from homophily_service.cli.screen import AsJson, print_json, print_result, print_status, size
from homophily_service.cli.serve import ConfigFile, DataDir, Set, settings_from

if TYPE_CHECKING:
    from homophily_service.runtime.settings import Settings
    from homophily_service.storage.stores import Stores

# The worker's metrics: seconds since it last looked for work, and whether it can take a job.
SILENT, READY = "homophily_worker_silent_seconds", "homophily_worker_ready"


def migrate(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait for the database.")] = 0.0,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Migrate the database's tables to this version. `serve` does so itself, but only on SQLite."""
    from homophily_service.contract.errors import Unavailable
    from homophily_service.storage.database import Database

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
        print_result("The database has this version.")


@contextmanager
def _opened(settings: Settings) -> Iterator[Stores]:
    """The stores of a service, whose database must have been migrated."""
    from homophily_service.storage.database import Database
    from homophily_service.storage.stores import Stores

    # Check before the store is opened, which would create its folder.
    database = Database(settings.database)
    try:
        database.check_is_new_enough()
    finally:
        database.close()
    stores = Stores.open(settings)
    try:
        yield stores
    finally:
        stores.close()


def fsck(
    check_hashes: Annotated[
        bool, typer.Option(help="Read every file and compare its SHA-256, rather than only sizes.")
    ] = True,
    restore: Annotated[
        list[str] | None,
        typer.Option(metavar="PATH", help="First put this back from quarantine; may be given more than once."),
    ] = None,
    restore_referenced: Annotated[
        bool, typer.Option("--restore-referenced", help="First put everything back that something refers to.")
    ] = False,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Check everything in the store of arrays. The exit code is 1 if something is missing or damaged."""
    from homophily_service.storage import fsck as checks
    from homophily_service.storage.retention import restore_referenced as restore_all

    with _opened(settings_from(config, assignments, data_dir=data_dir)) as stores:
        restored = restore_all(stores) if restore_referenced else 0
        for path in restore or ():
            if not checks.restore(stores, path):
                print_status(f"Error: {path} is not in quarantine, or its place is taken", "red")
                raise typer.Exit(NOT_FOUND)
            restored += 1
        mismatch = stores.identity.mismatch()
        totals = {state: {"blobs": 0, "bytes": 0} for state in checks.STATES}
        shown = []
        for finding in checks.findings(stores, hashes=check_hashes):
            totals[finding.state]["blobs"] += 1
            totals[finding.state]["bytes"] += finding.bytes
            if as_json:
                shown.append(finding._asdict())
            else:
                note = f"  ({finding.note})" if finding.note else ""
                print_result(f"{finding.state:<12}{finding.bytes:>16,}  {finding.path}{note}")
    wrong = None if mismatch is None else mismatch.sentence
    if as_json:
        print_json({"mismatch": wrong, "restored": restored, "blobs": shown, "totals": totals})
    else:
        if restored:
            print_result(f"Restored {restored} from quarantine.")
        counts = (f"{found['blobs']:,} {state} ({size(found['bytes'])})" for state, found in totals.items())
        print_result(f"In all: {', '.join(counts)}.")
        if wrong is not None:
            print_result(f"Nothing is swept: {wrong}.", "red")
    raise typer.Exit(FAILED if totals[checks.MISSING]["blobs"] or totals[checks.DAMAGED]["blobs"] else 0)


store = typer.Typer(cls=Group, help="Which database the store of arrays belongs to.", no_args_is_help=True)


@store.callback()
def _is_a_group() -> None:
    """Which database the store of arrays belongs to."""


@store.command("adopt", cls=Command)
def adopt_store(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Bind this database and this store of arrays together, so that objects unknown to the database are swept again.

    Needed after a database was restored from a backup, or moved to another store. Stop all programs that use the store
    with another database first. Objects that the database does not know go to quarantine when they are old, and are
    removed keep_quarantine_days later.
    """
    from homophily_service.storage import fsck as checks

    settings = settings_from(config, assignments, data_dir=data_dir)
    with _opened(settings) as stores:
        mismatch = stores.identity.mismatch()
        counts = Counter(finding.state for finding in checks.findings(stores, hashes=False))
        if not yes:
            print_status("They belong together already." if mismatch is None else f"Now: {mismatch.sentence}.")
            print_status(
                f"The database refers to {counts[checks.REFERENCED]} objects in {settings.blobs}; "
                f"{counts[checks.MISSING]} are missing, {counts[checks.DAMAGED]} damaged. "
                f"{counts[checks.ORPHANED]} others will be swept, {counts[checks.FOREIGN]} foreign folders stay."
            )
            typer.confirm("Bind them together?", abort=True, err=True)
        identifier = stores.identity.adopt()
    if as_json:
        print_json({"id": identifier})
    else:
        print_result(f"The database and the store of arrays belong together, as {identifier}.")


def worker_state(endpoint: str, timeout: float, silence: float, *, only_alive: bool) -> str | None:
    """Whether a worker is alive and can compute, by its Prometheus endpoint HOST:PORT; None if there is no answer."""
    from urllib.error import URLError
    from urllib.request import ProxyHandler, build_opener

    try:
        # Without a proxy: the worker is on this machine.
        with build_opener(ProxyHandler({})).open(f"http://{endpoint}/metrics", timeout=timeout) as answer:
            lines = answer.read().decode().splitlines()
    except (URLError, OSError, ValueError):
        return None
    metrics = {
        name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name in (SILENT, READY)
    }
    alive = metrics.get(SILENT, math.inf) <= silence
    return "SERVING" if alive and (only_alive or metrics.get(READY)) else "NOT_SERVING"
