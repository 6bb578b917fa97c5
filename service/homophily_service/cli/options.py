"""Options that several commands share, as groups: a command takes a group as one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from homophily_service.cli.failures import INTERRUPTED, WrongInput
from homophily_service.cli.screen import say

if TYPE_CHECKING:
    from homophily_service.client import Client

DEFAULT_TARGET = "127.0.0.1:50051"

_SERVICE, _GRAPH, _SOLVER, _JOB = "Service", "Graph", "Solver", "Job"
_SEARCH = "Search"

Target = Annotated[
    str, typer.Option(envvar="HOMOPHILY_TARGET", metavar="HOST:PORT", help="The service.", rich_help_panel=_SERVICE)
]
Tls = Annotated[
    bool,
    typer.Option("--tls/--no-tls", envvar="HOMOPHILY_TLS", help="Speak TLS.", rich_help_panel=_SERVICE),
]


def _pem(variable: str, sentence: str) -> Any:
    return typer.Option(
        envvar=variable, metavar="FILE", help=sentence, rich_help_panel=_SERVICE, exists=True, dir_okay=False
    )


Ca = Annotated[Path | None, _pem("HOMOPHILY_CA", "PEM file of CAs to trust; means --tls.")]
Certificate = Annotated[Path | None, _pem("HOMOPHILY_CERTIFICATE", "PEM file to show the service (mutual TLS).")]
Key = Annotated[Path | None, _pem("HOMOPHILY_KEY", "PEM file of the certificate's key.")]


@dataclass(frozen=True)
class Service:
    """Where the service is, and who we are there."""

    target: Target = DEFAULT_TARGET
    token: Annotated[
        str | None,
        typer.Option(envvar="HOMOPHILY_TOKEN", metavar="TOKEN", help="If it wants one.", rich_help_panel=_SERVICE),
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
        from homophily_service.client import Client

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
class GraphOptions:
    """Parameters of the graph, by the core's names; None takes the default."""

    n_neighbors: Annotated[
        int | None, typer.Option(help="Neighbours of each point; 10.", metavar="K", rich_help_panel=_GRAPH)
    ] = None
    metric: Annotated[
        str | None,
        typer.Option(
            help="euclidean, or cosine (the default for sparse points).", metavar="WORD", rich_help_panel=_GRAPH
        ),
    ] = None
    weights: Annotated[
        str | None, typer.Option(help="local, self-tuning, global or fixed.", metavar="WORD", rich_help_panel=_GRAPH)
    ] = None
    sigma_x: Annotated[
        float | None,
        typer.Option(help="The width of fixed weights; a factor of others.", metavar="NUMBER", rich_help_panel=_GRAPH),
    ] = None
    exponent: Annotated[
        int | None, typer.Option(help="Of the distance in the weight, 1 or 2.", metavar="N", rich_help_panel=_GRAPH)
    ] = None
    symmetrize: Annotated[str | None, typer.Option(help="max or mean.", metavar="WORD", rich_help_panel=_GRAPH)] = None
    space: Annotated[
        str | None,
        typer.Option(
            help="Where neighbours are searched: input, principal or whitened.", metavar="WORD", rich_help_panel=_GRAPH
        ),
    ] = None
    n_directions: Annotated[
        int | None,
        typer.Option(help="Principal directions that count; 50, whitened all.", metavar="N", rich_help_panel=_GRAPH),
    ] = None


