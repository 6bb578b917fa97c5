"""Commands about maps: embed makes one, embedding shows one and writes it into files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_client.options import GraphOptions, MapOptions
from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import ColumnOptions, JobOptions, Service, command
from homophily_service.cli.output import kept_names
from homophily_service.cli.screen import AsJson, print_json, print_status
from homophily_service.cli.submit import DATA_HELP, Appended, EdgesDataset, LabelsFile, Unlabelled, run_job
from homophily_service.cli.uploads import find_dataset

if TYPE_CHECKING:
    from homophily_client import Client, Embedding, JobHandle
    from homophily_service.cli.files import Data
    from homophily_service.cli.labels import PointLabels

_OUTPUT = "Output"
_LINKS_HELP = ".csv with the columns i,j,kind (must or cannot), or .json with a list of the same."


@dataclass(frozen=True)
class MapOutput:
    """The files that a map is written into."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "--out",
            "-o",
            metavar="FILE",
            dir_okay=False,
            rich_help_panel=_OUTPUT,
            help="Coordinates and cluster of every point: .csv or .parquet.",
        ),
    ] = None
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="all|A,B,…", rich_help_panel=_OUTPUT, help="Columns of the file to write beside the coordinates."
        ),
    ] = None
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", dir_okay=False, rich_help_panel=_OUTPUT, help="A picture of the map: .png."),
    ] = None
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            rich_help_panel=_OUTPUT,
            help="An interactive page with the map, which needs no network: .html.",
        ),
    ] = None
    color_by: Annotated[
        str | None,
        typer.Option(
            metavar="FILE[:COLUMN]",
            rich_help_panel=_OUTPUT,
            help="Labels, as for --labels, that colour the points; the clusters if not given.",
        ),
    ] = None

    @property
    def is_wanted(self) -> bool:
        """Whether something is to be written."""
        return any((self.output, self.plot, self.html))

    def check(self) -> None:
        """Refuse files that cannot be written, before the work starts."""
        from homophily_service.cli.maps import check_matplotlib
        from homophily_service.plots.files import PAGES, PICTURES, TABLES

        for path, suffixes in ((self.output, TABLES), (self.plot, PICTURES), (self.html, PAGES)):
            if path is not None and path.suffix.lower() not in suffixes:
                raise WrongInput(f"{path}: must end in one of {', '.join(suffixes)}")
            if path is not None and not path.parent.is_dir():
                raise WrongInput(f"{path}: there is no folder {path.parent}")
        if self.plot is not None:
            check_matplotlib(self.plot)
        if self.output is not None and self.output.suffix.lower() == ".parquet":
            from homophily_service.cli.tables import need_pyarrow

            need_pyarrow(self.output)

    def check_columns(self, data: Data | None) -> None:
        """Refuse --keep of columns that the file does not have."""
        kept_names(self.keep, data)

    def write(self, client: Client, embedding: Embedding, labels: PointLabels | None, data: Data | None = None) -> None:
        """Write the files; ``labels`` colour the points if --color-by is not given."""
        from homophily_service.cli.show import short
        from homophily_service.plots.files import plot_map, write_map

        found = client.read_embedding(embedding)
        known = None if labels is None else labels.checked(embedding.points, str(self.color_by)).by_point
        if self.output is not None:
            kept = {name: data.original[name].to_pylist() for name in kept_names(self.keep, data) if data is not None}
            write_map(found, self.output, known, kept)
            print_status(f"{embedding.points:,} points are in {self.output}.")
        for path, what in ((self.plot, "picture"), (self.html, "page")):
            if path is not None:
                plot_map(found, path, known, title=short(embedding.name))
                print_status(f"A {what} is in {path}.")


