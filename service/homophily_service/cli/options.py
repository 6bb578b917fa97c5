"""Options that several commands share, in groups: a command takes a group as one parameter."""

from __future__ import annotations

import csv
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from homophily_client.options import GraphOptions, MapOptions, SolverOptions
from homophily_service.cli.failures import INTERRUPTED, WrongInput
from homophily_service.cli.screen import print_status
from homophily_service.contract.parameters import GRAPH, MAP, SEARCHED, SOLVER, Group, Parameter, Shares

if TYPE_CHECKING:
    from homophily_client import Client
    from homophily_client.tables import TableOptions

DEFAULT_TARGET = "127.0.0.1:50051"

_SERVICE, _GRAPH, _SOLVER, _JOB = "Service", "Graph", "Solver", "Job"
_SEARCH, _TABLE = "Search", "Table"
_METAVARS = {int: "N", float: "NUMBER"}
#: Groups of the client's options, whose command-line options are made from the table of parameters.
_TABLES = {GraphOptions: GRAPH, SolverOptions: SOLVER, MapOptions: MAP}

Target = Annotated[
    str,
    typer.Option(
        envvar="HOMOPHILY_TARGET", metavar="HOST:PORT", help="Address of the service.", rich_help_panel=_SERVICE
    ),
]
Tls = Annotated[
    bool,
    typer.Option("--tls/--no-tls", envvar="HOMOPHILY_TLS", help="Use TLS.", rich_help_panel=_SERVICE),
]


def _pem(variable: str, sentence: str) -> Any:
    return typer.Option(
        envvar=variable, metavar="FILE", help=sentence, rich_help_panel=_SERVICE, exists=True, dir_okay=False
    )


Ca = Annotated[Path | None, _pem("HOMOPHILY_CA", "PEM file of CAs to trust; implies --tls.")]
Certificate = Annotated[Path | None, _pem("HOMOPHILY_CERTIFICATE", "PEM file to show the service (mutual TLS).")]
Key = Annotated[Path | None, _pem("HOMOPHILY_KEY", "PEM file of the certificate's key.")]


@dataclass(frozen=True)
class Service:
    """The service's address, and the caller's credentials."""

    target: Target = DEFAULT_TARGET
    token: Annotated[
        str | None,
        typer.Option(
            envvar="HOMOPHILY_TOKEN",
            metavar="TOKEN",
            help="Bearer token, if the service requires one.",
            rich_help_panel=_SERVICE,
        ),
    ] = None
    project: Annotated[
        str,
        typer.Option(
            envvar="HOMOPHILY_PROJECT", metavar="ID", help="The project of short names.", rich_help_panel=_SERVICE
        ),
    ] = "default"
    tls: Tls = False
    ca: Ca = None
    certificate: Certificate = None
    key: Key = None

    def client(self) -> Client:
        """A connection."""
        from homophily_client import Client

        return Client(
            self.target,
            token=self.token,
            project=self.project,
            tls=self.tls,
            ca=self.ca,
            certificate=self.certificate,
            key=self.key,
        )


@dataclass(frozen=True)
class ColumnOptions:
    """What the columns of a table are, and how its rows become points."""

    label_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="The labels, by name or number (from 0; -1 is the last); in .npz the array's name.",
            rich_help_panel=_TABLE,
        ),
    ] = None
    id_column: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Names the rows; default the first column of strings or integers that all differ.",
            rich_help_panel=_TABLE,
        ),
    ] = None
    weight_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Confidence in each label.", rich_help_panel=_TABLE)
    ] = None
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="The features; default all other columns.", rich_help_panel=_TABLE),
    ] = None
    drop: Annotated[
        str | None, typer.Option(metavar="A,B,…", help="Columns that are no features.", rich_help_panel=_TABLE)
    ] = None
    categories: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Columns of numbers that are categories.", rich_help_panel=_TABLE),
    ] = None
    text: Annotated[
        str | None,
        typer.Option(metavar="A,B,…", help="Columns whose words are compared (TF-IDF).", rich_help_panel=_TABLE),
    ] = None
    scale: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Standardise numbers: auto (if their scales differ), none or standard.",
            rich_help_panel=_TABLE,
        ),
    ] = "auto"
    missing: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="Replace missing numbers by the median or mean, or refuse them.",
            rich_help_panel=_TABLE,
        ),
    ] = "median"

    def options(self) -> TableOptions:
        """What the client takes."""
        from homophily_client.tables import TableOptions

        for option, given, known in (
            ("--scale", self.scale, ("auto", "none", "standard")),
            ("--missing", self.missing, ("median", "mean", "refuse")),
        ):
            if given not in known:
                raise WrongInput(f"{option} must be one of {', '.join(known)}. Got {given!r} instead.")
        return TableOptions(
            label_column=self.label_column,
            id_column=self.id_column,
            weight_column=self.weight_column,
            columns=names(self.columns) or None,
            drop=names(self.drop),
            categories=names(self.categories),
            text=names(self.text),
            scale=self.scale,
            missing=self.missing,
        )


