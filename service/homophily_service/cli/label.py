"""The command for people with one file: label all of its rows, without a server."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_client.options import GraphOptions, SolverOptions
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import ColumnOptions, LocalSearchOptions, command
from homophily_service.cli.output import FileOutput
from homophily_service.cli.screen import AsJson, err, percent, print_json, print_result, print_status, print_table
from homophily_service.cli.submit import FORMATS, Unlabelled
from homophily_service.cli.uploads import print_notes

if TYPE_CHECKING:
    from homophily.active import PointSuggestion
    from homophily_client import Model, Solution
    from homophily_client._pb import job_pb2
    from homophily_service.cli.files import Data

#: How many rows to label next are named.
NEXT = 5
#: Answers of at least this probability are called sure.
SURE = 0.9


@command
def label(
    *,
    file: Annotated[Path, typer.Argument(help=f"A table or an array: {FORMATS}.")],
    columns: ColumnOptions,
    unlabelled: Unlabelled = "-1",
    output: FileOutput,
    search: LocalSearchOptions,
    solver: SolverOptions,
    graph: GraphOptions,
    as_json: AsJson = False,
) -> None:
    """Label every row of a file from the few that have a label, on this machine alone.

    Ctrl-C stops it.
    """
    from homophily_service.cli.files import read_data
    from homophily_service.cli.labels import from_entries

    output.check(file)
    if columns.label_column is None:
        raise WrongInput(
            "Which column has the labels? Name it with --label-column; rows without a label are left empty."
        )
    data = read_data(file, columns.options())
    source = f"{file}:{columns.label_column}"
    assert data.labels is not None
    output.check_columns(data)
    given = from_entries(data.labels, unlabelled, source).of_two_classes(source)
    if len(given.by_point) == len(data.labels):
        raise WrongInput(f"{source}: every row has a label. If an entry means unlabelled, name it: --unlabelled ENTRY")
    print_notes(data)
    arguments = {"graph": graph, "solver": solver, "search": search.argument()}
    model, solution, suggestions = _fit(data, given.by_point, arguments)
    for sentence in model.preprocessing_steps:
        print_status(sentence)
    for warning in model.warnings:
        print_status(f"Warning: {warning}", "yellow")
    ids = output.give(solution, model, data)
    summary = _summary(solution, Counter(given.by_point.values()), ids, suggestions)
    if as_json:
        print_json(summary)
    else:
        _show(summary)


def _fit(
    data: Data, labels: dict[int, Any], arguments: dict[str, Any]
) -> tuple[Model, Solution, list[PointSuggestion]]:
    """The model, the answers for its own points, and which points to label next."""
    from homophily_client import Model
    from homophily_client._pb import job_pb2, model_pb2
    from homophily_client.labels import to_labels
    from homophily_client.parameters import search_message, to_message
    from homophily_client.points import Points
    from homophily_service.jobs.local import fit_here

    request = job_pb2.FitRequest(
        inline=Points(data.points).message(),
        labels=to_labels(labels, weights=None if data.table is None else data.table.weights).message,
        graph=to_message(model_pb2.GraphParameters, arguments["graph"], "graph"),
        solver=to_message(model_pb2.SolverParameters, arguments["solver"], "solver"),
        search=search_message(arguments["search"]),
        calibrate=True,
    )
    with _Display() as display:
        fitted = fit_here(request, display.report, NEXT)
    model = Model.from_message(fitted.model)
    return model, _solution(model, fitted.stored.arrays), fitted.suggestions


def _solution(model: Model, arrays: dict[str, Any]) -> Solution:
    import numpy as np

    from homophily_client import Solution
    from homophily_service.storage.solutions import CLASS_INDICES, LABELLED, PROBABILITIES

    given = np.zeros(model.points, dtype=bool)
    given[arrays[LABELLED]] = True
    return Solution(
        np.array(model.classes),
        class_indices=arrays[CLASS_INDICES],
        probabilities=arrays[PROBABILITIES],
        given=given,
    )


class _Display:
    """A bar on a terminal, a line for each phase elsewhere."""

    def __init__(self) -> None:
        self._phase = ""
        self._bar: Any = None

    def __enter__(self) -> _Display:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        if err.is_terminal:
            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TimeElapsedColumn(),
            )
            self._bar = Progress(*columns, console=err, transient=True)
            self._bar.start()
            self._task = self._bar.add_task("load", total=1.0)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, progress: job_pb2.Progress) -> None:
        """Show how far it is."""
        trials = f" {progress.trial_count}/{progress.max_trials}" if progress.max_trials else ""
        if self._bar is not None:
            self._bar.update(self._task, description=progress.phase + trials, completed=progress.fraction)
        elif progress.phase != self._phase:
            print_status(f"{progress.phase} …")
        self._phase = progress.phase


def _summary(
    solution: Solution, given: Counter[Any], ids: list[Any], suggestions: list[PointSuggestion]
) -> dict[str, Any]:
    """Classes with their shares, how sure the answers are, and what to label next."""
    assert solution.labels is not None
    assert solution.probabilities is not None
    labels, sureness = solution.labels.tolist(), solution.probabilities.max(axis=1)
    counts = Counter(labels)
    return {
        "rows": len(labels),
        "classes": [
            {"label": one, "rows": counts[one], "share": counts[one] / len(labels), "given": given[one]}
            for one in solution.classes.tolist()
        ],
        "sure": float((sureness >= SURE).mean()),
        "label_next": [
            {
                "row": ids[one.point],
                "label": labels[one.point],
                "probability": float(sureness[one.point]),
                "reason": str(replace(one, classes=tuple(solution.classes[list(one.classes)].tolist()))),
            }
            for one in suggestions
        ],
    }


def _show(summary: dict[str, Any]) -> None:
    rows = [(str(one["label"]), one["rows"], percent(one["share"]), one["given"]) for one in summary["classes"]]
    print_table("", ["class", "rows", "share", "given"], rows)
    print_result(
        f"{percent(summary['sure'])} of {summary['rows']:,} rows have a label that is at least {SURE:.0%} sure."
    )
    if summary["label_next"]:
        print_result("Worth labelling next:")
        found = [
            (str(one["row"]), str(one["label"]), percent(one["probability"]), one["reason"])
            for one in summary["label_next"]
        ]
        print_table("", ["row", "label now", "sure", "why"], found)
