"""What every kind of job needs: the task, the stores, its progress, and a graph."""

from __future__ import annotations

import logging
import platform
import resource
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily import KNNGraph, Preprocessing
from homophily.device.backend import CupyBackend, get_backend
from homophily.graph.computing import BackendName
from homophily.solve.nonlinear_cg import State as Iterate
from homophily.storage import PointLabels
from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2
from homophily_client.names import DatasetName
from homophily_service.contract.arrays import STRING_DATA, STRING_STARTS, points_from_parts, strings_from_parts
from homophily_service.contract.errors import DataLoss, FailedPrecondition, InvalidRequest, NotFound
from homophily_service.contract.labels import check_label_column, labels_in, read_labels
from homophily_service.contract.names import parse_name
from homophily_service.contract.tables import Rows, Strings, features_of, size_of
from homophily_service.contract.tasks import Task
from homophily_service.contract.values import OWN_GRAPHS, graph_parameters
from homophily_service.runtime.settings import Settings
from homophily_service.storage.models import StoredGraph, graph_digest, graph_path, read_graph, save_graph
from homophily_service.storage.quotas import lock_quota, reservation_of, reserve_upload
from homophily_service.storage.recipes import ids_of, recipe_of, table_of
from homophily_service.storage.records import ResourceRecord
from homophily_service.storage.sources import dataset_digest, pinned
from homophily_service.storage.stores import Stores

_log = logging.getLogger(__name__)

# What the phases cost, in tenths of a fit. A search knows its own cost.
COSTS = {"read": 10.0, "load": 1.0, "graph": 10.0, "solve": 10.0, "calibrate": 5.0, "cluster": 10.0, "save": 1.0}
SECONDS_BETWEEN_REPORTS = 0.2
# A graph that has grown by more is searched as a whole again, as its regions and its space are of the first points.
MOST_GROWTH = 1.5
# A longer trace is thinned out to every second step.
LONGEST_TRACE = 1000
SOFTWARE = ("homophily", "numpy", "scipy", "numba", "scikit-learn", "faiss-cpu")

Report = Callable[[job_pb2.Progress], None]
Described = model_pb2.Model | embedding_pb2.Embedding


class Stage:
    """Reports a job's progress, and keeps the seconds of each phase."""

    def __init__(self, report_progress: Report) -> None:
        self._report_progress = report_progress
        self.seconds: dict[str, float] = {}
        self.progress = job_pb2.Progress()
        self.trace = model_pb2.Trace()
        self._entered = self._reported = time.monotonic()
        self._costs = COSTS

    def plan(self, *phases: str, search: float = 0.0) -> None:
        """Say which phases the job will have, in their order, and what its search costs in tenths of a fit."""
        self._costs = {phase: COSTS.get(phase, search) for phase in phases}

    def enter(self, phase: str, error_rate: float | None = None) -> None:
        """Begin a phase and end the one before; ``error_rate`` is that on the validation labels, once known."""
        self.leave()
        self.progress = job_pb2.Progress(phase=phase, error_rate=error_rate)
        self.advance(0.0)
        self.report()

    def advance(self, share: float) -> None:
        """Note that this share of the phase is done; a smaller one than before changes nothing."""
        phases = list(self._costs)
        before = sum(self._costs[phase] for phase in phases[: phases.index(self.progress.phase)])
        done = before + min(1.0, share) * self._costs[self.progress.phase]
        self.progress.fraction = max(self.progress.fraction, done / sum(self._costs.values()))

    def done(self, share: float) -> None:
        """Note that this share of the phase is done; reported a few times a second."""
        self.advance(share)
        self.report_if_due()

    def leave(self) -> None:
        """End the phase that is running."""
        now = time.monotonic()
        if self.progress.phase:
            self.seconds[self.progress.phase] = self.seconds.get(self.progress.phase, 0.0) + now - self._entered
        self._entered = now

    def step(self, iteration: int, most: int, runs: int = 1) -> None:
        """Note a step of a solver that is run ``runs`` times; reported a few times a second."""
        self.progress.iteration, self.progress.max_iterations = iteration, most
        if most:
            # The number of the run is not known, so only the share of one run is claimed.
            self.advance(min(1.0, iteration / most) / runs)
        self.report_if_due()

    def optimised(self, state: Iterate, most: int, runs: int = 1) -> None:
        """Note a step of the optimiser, and add it to the trace."""
        trace, progress = self.trace, self.progress
        trace.iterations.append(state.iteration)
        trace.energies.append(state.energy)
        trace.gradient_norms.append(state.gradient_norm)
        trace.evaluation_counts.append(state.n_evaluations)
        if len(trace.iterations) > LONGEST_TRACE:
            for column in (trace.iterations, trace.energies, trace.gradient_norms, trace.evaluation_counts):
                del column[1::2]
        progress.energy, progress.gradient_norm = state.energy, state.gradient_norm
        progress.evaluation_count = state.n_evaluations
        self.step(state.iteration, most, runs)

    def report_if_due(self) -> None:
        """Report the progress, unless it was reported a moment ago."""
        if time.monotonic() - self._reported >= SECONDS_BETWEEN_REPORTS:
            self.report()

    def report(self) -> None:
        """Report the progress now."""
        self._reported = time.monotonic()
        self._report_progress(self.progress)


