"""The command that writes pictures of a model or a map, and a page with all of them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import Service, command
from homophily_service.cli.screen import AsJson, print_json, print_result, print_status

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from homophily_client import Client, Embedding, Model
    from homophily_service.plots.report import Table

_BEST_TRIALS = 15
_EMBEDDINGS_LOOKED_AT = 200


@command
def report(
    *,
    name: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model's or an embedding's short or full name, or embeddings/ID.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            file_okay=False,
            rich_help_panel="Output",
            help="Where the files are written; NAME-report if not given.",
        ),
    ] = None,
    service: Service,
    as_json: AsJson = False,
) -> None:
    """Write pictures of a model or an embedding, and a page with them and all facts about it."""
    from homophily_client import Embedding
    from homophily_service.cli.maps import check_matplotlib
    from homophily_service.cli.show import short

    with service.client() as client:
        found = find_made(client, name)
        folder = output or Path(f"{short(found.name)}-report")
        check_matplotlib(folder)
        if isinstance(found, Embedding):
            pictures = _pictures_of_map(client, found)
        else:
            pictures = _pictures_of_model(client, found)
        page = _page(found, pictures, _tracking_run(client, found))
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in {**pictures, "report.html": page}.items():
        (folder / file).write_bytes(content)
    if as_json:
        print_json({"report": str(folder / "report.html"), "pictures": [str(folder / file) for file in pictures]})
    else:
        print_result(f"{folder / 'report.html'}")
        print_status(f"Beside it are {', '.join(pictures)}.")


def find_made(client: Client, name: str) -> Model | Embedding:
    """The model or embedding of this name; for a short name, models are tried first."""
    from homophily_client import NotFound

    *collection, last = name.split("/")
    if len(collection) not in (0, 1, 3) or (collection and collection[-1] not in ("models", "embeddings")):
        raise WrongInput(f"{name!r} must be the name of a model or of an embedding: ID, models/ID or embeddings/ID")
    wanted = last if len(collection) < 2 else name
    if collection:
        return client.get_embedding(wanted) if collection[-1] == "embeddings" else client.get_model(wanted)
    try:
        return client.get_model(wanted)
    except NotFound as missing:
        try:
            return client.get_embedding(wanted)
        except NotFound:
            raise missing from None


def _pictures_of_model(client: Client, model: Model) -> dict[str, bytes]:
    from homophily_service.plots import model_pictures

    solution = client.read_solution(model, ["labels", "scores"])
    assert solution.scores is not None
    coordinates, mapped_by = _map_of(client, model, solution.scores)
    return model_pictures(model, solution.scores, solution.class_indices, coordinates=coordinates, mapped_by=mapped_by)


def _map_of(client: Client, model: Model, scores: NDArray[Any]) -> tuple[NDArray[Any], str]:
    """Coordinates to draw the model's points at: the newest map on its graph, or what its scores differ by most."""
    from homophily_service.cli.show import short

    for known in islice(client.list_embeddings(), _EMBEDDINGS_LOOKED_AT):
        if known.graph.digest == model.graph.digest and known.components > 1:
            coordinates = client.read_embedding(known, ["coordinates"]).coordinates
            assert coordinates is not None
            return coordinates, f"on the map {short(known.name)}"
    print_status(
        f"The map shows the scores; after `homophily embed models/{short(model.name)}` a report shows that map."
    )
    return principal_components(scores), "principal components of the scores"


def principal_components(scores: NDArray[Any]) -> NDArray[Any]:
    """The two directions in which scores differ most, or the only one; what is not a number goes to the middle."""
    import numpy as np

    columns = np.asarray(scores, dtype=np.float64).reshape(len(scores), -1)
    is_known = np.isfinite(columns).all(axis=1)
    centred = np.zeros_like(columns)
    if is_known.any():
        centred[is_known] = columns[is_known] - columns[is_known].mean(axis=0)
    _, directions = np.linalg.eigh(centred.T @ centred)
    # The largest come last, and each with any sign.
    chosen = directions[:, ::-1][:, :2]
    signs = np.sign(chosen[np.abs(chosen).argmax(axis=0), np.arange(chosen.shape[1])])
    places: NDArray[Any] = centred @ (chosen * signs)
    return places


