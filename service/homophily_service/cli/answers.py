"""Commands that give a model's answers: predict for new points, solution for its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import Service, command
from homophily_service.cli.screen import AsJson, out, print_json, print_result, print_status, print_table
from homophily_service.cli.submit import LabelColumn

if TYPE_CHECKING:
    from homophily_client import Prediction, Solution

_SHOWN_ROWS = 20
_OUTPUTS = (".csv", ".npy", ".parquet")

Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        dir_okay=False,
        rich_help_panel="Output",
        help="Write .csv, .parquet, or .npy (the classes only). Without it a terminal shows the first rows, and a "
        "pipe gets all as CSV.",
    ),
]
Probabilities = Annotated[
    bool, typer.Option("--probabilities", help="Also calibrated probabilities; needs a model fitted with --calibrate.")
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="The model's short or full name.")]


@command
def predict(
    *,
    name: ModelArgument,
    file: Annotated[Path, typer.Argument(help="New points: .npy, .npz, .csv, .parquet or .svmlight.")],
    label_column: LabelColumn = None,
    probabilities: Probabilities = False,
    output: Output = None,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Print the classes and scores of new points."""
    from homophily_service.cli.files import read_points

    _check_output(output)
    with service.client() as client:
        # SVMlight files do not say how many features there are.
        is_open = file.suffix.lower() in (".svmlight", ".libsvm")
        n_features = client.get_model(name).dimensions if is_open else None
        points = read_points(file, label_column, n_features=n_features).points
        _output(client.predict(name, points, probabilities=probabilities), output, as_json=as_json)


@command
def solution(
    *,
    name: ModelArgument,
    scores: Annotated[bool, typer.Option("--scores", help="Also scores.")] = False,
    probabilities: Probabilities = False,
    output: Output = None,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Print the class of every point that a model was fitted on."""
    _check_output(output)
    fields = ["labels", *(["scores"] if scores else []), *(["probabilities"] if probabilities else [])]
    with service.client() as client:
        _output(client.read_solution(name, fields), output, as_json=as_json)


def _check_output(output: Path | None) -> None:
    # Check before the work, not after it.
    if output is not None and output.suffix.lower() not in _OUTPUTS:
        raise WrongInput(f"{output}: must end in one of {', '.join(_OUTPUTS)}")
    if output is not None and output.suffix.lower() == ".parquet":
        from homophily_service.cli.files import arrow

        arrow(output)


def _output(answers: Prediction | Solution, output: Path | None, *, as_json: bool) -> None:
    """Write the answers to a file, print them as JSON or CSV, or show the first."""
    columns = _columns(answers)
    if output is not None:
        _write(columns, output)
        print_status(f"{len(columns['label']):,} answers are in {output}.")
    if as_json:
        given = {
            "classes": answers.classes,
            "labels": answers.labels,
            "scores": answers.scores,
            "probabilities": answers.probabilities,
        }
        print_json({field: array.tolist() for field, array in given.items() if array is not None})
    elif output is None and not out.is_terminal:
        from homophily_service.plots.tables import write_csv

        write_csv(columns, sys.stdout)
    elif output is None:
        _show(columns)


def _columns(answers: Prediction | Solution) -> dict[str, Any]:
    """The answers by column."""
    assert answers.labels is not None
    columns: dict[str, Any] = {"point": range(len(answers.labels)), "label": answers.labels}
    if answers.scores is not None:
        # Two classes have one score, positive for the second.
        scores = answers.scores.reshape(len(answers.labels), -1)
        names = ["score"] if scores.shape[1] == 1 else [f"score_{one}" for one in answers.classes]
        columns |= dict(zip(names, scores.T, strict=True))
    if answers.probabilities is not None:
        names = [f"probability_{one}" for one in answers.classes]
        columns |= dict(zip(names, answers.probabilities.T, strict=True))
    return columns


def _show(columns: dict[str, Any]) -> None:
    """Show the first rows; of many classes, only the largest score."""
    labels, count = columns["label"], len(columns["label"])
    shown: dict[str, list[Any]] = {"point": list(range(min(count, _SHOWN_ROWS)))}
    shown["label"] = [str(one) for one in labels[:_SHOWN_ROWS]]
    for kind in ("score", "probability"):
        found = [values[:_SHOWN_ROWS].tolist() for name, values in columns.items() if name.split("_")[0] == kind]
        if found:
            title = kind if len(found) == 1 else f"largest {kind}"
            shown[title] = [round(max(row), 4) for row in zip(*found, strict=True)]
    print_table("", list(shown), zip(*shown.values(), strict=True))
    if count > _SHOWN_ROWS:
        print_result(f"… and {count - _SHOWN_ROWS:,} more; --output FILE writes all.")


def _write(columns: dict[str, Any], path: Path) -> None:
    """Write a table, or a .npy file with the labels only."""
    if path.suffix.lower() == ".npy":
        import numpy as np

        np.save(path, columns["label"], allow_pickle=False)
    else:
        from homophily_service.plots.tables import write_table

        write_table(columns, path)