def names(text: str | None) -> tuple[str, ...]:
    """Names with commas between them; quotes keep a comma inside a name."""
    if text is None:
        return ()
    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), []) if name.strip())


@dataclass(frozen=True)
class LocalSearchOptions:
    """Options of the search for the hyper-parameters that are not given, in one process."""

    search: Annotated[
        bool, typer.Option("--search", help="Search for the parameters that are not given.", rich_help_panel=_SEARCH)
    ] = False
    trials: Annotated[
        int | None,
        typer.Option(help="Largest number of trials; default 60, for IRR 36.", metavar="N", rich_help_panel=_SEARCH),
    ] = None
    search_seconds: Annotated[
        float | None, typer.Option(help="Start no more trials after this time.", metavar="S", rich_help_panel=_SEARCH)
    ] = None
    seed: Annotated[int | None, typer.Option(help="Seed of the search.", metavar="N", rich_help_panel=_SEARCH)] = None
    warm_start: Annotated[
        bool,
        typer.Option(
            "--warm-start",
            help="Start ERR trials from each other's solutions: faster, less exact.",
            rich_help_panel=_SEARCH,
        ),
    ] = False
    vary: Annotated[
        str | None,
        typer.Option(
            help=f"Parameters to search, with commas: {', '.join(SEARCHED)}. Default: all but repulsion and power.",
            metavar="NAMES",
            rich_help_panel=_SEARCH,
        ),
    ] = None

    def argument(self) -> dict[str, Any] | None:
        """What ``Client.fit`` takes."""
        vary = None if self.vary is None else [name.strip() for name in self.vary.split(",")]
        every: dict[str, Any] = {"trials": self.trials, "seconds": self.search_seconds, "seed": self.seed}
        every |= {"warm_start": self.warm_start, "vary": vary} | self._more()
        given = {name: value for name, value in every.items() if value}
        if given and not self.search:
            *others, last = (f"--{field.name.replace('_', '-')}" for field in fields(self) if field.name != "search")
            raise WrongInput(f"{', '.join(others)} and {last} need --search.")
        return given if self.search else None

    def _more(self) -> dict[str, Any]:
        """What only a service can do."""
        return {}


@dataclass(frozen=True)
class SearchOptions(LocalSearchOptions):
    """Options of the search, by the workers of a service."""

    spread: Annotated[
        bool, typer.Option("--spread", help="Spread the trials over all workers.", rich_help_panel=_SEARCH)
    ] = False

    def _more(self) -> dict[str, Any]:
        return {"spread": self.spread}


