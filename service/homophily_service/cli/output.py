"""Answers as a table: beside the ids and columns of the table that was asked about, on the screen or in a file."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import JobOptions, names
from homophily_service.cli.screen import out, print_json, print_result, print_status, print_table

if TYPE_CHECKING:
    from homophily_client import Client, Model, Prediction, Solution
    from homophily_service.cli.files import Data

_SHOWN_ROWS = 20
_PANEL = "Output"
#: The column of row numbers, where no column names the rows.
POINT = "point"

Columns = dict[str, Any]


@dataclass(frozen=True)
class FileOutput:
    """The file that answers go to, and the columns beside them."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            dir_okay=False,
            rich_help_panel=_PANEL,
            help="Write the answers with their ids: .csv, .tsv, .parquet, .arrow, .jsonl, or .npy (the classes only).",
        ),
    ] = None
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="all|A,B,…", rich_help_panel=_PANEL, help="Columns of the file to write beside the answers."
        ),
    ] = None

    def check(self, source: Path | str | None = None, job: JobOptions | None = None) -> None:
        """Refuse what cannot be written: before the work, not after it. ``source`` is the file that is read."""
        from homophily_service.plots.tables import WRITERS

        if self.keep is not None and self.output is None:
            raise WrongInput("--keep needs --output FILE, to which the columns are written.")
        if self.output is None:
            return
        if job is not None and (job.detach or job.wait is not None):
            raise WrongInput("--output needs the model: without waiting for it, use homophily solution MODEL later.")
        known = (*WRITERS, ".npy")
        if self.output.suffix.lower() not in known:
            raise WrongInput(f"{self.output}: must end in one of {', '.join(known)}")
        if source is not None and Path(source).exists() and self.output.exists() and self.output.samefile(source):
            raise WrongInput(f"{self.output}: is the file that is read, and would be lost: write to another one.")
        if not self.output.absolute().parent.is_dir():
            raise WrongInput(f"{self.output}: there is no folder {self.output.parent}")
        if self.output.suffix.lower() not in (".csv", ".tsv", ".npy"):
            from homophily_service.cli.tables import need_pyarrow

            need_pyarrow(self.output)

    def check_columns(self, data: Data | None) -> None:
        """Refuse --keep of columns that the file does not have."""
        kept_names(self.keep, data)

    def give(
        self, answers: Prediction | Solution, model: Model, data: Data | None, id_column: str | None = None
    ) -> list[Any]:
        """Write the answers, if a file was asked for; returns the ids of the rows, or their numbers."""
        columns = self.columns(answers, model, data, id_column)
        if self.output is not None:
            write_columns(columns, self.output)
            print_status(f"{len(columns['label']):,} answers are in {self.output}.")
        return list(next(iter(columns.values())))

    def columns(
        self, answers: Prediction | Solution, model: Model, data: Data | None, id_column: str | None = None
    ) -> Columns:
        """The ids, the columns that are kept, and the answers."""
        found = answer_columns(answers)
        ids, name = getattr(answers, "ids", None), id_column or id_name(model)
        if ids is None and data is not None and data.table is not None:
            ids = data.table.ids
            if ids is None and name in data.original.column_names:
                ids = data.original[name].to_pylist()
        columns: Columns = {POINT: range(len(found["label"]))} if ids is None else {name: ids}
        columns |= kept_columns(self.keep, data, columns, taken=found.keys())
        return columns | found


@dataclass(frozen=True)
class AnswerOutput(FileOutput):
    """The same, and whether probabilities are wanted."""

    probabilities: Annotated[
        bool,
        typer.Option(
            "--probabilities",
            rich_help_panel=_PANEL,
            help="Also calibrated probabilities; takes up to half the fit's time.",
        ),
    ] = False

    def write(self, client: Client, model: Model, data: Data | None) -> None:
        """Write the answers for a model's own points, if a file was asked for."""
        if self.output is not None:
            fields = ["labels", "given", "ids", "probabilities" if model.calibrated else "scores"]
            self.give(client.read_solution(model, fields), model, data)

    def show(
        self,
        answers: Prediction | Solution,
        model: Model,
        data: Data | None,
        *,
        as_json: bool,
        id_column: str | None = None,
    ) -> None:
        """Write the answers to the file, print them as JSON or CSV, or show the first."""
        self.give(answers, model, data, id_column)
        if as_json:
            given = {field: getattr(answers, field, None) for field in _JSON}
            print_json({field: array.tolist() for field, array in given.items() if array is not None})
        elif self.output is None and out.is_terminal:
            _show(self.columns(answers, model, data, id_column))
        elif self.output is None:
            from homophily_service.plots.tables import write_csv

            write_csv(self.columns(answers, model, data, id_column), sys.stdout)


