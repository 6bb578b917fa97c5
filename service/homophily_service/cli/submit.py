"""Commands that submit work: upload, fit, transduce, import."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_client.options import GraphOptions, SolverOptions
from homophily_service.cli.failures import FAILED, WrongInput
from homophily_service.cli.options import (
    ColumnOptions,
    JobOptions,
    RegistrationOptions,
    SearchOptions,
    Service,
    command,
    numbers,
)
from homophily_service.cli.output import AnswerOutput
from homophily_service.cli.screen import AsJson, print_json, print_result, print_status
from homophily_service.cli.uploads import find_dataset, print_notes, send, slug

if TYPE_CHECKING:
    from homophily_client import Client, JobHandle, Model
    from homophily_service.cli.files import Data
    from homophily_service.cli.labels import Ids

LabelsFile = Annotated[
    str | None,
    typer.Option(
        "--labels",
        "--labels-from",
        metavar="FILE[:COLUMN]",
        help="Labels: .csv with the columns point (or the id column's name) and label; or one entry per point in a "
        "column of .csv or .parquet, in .npy, .npz:NAME or .svmlight; or .json {point: label}; or datasets/ID:COLUMN, "
        "labels that were uploaded.",
    ),
]
Unlabelled = Annotated[
    str,
    typer.Option(
        metavar="ENTRY",
        help="The entry that means unlabelled, if there is one entry per point; besides empty, ? and NaN.",
    ),
]
Validation = Annotated[
    str | None,
    typer.Option(
        metavar="FILE[:COLUMN]", help="Labels that are not used, only compared with the answers: the error rate."
    ),
]
Test = Annotated[
    str | None,
    typer.Option(metavar="FILE[:COLUMN]", help="Labels to compare the final model with."),
]
Calibrate = Annotated[
    bool, typer.Option("--calibrate", help="Calibrate, which probabilities need; takes up to half as long as the fit.")
]
ModelId = Annotated[str | None, typer.Option("--model", metavar="ID", help="Name of the new model; default the job's.")]
FORMATS = ".csv, .tsv, .csv.gz, .parquet, .arrow, .jsonl, .npy, .npz or .svmlight"
ADDRESSES = "s3://…, gs://…, az://…, https://… or file:///…, whose files the service reads"
EdgesDataset = Annotated[
    str | None,
    typer.Option("--edges", metavar="DATASET", help="Edges between the points, uploaded with --edges, that count too."),
]
Appended = Annotated[
    str | None,
    typer.Option(
        "--dataset", metavar="DATASET", help="Go on with a dataset that `homophily append` made of its points and more."
    ),
]
DATA_HELP = f"A dataset on the service, or a file ({FORMATS}), which is uploaded first."


@command
def upload(
    *,
    source: Annotated[
        str, typer.Argument(metavar="FILE|ADDRESS", help=f"A table or an array: {FORMATS}; or {ADDRESSES}.")
    ],
    name: Annotated[str | None, typer.Option(metavar="ID", help="Name of the dataset; default the file's.")] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="A text for people.")] = "",
    edges: Annotated[
        bool,
        typer.Option(
            "--edges",
            help="The file lists the edges of a graph: two columns of node numbers, from 0, and maybe weights.",
        ),
    ] = False,
    nodes: Annotated[int | None, typer.Option(metavar="N", min=1, help="With --edges, the number of nodes.")] = None,
    columns: ColumnOptions,
    job: JobOptions,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Upload points that are used more than once.

    The --label-column of a table is stored with it: `homophily fit DATASET` takes the labels from there.

    From an address, a worker of the service reads the files itself, if its operator allows the address. The address
    must not end with .npz, .svmlight, .jsonl or .gz; a folder ends with /, and * in its last part matches any text.
    """
    from homophily_service.cli.files import read_data, read_edges
    from homophily_service.cli.show import plain, print_dataset
    from homophily_service.runtime.processes import keep_freed_memory

    if "://" in source:
        _create_dataset(source, name, description, columns, job, service, as_json=as_json)
        return
    if job != JobOptions():
        raise WrongInput("--detach, --wait, --priority and --time-limit need an address, whose files a job reads.")
    file = Path(source)
    keep_freed_memory()
    if nodes is not None and not edges:
        raise WrongInput("--nodes: only with --edges.")
    data = None if edges else read_data(file, columns.options(), keep_labels=True)
    points = read_edges(file, nodes) if data is None else data.points
    with service.client() as client:
        dataset = send(client, points, name or slug(file.stem), description, file.name)
    if data is not None:
        print_notes(data)
    if as_json:
        print_json(plain(dataset))
    else:
        print_dataset(dataset)


