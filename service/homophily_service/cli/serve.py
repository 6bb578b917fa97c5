"""Commands that run the service: serve, worker, tracker, ui, config, token, health."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_service.cli.failures import FAILED, NOT_FOUND, UNREACHABLE, WrongInput
from homophily_service.cli.flags import Command, Group
from homophily_service.cli.options import DEFAULT_TARGET, Ca, Certificate, Key, Target, Tls
from homophily_service.cli.screen import AsJson, print_facts, print_json, print_result, print_status, print_table

if TYPE_CHECKING:
    import grpc

    from homophily_service.runtime.settings import Settings
    from homophily_service.storage.tokens import Tokens

LOOPBACK = "127.0.0.1"
SERVICE = "homophily.v1.HomophilyService"

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings.", dir_okay=False, exists=True)
]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder for all stored data; default homophily-data in the current folder."),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any setting; see `homophily config`.")
]


def settings_from(config: Path | None, assignments: list[str] | None, **flags: Any) -> Settings:
    """Settings from flags, the environment and a file; ends the program with an error message if one is wrong."""
    from pydantic import ValidationError

    from homophily_service.runtime.settings import Settings, load_settings

    for assignment in assignments or ():
        name, separator, value = assignment.partition("=")
        if not separator or name not in Settings.model_fields:
            raise typer.BadParameter(f"{assignment!r}: must be NAME=VALUE, with a name that `homophily config` lists")
        flags[name] = value
    try:
        return load_settings(config, **flags)
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise typer.BadParameter("; ".join(lines)) from error


def serve(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; default 50051. 0 takes a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Workers beside the API; default 1, 0 for none.")] = None,
    auth: Annotated[str | None, typer.Option(help="none or tokens; default none.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of the Prometheus endpoint; default none.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error; default info.")] = None,
    studio: Annotated[
        bool, typer.Option("--studio", help="Serve the studio's page, too; see `homophily studio`.")
    ] = False,
    assignments: Set = None,
) -> None:
    """Run the API and its workers until Ctrl-C or SIGTERM."""
    # Imported late: a client's commands need not load the server.
    from homophily_service.runtime.start import imports

    with imports():
        from homophily_service.api import server
        from homophily_service.cli.own_service import beside
        from homophily_service.cli.studio import DEFAULT_PORT as usual
        from homophily_service.runtime.logs import start_logging
        from homophily_service.runtime.ports import is_free

    settings = settings_from(
        config,
        assignments,
        data_dir=data_dir,
        host=host,
        port=port,
        workers=workers,
        auth=auth,
        metrics_port=metrics_port,
        log_level=log_level,
    )
    start_logging(settings.log_level)
    if studio and settings.tls_certificate is not None:
        raise WrongInput("--studio does not know the service's CA: run `homophily studio --ca FILE` beside it")
    with ExitStack() as stack:

        def started(running: server.Server) -> None:
            print_result(f"Homophily serves on {settings.host}:{running.port}, with {settings.workers} worker(s)")
            print_result(f"Everything is kept in {settings.data_dir.absolute()}; Ctrl-C stops.")
            if studio:
                # Another studio may be on the usual port.
                free = usual if is_free(LOOPBACK, usual) else 0
                stack.enter_context(beside("studio", f"--target={LOOPBACK}:{running.port}", f"--port={free}"))

        server.run_server(settings, started)


def worker(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port of its Prometheus endpoint; default none.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error; default info.")] = None,
    assignments: Set = None,
) -> None:
    """Run one worker on the same database and blobs as the API, until Ctrl-C or SIGTERM."""
    from homophily_service.runtime.start import imports

    with imports():
        from homophily_service.runtime.logs import start_logging
        from homophily_service.worker.metrics import serve_metrics
        from homophily_service.worker.supervisor import Worker, run_worker

    settings = settings_from(config, assignments, data_dir=data_dir, metrics_port=metrics_port, log_level=log_level)
    start_logging(settings.log_level)

    def started(running: Worker) -> None:
        if settings.metrics_port is not None:
            serve_metrics(running, settings)

    run_worker(settings, started)


def tracker(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error; default info.")] = None,
    assignments: Set = None,
) -> None:
    """Send the jobs' runs to MLflow, for a `homophily serve` with tracker = false, until Ctrl-C or SIGTERM."""
    from homophily_service.runtime.logs import start_logging
    from homophily_service.runtime.processes import thread_variables

    settings = settings_from(config, assignments, data_dir=data_dir, log_level=log_level)
    start_logging(settings.log_level)
    # This must happen before NumPy is loaded.
    os.environ.update(thread_variables(1))
    from homophily_service.tracking.tracker import run_tracker

    run_tracker(settings)


