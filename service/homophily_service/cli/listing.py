"""Commands that list, show and delete what the service stores."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_service.cli.failures import INTERRUPTED, WrongInput
from homophily_service.cli.options import Service, command
from homophily_service.cli.screen import AsJson, percent, print_json, print_json_line, print_status, print_table, size

if TYPE_CHECKING:
    from homophily_client import Client

JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="The job's short or full name.")]
Limit = Annotated[int, typer.Option(metavar="N", min=1, help="The largest number to list, newest first.")]
OldestFirst = Annotated[bool, typer.Option("--oldest-first", help="List the oldest first.")]
Of = Annotated[str | None, typer.Option("--dataset", metavar="DATASET", help="Only those of this dataset's points.")]


@command
def jobs(
    *,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD", help="Only queued, running, waiting, succeeded, failed or cancelled ones. May be repeated."
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="WORD", help="Only fit, transduce, embed, trial, import, create-dataset or append-points."
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only those about datasets/ID, models/ID or embeddings/ID, or a full name."),
    ] = None,
    oldest_first: OldestFirst = False,
    limit: Limit = 20,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """List jobs, newest first."""
    from homophily_client import JobState
    from homophily_service.cli.show import ago, plain, short, stage, took

    words = [str(one) for one in JobState if one != JobState.UNSPECIFIED]
    for one in state or ():
        if one not in words:
            raise WrongInput(f"--state must be one of {', '.join(words)}. Got {one!r} instead.")
    with service.client() as client:
        full = f"projects/{service.project}/{source}" if source is not None and source.count("/") == 1 else source
        listed = client.list_jobs(states=state or (), kind=kind, source=full, oldest_first=oldest_first)
        found = [job.info for job in itertools.islice(listed, limit)]
    if as_json:
        print_json(plain(found))
    else:
        rows = [(short(job.name), job.kind, stage(job), ago(job.create_time), took(job)) for job in found]
        print_table("", ["job", "kind", "state", "asked for", "seconds"], rows)


@command
def job(*, name: JobArgument, service: Service, as_json: AsJson = False) -> None:
    """Show a job."""
    from homophily_service.cli.show import plain, print_job

    with service.client() as client:
        found = client.job(name).info
    if as_json:
        print_json(plain(found))
    else:
        print_job(found)


@command
def watch(
    *,
    name: JobArgument,
    registered: Annotated[
        bool, typer.Option("--registered", help="Then wait until its model is registered in MLflow.")
    ] = False,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Follow a job to its end, from its beginning. Ctrl-C leaves it running.

    With --json, a line for each event, and one for the job at its end.
    """
    from homophily_service.cli.progress import Follower
    from homophily_service.cli.show import plain, short
    from homophily_service.cli.submit import print_outcome

    with service.client() as client:
        found = client.job(name)
        try:
            if as_json:
                for event in found.watch():
                    print_json_line({"event": plain(event)})
                if registered and found.info.model is not None:
                    found.registered()
                print_json_line({"job": plain(found.info)})
            else:
                Follower().follow(found)
                if registered and found.info.model is not None:
                    print_status("Waiting for MLflow to register the model …")
                    found.registered()
                print_outcome(found, as_json=False)
        except KeyboardInterrupt:
            print_status(f"Left. The job continues; homophily cancel {short(found.name)} stops it.")
            raise typer.Exit(INTERRUPTED) from None
        if found.info.error is not None or found.info.state == "cancelled":
            found.result()


@command
def cancel(*, name: JobArgument, service: Service, as_json: AsJson = False) -> None:
    """Cancel a job: at once if it is queued, within seconds if it runs."""
    from homophily_service.cli.show import plain, print_job

    with service.client() as client:
        found = client.job(name).cancel()
    if as_json:
        print_json(plain(found))
    else:
        print_job(found)