class Work(NamedTuple):
    """The input of every kind of job."""

    task: Task
    stores: Stores
    settings: Settings
    threads: int
    stage: Stage
    backend: BackendName = "numpy"

    def labels(
        self,
        message: model_pb2.Labels,
        n_points: int,
        field: str,
        dataset: str,
        *,
        soft: bool = False,
        like: NDArray[Any] | None = None,
        earlier: Described | None = None,
    ) -> PointLabels:
        """Read labels of the request; ``dataset`` is that of the points, which a column is of if no other is named.

        Classes in a column are strings if those that they are to be ``like`` are. The points are those of an
        ``earlier`` model or map, if one is given.
        """
        most = self.settings.max_classes
        if not message.HasField("column"):
            return PointLabels(*read_labels(message, n_points, field, max_classes=most, soft=soft))
        found = self.dataset(message.column.dataset or dataset, f"{field}.column.dataset")
        if earlier is not None and not message.column.dataset:
            self._check_same_points(found.dataset, earlier, f"{field}.column.dataset")
        shape = found.dataset.shape
        check_label_column(shape, message, n_points, field)
        # The numbers are read only if there are weights among them.
        names = (STRING_STARTS, STRING_DATA, *(["points"] if message.column.weight_column else []))
        arrays = self.stores.read(found.blob, *names).arrays
        rows = Rows(shape.schema, arrays.get("points", np.empty((n_points, 0))), strings_from_parts(arrays, shape))
        return PointLabels(*labels_in(rows, message.column, field, max_classes=most, like=like))

    def dataset(self, name: str, field: str) -> StoredDataset:
        """The dataset of this name."""
        record = self.stores.catalog.get(parse_name(DatasetName, name, field))
        return StoredDataset(dataset_pb2.Dataset.FromString(record.message), record.blob)

    def appended(self, name: str, earlier: Described) -> StoredDataset | None:
        """The dataset of this name, if there is a name and it begins with the points of ``earlier``."""
        if not name:
            return None
        found = self.dataset(name, "appended_dataset")
        if not self._is_of(found.dataset.base.digest, found.dataset, earlier):
            raise InvalidRequest("appended_dataset", f"must begin with the points of {earlier.name}")
        return found

    def _is_of(self, points: str, like: dataset_pb2.Dataset, earlier: Described) -> bool:
        """Whether a model or a map is of the points with this digest, which are sparse or not ``like`` a dataset's."""
        is_sparse = size_of(like.shape).is_sparse
        parameters = graph_parameters(earlier.graph_parameters, is_sparse=is_sparse, field="graph")
        edges = earlier.graph.edges_dataset
        edges = dataset_digest(self.dataset(edges, "edges_dataset").dataset) if edges else ""
        return graph_digest(self.task.name.project, points, parameters, edges) == earlier.graph.digest

    def _check_same_points(self, dataset: dataset_pb2.Dataset, earlier: Described, field: str) -> None:
        """Refuse a dataset that took the name of the one that a model or a map is of."""
        if not self._is_of(dataset_digest(dataset), dataset, earlier):
            raise FailedPrecondition(
                f"{field}: {dataset.name} no longer holds the points of {earlier.name}: name a dataset of labels",
                reason="SOURCE_CHANGED",
            )

    def reserve(self, size: int) -> None:
        """Reserve bytes for what the job makes, until it ends; LimitExceeded if the project may not have them."""
        name, limits = self.task.name, self.settings.limits_of(self.task.name.project)
        assert limits.max_uploads is not None
        with self.stores.database.write() as connection:
            lock_quota(connection, name.project)
            reserve_upload(
                connection, name.project, reservation_of(name.id), size, limits.max_project_bytes, limits.max_uploads
            )

    def source(self, request: Any) -> ResourceRecord:
        """The dataset, model or embedding of the job, as it was when the job was submitted."""
        return pinned(self.stores.catalog, request, self.task.source_digest)


