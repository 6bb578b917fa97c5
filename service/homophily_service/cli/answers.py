"""Commands that give a model's answers: predict for new points, solution for its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import ColumnOptions, Service, command
from homophily_service.cli.output import AnswerOutput
from homophily_service.cli.screen import AsJson, print_status

if TYPE_CHECKING:
    from homophily_client import Client, Model

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model's short or full name.")]


@command
def predict(
    *,
    name: ModelArgument,
    file: Annotated[Path, typer.Argument(help="New rows: a table or an array, in any format of `homophily upload`.")],
    columns: ColumnOptions,
    output: AnswerOutput,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Print the classes and scores of new points.

    The columns of a table are matched by name, in any order.
    """
    from homophily_service.cli.files import read_new_rows

    output.check(file)
    options = columns.options()
    if (options.scale, options.missing, options.text, options.categories) != ("auto", "median", (), ()):
        raise WrongInput("--scale, --missing, --text and --categories are the model's own: leave them out.")
    with service.client() as client:
        model = client.get_model(name)
        # SVMlight files do not say how many features there are.
        data = read_new_rows(file, options, model.schema, n_features=model.dimensions)
        output.check_columns(data)
        if output.probabilities:
            model = calibrated(client, model)
        answers = client.predict(model, data.points, probabilities=output.probabilities)
        for warning in answers.warnings:
            print_status(f"Warning: {warning}", "yellow")
        output.show(answers, model, data, as_json=as_json, id_column=options.id_column)


@command
def solution(
    *,
    name: ModelArgument,
    scores: Annotated[bool, typer.Option("--scores", help="Also scores.")] = False,
    table: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The file that the model was fitted on, for --keep."),
    ] = None,
    output: AnswerOutput,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Print the class of every point that a model was fitted on."""
    from homophily_service.cli.files import read_data

    output.check(table)
    data = None if table is None else read_data(table)
    output.check_columns(data)
    with service.client() as client:
        model = client.get_model(name)
        if data is not None and data.original is not None and data.original.num_rows != model.points:
            raise WrongInput(
                f"{table}: must have {model.points} rows, as the model. Got {data.original.num_rows} instead."
            )
        if output.probabilities:
            model = calibrated(client, model)
        fields = ["labels", "given", "ids", *(["scores"] if scores else [])]
        fields += ["probabilities"] if output.probabilities else []
        output.show(client.read_solution(model, fields), model, data, as_json=as_json)


def calibrated(client: Client, model: Model) -> Model:
    """The model itself if it is calibrated, else one with the same labels that is; it is kept for the next time."""
    from homophily_client import NotFound
    from homophily_service.cli.progress import follow_own
    from homophily_service.cli.show import short

    if model.calibrated:
        return model
    name = f"{short(model.name)[:50]}-calibrated"
    try:
        found = client.get_model(name)
        if found.parent_model == model.name:
            return found
    except NotFound:
        pass
    print_status(f"{short(model.name)} has no probabilities yet; the calibrated model is {name}.")
    job = client.transduce(model, calibrate=True, model_id=name)
    follow_own(job)
    return job.result()
