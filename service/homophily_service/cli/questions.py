"""Commands that ask about a model or an embedding: what to ask next, why an answer is what it is, what is doubtful."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_service.cli.answers import ModelArgument
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import Service, command
from homophily_service.cli.output import POINT, FileOutput, kept_columns, write_columns
from homophily_service.cli.screen import AsJson, print_facts, print_json, print_result, print_status, print_table

if TYPE_CHECKING:
    from homophily_client import Client, Explanation, HeldPlace, Model, Suggestions
    from homophily_service.cli.files import Data

MadeArgument = Annotated[
    str, typer.Argument(metavar="MODEL|EMBEDDING", help="A short name, embeddings/ID, or a full name.")
]
Table = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The file that the model was fitted on, for --keep."),
]


@command
def suggest(
    *,
    name: MadeArgument,
    n: Annotated[int, typer.Option("--n", min=1, help="How many.")] = 20,
    strategy: Annotated[
        str | None,
        typer.Option(
            help="For a model, what makes a point worth a label: surroundings (the default), margin, norm, variance or "
            "sigma."
        ),
    ] = None,
    exclude: Annotated[
        str | None, typer.Option(metavar="I,J,…", help="Points not to suggest; for an embedding, pairs: I-J,K-L,….")
    ] = None,
    table: Table = None,
    output: FileOutput,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Print which points to label next, or for an embedding which pairs to compare, and why.

    The file of --output has an empty column for the answers. Filled in, it is what `transduce --labels` reads.
    """
    from homophily_client import Embedding
    from homophily_service.cli.files import read_data
    from homophily_service.cli.report import find_made
    from homophily_service.cli.show import plain

    output.check(table)
    if output.output is not None and output.output.suffix.lower() == ".npy":
        raise WrongInput(f"{output.output}: has no room for reasons: write a table, such as .csv")
    data = None if table is None else read_data(table)
    output.check_columns(data)
    with service.client() as client:
        made = find_made(client, name)
        if isinstance(made, Embedding):
            found = client.suggest(made, n, strategy=strategy, exclude=_pairs(exclude))
            columns, to_fill = _columns_of_pairs(found), "answer"
        else:
            _check_rows(data, made, table)
            found = client.suggest(made, n, strategy=strategy, exclude=_points(exclude))
            columns, to_fill = _columns_of_points(found, made), "label"
            columns |= kept_columns(output.keep, data, columns, [one.point for one in found.points])
    if output.output is not None:
        answer = {to_fill: [""] * len(next(iter(columns.values()), []))}
        write_columns(columns | answer, output.output)
        print_status(f"{len(found.points) + len(found.pairs)} suggestions are in {output.output}.")
    if as_json:
        print_json(plain(found))
    elif output.output is None:
        print_table("", list(columns), zip(*columns.values(), strict=True))


def _columns_of_points(found: Suggestions, model: Model) -> dict[str, list[Any]]:
    """The suggested points by column: id or number, the classes they may be of, and why."""
    from homophily_service.cli.output import id_name

    has_ids = any(one.id for one in found.points)
    classes = [[str(model.classes[place]) for place in one.class_positions] for one in found.points]
    return {
        id_name(model) if has_ids else POINT: [one.id if has_ids else one.point for one in found.points],
        "perhaps": [first[0] if first else "" for first in classes],
        "why": [one.text for one in found.points],
    }


def _columns_of_pairs(found: Suggestions) -> dict[str, list[Any]]:
    return {
        "first": [pair.first_id or pair.first for pair in found.pairs],
        "second": [pair.second_id or pair.second for pair in found.pairs],
        "together": [round(pair.together, 4) for pair in found.pairs],
        "why": [pair.text for pair in found.pairs],
    }


def _points(text: str | None) -> list[int]:
    """The numbers in I,J,…."""
    try:
        return [int(part) for part in text.split(",")] if text else []
    except ValueError:
        raise WrongInput(f"--exclude: must be row numbers of points, such as 17,4021. Got {text!r} instead.") from None


def _pairs(text: str | None) -> list[tuple[int, int]]:
    """The pairs in I-J,K-L,…."""
    try:
        return [(int(i), int(j)) for i, j in (part.split("-") for part in text.split(","))] if text else []
    except ValueError:
        raise WrongInput(f"--exclude: must be pairs of points, such as 17-4021,3-8. Got {text!r} instead.") from None


def _check_rows(data: Data | None, model: Model, table: Path | None) -> None:
    """Refuse a table that is not the model's."""
    if data is not None and data.original is not None and data.original.num_rows != model.points:
        raise WrongInput(f"{table}: must have {model.points} rows, as the model. Got {data.original.num_rows} instead.")