_JSON = ("classes", "labels", "scores", "probabilities", "given", "ids")


def id_name(model: Model) -> str:
    """The name of the column of ids."""
    schema = model.schema
    return next((column.name for column in schema.columns if column.kind == "id"), POINT) if schema else POINT


def answer_columns(answers: Prediction | Solution) -> Columns:
    """The answers by column: label, scores or probabilities, and whether the label was given."""
    assert answers.labels is not None
    columns: Columns = {"label": answers.labels}
    if answers.scores is not None:
        # Two classes have one score, positive for the second.
        scores = answers.scores.reshape(len(answers.labels), -1)
        titles = ["score"] if scores.shape[1] == 1 else [f"score_{one}" for one in answers.classes]
        columns |= dict(zip(titles, scores.T, strict=True))
    if answers.probabilities is not None:
        columns["probability"] = answers.probabilities.max(axis=1)
        titles = [f"probability_{one}" for one in answers.classes]
        columns |= dict(zip(titles, answers.probabilities.T, strict=True))
    given = getattr(answers, "given", None)
    return columns if given is None else {**columns, "given": given}


def kept_names(keep: str | None, data: Data | None) -> list[str]:
    """The columns of the file that are to be written too."""
    if keep is None:
        return []
    if data is None or data.original is None:
        raise WrongInput("--keep needs a file with named columns.")
    known = data.original.column_names
    wanted = known if keep == "all" else list(names(keep))
    for name in wanted:
        if name not in known:
            raise WrongInput(f"--keep: the file has no column {name!r}, only {', '.join(known[:20])}.")
    return list(wanted)


def kept_columns(
    keep: str | None,
    data: Data | None,
    first: Collection[str],
    rows: Sequence[int] | None = None,
    taken: Collection[str] = (),
) -> Columns:
    """These columns, or some rows of them, besides those that are written ``first``."""
    kept: Columns = {}
    for name in kept_names(keep, data):
        if data is not None and name not in first:
            column = data.original[name] if rows is None else data.original[name].take(rows)
            # A column that is called like one of the answers keeps its values under another name.
            kept[f"original_{name}" if name in taken else name] = column.to_pylist()
    return kept


def _show(columns: Columns) -> None:
    """Print the first rows; of many scores, only the largest, for which there is space."""
    labels, count = columns["label"], len(columns["label"])
    first = next(iter(columns))
    shown: dict[str, list[Any]] = {first: list(columns[first][:_SHOWN_ROWS])}
    shown["label"] = [str(one) for one in labels[:_SHOWN_ROWS]]
    for kind in ("score", "probability"):
        found = [values[:_SHOWN_ROWS].tolist() for name, values in columns.items() if name.split("_")[0] == kind]
        if found:
            title = kind if len(found) == 1 else f"largest {kind}"
            shown[title] = [round(max(row), 4) for row in zip(*found, strict=True)]
    print_table("", list(shown), zip(*shown.values(), strict=True))
    if count > _SHOWN_ROWS:
        print_result(f"… and {count - _SHOWN_ROWS:,} more; --output FILE writes all.")


def write_columns(columns: Columns, path: Path) -> None:
    """Write a table, or a .npy file, which only has room for the labels."""
    if path.suffix.lower() == ".npy":
        import numpy as np

        np.save(path, columns["label"], allow_pickle=False)
    else:
        from homophily_service.plots.tables import write_table

        write_table(columns, path)
