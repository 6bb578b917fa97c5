"""The command studio: a page to label and link points on."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from homophily_service.cli.failures import WrongInput
from homophily_service.cli.options import ColumnOptions, Service, command
from homophily_service.cli.screen import print_result, print_status

if TYPE_CHECKING:
    from homophily_client.tables import TableOptions
    from homophily_service.studio.workspace import Opened, Workspace

DEFAULT_PORT = 8765


@command
def studio(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|NAME]", help="A file, or the name of a dataset, a model or an embedding."),
    ] = None,
    *,
    columns: ColumnOptions,
    service: Service,
    test_column: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="True labels to compare with; nothing is learnt from them."),
    ] = None,
    image_column: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Names the image of each row: a path, or an https address.")
    ] = None,
    image_folder: Annotated[
        Path | None, typer.Option(help="The folder in which these paths are.", exists=True, file_okay=False)
    ] = None,
    image_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A host that images may be loaded from; several times.")
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Use a service of its own, which is forgotten at the end.")
    ] = False,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes a free one.")] = DEFAULT_PORT,
) -> None:
    """Open a page on which to label and link points, and to watch the map follow."""
    from homophily_service.cli.files import is_file
    from homophily_service.cli.own_service import embedded_service
    from homophily_service.runtime.ports import check_port
    from homophily_service.studio.run import run

    check_port(host, port)
    first: dict[str, Any] = {}
    if source is not None:
        first = {"file": str(Path(source).absolute())} if is_file(source) else {"name": source}
        if "file" in first and not Path(source).is_file():
            raise WrongInput(f"{source}: there is no such file")

    def started(address: str) -> None:
        print_result(f"Open {address}")
        print_status("A person who has this address can act here. Ctrl-C stops.")

    reader = FileReader(columns.options(), test_column, image_column, image_folder)
    with ExitStack() as stack:
        target = service.target
        if alone:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="homophily-studio-"))
            target = stack.enter_context(embedded_service(Path(folder)))
        run(_workspaces(service, target, reader), first, host, port, started, image_host or ())


def _workspaces(service: Service, target: str, reader: FileReader) -> Callable[[], Any]:
    @asynccontextmanager
    async def make() -> AsyncIterator[Workspace]:
        from homophily_client import AsyncClient
        from homophily_service.studio.workspace import Workspace

        async with AsyncClient(
            target,
            token=service.token,
            project=service.project,
            tls=service.tls,
            ca=service.ca,
            certificate=service.certificate,
            key=service.key,
        ) as client:
            yield Workspace(client, reader.read)

    return make


@dataclass(frozen=True)
class FileReader:
    """Reads files as all commands do, and keeps their rows to be shown."""

    options: TableOptions
    test_column: str | None
    image_column: str | None
    image_folder: Path | None

    def read(self, path: Path) -> Opened:
        """What is uploaded of a file, and what is shown."""
        from homophily_client.columns import entries_of
        from homophily_client.labels import labels_by_point
        from homophily_service.cli.files import fingerprint, read_data
        from homophily_service.cli.uploads import slug
        from homophily_service.studio.rows import Images, Rows
        from homophily_service.studio.workspace import Opened

        options = self.options
        if self.test_column is not None:
            options = replace(options, drop=(*options.drop, self.test_column))
        data = read_data(path, options)
        count = data.points.shape[0] if data.table is None else data.table.rows
        for option, column in (("--test-column", self.test_column), ("--image-column", self.image_column)):
            if column is not None and (data.original is None or column not in data.original.column_names):
                raise WrongInput(f"{path.name}: {option}: there is no column {column!r}")
        test = None if self.test_column is None else labels_by_point(entries_of(data.original[self.test_column]), count)
        images = None if self.image_column is None else Images(self.image_column, self.image_folder)
        rows = Rows(table=data.original, images=images) if data.original is not None else Rows(array=data.points)
        labels = {} if data.labels is None else labels_by_point(data.labels, count)
        name = f"{slug(path.stem)[:40]}-{fingerprint(path, options)}"
        return Opened(name, data.points, labels, rows, test)
