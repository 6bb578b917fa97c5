"""Data of files on their way to the service."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from homophily_service.cli.failures import WrongInput
from homophily_service.cli.screen import err, print_status

if TYPE_CHECKING:
    from homophily_client import Client, Dataset
    from homophily_client.tables import TableOptions
    from homophily_service.cli.files import Data
    from homophily_service.cli.labels import Ids


class Found(NamedTuple):
    """A dataset on the service, and the file that it is from, if it was given as one."""

    dataset: Dataset
    data: Data | None = None

    @property
    def ids(self) -> Ids | None:
        """The ids of the rows, if the file has such a column."""
        from homophily_service.cli.labels import Ids

        table = None if self.data is None else self.data.table
        if table is None or table.id_column is None or table.ids is None:
            return None
        return Ids(table.id_column, table.ids)

    @property
    def weights(self) -> Any:
        """The confidence in each label, if the file has such a column."""
        return None if self.data is None or self.data.table is None else self.data.table.weights


def find_dataset(
    client: Client, data: str, options: TableOptions, check: Callable[[Data | None], None] = lambda _: None
) -> Found:
    """A dataset by its name, or from a file, which is uploaded unless it is there already.

    ``check`` refuses what is wrong with the file before it is uploaded; it is given None for a dataset.
    """
    from homophily_client import NotFound
    from homophily_client.tables import TableOptions
    from homophily_service.cli.files import fingerprint, is_file, read_data

    if not is_file(data):
        if options != TableOptions():
            raise WrongInput(
                f"Columns can be chosen in a file. Got the dataset {data}, whose columns are fixed, instead."
            )
        check(None)
        return Found(client.get_dataset(data))
    path = Path(data)
    read = read_data(path, options)
    check(read)
    # Named by its content, so that the next fit on the same file finds it.
    name = f"{slug(path.stem)[:40]}-{fingerprint(path, options)}"
    try:
        dataset = client.get_dataset(name)
        print_status(f"{path.name} is on the service already, as {name}.")
    except NotFound:
        dataset = send(client, read.points, name, f"from {path.name}", path.name)
        print_status(f"{path.name} is uploaded, as {name}.")
    print_notes(read)
    return Found(dataset, read)


def print_notes(data: Data) -> None:
    """Say what was concluded about the columns of a table."""
    from homophily_service.cli.files import as_options

    for note in data.table.notes if data.table is not None else ():
        print_status(as_options(note))


def send(client: Client, points: Any, name: str | None, description: str, title: str) -> Dataset:
    """Upload points, with a progress bar."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    if not err.is_terminal:
        return client.upload(points, name=name, description=description)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=max(6, min(30, err.width - 60))),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task(title if len(title) <= 20 else f"{title[:19]}…", total=None)
        return client.upload(
            points,
            name=name,
            description=description,
            progress=lambda sent, total: bar.update(task, completed=sent, total=total),
        )


def slug(text: str) -> str:
    """Make an id from a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower(), flags=re.ASCII).strip("-")[:63] or "points"