def _pictures_of_map(client: Client, embedding: Embedding) -> dict[str, bytes]:
    from homophily_service.plots import embedding_pictures

    arrays = client.read_embedding(embedding)
    assert arrays.coordinates is not None
    return embedding_pictures(
        embedding,
        arrays.coordinates,
        arrays.clusters,
        must_link=arrays.must_link,
        cannot_link=arrays.cannot_link,
        violated_must=arrays.violated_must,
        violated_cannot=arrays.violated_cannot,
    )


def _tracking_run(client: Client, found: Model | Embedding) -> str:
    """The page of its job's run, or the run's id if nothing serves that page; empty if the job is not on record."""
    from homophily_client import NotFound
    from homophily_service.cli.runs import run_link

    if not found.job:
        return ""
    try:
        job = client.job(found.job).info
    except NotFound:
        return ""
    return run_link(job) or job.tracking_run


# -- page --------------------------------------------------------------------------------------------------------------


def _page(found: Model | Embedding, pictures: dict[str, bytes], tracking_run: str) -> bytes:
    from homophily_client import Embedding
    from homophily_service.cli.screen import shown, size
    from homophily_service.cli.show import embedding_facts, model_facts, short
    from homophily_service.plots.report import report_page

    facts: dict[str, Any] = embedding_facts(found) if isinstance(found, Embedding) else model_facts(found)
    facts["job"] = short(found.job)
    if tracking_run:
        facts["tracking run"] = tracking_run
    if found.device:
        facts["computed on"] = found.device
    if found.peak_memory_bytes:
        facts["peak memory"] = size(found.peak_memory_bytes)
    if found.software:
        facts["software"] = ", ".join(f"{package} {version}" for package, version in sorted(found.software.items()))
    kind = "Embedding" if isinstance(found, Embedding) else "Model"
    return report_page(
        short(found.name),
        f"{kind} {found.name}, made {found.create_time:%Y-%m-%d %H:%M} UTC",
        {fact: shown(value) for fact, value in facts.items() if value not in (None, "")},
        pictures,
        warnings=found.warnings,
        tables=[] if isinstance(found, Embedding) else [*_suspects(found), *_trials(found)],
    )


def _suspects(model: Model) -> list[Table]:
    """The labels that their surroundings contradict."""
    from homophily_service.plots.report import Table
    from homophily_service.plots.suspects import suspect_columns

    columns = suspect_columns(model)
    if not columns:
        return []
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return [Table("Labels that their surroundings contradict", list(columns), rows)]


def _trials(model: Model) -> list[Table]:
    """The best settings that were tried, the chosen one first if there is one."""
    from homophily_service.cli.screen import percent
    from homophily_service.plots.report import Table

    if model.search is None:
        return []
    judged = [trial for trial in model.search.trials if trial.error_rate is not None]
    if not judged:
        return []
    best = model.search.best
    # Later stages first: the second stage starts from what the first found.
    judged.sort(key=lambda one: (one.number != best, -one.stage, one.error_rate, one.score or 0.0, one.number))
    listed = judged[:_BEST_TRIALS]
    given = [{**trial.graph, **trial.solver} for trial in listed]
    # Only parameters that differ; the others are among the facts.
    columns = [name for name in dict.fromkeys(name for one in given for name in one) if _differs(name, given)]
    rows = [
        [trial.number, percent(trial.error_rate), trial.score, *(values.get(name) for name in columns), trial.seconds]
        for trial, values in zip(listed, given, strict=True)
    ]
    heading = f"Best of {len(model.search.trials):,} trials of the search"
    marked = 0 if listed[0].number == best else None
    return [Table(heading, ["trial", "wrong", "log-loss", *columns, "seconds"], rows, marked)]


def _differs(name: str, given: list[dict[str, Any]]) -> bool:
    return len({str(one.get(name)) for one in given}) > 1