class StoredDataset(NamedTuple):
    """A dataset, and the path of its arrays."""

    dataset: dataset_pb2.Dataset
    blob: str


def together(*labels: PointLabels) -> PointLabels:
    """Labels of different points as one."""
    if any(one.shares is not None for one in labels):
        labels = tuple(
            one if one.shares is not None else one._replace(shares=np.ones(len(one.points))) for one in labels
        )
    columns = [column for column in zip(*labels, strict=True) if column[0] is not None]
    return PointLabels(*map(np.concatenate, columns))


def graph_of(
    work: Work, dataset: dataset_pb2.Dataset, blob: str, described: Described, edges_dataset: str = ""
) -> KNNGraph:
    """The graph of a dataset, described in a message: out of the store if it is there, else built and stored.

    ``edges_dataset`` is the name of a dataset of edges that count too.
    """
    is_sparse = size_of(dataset.shape).is_sparse
    parameters = graph_parameters(described.graph_parameters, is_sparse=is_sparse, field="graph")
    project = work.task.name.project
    if is_sparse and parameters["metric"] not in OWN_GRAPHS:
        # Where a stored message says nothing it means 10, which was the default of all points once.
        described.graph_parameters.n_neighbors = parameters["n_neighbors"]
    edges = work.dataset(edges_dataset, "edges_dataset") if edges_dataset else None
    digest = graph_digest(
        project, dataset_digest(dataset), parameters, dataset_digest(edges.dataset) if edges is not None else ""
    )
    path = work.stores.catalog.use_graph(digest)
    work.stage.enter("graph")
    stored = None
    if path is not None:
        try:
            stored = _checked(read_graph(work.stores.blobs, path, work.threads), dataset, digest)
        except (DataLoss, NotFound) as loss:
            _log.warning("a stored graph is damaged or lost and will be built again: %s", loss.message)
    reused = stored is not None
    if stored is None:
        stored = _extended(work, dataset, blob, parameters) if edges is None else None
    if stored is None:
        points, recipe, ids = read_points(work, dataset, blob)
        graph = KNNGraph(**parameters, n_jobs=work.threads, backend=work.backend)
        given = None if edges is None else _stored_points(work, edges.dataset, edges.blob)
        graph.fit(points, edges=given, callback=work.stage.done)
        stored = StoredGraph(graph, recipe, ids)
    if not reused:
        fresh = graph_path(digest, work.task.token)
        size = save_graph(work.stores.blobs, fresh, stored)
        if path is None:
            work.stores.catalog.add_graph(digest, fresh, size, project)
        else:
            work.stores.catalog.replace_graph(digest, fresh, size, project)
    graph = stored.graph
    described.graph.CopyFrom(
        model_pb2.GraphSummary(
            digest=digest,
            reused=reused,
            edge_count=graph.W.nnz // 2,
            recall=graph.recall_,
            component_count=graph.n_components,
            searched_count=graph.n_searched_,
            edges_dataset=edges_dataset,
        )
    )
    described.dimension_count = graph.n_features_in_
    if stored.recipe is not None:
        described.schema.CopyFrom(features_of(dataset.shape.schema))
        described.preprocessing_steps.extend(stored.recipe.steps_)
    return graph