def ui(
    config: ConfigFile = None,
    data_dir: DataDir = None,
    port: Annotated[int, typer.Option(help="Port on this machine; 0 takes a free one.")] = 5000,
    assignments: Set = None,
) -> None:
    """Serve MLflow's pages about the runs in the data directory, until Ctrl-C or SIGTERM."""
    from homophily_service.runtime.ports import check_port
    from homophily_service.tracking.place import Place, pages_command

    settings = settings_from(config, assignments, data_dir=data_dir)
    place = Place.of(settings)
    if place.artifacts is None:
        print_result(f"The runs are in {place.shown}" + (f", its pages at {place.url}" if place.url else ""))
        return
    if not any((settings.data_dir / file).exists() for file in ("homophily.db", "mlflow.db")):
        raise WrongInput(
            f"{settings.data_dir.absolute()} is no data directory of Homophily: give --data-dir the folder that "
            "`homophily serve` names when it starts."
        )
    check_port("127.0.0.1", port)
    if not port:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
    command, environment = pages_command(settings, port)
    print_result(f"MLflow's pages are on http://127.0.0.1:{port} in a few seconds; Ctrl-C stops.")
    # Replace this process, so that MLflow gets the signals.
    os.execve(command[0], command, environment)


def show_config(
    config: ConfigFile = None, data_dir: DataDir = None, assignments: Set = None, as_json: AsJson = False
) -> None:
    """Print every setting with its value and meaning, as a file for --config; secrets are left out."""
    from pydantic import SecretStr

    from homophily_service.runtime.settings import Settings

    settings = settings_from(config, assignments, data_dir=data_dir)
    values = settings.model_dump(mode="json")
    if as_json:
        print_json(values)
        return
    lines = ["# Settings of Homophily. Flags come first, then HOMOPHILY_<NAME> in the environment, then this file."]
    for name, field in Settings.model_fields.items():
        if values[name] is None:
            value = f"# {name} ="
        elif isinstance(getattr(settings, name), SecretStr):
            # Stars in its place would be read as its value.
            value = f"# {name} =  # given, but not shown: it is secret"
        else:
            value = f"{name} = {_toml(values[name])}"
        lines += ["", f"# {field.description}", value]
    typer.echo("\n".join(lines))


def _toml(value: Any) -> str:
    """A value in TOML; strings and numbers are as in JSON, except for characters escaped as surrogate pairs."""
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items() if one is not None) + "}"