@command
def embed(
    *,
    data: Annotated[
        str,
        typer.Argument(metavar="DATASET|FILE", help=f"{DATA_HELP} Also models/ID, or embeddings/ID to continue from."),
    ],
    links: Annotated[Path | None, typer.Option(metavar="FILE", help=f"Links: {_LINKS_HELP}")] = None,
    must_link: Annotated[
        list[str] | None, typer.Option(metavar="I,J", help="Two points that belong together. May be repeated.")
    ] = None,
    cannot_link: Annotated[
        list[str] | None, typer.Option(metavar="I,J", help="Two points that belong apart. May be repeated.")
    ] = None,
    labels: LabelsFile = None,
    dataset: Appended = None,
    edges: EdgesDataset = None,
    unlabelled: Unlabelled = "-1",
    withdraw: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help=f"Links of the earlier embedding to withdraw: {_LINKS_HELP}"),
    ] = None,
    n_components: Annotated[int | None, typer.Option(metavar="N", help="Dimensions of the map; default 2.")] = None,
    n_clusters: Annotated[
        str | None, typer.Option(metavar="N", help='Number of clusters; default none. "suggest" lets the graph decide.')
    ] = None,
    name: Annotated[str | None, typer.Option(metavar="ID", help="Name of the embedding; default the job's.")] = None,
    columns: ColumnOptions,
    solver: MapOptions,
    graph: GraphOptions,
    job: JobOptions,
    service: Service,
    output: MapOutput,
    as_json: AsJson = False,
) -> None:
    """Map points so that links are obeyed: points that belong together come together, others are set apart.

    Each pair of labels is a link too. Ctrl-C cancels the job; a second one leaves at once.
    """
    from homophily_service.cli.labels import read_labels, stored_labels
    from homophily_service.cli.links import read_links, read_pairs

    output.check()
    if output.is_wanted and (job.detach or job.wait is not None):
        raise WrongInput(
            "Files can be written only when the map is ready: leave out --detach and --wait, or run"
            " homophily embedding NAME later."
        )
    stored = stored_labels(labels)
    given = None if labels is None or stored is not None else read_labels(labels, unlabelled)
    coloured = None if output.color_by is None else read_labels(output.color_by, unlabelled)
    from_file, withdrawn = read_links(links), read_links(withdraw)
    must = from_file.must + read_pairs(must_link, "--must-link")
    cannot = from_file.cannot + read_pairs(cannot_link, "--cannot-link")
    with service.client() as client:
        is_named = data.startswith(("models/", "embeddings/"))
        read = None
        source: Any = f"projects/{service.project}/{data}" if is_named else data
        if not is_named and ("/" not in data or Path(data).exists()):
            read = find_dataset(client, data, columns.options(), output.check_columns)
            source = read.dataset
        else:
            output.check_columns(None)
        file = None if read is None else read.data
        if given is not None:
            points = given.length or 0 if read is None else read.dataset.points
            given = given.checked(points, str(labels), None if read is None else read.ids)
        if output.color_by is None:
            coloured = given

        def start(request_id: str) -> JobHandle[Any]:
            return client.embed(
                source,
                must_link=must,
                cannot_link=cannot,
                labels=stored if given is None else given.by_point,
                dataset=dataset,
                edges=edges,
                withdrawn_must=withdrawn.must,
                withdrawn_cannot=withdrawn.cannot,
                n_components=n_components,
                embedding_id=name,
                n_clusters=_number(n_clusters),
                graph=graph,
                solver=solver,
                job=job.argument(request_id),
            )

        made = run_job(start, job, as_json=as_json).info.embedding
        if made is not None and output.is_wanted:
            # Clusters show more of the map than a few labels.
            output.write(client, made, coloured if output.color_by is not None or not made.clusters else None, file)


@command
def embedding(
    *,
    name: Annotated[str, typer.Argument(metavar="EMBEDDING", help="The embedding's short or full name.")],
    unlabelled: Unlabelled = "-1",
    service: Service,
    output: MapOutput,
    as_json: AsJson = False,
) -> None:
    """Show an embedding, and write it into files."""
    from homophily_service.cli.labels import read_labels
    from homophily_service.cli.show import plain, print_embedding

    output.check()
    coloured = None if output.color_by is None else read_labels(output.color_by, unlabelled)
    with service.client() as client:
        found = client.get_embedding(name)
        if as_json:
            print_json(plain(found))
        else:
            print_embedding(found)
        if output.is_wanted:
            output.write(client, found, coloured)


def _number(n_clusters: str | None) -> int | str | None:
    if n_clusters is None or not n_clusters.lstrip("-").isdecimal():
        return n_clusters
    return int(n_clusters)