def _extended(work: Work, dataset: dataset_pb2.Dataset, blob: str, parameters: dict[str, Any]) -> StoredGraph | None:
    """The graph of a dataset that begins with another one, from that one's graph; None if that is not there.

    The recipe of a table stays that of the first rows.
    """
    base, size = dataset.base, size_of(dataset.shape)
    if not dataset.HasField("base"):
        return None
    path = work.stores.catalog.use_graph(graph_digest(work.task.name.project, base.digest, parameters))
    if path is None:
        return None
    try:
        before = read_graph(work.stores.blobs, path, work.threads)
    except (DataLoss, NotFound):
        return None
    graph = before.graph
    if graph.index_ is None or graph.n_points != base.row_count or size.rows > MOST_GROWTH * graph.n_searched_:
        return None
    added = read_rows(work, dataset, blob, base.row_count, before.recipe)
    grown = graph.append(added, callback=work.stage.done)
    return StoredGraph(grown, before.recipe, ids_of(_stored_points(work, dataset, blob)))


def read_rows(work: Work, dataset: dataset_pb2.Dataset, blob: str, first: int, recipe: Preprocessing | None) -> Any:
    """The points of a dataset from row ``first`` on; those of a table as the recipe of its other rows makes them."""
    rows = _stored_points(work, dataset, blob)[first : size_of(dataset.shape).rows]
    return rows if recipe is None else recipe.transform(table_of(rows))


def _stored_points(work: Work, dataset: dataset_pb2.Dataset, blob: str) -> Any:
    return points_from_parts(work.stores.read(blob).arrays, dataset.shape)


def read_points(
    work: Work, dataset: dataset_pb2.Dataset, blob: str
) -> tuple[Any, Preprocessing | None, Strings | None]:
    """The points of a dataset; for a table, also the recipe that made them of its rows, and the rows' ids."""
    points = _stored_points(work, dataset, blob)
    if not isinstance(points, Rows):
        return points, None, None
    recipe = recipe_of(points)
    return recipe.transform(table_of(points)), recipe, ids_of(points)


def _checked(stored: StoredGraph, dataset: dataset_pb2.Dataset, digest: str) -> StoredGraph:
    """A stored graph, if it has the points and columns of the dataset; its name alone is not trusted."""
    graph, size = stored.graph, size_of(dataset.shape)
    columns = graph.n_features_in_ if dataset.shape.HasField("schema") else size.columns
    if (graph.n_points, graph.n_features_in_) != (size.rows, columns):
        raise DataLoss(f"graph {digest} is of {graph.n_points} × {graph.n_features_in_} points, not of {dataset.name}")
    return stored


def describe_computing(described: Described, backend: BackendName) -> None:
    """Note the device, the software and the memory with which something was computed."""
    computed = get_backend(backend)
    described.device = computed.described if isinstance(computed, CupyBackend) else "cpu"
    described.peak_memory_bytes = _peak_memory()
    described.software.update({package: version(package) for package in SOFTWARE})
    described.software["python"] = platform.python_version()


def forget_peak_memory() -> None:
    """Reset the peak of this process's memory, if the kernel lets us: earlier jobs ran in it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_memory() -> int:
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def sentences(warned: list[warnings.WarningMessage]) -> list[str]:
    """The core's warnings, each once."""
    return list(dict.fromkeys(str(warning.message)[:1000] for warning in warned))[:20]