@command
def models(
    *,
    dataset: Of = None,
    oldest_first: OldestFirst = False,
    limit: Limit = 20,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """List models, newest first."""
    from homophily_service.cli.show import ago, plain, short

    with service.client() as client:
        found = list(itertools.islice(client.list_models(dataset=dataset, oldest_first=oldest_first), limit))
    if as_json:
        print_json(plain(found))
        return
    rows = [
        (
            short(one.name),
            str(one.solver_parameters.get("method", "err")).upper(),
            one.points,
            one.labelled,
            len(one.classes),
            percent(one.error_rate),
            percent(None if one.test is None else one.test.error_rate),
            ago(one.create_time),
        )
        for one in found
    ]
    errors = ["validation error", "test error"]
    print_table("", ["model", "method", "points", "labelled", "classes", *errors, "made"], rows)


@command
def model(
    *,
    name: Annotated[str, typer.Argument(metavar="MODEL", help="The model's short or full name.")],
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Show a model."""
    from homophily_service.cli.show import plain, print_model

    with service.client() as client:
        found = client.get_model(name)
    if as_json:
        print_json(plain(found))
    else:
        print_model(found)


@command
def datasets(
    *, oldest_first: OldestFirst = False, limit: Limit = 20, service: Service, as_json: AsJson = False
) -> None:
    """List datasets, newest first."""
    from homophily_service.cli.show import ago, plain, short

    with service.client() as client:
        found = list(itertools.islice(client.list_datasets(oldest_first=oldest_first), limit))
    if as_json:
        print_json(plain(found))
        return
    rows = [
        (
            short(one.name),
            one.points,
            one.dimensions,
            "sparse" if one.is_sparse else "dense",
            size(one.size_bytes),
            ago(one.create_time),
            one.description,
        )
        for one in found
    ]
    print_table("", ["dataset", "points", "features", "kind", "size", "made", "about"], rows)


@command
def embeddings(
    *,
    dataset: Of = None,
    oldest_first: OldestFirst = False,
    limit: Limit = 20,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """List embeddings, newest first."""
    from homophily_service.cli.show import ago, plain, short

    with service.client() as client:
        found = list(itertools.islice(client.list_embeddings(dataset=dataset, oldest_first=oldest_first), limit))
    if as_json:
        print_json(plain(found))
    else:
        rows = [
            (
                short(one.name),
                one.points,
                one.components,
                one.clusters or None,
                one.links.must + one.links.cannot,
                one.links.violated_must + one.links.violated_cannot,
                ago(one.create_time),
            )
            for one in found
        ]
        print_table("", ["embedding", "points", "dimensions", "clusters", "links", "violated", "made"], rows)


@command
def delete(
    *,
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME…", help="datasets/ID, models/ID, embeddings/ID, jobs/ID, or full names."),
    ],
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Delete datasets, models, embeddings, or records of ended jobs."""
    # Check all names before anything is deleted.
    wanted = [(name, *_kind_and_name(name)) for name in names]
    with service.client() as client:
        for name, kind, short in wanted:
            _DELETIONS[kind](client, short)
            if not as_json:
                print_status(f"Deleted {name}.")
    if as_json:
        print_json({"deleted": names})


def _delete_job(client: Client, name: str) -> None:
    client.job(name).delete()


_DELETIONS: dict[str, Callable[[Any, str], None]] = {
    "datasets": lambda client, name: client.delete_dataset(name),
    "models": lambda client, name: client.delete_model(name),
    "embeddings": lambda client, name: client.delete_embedding(name),
    "jobs": _delete_job,
}


def _kind_and_name(name: str) -> tuple[str, str]:
    parts = name.split("/")
    if len(parts) == 2 and parts[0] in _DELETIONS:
        return parts[0], parts[1]
    if len(parts) == 4 and parts[2] in _DELETIONS:
        return parts[2], name
    kinds = ", ".join(f"{kind}/ID" for kind in _DELETIONS)
    raise WrongInput(f"{name!r} must be one of {kinds}, or a full name, projects/…")