@command
def explain(
    *,
    name: MadeArgument,
    point: Annotated[
        list[int] | None, typer.Option("--point", metavar="ROW", help="A row number of its data; repeatable.")
    ] = None,
    new: Annotated[
        Path | None,
        typer.Option("--new", metavar="FILE", help="For a model, new rows, at most ten, in any format of `upload`."),
    ] = None,
    labels: Annotated[
        int, typer.Option(min=1, max=100, help="How many labels, or links, to name for each point.")
    ] = 10,
    refit: Annotated[
        bool, typer.Option("--refit", help="For a model, fit it again without the label that adds most.")
    ] = False,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Print which labels carry the answer for a point, or which links hold it in its place, and how far they are."""
    from homophily_client import Embedding
    from homophily_client.tables import TableOptions
    from homophily_service.cli.files import read_new_rows
    from homophily_service.cli.report import find_made
    from homophily_service.cli.show import plain

    if not point and new is None:
        raise WrongInput("Which point? Name it with --point ROW, or give --new FILE.")
    with service.client() as client:
        made = find_made(client, name)
        X = None
        if new is not None:
            if isinstance(made, Embedding):
                raise WrongInput("--new: an embedding explains its own points only. Name one with --point ROW.")
            X = read_new_rows(new, TableOptions(), made.schema, n_features=made.dimensions).points
        found = client.explain(made, point or (), X=X, labels=labels, refit=refit)
    if as_json:
        print_json(plain(found))
    elif isinstance(made, Embedding):
        for place in found.places:
            _print_place(place)
    else:
        for one in found.explanations:
            _print_explanation(one, made)


def _print_explanation(one: Explanation, model: Model) -> None:
    answer, other = (str(model.classes[place]) for place in (one.class_position, one.runner_up_position))
    who = "the new point" if one.point < 0 else f"point {one.point}"
    print_result(f"{who[0].upper()}{who[1:]} is {answer} rather than {other}, by a lead of {one.score:.4g}.")
    if not one.contributions:
        print_result("No label reaches it: it has the class of the largest share.")
        return
    rows = []
    for part in one.contributions:
        for_whom = answer if part.value >= 0 else f"against {answer}"
        of_class = str(model.classes[part.class_position])
        rows.append((part.id or part.point, f"{part.share:.0%}", of_class, for_whom, *_way(part.path)))
    print_table("", ["label", "share", "class", "speaks for", "distance", "path"], rows)
    facts: dict[str, Any] = {}
    if one.offset:
        facts["from class shares"] = f"{one.offset:+.4g}"
    if abs(one.remainder) > 1e-6 * max(1.0, abs(one.score)):
        facts["not traced to a label"] = f"{one.remainder:+.4g}"
    if one.score_without_largest is not None:
        facts["without the largest"] = f"a lead of {one.score_without_largest:.4g}"
    if one.contributing > len(one.contributions):
        facts["more labels"] = f"{one.contributing - len(one.contributions):,}"
    if facts:
        print_facts(facts)


def _print_place(one: HeldPlace) -> None:
    print_result(f"Point {one.point} meets no link on {one.free:.0%} of its walks.")
    if one.links:
        rows = []
        for link in one.links:
            ends = f"{link.first_id or link.first} – {link.second_id or link.second}"
            says = "together" if link.together else "apart"
            rows.append((ends, says, f"{link.share:.0%}", *_way(link.path)))
        print_table("", ["link", "says", "share", "distance", "path"], rows)
    if one.holding > len(one.links):
        print_facts({"more links": f"{one.holding - len(one.links):,}"})


def _way(path: tuple[int, ...]) -> tuple[str, str]:
    """How far a path is, and the path."""
    steps = len(path) - 1
    far = "the point itself" if steps == 0 else f"{steps} step{'' if steps == 1 else 's'} away"
    return far, " → ".join(map(str, path)) if path else "–"


@command
def suspects(*, name: ModelArgument, service: Service, as_json: AsJson = False) -> None:
    """Print the labels that their surroundings contradict, the most suspicious first."""
    from homophily_service.cli.output import id_name
    from homophily_service.cli.show import plain

    with service.client() as client:
        model = client.get_model(name)
        ids = _ids(client, model)
    if as_json:
        print_json(plain(model.suspicious_labels))
        return
    if not model.suspicious_labels:
        print_result("No label is contradicted by its surroundings.")
        return
    rows = [
        (
            ids[one.point] if ids is not None else one.point,
            str(model.classes[one.class_position]),
            str(model.classes[one.answer_position]),
            f"{one.suspicion:.0%}",
        )
        for one in model.suspicious_labels
    ]
    print_table("", [POINT if ids is None else id_name(model), "label", "rather", "suspicion"], rows)


def _ids(client: Client, model: Model) -> Any:
    """The ids of all points, if their table had an id column and there is a label to name."""
    if model.schema is None or not model.suspicious_labels:
        return None
    return client.read_solution(model, ["ids"]).ids