@command
def append(
    *,
    base: Annotated[str, typer.Argument(metavar="DATASET", help="The dataset whose points come first.")],
    source: Annotated[
        str, typer.Argument(metavar="FILE|DATASET", help=f"The points to append, of the same columns: {FORMATS}.")
    ],
    name: Annotated[str | None, typer.Option(metavar="ID", help="Name of the new dataset; default the job's.")] = None,
    description: Annotated[str, typer.Option(metavar="TEXT", help="A text for people.")] = "",
    job: JobOptions,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Make a dataset of an earlier one and more points.

    Then `homophily transduce MODEL --dataset NAME` and `homophily embed embeddings/ID --dataset NAME` go on from what
    was made of the earlier one.
    """
    from homophily_service.cli.files import is_file, read_rows_like

    with service.client() as client:
        dataset = client.get_dataset(base)
        X = read_rows_like(Path(source), dataset) if is_file(source) else client.get_dataset(source)

        def start(request_id: str) -> JobHandle[Any]:
            return client.append_points(dataset, X, name=name, description=description, job=job.argument(request_id))

        run_job(start, job, as_json=as_json)


def _create_dataset(
    address: str,
    name: str | None,
    description: str,
    columns: ColumnOptions,
    job: JobOptions,
    service: Service,
    *,
    as_json: bool,
) -> None:
    """Have a worker read the files at an address."""
    last = address.rstrip("/").rpartition("/")[2]
    table = columns.options()
    with service.client() as client:

        def start(request_id: str) -> JobHandle[Any]:
            chosen = name or slug(Path(last).stem)
            return client.create_dataset(
                address, table=table, name=chosen, description=description, job=job.argument(request_id)
            )

        run_job(start, job, as_json=as_json)


@command
def fit(
    *,
    data: Annotated[str, typer.Argument(metavar="DATASET|FILE", help=DATA_HELP)],
    labels: LabelsFile = None,
    unlabelled: Unlabelled = "-1",
    validation: Validation = None,
    test: Test = None,
    calibrate: Calibrate = False,
    model: ModelId = None,
    edges: EdgesDataset = None,
    columns: ColumnOptions,
    answers: AnswerOutput,
    registration: RegistrationOptions,
    search: SearchOptions,
    solver: SolverOptions,
    graph: GraphOptions,
    job: JobOptions,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Label every point of a dataset from a few labels.

    Shows the progress and the result. Ctrl-C cancels the job; a second one leaves at once.
    """
    from homophily_client import LabelColumn
    from homophily_service.cli.files import is_file
    from homophily_service.cli.labels import from_entries, read_labels, stored_labels
    from homophily_service.cli.runs import check_tracking

    stored = stored_labels(labels)
    if labels is None and columns.label_column is None and not is_file(data):
        stored = LabelColumn()
    elif (labels is None) == (columns.label_column is None):
        raise WrongInput("Labels are needed, either by --labels FILE or by --label-column of the data's file.")
    answers.check(data, job)
    given = None if labels is None or stored is not None else read_labels(labels, unlabelled)
    compared = {
        name: (file, read_labels(file, unlabelled))
        for name, file in (("validation", validation), ("test", test))
        if file is not None
    }
    arguments: dict[str, Any] = {
        "solver": solver,
        "graph": graph,
        "search": search.argument(),
    } | registration.arguments()
    source = labels or f"{data}:{columns.label_column}"

    def check(read: Data | None) -> None:
        nonlocal given
        answers.check_columns(read)
        if stored is None and read is not None and read.labels is not None:
            given = from_entries(read.labels, unlabelled, source).of_two_classes(source)

    with service.client() as client:
        if registration.register is not None:
            check_tracking(client)
        found = find_dataset(client, data, columns.options(), check)
        dataset = found.dataset
        if given is not None:
            given = given.checked(dataset.points, source, found.ids).of_two_classes(source)
        for name, (file, read) in compared.items():
            checked = read.checked(dataset.points, file, found.ids)
            arguments[name] = checked.like(given.by_point.values() if given is not None else ()).by_point

        def start(request_id: str) -> JobHandle[Any]:
            return client.fit(
                dataset,
                stored if given is None else given.by_point,
                weights=None if given is None else found.weights,
                edges=edges,
                **arguments,
                calibrate=calibrate or answers.probabilities,
                model_id=model,
                job=job.argument(request_id),
            )

        _finish(run_job(start, job, registration, as_json=as_json), client, answers, found.data, registration)


@command
def transduce(
    *,
    base: Annotated[str, typer.Argument(metavar="MODEL", help="The model to start from.")],
    labels: LabelsFile = None,
    unlabelled: Unlabelled = "-1",
    withdraw: Annotated[str | None, typer.Option(metavar="3,17,…", help="Points that lose their label.")] = None,
    dataset: Appended = None,
    validation: Validation = None,
    test: Test = None,
    calibrate: Calibrate = False,
    model: ModelId = None,
    answers: AnswerOutput,
    registration: RegistrationOptions,
    job: JobOptions,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Make a model with new, changed or withdrawn labels, from a model's graph and solution.

    Points that --labels has no label for keep theirs. Ctrl-C cancels the job; a second one leaves at once.
    """
    from homophily_service.cli.labels import read_labels, stored_labels
    from homophily_service.cli.runs import check_tracking

    if labels is None and withdraw is None and dataset is None:
        raise WrongInput("Something must change: give --labels FILE, --withdraw POINTS or --dataset DATASET.")
    answers.check(job=job)
    stored = stored_labels(labels)
    given = None if labels is None or stored is not None else read_labels(labels, unlabelled)
    compared = {
        name: (file, read_labels(file, unlabelled))
        for name, file in (("validation", validation), ("test", test))
        if file is not None
    }
    withdrawn = [] if withdraw is None else numbers(withdraw, int, "--withdraw")
    with service.client() as client:
        if registration.register is not None:
            check_tracking(client)
        found = client.get_model(base)
        points = found.points if dataset is None else client.get_dataset(dataset).points
        by_id = [one for one in (given, *(read for _, read in compared.values())) if one is not None and one.by_id]
        ids = model_ids(client, found) if by_id else None
        if given is not None:
            given = given.checked(points, str(labels), ids).like(found.classes)
        arguments: dict[str, Any] = {
            name: read.checked(points, file, ids).like(found.classes).by_point
            for name, (file, read) in compared.items()
        } | registration.arguments()

        def start(request_id: str) -> JobHandle[Any]:
            return client.transduce(
                found,
                stored if given is None else given.by_point,
                withdrawn=withdrawn,
                dataset=dataset,
                **arguments,
                calibrate=calibrate or answers.probabilities,
                model_id=model,
                job=job.argument(request_id),
            )

        _finish(run_job(start, job, registration, as_json=as_json), client, answers, None, registration)


@command
def import_model(
    *,
    uri: Annotated[
        str,
        typer.Argument(metavar="URI", help="models:/NAME/VERSION, models:/NAME@ALIAS or runs:/RUN/PATH."),
    ],
    model: ModelId = None,
    job: JobOptions,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Import a model from MLflow's registry, to be served here."""
    with service.client() as client:

        def start(request_id: str) -> JobHandle[Any]:
            return client.import_model(uri, model_id=model, job=job.argument(request_id))

        run_job(start, job, as_json=as_json)


def run_job(
    start: Callable[[str], JobHandle[Any]],
    options: JobOptions,
    registration: RegistrationOptions | None = None,
    *,
    as_json: bool,
) -> JobHandle[Any]:
    """Start a job, follow it and its registration as the options say, and print the outcome; returns the job."""
    from homophily_service.cli.progress import follow_own
    from homophily_service.cli.runs import await_registration

    began = time.monotonic()

    request_id, interrupted = uuid.uuid4().hex, False
    try:
        job = start(request_id)
    except KeyboardInterrupt:
        # The service may have queued it already; the same request returns the same job, which can be cancelled.
        job, interrupted = start(request_id), True
    if interrupted or (not options.detach and options.wait is None):
        follow_own(job, quiet=as_json, interrupted=interrupted)
    elif options.wait:
        _wait(job, options.wait)
    if registration is not None and registration.register is not None and job.info.model is not None:
        longest = math.inf if options.wait is None else options.wait - (time.monotonic() - began)
        await_registration(job, registration.register, longest)
    print_outcome(job, as_json=as_json)
    return job


def _finish(
    job: JobHandle[Any],
    client: Client,
    answers: AnswerOutput,
    data: Data | None,
    registration: RegistrationOptions,
) -> None:
    """Write the answers of the model that was made, and fail if it was to be registered and cannot be."""
    from homophily_service.cli.runs import check_registration

    if job.info.model is None:
        return
    answers.write(client, job.info.model, data)
    if registration.register is not None:
        check_registration(job)


def print_outcome(job: JobHandle[Any], *, as_json: bool) -> None:
    """Print the outcome of a job, or its state."""
    from homophily_service.cli.files import as_options
    from homophily_service.cli.runs import run_link
    from homophily_service.cli.show import plain, print_dataset, print_embedding, print_model, short

    if as_json:
        print_json(plain(job.info))
    elif job.info.model is not None:
        print_model(job.info.model, job.info.changed_points)
    elif job.info.embedding is not None:
        print_embedding(job.info.embedding)
    elif job.info.dataset is not None:
        if job.info.unchanged:
            print_status("It is there already, and its files have not changed.")
        for note in map(as_options, job.info.notes):
            print_status(note)
        print_dataset(job.info.dataset)
    elif not job.state.is_final:
        print_result(short(job.name))
        print_status(f"It is {job.state}; homophily watch {short(job.name)} shows its progress.")
    if job.info.registered_version and not as_json:
        print_status(f"Registered as {job.info.registered_version}.")
    if job.info.tracking_run and not as_json:
        link = run_link(job.info)
        print_status(f"Its run is {link}" if link else f"Its run in MLflow is {job.info.tracking_run}.")
    if job.info.error is not None:
        if not as_json:
            raise job.info.error
        raise typer.Exit(FAILED)
    if job.state.is_final:
        # Cancelled elsewhere: there is no result.
        job.result()


def model_ids(client: Client, model: Model) -> Ids | None:
    """The ids of a model's points, if their table had an id column."""
    from homophily_service.cli.labels import Ids

    columns = model.schema.columns if model.schema is not None else ()
    name = next((column.name for column in columns if column.kind == "id"), None)
    found = None if name is None else client.read_solution(model, ["ids"]).ids
    return None if name is None or found is None else Ids(name, found.tolist())


def _wait(job: JobHandle[Any], seconds: float) -> None:
    from homophily_client import JobCancelled, JobFailed
    from homophily_service.cli.progress import follow_own

    try:
        # The outcome is printed later.
        with suppress(TimeoutError, JobFailed, JobCancelled):
            job.result(seconds)
    except KeyboardInterrupt:
        follow_own(job, interrupted=True)