def health(
    target: Target = DEFAULT_TARGET,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="How long to wait.")] = 5.0,
    tls: Tls = False,
    ca: Ca = None,
    certificate: Certificate = None,
    key: Key = None,
    worker_at: Annotated[
        str | None,
        typer.Option("--worker", metavar="HOST:PORT", help="Ask a worker instead, at its Prometheus endpoint."),
    ] = None,
    silence: Annotated[float, typer.Option(metavar="SECONDS", help="How long a worker may be silent.")] = 60.0,
    alive: Annotated[
        bool, typer.Option("--alive", help="For a worker: whether it is alive, even if it cannot compute.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask whether the service is ready; the exit code is 0 if it is."""
    if worker_at is not None:
        from homophily_service.cli.store import worker_state

        target, state = worker_at, worker_state(worker_at, timeout, silence, only_alive=alive)
    else:
        from homophily_client.tls import channel_credentials

        state = ask_health(target, timeout, channel_credentials(tls=tls, ca=ca, certificate=certificate, key=key))
    if as_json:
        print_json({"target": target, "state": state})
    elif state is None:
        print_status(f"Error: {target} cannot be reached within {timeout:g} s", "red")
    else:
        print_result(f"{target}: {state}")
    raise typer.Exit(0 if state == "SERVING" else UNREACHABLE if state is None else FAILED)


def ask_health(target: str, timeout: float, credentials: grpc.ChannelCredentials | None = None) -> str | None:
    """The answer of the standard health service; None if there is none."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    connect = grpc.insecure_channel(target) if credentials is None else grpc.secure_channel(target, credentials)
    with connect as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(service=SERVICE), timeout=timeout, wait_for_ready=True)
        except grpc.RpcError:
            return None
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


token = typer.Typer(
    cls=Group, help="Create, list and revoke tokens for a service with auth = tokens.", no_args_is_help=True
)


@token.command("create", cls=Command)
def create_token(
    project: Annotated[str, typer.Option(help="The project it gives access to; * for all.")] = "default",
    description: Annotated[str, typer.Option(help="A text for people.")] = "",
    expires: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="How long it is valid: 90m, 12h, 30d or 52w; for ever if not given."),
    ] = None,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Create a token. It is shown once: only its hash is stored."""
    from homophily_service.contract.errors import InvalidRequest

    seconds = None if expires is None else _length(expires)
    settings = settings_from(config, assignments, data_dir=data_dir)
    try:
        with _tokens(settings) as tokens:
            identifier, secret = tokens.create(project, description, seconds)
    except InvalidRequest as error:
        raise typer.BadParameter(error.message) from error
    _note(settings, "token created", identifier, project=project)
    facts = {"id": identifier, "project": project, "token": secret, "expires": expires}
    if as_json:
        print_json(facts)
    else:
        print_facts({name: value for name, value in facts.items() if value is not None})


def _length(text: str) -> float:
    """The seconds in a duration such as 30d."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS or not number.isascii() or not number.isdigit():
        raise typer.BadParameter(f"--expires must be an integer followed by m, h, d or w. Got {text!r} instead.")
    return float(number) * _UNITS[unit]


@token.command("list", cls=Command)
def list_tokens(
    config: ConfigFile = None, data_dir: DataDir = None, assignments: Set = None, as_json: AsJson = False
) -> None:
    """List the tokens."""
    with _tokens(settings_from(config, assignments, data_dir=data_dir)) as tokens:
        rows = tokens.all()
    if as_json:
        keys = ("id", "project", "description", "created", "expires", "revoked")
        print_json([{key: getattr(row, key) for key in keys} for row in rows])
    else:
        columns = ["id", "project", "description", "expires", "revoked"]
        shown_rows = [
            (row.id, row.project, row.description, _day(row.expires), row.revoked is not None) for row in rows
        ]
        print_table("", columns, shown_rows)


def _day(time: float | None) -> str:
    """A time for people."""
    return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d %H:%M} UTC"


@token.command("revoke", cls=Command)
def revoke_token(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="The id that `homophily token list` shows.")],
    config: ConfigFile = None,
    data_dir: DataDir = None,
    assignments: Set = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a token; servers notice within seconds."""
    from homophily_service.contract.errors import NotFound

    settings = settings_from(config, assignments, data_dir=data_dir)
    try:
        with _tokens(settings) as tokens:
            tokens.revoke(identifier)
        _note(settings, "token revoked", identifier)
    except NotFound as error:
        print_status(f"Error: {error.message}", "red")
        raise typer.Exit(NOT_FOUND) from None
    if as_json:
        print_json({"revoked": identifier})
    else:
        print_status(f"Revoked {identifier}.")


@contextmanager
def _tokens(settings: Settings) -> Iterator[Tokens]:
    """The tokens in a database, which must have been migrated."""
    from homophily_service.storage.database import Database
    from homophily_service.storage.tokens import Tokens

    database = Database(settings.database)
    try:
        database.check_is_new_enough()
        yield Tokens(database)
    finally:
        database.close()


def _note(settings: Settings, action: str, token: str, **more: str) -> None:
    """Write a line to the audit file, if there is one, with the system user who ran the command."""
    if settings.audit_file is None or settings.audit == "off":
        return
    import getpass

    from homophily_service.api.audit import note, start_audit

    stop = start_audit(settings)
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    note(action, token=token, user=user, **more)
    stop()