@dataclass(frozen=True)
class SolverOptions:
    """Parameters of the solver, by the core's names; None takes the default."""

    method: Annotated[str, typer.Option(help="err or irr.", metavar="WORD", rich_help_panel=_SOLVER)] = "err"
    power: Annotated[
        int | None, typer.Option(help="The power p of the Laplacian; 2.", metavar="P", rich_help_panel=_SOLVER)
    ] = None
    lambda1: Annotated[
        float | None,
        typer.Option("--lambda1", help="Weight of smooth values.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    lambda2: Annotated[
        float | None,
        typer.Option(
            "--lambda2", help="ERR: weight of smooth relationships.", metavar="NUMBER", rich_help_panel=_SOLVER
        ),
    ] = None
    sigma_f: Annotated[
        float | None,
        typer.Option(help="ERR: width of the relationship function.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    repulsion: Annotated[
        float | None,
        typer.Option(help="ERR: how much of the push apart counts; 0.65.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    max_iter: Annotated[int | None, typer.Option(help="ERR: steps at most.", metavar="N", rich_help_panel=_SOLVER)] = (
        None
    )
    tol: Annotated[
        float | None, typer.Option(help="Where the solver stops.", metavar="NUMBER", rich_help_panel=_SOLVER)
    ] = None
    normalized: Annotated[
        str | None,
        typer.Option(help="The Laplacian: true or false; true.", metavar="WORD", rich_help_panel=_SOLVER),
    ] = None
    relationship_neighbors: Annotated[
        int | None,
        typer.Option(help="Sparse ERR: relationships with so many points.", metavar="N", rich_help_panel=_SOLVER),
    ] = None
    multiclass: Annotated[
        str | None, typer.Option(help="ERR: vector or one-vs-rest.", metavar="WORD", rich_help_panel=_SOLVER)
    ] = None
    class_prior: Annotated[
        str | None,
        typer.Option(help="estimate, or the classes' shares: 0.8,0.2.", metavar="SHARES", rich_help_panel=_SOLVER),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """What ``Client.fit`` takes."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        if self.class_prior is not None and self.class_prior != "estimate":
            given["class_prior"] = numbers(self.class_prior, float, "--class-prior")
        given["normalized"] = _truth(self.normalized, "--normalized")
        return given


@dataclass(frozen=True)
class SearchOptions:
    """A search for the hyper-parameters that are not given."""

    search: Annotated[
        bool, typer.Option("--search", help="Look for the parameters that are not given.", rich_help_panel=_SEARCH)
    ] = False
    trials: Annotated[
        int | None, typer.Option(help="Settings to try at most; 60, IRR 36.", metavar="N", rich_help_panel=_SEARCH)
    ] = None
    search_seconds: Annotated[
        float | None, typer.Option(help="No more are begun after so long.", metavar="S", rich_help_panel=_SEARCH)
    ] = None
    seed: Annotated[int | None, typer.Option(help="Of the search.", metavar="N", rich_help_panel=_SEARCH)] = None
    spread: Annotated[
        bool, typer.Option("--spread", help="Spread the trials over all workers.", rich_help_panel=_SEARCH)
    ] = False
    warm_start: Annotated[
        bool,
        typer.Option(
            "--warm-start", help="Start ERR trials from each other: faster, less exact.", rich_help_panel=_SEARCH
        ),
    ] = False
    vary: Annotated[
        str | None,
        typer.Option(
            help="What to look for, with commas: space, n_directions, n_neighbors, weights, sigma_x, lambda1, sigma_f, "
            "lambda2, repulsion, power. Without it all but the last two.",
            metavar="NAMES",
            rich_help_panel=_SEARCH,
        ),
    ] = None

    def argument(self) -> dict[str, Any] | None:
        """What ``Client.fit`` takes."""
        vary = None if self.vary is None else [name.strip() for name in self.vary.split(",")]
        every: dict[str, Any] = {"trials": self.trials, "seconds": self.search_seconds, "seed": self.seed}
        every |= {"spread": self.spread, "warm_start": self.warm_start, "vary": vary}
        given = {name: value for name, value in every.items() if value}
        if given and not self.search:
            raise WrongInput(
                "--trials, --search-seconds, --seed, --spread, --warm-start and --vary are of a --search, which is not "
                "asked for."
            )
        return given if self.search else None


@dataclass(frozen=True)
class RegistrationOptions:
    """Where the model is to be registered."""

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
            raise WrongInput("--alias is for the version of a --register, which is not asked for.")
        return {"register": self.register, "aliases": self.alias or ()}


@dataclass(frozen=True)
class MapOptions:
    """Parameters of a map, by the core's names; None takes the default."""

    data_weight: Annotated[
        float | None,
        typer.Option(help="Weight of staying near the spectral map.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    lambda2: Annotated[
        float | None,
        typer.Option("--lambda2", help="Weight of smooth relationships.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    lambda3: Annotated[
        float | None, typer.Option("--lambda3", help="Weight of a link.", metavar="NUMBER", rich_help_panel=_SOLVER)
    ] = None
    sigma_f: Annotated[
        float | None,
        typer.Option(help="Width of the relationship function.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    continuation: Annotated[
        float | None,
        typer.Option(help="Begin with a width so many times larger.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    repulsion: Annotated[
        float | None,
        typer.Option(help="How much of the push apart counts.", metavar="NUMBER", rich_help_panel=_SOLVER),
    ] = None
    closure: Annotated[
        str | None,
        typer.Option(
            help="Conclude more links from the given ones: true, false or two-class.",
            metavar="WORD",
            rich_help_panel=_SOLVER,
        ),
    ] = None
    link_edges: Annotated[
        float | None,
        typer.Option(
            help="Weight of a link as an edge of the spectral map's graph.", metavar="NUMBER", rich_help_panel=_SOLVER
        ),
    ] = None
    link_loss: Annotated[
        str | None,
        typer.Option(help="What a must-link costs: log or squared.", metavar="WORD", rich_help_panel=_SOLVER),
    ] = None
    relationship: Annotated[
        str | None,
        typer.Option(help="The relationship function: gaussian or cauchy.", metavar="WORD", rich_help_panel=_SOLVER),
    ] = None
    lambda2_per_link: Annotated[
        str | None,
        typer.Option(
            "--lambda2-per-link",
            help="Divide lambda2 by the number of links: true or false; false.",
            metavar="WORD",
            rich_help_panel=_SOLVER,
        ),
    ] = None
    max_iter: Annotated[int | None, typer.Option(help="Steps at most.", metavar="N", rich_help_panel=_SOLVER)] = None
    tol: Annotated[
        float | None, typer.Option(help="Where the solver stops.", metavar="NUMBER", rich_help_panel=_SOLVER)
    ] = None
    normalized: Annotated[
        str | None,
        typer.Option(help="The Laplacian: true or false; true.", metavar="WORD", rich_help_panel=_SOLVER),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """What ``Client.embed`` takes."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        given["normalized"] = _truth(self.normalized, "--normalized")
        given["lambda2_per_link"] = _truth(self.lambda2_per_link, "--lambda2-per-link")
        if self.closure != "two-class":
            given["closure"] = _truth(self.closure, "--closure")
        return given


@dataclass(frozen=True)
class JobOptions:
    """How a job is run and waited for."""

    detach: Annotated[bool, typer.Option("--detach", help="Print the job's name and return.", rich_help_panel=_JOB)] = (
        False
    )
    wait: Annotated[
        float | None,
        typer.Option(help="Wait at most so long; the job goes on.", min=0.0, metavar="SECONDS", rich_help_panel=_JOB),
    ] = None
    priority: Annotated[
        int, typer.Option(help="-100 to 100; higher ones start first.", metavar="N", rich_help_panel=_JOB)
    ] = 0
    time_limit: Annotated[
        float | None, typer.Option(help="How long an attempt may take.", metavar="SECONDS", rich_help_panel=_JOB)
    ] = None


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function as typer takes it: groups of options spread out, Ctrl-C as a sentence."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            inner = get_type_hints(groups[name], include_extras=True)
            found = [(field.name, inner[field.name], field.default) for field in fields(groups[name])]
        else:
            found = [(name, hints[name], parameter.default)]
        parameters += [
            inspect.Parameter(one, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
            for one, hint, default in found
        ]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        try:
            function(**values)
        except KeyboardInterrupt:
            say("Interrupted.")
            raise typer.Exit(INTERRUPTED) from None

    # typer reads these; what functools has copied are the function's own.
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _truth(word: str | None, option: str) -> bool | None:
    if word is None:
        return None
    if word.lower() not in ("true", "false"):
        more = ", or two-class" if option == "--closure" else ""
        raise WrongInput(f"{option} must be true or false{more}. Got {word!r} instead.")
    return word.lower() == "true"


def numbers(text: str, kind: type[int] | type[float], option: str) -> list[Any]:
    """Numbers with commas between them."""
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        expected = "whole numbers" if kind is int else "numbers"
        raise WrongInput(f"{option} must be {expected} with commas between them. Got {text!r} instead.") from None