@dataclass(frozen=True)
class RegistrationOptions:
    """Options to register the model."""

    register: Annotated[
        str | None,
        typer.Option(help="Register the model in MLflow, under this name.", metavar="NAME", rich_help_panel=_JOB),
    ] = None
    alias: Annotated[
        list[str] | None,
        typer.Option(help="A name for the new version. May be repeated.", metavar="WORD", rich_help_panel=_JOB),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """What ``Client.fit`` takes."""
        if self.alias and self.register is None:
            raise WrongInput("--alias names the version that --register creates: give --register too.")
        return {"register": self.register, "aliases": self.alias or ()}


@dataclass(frozen=True)
class JobOptions:
    """How a job is run and waited for."""

    detach: Annotated[bool, typer.Option("--detach", help="Print the job's name and return.", rich_help_panel=_JOB)] = (
        False
    )
    wait: Annotated[
        float | None,
        typer.Option(
            help="Wait at most this long; the job continues.", min=0.0, metavar="SECONDS", rich_help_panel=_JOB
        ),
    ] = None
    priority: Annotated[
        int, typer.Option(help="-100 to 100; jobs of higher priority start first.", metavar="N", rich_help_panel=_JOB)
    ] = 0
    time_limit: Annotated[
        float | None, typer.Option(help="How long an attempt may take.", metavar="SECONDS", rich_help_panel=_JOB)
    ] = None

    def argument(self, request_id: str) -> dict[str, Any]:
        """What the client's methods take as ``job``."""
        return {"priority": self.priority, "time_limit": self.time_limit, "request_id": request_id}


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command of typer: expand groups of options, and report Ctrl-C in a sentence.

    A parameter that is a dataclass is replaced by its fields. Those of the client's options come from the table of
    parameters.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        found = _spread(groups[name]) if name in groups else [(name, hints[name], parameter.default)]
        parameters += [
            inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for one, hint, default in found
        ]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            given = {field.name: values.pop(field.name) for field in fields(group)}
            if group in _TABLES:
                given = {row.name: _parsed(_TABLES[group], row, given[row.name]) for row in _TABLES[group]}
            values[name] = group(**given)
        try:
            function(**values)
        except KeyboardInterrupt:
            print_status("Interrupted.")
            raise typer.Exit(INTERRUPTED) from None

    # typer reads these; functools has copied those of the function.
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _spread(group: Any) -> list[tuple[str, Any, Any]]:
    """The options of a group: name, annotation, default."""
    if group not in _TABLES:
        hints = get_type_hints(group, include_extras=True)
        return [(field.name, hints[field.name], field.default) for field in fields(group)]
    panel = _GRAPH if group is GraphOptions else _SOLVER
    return [
        (
            row.name,
            Annotated[
                (row.type if row.type in _METAVARS else str) | None,
                typer.Option(
                    f"--{row.name.replace('_', '-')}",
                    help=row.help,
                    metavar=_METAVARS.get(row.type, "SHARES" if row.type is Shares else "WORD"),
                    rich_help_panel=panel,
                ),
            ],
            None,
        )
        for row in _TABLES[group]
    ]


def _parsed(group: Group, row: Parameter, value: Any) -> Any:
    """Parse the value of an option, given as a word."""
    option = f"--{row.name.replace('_', '-')}"
    if value is None or row.type in _METAVARS:
        return value
    if row.type is Shares:
        return value if value in Shares.WORDS else _shares(value, option)
    known = {"true": True, "false": False} if row.type is bool else _words(group, row)
    if value.lower() not in known:
        raise WrongInput(f"{option} must be one of {', '.join(known)}. Got {value!r} instead.")
    return known[value.lower()]


def _shares(text: str, option: str) -> list[Any]:
    """Parse shares, as in 0.2,0.8, or bounds of them, as in 0.1:0.3,0.7:0.9."""
    if ":" not in text:
        return numbers(text, float, option)
    bounds = [part.split(":") for part in text.split(",")]
    if any(len(pair) != 2 for pair in bounds):
        raise WrongInput(f"{option} must have a low:high for every class. Got {text!r} instead.")
    return [tuple(numbers(",".join(pair), float, option)) for pair in bounds]


def _words(group: Group, row: Parameter) -> dict[str, Any]:
    # Imported only if such an option is given: the protos take a while to load.
    from homophily_client._pb import embedding_pb2, model_pb2
    from homophily_service.contract.values import choices

    message = getattr(model_pb2, group.message, None) or getattr(embedding_pb2, group.message)
    return {str(word).lower(): word for word in choices(row, message)}


def numbers(text: str, kind: type[int] | type[float], option: str) -> list[Any]:
    """Parse numbers separated by commas."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        expected = "integers" if kind is int else "numbers"
        raise WrongInput(f"{option} must be {expected} separated by commas. Got {text!r} instead.") from None
