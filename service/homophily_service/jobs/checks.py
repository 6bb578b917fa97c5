"""Checks of requests before they are queued: all that need no computing. The core is not loaded."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from homophily_client._pb import dataset_pb2, embedding_pb2, model_pb2, points_pb2
from homophily_client._pb import job_pb2 as pb
from homophily_client.names import DatasetName, EmbeddingName, ModelName, ProjectName, ResourceName
from homophily_service.contract.addresses import suffix_of
from homophily_service.contract.arrays import Points, from_points, parts_from_points, shape_of
from homophily_service.contract.checks import IMPORT_URI, check_disjoint, check_registration, check_search, map_shape
from homophily_service.contract.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidRequest,
    LimitExceeded,
    NotFound,
)
from homophily_service.contract.labels import PointLabels, check_label_column, check_two_classes, read_labels, values_of
from homophily_service.contract.links import check_closure, links_of_labels, read_links
from homophily_service.contract.names import check_id, parse_name
from homophily_service.contract.tables import MOST_NAME_BYTES, check_features, size_of, table_options
from homophily_service.contract.values import OWN_GRAPHS, embedding_parameters, graph_parameters, solver_parameters
from homophily_service.jobs.estimates import BASE_BYTES, Cost, check_cost, estimate, fit_cost
from homophily_service.jobs.options import time_limit
from homophily_service.runtime.processes import fair_memory, fair_threads
from homophily_service.runtime.settings import Settings
from homophily_service.storage.elsewhere.allowed import allowed_address
from homophily_service.storage.quotas import check_bytes
from homophily_service.storage.stores import Stores
from homophily_service.storage.uploads import LONGEST_DESCRIPTION, limits_of, publish_dataset

NO_TRACKING = "NO_TRACKING"
#: The URIs by which a model may be imported.
URI_FORMS = "models:/{name}/{version}, models:/{name}@{alias} or runs:/{run}/{path}"

Name = TypeVar("Name", bound=ResourceName)


class AllowedName(Protocol):
    """Parses a name, and refuses one that the caller may not use."""

    def __call__(self, kind: type[Name], name: str, field: str) -> Name:
        """Return the name."""


def check_fit(checks: Checks, project: str, request: pb.FitRequest) -> None:
    """Refuse what is wrong; points that came inside the request are then a dataset of it."""
    if request.WhichOneof("points") is None:
        raise InvalidRequest("points", "must be a dataset's name or inline points")
    shape, points = checks.points(project, request)
    size = size_of(shape)
    rows, is_sparse = size.rows, size.is_sparse
    is_searched = request.HasField("search")
    labels = checks.labels(request.labels, rows, "labels", project, shape, soft=not is_searched)
    if labels is not None:
        check_two_classes(labels.classes, "labels")
    checks.compared(request, rows, project, shape)
    if is_searched:
        check_search(request, "search", is_sparse=is_sparse)
        check_disjoint("validation", request.validation.points, request.labels.points)
    graph = graph_parameters(request.graph, is_sparse=is_sparse, field="graph")
    checks.edges(project, request, shape, graph)
    if is_searched and (request.edges_dataset or graph["metric"] in OWN_GRAPHS):
        field = "edges_dataset" if request.edges_dataset else "graph.metric"
        raise InvalidRequest(field, "cannot be searched with: a search tries graphs of near points")
    n_classes = None if labels is None else len(set(labels.classes.tolist()))
    method, solver = solver_parameters(request.solver, "solver", n_classes=n_classes)
    # The job knows how many classes a column has, and checks its cost again.
    asked: dict[str, Any] = {"graph": graph, "method": method, "solver": solver, "classes": n_classes or 2}
    checks.cost(fit_cost(rows, size.elements, columns=size.columns, **asked), request.options)
    checks.new_id(ModelName, project, request.model_id, "model_id", request.options)
    if points is not None:
        request.dataset = checks.keep_inline(project, points, request.options)


def check_transduce(checks: Checks, project: str, request: pb.TransduceRequest) -> None:
    """Refuse what is wrong."""
    name = parse_name(ModelName, request.model, "model")
    model = model_pb2.Model.FromString(checks.stores.catalog.get(name).message)
    rows, elements = model.point_count, 0
    shape = checks.points_shape(model.dataset)
    if request.appended_dataset:
        shape = checks.appended(project, request.appended_dataset, model)
        rows, elements = size_of(shape).rows, size_of(shape).elements
    labels = checks.labels(request.labels, rows, "labels", project, shape, soft=True)
    kind = model.classes.WhichOneof("kind")
    checks.compared(request, rows, project, shape, kind)
    if labels is not None and labels.points.size and request.labels.classes.WhichOneof("kind") != kind:
        raise InvalidRequest("labels.classes", f"must be {kind}, like the model's")
    withdrawn = np.array(request.withdrawn, dtype=np.int64)
    wrong = np.flatnonzero((withdrawn < 0) | (withdrawn >= model.point_count))
    if wrong.size:
        place = wrong[0]
        raise InvalidRequest(
            f"withdrawn[{place}]", f"must be between 0 and {model.point_count - 1}; got {withdrawn[place]}"
        )
    if len(np.unique(withdrawn)) < len(withdrawn):
        raise InvalidRequest("withdrawn", "must name each point once")
    n_classes = len({*values_of(model.classes), *values_of(request.labels.classes)})
    method, solver = solver_parameters(model.solver_parameters, "solver")
    graph = graph_parameters(model.graph_parameters, is_sparse=False, field="graph")
    size: dict[str, Any] = {
        "columns": model.dimension_count,
        "graph": graph,
        "method": method,
        "solver": solver,
        "classes": n_classes,
    }
    checks.cost(fit_cost(rows, elements, **size, builds_graph=bool(elements)), request.options)
    checks.new_id(ModelName, project, request.model_id, "model_id", request.options)


def check_embed(checks: Checks, project: str, request: pb.EmbedRequest) -> None:
    """Refuse what is wrong; points that came inside the request are then a dataset of it."""
    source, points = request.WhichOneof("points"), None
    if source is None:
        raise InvalidRequest("points", "must be the name of a dataset, model or embedding, or inline points")
    if source in ("dataset", "inline"):
        shape, points = checks.points(project, request)
        rows, columns, elements, is_sparse = size_of(shape)
        graph = graph_parameters(request.graph, is_sparse=is_sparse, field="graph")
        checks.edges(project, request, shape, graph)
    else:
        if request.edges_dataset:
            raise InvalidRequest("edges_dataset", f"must not be given with {source}, which has its own graph")
        if request.graph.ListFields():
            raise InvalidRequest("graph", f"must not be given with {source}, which has its own")
        earlier = checks.earlier(project, request, source)
        shape = checks.points_shape(earlier.dataset)
        graph = graph_parameters(earlier.graph_parameters, is_sparse=False, field="graph")
        rows, elements, columns = earlier.point_count, 0, earlier.dimension_count
    if request.appended_dataset:
        if source != "embedding":
            raise InvalidRequest("appended_dataset", "must come with embedding, whose map goes on")
        for field in ("links", "labels", "withdrawn"):
            if getattr(request, field).ByteSize():
                raise InvalidRequest(field, "must not come with appended_dataset: continue the new map with them")
        shape = checks.appended(project, request.appended_dataset, earlier)
        rows, elements = size_of(shape).rows, size_of(shape).elements
    labels = checks.labels(request.labels, rows, "labels", project, shape)
    n_components, n_clusters = _check_map(request, rows, labels, checks.settings)
    # An eigenvector that a map starts from takes a third of what a column of it does. The default is 8 of them.
    width = n_components + (n_clusters or 0) + (request.solver.n_vectors or 8) // 3
    checks.cost(estimate(rows, elements, columns=columns, graph=graph, power=1, classes=width), request.options)
    checks.new_id(EmbeddingName, project, request.embedding_id, "embedding_id", request.options)
    if points is not None:
        request.dataset = checks.keep_inline(project, points, request.options)


def check_append_points(checks: Checks, project: str, request: pb.AppendPointsRequest) -> None:
    """Refuse what is wrong; points that came inside the request are then a dataset of it."""
    catalog, points = checks.stores.catalog, None
    base = dataset_pb2.Dataset.FromString(catalog.get(parse_name(DatasetName, request.dataset, "dataset")).message)
    source = request.WhichOneof("points")
    if source is None:
        raise InvalidRequest("points", "must be a dataset's name or inline points")
    if source == "inline":
        points = from_points(request.inline, limits_of(checks.settings), "inline")
        shape = shape_of(points)
        size = sum(array.nbytes for array in parts_from_points(points).values())
    else:
        name = checks.of_project(DatasetName, request.added_dataset, "added_dataset", project)
        added = dataset_pb2.Dataset.FromString(catalog.get(name).message)
        shape, size = added.shape, added.size_bytes
    _check_alike(base.shape, shape, source)
    size += base.size_bytes
    rows, limits = size_of(base.shape).rows + size_of(shape).rows, limits_of(checks.settings)
    for found, most, what in ((rows, limits.points, "points"), (size, limits.bytes, "bytes")):
        if found > most:
            raise LimitExceeded(f"{source}: with them the dataset has {found} {what}, the limit is {most}")
    # The points of both, and of the whole.
    checks.cost(Cost(BASE_BYTES + 2 * size, 0.0), request.options)
    if not checks.is_repeated(project, request.options):
        with checks.stores.database.read() as connection:
            check_bytes(connection, project, size, checks.settings.limits_of(project).max_project_bytes)
    checks.new_id(DatasetName, project, request.dataset_id, "dataset_id", request.options)
    if points is not None:
        request.added_dataset = checks.keep_inline(project, points, request.options)


def _check_alike(shape: points_pb2.PointsShape, added: points_pb2.PointsShape, field: str) -> None:
    """Refuse points of another layout, type or columns."""
    layout = str(shape.WhichOneof("layout"))
    if added.WhichOneof("layout") != layout:
        raise InvalidRequest(field, f"must be {layout}, like the dataset")
    if shape.schema.columns != added.schema.columns:
        names = ", ".join(repr(column.name) for column in shape.schema.columns) or "no names"
        raise InvalidRequest(field, f"must have the dataset's columns, of the same kinds and order: {names}")
    ours, theirs = getattr(shape, layout), getattr(added, layout)
    for name in ("columns", "data_type", *(["index_type"] if layout == "csr" else [])):
        if getattr(ours, name) != getattr(theirs, name):
            wanted, got = getattr(ours, name), getattr(theirs, name)
            if name != "columns":
                wanted, got = (points_pb2.DataType.Name(one) for one in (wanted, got))
            raise InvalidRequest(field, f"must have {name} {wanted}, like the dataset; got {got}")


def check_import(checks: Checks, project: str, request: pb.ImportModelRequest) -> None:
    """Refuse what is wrong."""
    if not checks.settings.tracking:
        raise FailedPrecondition(
            "this service has no tracking server, so it has no registry of models", reason=NO_TRACKING
        )
    if not IMPORT_URI.fullmatch(request.uri) or ".." in request.uri:
        raise InvalidRequest("uri", f"must be {URI_FORMS}")
    checks.new_id(ModelName, project, request.model_id, "model_id", request.options)


def check_create_dataset(checks: Checks, project: str, request: pb.CreateDatasetRequest) -> None:
    """Refuse what is wrong. The files are not looked at: only a worker does."""
    address, _ = allowed_address(checks.settings, project, request.address)
    if len(request.description) > LONGEST_DESCRIPTION:
        raise InvalidRequest("description", f"must be at most {LONGEST_DESCRIPTION} characters")
    if suffix_of(address.path) == ".npy" and request.table.ListFields():
        raise InvalidRequest("table", "must not be given with .npy, which has no named columns")
    if request.table.ByteSize() > MOST_NAME_BYTES:
        raise LimitExceeded(f"table: the names have more than {MOST_NAME_BYTES} bytes")
    table_options(request.table)
    if request.dataset_id:
        name = DatasetName(project, check_id(request.dataset_id, "dataset_id"))
        # Of the same address, the job says whether it is the same.
        if not checks.is_made_from(name, request.address):
            checks.new_id(DatasetName, project, request.dataset_id, "dataset_id", request.options)


@dataclass(frozen=True)
class Checks:
    """The checks that several kinds of jobs share."""

    stores: Stores
    settings: Settings
    allowed_name: AllowedName

    def labels(
        self,
        message: model_pb2.Labels,
        rows: int,
        field: str,
        project: str,
        shape: points_pb2.PointsShape,
        *,
        soft: bool = False,
    ) -> PointLabels | None:
        """Check labels; returns those of the message, or None for a column, which only the job reads.

        ``shape`` is that of the points, which a column is of if it names no dataset.
        """
        if not message.HasField("column"):
            return read_labels(message, rows, field, max_classes=self.settings.max_classes, soft=soft)
        if message.column.dataset:
            name = self.of_project(DatasetName, message.column.dataset, f"{field}.column.dataset", project)
            shape = dataset_pb2.Dataset.FromString(self.stores.catalog.get(name).message).shape
        check_label_column(shape, message, rows, field)
        return None

    def edges(
        self,
        project: str,
        request: pb.FitRequest | pb.EmbedRequest,
        shape: points_pb2.PointsShape,
        graph: dict[str, Any],
    ) -> None:
        """Check a graph that is given: as the points, or as edges besides them."""
        size, source = size_of(shape), str(request.WhichOneof("points"))
        if graph["metric"] in OWN_GRAPHS and (size.rows != size.columns or shape.HasField("schema")):
            raise InvalidRequest(
                source, f"must be a square matrix with metric {graph['metric']}; got {size.rows} × {size.columns}"
            )
        if not request.edges_dataset:
            if "edge_share" in graph:
                raise InvalidRequest("graph.edge_share", "must be given only with edges_dataset")
            return
        if graph["metric"] in OWN_GRAPHS:
            raise InvalidRequest(
                "edges_dataset", f"must not be given with metric {graph['metric']}: they are the graph"
            )
        name = self.of_project(DatasetName, request.edges_dataset, "edges_dataset", project)
        given = dataset_pb2.Dataset.FromString(self.stores.catalog.get(name).message).shape
        found = size_of(given)
        if (found.rows, found.columns) != (size.rows, size.rows) or given.HasField("schema"):
            raise InvalidRequest(
                "edges_dataset",
                f"must be a matrix of {size.rows} × {size.rows} weights; got {found.rows} × {found.columns}",
            )

    def appended(
        self, project: str, dataset: str, earlier: model_pb2.Model | embedding_pb2.Embedding
    ) -> points_pb2.PointsShape:
        """The shape of a dataset that begins with the points of a model or a map, as far as names tell."""
        name = self.of_project(DatasetName, dataset, "appended_dataset", project)
        found = dataset_pb2.Dataset.FromString(self.stores.catalog.get(name).message)
        if (found.base.dataset, found.base.row_count) != (earlier.dataset, earlier.point_count):
            raise InvalidRequest("appended_dataset", f"must be made by AppendPoints from {earlier.dataset}")
        metric = graph_parameters(earlier.graph_parameters, is_sparse=False, field="graph")["metric"]
        if earlier.graph.edges_dataset or metric in OWN_GRAPHS:
            raise InvalidRequest(
                "appended_dataset", f"must not be given with {earlier.name}: no edges of new points are known"
            )
        return found.shape

    def points_shape(self, dataset: str) -> points_pb2.PointsShape:
        """The shape of the dataset that something was made from; empty if it was deleted, or if there was none."""
        if not dataset:
            # An imported model has none.
            return points_pb2.PointsShape()
        with suppress(NotFound):
            name = parse_name(DatasetName, dataset, "dataset")
            return dataset_pb2.Dataset.FromString(self.stores.catalog.get(name).message).shape
        return points_pb2.PointsShape()

    def compared(
        self,
        request: pb.FitRequest | pb.TransduceRequest,
        rows: int,
        project: str,
        shape: points_pb2.PointsShape,
        kind: str | None = None,
    ) -> None:
        """Check the validation and test labels, and the registration.

        ``kind`` is that of the model's classes, or None for that of the labels.
        """
        kind = kind or request.labels.classes.WhichOneof("kind")
        for field in ("validation", "test"):
            message: model_pb2.Labels = getattr(request, field)
            labels = self.labels(message, rows, field, project, shape)
            if labels and labels.points.size and kind and message.classes.WhichOneof("kind") != kind:
                raise InvalidRequest(f"{field}.classes", f"must be {kind}, like those of labels")
        if request.HasField("registration"):
            if not self.settings.tracking:
                raise FailedPrecondition(
                    "this service has no tracking server to register models with", reason=NO_TRACKING
                )
            check_registration(request.registration, "registration")

    def points(
        self, project: str, request: pb.FitRequest | pb.EmbedRequest
    ) -> tuple[points_pb2.PointsShape, Points | None]:
        """The shape of the points that a request is about, and those that came inside it."""
        points = None
        if request.WhichOneof("points") == "inline":
            points = from_points(request.inline, limits_of(self.settings), "inline")
            shape = shape_of(points)
        else:
            name = self.of_project(DatasetName, request.dataset, "dataset", project)
            shape = dataset_pb2.Dataset.FromString(self.stores.catalog.get(name).message).shape
        check_features(shape, str(request.WhichOneof("points")))
        return shape, points

    def earlier(self, project: str, request: pb.EmbedRequest, source: str) -> model_pb2.Model | embedding_pb2.Embedding:
        """The model or the embedding that a request continues from."""
        if source == "model":
            model = self.of_project(ModelName, request.model, "model", project)
            return model_pb2.Model.FromString(self.stores.catalog.get(model).message)
        name = self.of_project(EmbeddingName, request.embedding, "embedding", project)
        earlier = embedding_pb2.Embedding.FromString(self.stores.catalog.get(name).message)
        if request.HasField("n_components") and request.n_components != earlier.component_count:
            raise InvalidRequest(
                "n_components", f"must be {earlier.component_count}, like the embedding's, or not given"
            )
        return earlier

    def cost(self, cost: Cost, options: pb.JobOptions) -> None:
        """Refuse a job that no worker can compute."""
        threads = fair_threads(self.settings)
        check_cost(cost, fair_memory(self.settings), time_limit(options, self.settings), threads)

    def of_project(self, kind: type[Name], text: str, field: str, project: str) -> Name:
        """The name of a resource that must be in the project."""
        name = self.allowed_name(kind, text, field)
        if name.project != project:
            raise InvalidRequest(field, f"must be in {ProjectName(project)}")
        return name

    def new_id(self, kind: type[ResourceName], project: str, new_id: str, field: str, options: pb.JobOptions) -> None:
        """Refuse an id that is taken, unless the request may be one that was sent before."""
        if not new_id:
            return
        name = kind(project, check_id(new_id, field))
        if self.stores.catalog.has(name) and not self.is_repeated(project, options):
            raise AlreadyExists(f"{name} exists")

    def is_made_from(self, name: DatasetName, address: str) -> bool:
        """Whether there is a dataset of this name that was made from an address."""
        with suppress(NotFound):
            dataset = dataset_pb2.Dataset.FromString(self.stores.catalog.get(name).message)
            return dataset.source.address == address
        return False

    def is_repeated(self, project: str, options: pb.JobOptions) -> bool:
        """Whether a job was submitted with this request_id: then it is the answer, whatever has changed since."""
        return bool(options.request_id) and self.stores.queue.knows_request(project, options.request_id)

    def keep_inline(self, project: str, points: Points, options: pb.JobOptions) -> str:
        """Store points that came inside a request as a dataset named by their digest, once.

        Checks first that the queue has room: a refused job must not cost a write of megabytes.
        """
        limits = self.settings.limits_of(project)
        assert limits.max_queued_jobs is not None
        if not self.is_repeated(project, options):
            self.stores.queue.check_room(project, limits.max_queued_jobs)
        arrays = parts_from_points(points)
        shape = shape_of(points)
        digest = hashlib.sha256()
        for array in arrays.values():
            digest.update(np.ascontiguousarray(array).tobytes())
        named = hashlib.sha256(shape.SerializeToString(deterministic=True) + digest.digest()).hexdigest()
        name = DatasetName(project, f"inline-{named[:48]}")
        if not self.stores.catalog.has(name):
            start = dataset_pb2.UploadStart(shape=shape, description="came inside a request")
            size = sum(array.nbytes for array in arrays.values())
            # Another request may bring the same points at the same time.
            with suppress(AlreadyExists):
                most = limits.max_project_bytes
                publish_dataset(self.stores, name, start, digest.digest(), size, arrays=arrays, most=most)
        return str(name)


def _check_map(
    request: pb.EmbedRequest, n_points: int, labels: PointLabels | None, settings: Settings
) -> tuple[int, int | None]:
    """Check links, labels and parameters; returns what :func:`map_shape` does."""
    links = read_links(request.links, n_points, "links", max_links=settings.max_links)
    withdrawn = read_links(request.withdrawn, n_points, "withdrawn", max_links=settings.max_links)
    continues = request.WhichOneof("points") == "embedding"
    if any(map(len, withdrawn)) and not continues:
        raise InvalidRequest(
            "withdrawn", "must be links of an earlier embedding, but this request does not continue one"
        )
    embedding_parameters(request.solver, "solver")
    shape = map_shape(request, n_points, settings.max_classes)
    if not continues and labels is not None:
        # Only the job reads the links of an earlier embedding, and a column of labels.
        check_closure(links, links_of_labels(labels.points, labels.classes), request.solver.closure)
    return shape
