"""What is stored and where: datasets, models, embeddings and graphs in SQL, each with the path of its arrays."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, delete, exc, exists, func, insert, select, update

from homophily_client.names import ResourceName
from homophily_service.contract.errors import AlreadyExists, NotFound
from homophily_service.storage.database import FIRST_PAGE, Database, Page, now, page_of, time_of
from homophily_service.storage.records import ResourceRecord
from homophily_service.storage.tables import graphs, jobs, resources


class Catalog:
    """Resources of all projects, and the graphs that they share."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(
        self,
        connection: Connection,
        name: ResourceName,
        message: bytes,
        blob: str,
        *,
        graph: str | None = None,
        dataset: str | None = None,
        upload_id: str | None = None,
        size: int = 0,
    ) -> None:
        """Record a resource of ``size`` bytes within a transaction, or AlreadyExists."""
        values = {"collection": name.collection, "project": name.project, "id": name.id}
        try:
            connection.execute(
                insert(resources).values(
                    **values,
                    message=message,
                    blob=blob,
                    graph=graph,
                    dataset=dataset,
                    upload_id=upload_id,
                    created=now(),
                    bytes=size,
                )
            )
        except exc.IntegrityError:
            raise AlreadyExists(f"{name} exists") from None

    def get(self, name: ResourceName) -> ResourceRecord:
        """The resource, or NotFound."""
        with self.database.read() as connection:
            found = connection.execute(select(resources).where(_is(name))).one_or_none()
        if found is None:
            raise NotFound(f"{name} does not exist")
        return ResourceRecord.of(found)

    def has(self, name: ResourceName) -> bool:
        """Whether the resource exists."""
        with self.database.read() as connection:
            return bool(connection.scalar(select(exists().where(_is(name)))))

    def of_upload(self, project: str, upload_id: str) -> ResourceRecord | None:
        """The dataset that an upload made; None if it has not."""
        of_upload = (resources.c.project == project) & (resources.c.upload_id == upload_id)
        with self.database.read() as connection:
            found = connection.execute(select(resources).where(of_upload)).first()
        return None if found is None else ResourceRecord.of(found)

    def on_graph(self, collection: str, project: str, digest: str) -> list[ResourceRecord]:
        """Resources of a project that use a graph, newest first."""
        of_project = (resources.c.project == project) & (resources.c.collection == collection)
        query = select(resources).where(of_project, resources.c.graph == digest).order_by(resources.c.number.desc())
        with self.database.read() as connection:
            return list(map(ResourceRecord.of, connection.execute(query)))

    def page(
        self, collection: str, project: str, page: Page = FIRST_PAGE, *, dataset: str = ""
    ) -> tuple[list[ResourceRecord], bool]:
        """Resources of a project, and whether there are more; with ``dataset``, only those of its points."""
        matches = [resources.c.project == project, resources.c.collection == collection]
        if dataset:
            matches.append(resources.c.dataset == dataset)
        with self.database.read() as connection:
            numbers, has_more = page_of(connection, resources, resources.c.message, matches, page)
            query = select(resources).where(resources.c.number.in_(numbers)).order_by(page.order(resources))
            return list(map(ResourceRecord.of, connection.execute(query))), has_more

    def remove(self, name: ResourceName) -> str:
        """Delete the record of a resource; returns the path of its arrays, which the caller deletes."""
        with self.database.write() as connection:
            blob = connection.scalar(delete(resources).where(_is(name)).returning(resources.c.blob))
        if blob is None:
            raise NotFound(f"{name} does not exist")
        return str(blob)

    # -- graphs --------------------------------------------------------------------------------------------------

    def use_graph(self, digest: str) -> str | None:
        """The path of a graph, which is protected from removal for a while; None if there is none."""
        query = update(graphs).where(graphs.c.digest == digest).values(last_used=now()).returning(graphs.c.blob)
        with self.database.write() as connection:
            blob = connection.scalar(query)
        return None if blob is None else str(blob)

    def add_graph(self, digest: str, blob: str, size: int = 0, project: str | None = None) -> str:
        """Record a graph of a project; returns the path of the one that counts: another job's may have come first."""
        while True:
            found = self.use_graph(digest)
            if found is not None:
                return found
            try:
                with self.database.write() as connection:
                    values = {"digest": digest, "blob": blob, "bytes": size, "project": project}
                    connection.execute(insert(graphs).values(**values, created=now(), last_used=now()))
            except exc.IntegrityError:
                continue
            return blob

    def replace_graph(self, digest: str, blob: str, size: int = 0, project: str | None = None) -> None:
        """Replace a graph whose arrays are lost by one that was built again."""
        query = update(graphs).where(graphs.c.digest == digest).values(blob=blob, bytes=size, last_used=now())
        with self.database.write() as connection:
            was_there = connection.execute(query).rowcount > 0
        if not was_there:
            self.add_graph(digest, blob, size, project)

    def remove_unused_graphs(self, older_than_seconds: float) -> list[str]:
        """Delete the records of graphs that no model uses and no job has used for a while; returns their paths."""
        used = exists().where(resources.c.graph == graphs.c.digest)
        unused = delete(graphs).where(~used, graphs.c.last_used < now() - older_than_seconds).returning(graphs.c.blob)
        with self.database.write() as connection:
            return [str(blob) for (blob,) in connection.execute(unused)]

    def bytes_of_model(self, blob: str, digest: str) -> int:
        """Stored bytes of a model and its graph."""
        sizes = (
            select(resources.c.bytes).where(resources.c.blob == blob),
            select(graphs.c.bytes).where(graphs.c.digest == digest),
        )
        with self.database.read() as connection:
            return sum(int(connection.scalar(size) or 0) for size in sizes)

    def stored_bytes(self) -> list[tuple[str, int]]:
        """Bytes of what is recorded, by collection."""
        by_collection = select(resources.c.collection, func.sum(resources.c.bytes)).group_by(resources.c.collection)
        with self.database.read() as connection:
            found = [(str(collection), int(size or 0)) for collection, size in connection.execute(by_collection)]
            return [*found, ("graphs", int(connection.scalar(select(func.sum(graphs.c.bytes))) or 0))]

    def refers_to(self, blob: str) -> bool:
        """Whether something refers to the arrays at this path."""
        found = select(exists().where(resources.c.blob == blob) | exists().where(graphs.c.blob == blob))
        with self.database.read() as connection:
            return bool(connection.scalar(found))

    def oldest_record(self) -> tuple[float | None, float]:
        """When the oldest remaining record was made, if there is one, and the database's time."""
        with self.database.read() as connection:
            oldest = [connection.scalar(select(func.min(table.c.created))) for table in (resources, graphs, jobs)]
            return min((time for time in oldest if time is not None), default=None), time_of(connection)

    def blobs(self) -> set[str]:
        """The paths of all arrays that something refers to."""
        with self.database.read() as connection:
            rows = connection.execute(select(resources.c.blob).union_all(select(graphs.c.blob)))
            return {str(blob) for (blob,) in rows}


def _is(name: ResourceName) -> Any:
    return (
        (resources.c.collection == name.collection)
        & (resources.c.project == name.project)
        & (resources.c.id == name.id)
    )
