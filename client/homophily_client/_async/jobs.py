"""Jobs: start, get, list."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

from numpy.typing import ArrayLike

from homophily_client._async.base import INLINE_BYTES
from homophily_client._async.connection import new_request_id
from homophily_client._async.datasets import AsyncDatasets
from homophily_client._async.handle import LONGEST_WAIT, AsyncJobHandle
from homophily_client._async.models import AsyncModels
from homophily_client._pb import job_pb2, model_pb2
from homophily_client.labels import GivenLabels, LabelColumn, check_lengths, row_numbers
from homophily_client.names import DatasetName, JobName, ModelName, ProjectName
from homophily_client.options import GraphOptions, SolverOptions
from homophily_client.parameters import (
    JobOptions,
    SearchOptions,
    job_message,
    registration_message,
    search_message,
    to_message,
)
from homophily_client.points import Points
from homophily_client.results import Dataset, Embedding, JobState, Model
from homophily_client.retries import is_unavailable, is_unavailable_or_full
from homophily_client.tables import Table, TableOptions, as_points, columns_message, like_dataset
from homophily_client.words import number


class AsyncJobs(AsyncDatasets, AsyncModels):
    """The calls about jobs; they take points, datasets and models."""

    retry_full_queue: bool

    async def fit(
        self,
        data: Any,
        y: Any = None,
        *,
        table: TableOptions | dict[str, Any] | None = None,
        weights: Any = None,
        edges: Any = None,
        graph: GraphOptions | dict[str, Any] | None = None,
        solver: SolverOptions | dict[str, Any] | None = None,
        search: SearchOptions | dict[str, Any] | bool | int | None = None,
        validation: Any = None,
        test: Any = None,
        calibrate: bool = False,
        register: str | None = None,
        aliases: Iterable[str] = (),
        model_id: str | None = None,
        job: JobOptions | dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AsyncJobHandle[Model]:
        """Start a job that fits a model.

        Parameters
        ----------
        data : Dataset, str or points
            A dataset, its name, or the points themselves as for ``upload``. Small data is sent with the request,
            larger data is uploaded first.
        y : array, dict or pair
            The labels. With an entry for each point, −1, None, NaN and "" mean unlabelled. A dictionary
            ``{point: class}`` or a pair ``(points, classes)`` names a few points, and every class counts, −1 too.
            Classes are integers (True is 1) or strings. Soft labels have a share of each class:
            ``{point: {class: share}}``, or a row of shares for each point. A :class:`LabelColumn` refers to labels that
            are stored with a dataset. If not given: the ``label_column`` of a table, or the labels that were uploaded
            with the dataset.
        table : TableOptions or dict, optional
            For a table with named columns: which column is what, and how its rows become points.
        weights : array or dict, optional
            The confidence in each label, positive: an entry for each point, or ``{point: weight}``. The
            ``weight_column`` of a table if not given.
        edges : Edges, sparse matrix, Dataset or str, optional
            Edges between the points that are known besides their features; ``edge_share`` of the graph says how much
            they count. A graph in place of points is ``data`` with ``graph={"metric": "affinity"}``.
        graph : GraphOptions or dict, optional
            The graph; see the core's ``KNNGraph``.
        solver : SolverOptions or dict, optional
            The method and its parameters; see the core's ``ERRClassifier`` and ``IRRClassifier``.
        search : SearchOptions, dict, bool or int, optional
            Search the hyper-parameters that are not given: True, a number of trials, or options.
        validation : as y, optional
            Labels that are only compared with the answers; a search chooses by them.
        test : as y, optional
            Labels to compare the final model with.
        calibrate : bool, default=False
            Calibrate the model, which probabilities need; takes up to half as long as the fit.
        register : str, optional
            Register the model under this name with the tracking server, as a new version.
        aliases : iterable of str, optional
            Aliases of that version, such as "champion".
        model_id : str, optional
            The model's short name; the job's if not given.
        job : JobOptions or dict, optional
            How the job is run.
        timeout : float, optional
            Seconds that the call may take; the client's if not given.
        """
        data = data if isinstance(data, Dataset | str) else as_points(data, table)
        if isinstance(data, Table):
            if (y is None) == (data.labels is None):
                raise ValueError("Labels are needed, either as y or by label_column of the table.")
            y, weights = data.labels if y is None else y, data.weights if weights is None else weights
        elif y is None and isinstance(data, Dataset | str):
            y = LabelColumn()
        given = {
            "y": self._labels(y, "y", weights),
            "validation": self._labels(validation, "validation"),
            "test": self._labels(test, "test"),
        }
        request = job_pb2.FitRequest(
            labels=given["y"].message,
            validation=given["validation"].message,
            test=given["test"].message,
            graph=to_message(model_pb2.GraphParameters, graph, "graph"),
            solver=to_message(model_pb2.SolverParameters, solver, "solver"),
            search=search_message(search),
            calibrate=calibrate,
            registration=registration_message(register, aliases),
            model_id=model_id or "",
            options=job_message(job, new_request_id()),
        )
        if isinstance(data, Dataset | str):
            await self._use_dataset(request, data, given)
        else:
            await self._use_points(request, data, given)
        await self._use_edges(request, edges)
        return await self._submit("Fit", request, timeout)

    async def transduce(
        self,
        model: Model | str,
        labels: Any = None,
        *,
        withdrawn: ArrayLike = (),
        dataset: Dataset | str | None = None,
        validation: Any = None,
        test: Any = None,
        calibrate: bool = False,
        register: str | None = None,
        aliases: Iterable[str] = (),
        model_id: str | None = None,
        job: JobOptions | dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AsyncJobHandle[Model]:
        """Start a job that makes a model with other labels, from a model's graph and solution.

        ``labels`` are new or changed ones, given as y in ``fit``; points without an entry keep their label, and
        ``withdrawn`` are points that lose it. ``dataset`` was made by ``append_points`` from the model's dataset: the
        new model is of its points. The rest is as in ``fit``.
        """
        name = self._name(ModelName, model, "model")
        appended = None if dataset is None else self._name(DatasetName, dataset, "dataset")
        given = {
            "labels": self._labels(labels, "labels"),
            "validation": self._labels(validation, "validation"),
            "test": self._labels(test, "test"),
        }
        if any(one.length is not None for one in given.values()):
            described: Model | Dataset
            if appended is None:
                described = model if isinstance(model, Model) else await self.get_model(model, timeout=timeout)
            else:
                described = dataset if isinstance(dataset, Dataset) else await self.get_dataset(str(appended))
            check_lengths(given, described.points)
        request = job_pb2.TransduceRequest(
            model=str(name),
            labels=given["labels"].message,
            withdrawn=row_numbers(withdrawn, "withdrawn"),
            validation=given["validation"].message,
            test=given["test"].message,
            calibrate=calibrate,
            registration=registration_message(register, aliases),
            model_id=model_id or "",
            appended_dataset="" if appended is None else str(appended),
            options=job_message(job, new_request_id()),
        )
        return await self._submit("Transduce", request, timeout)

    async def import_model(
        self,
        uri: str,
        *,
        model_id: str | None = None,
        job: JobOptions | dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AsyncJobHandle[Model]:
        """Start a job that copies a model from the tracking server's registry, to be served here.

        ``uri`` is ``models:/name/version``, ``models:/name@alias`` or ``runs:/run/path``. The rest is as in ``fit``.
        """
        request = job_pb2.ImportModelRequest(
            parent=self._parent, uri=uri, model_id=model_id or "", options=job_message(job, new_request_id())
        )
        return await self._submit("ImportModel", request, timeout)

    async def create_dataset(
        self,
        address: str,
        *,
        table: TableOptions | dict[str, Any] | None = None,
        name: str | None = None,
        description: str = "",
        job: JobOptions | dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AsyncJobHandle[Dataset]:
        """Start a job that makes a dataset from files that lie elsewhere, which a worker reads.

        Parameters
        ----------
        address : str
            ``s3://bucket/points.parquet``, ``gs://…``, ``az://container/…``, ``https://host/…`` or ``file:///folder/…``,
            of those that the operator allows for the project, ending with ``.parquet``, ``.arrow``, ``.feather``,
            ``.csv``, ``.tsv`` or ``.npy``. A folder, with ``/`` at the end, is all such files below it; ``*`` in the
            last part matches any text.
        table : TableOptions or dict, optional
            Which columns are what, and how rows become points. The label column is stored with the dataset, for
            ``fit``; the weight column is left out.
        name : str, optional
            The dataset's name; the job's if not given. If there is one of the same address and columns, it is the
            result if the files are unchanged, and otherwise the job fails.
        description : str, optional
            A text for people.
        job : JobOptions or dict, optional
            How the job is run.
        timeout : float, optional
            Seconds that the call may take; the client's if not given.
        """
        parsed = None if name is None else self._name(DatasetName, name, "name")
        request = job_pb2.CreateDatasetRequest(
            parent=self._parent if parsed is None else str(ProjectName(parsed.project)),
            address=address,
            dataset_id="" if parsed is None else parsed.id,
            description=description,
            table=columns_message(TableOptions.of(table)),
            options=job_message(job, new_request_id()),
        )
        return await self._submit("CreateDataset", request, timeout)

    async def append_points(
        self,
        dataset: Dataset | str,
        X: Any,
        *,
        name: str | None = None,
        description: str = "",
        job: JobOptions | dict[str, Any] | None = None,
        timeout: float | None = None,
    ) -> AsyncJobHandle[Dataset]:
        """Start a job that makes a dataset of an earlier one and more points, which come after its own.

        Graphs of the new dataset go on from those of the earlier one, as do models by ``transduce(model, dataset=…)``
        and maps by ``embed(embedding, dataset=…)``.

        Parameters
        ----------
        dataset : Dataset or str
            The earlier dataset, which stays as it is.
        X : array, sparse matrix, table, Dataset or str
            The points to append, of the type and columns of the earlier ones; or a dataset of them, or its name. A
            table is matched by column name, and may lack the label column.
        name : str, optional
            The new dataset's name; the job's if not given.
        description : str, optional
            A text for people.
        job, timeout
            As in ``fit``.
        """
        described = dataset if isinstance(dataset, Dataset) else await self.get_dataset(dataset)
        parsed = None if name is None else self._name(DatasetName, name, "name")
        request = job_pb2.AppendPointsRequest(
            dataset=described.name,
            dataset_id="" if parsed is None else parsed.id,
            description=description,
            options=job_message(job, new_request_id()),
        )
        if isinstance(X, Dataset | str):
            request.added_dataset = str(self._name(DatasetName, X, "X"))
        else:
            request.added_dataset = await self._sent(request, Points(like_dataset(X, described)))
        return await self._submit("AppendPoints", request, timeout)

    async def _use_edges(self, request: job_pb2.FitRequest | job_pb2.EmbedRequest, edges: Any) -> None:
        """Name the dataset of the edges, which is uploaded if they are given themselves."""
        if edges is None:
            return
        if isinstance(edges, Dataset | str):
            request.edges_dataset = str(self._name(DatasetName, edges, "edges"))
        else:
            request.edges_dataset = await self._sent(request, Points(edges), "edges")

    async def _sent(self, request: Any, points: Points, part: str = "") -> str:
        """Upload points that belong to a request; returns the name of the dataset.

        The same request_id gives the same name, so that a repeated request is the same request.
        """
        key = f"{self.project}/{request.options.request_id}{part and '/'}{part}"
        upload_id = hashlib.sha256(key.encode()).hexdigest()[:32]
        return (await self._upload(points, DatasetName(self.project, upload_id), upload_id, resume=True)).name

    async def job(self, job: AsyncJobHandle[Any] | str, *, timeout: float | None = None) -> AsyncJobHandle[Any]:
        """Return a job by its name."""
        request = job_pb2.GetJobRequest(name=str(self._name(JobName, job, "job")))
        return AsyncJobHandle(self._connection, (await self._connection.call("GetJob", request, timeout=timeout)).job)

    async def list_jobs(
        self,
        *,
        states: Iterable[JobState | str] = (),
        kind: str | None = None,
        source: Dataset | Model | Embedding | str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        oldest_first: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[AsyncJobHandle[Any]]:
        """Yield the project's jobs, newest first: all, or some.

        These may be in some ``states``, of a ``kind`` (fit, transduce, …), asked to work on a ``source`` (a dataset,
        model or embedding, or its full name), or made in a span of time.
        """
        request = job_pb2.ListJobsRequest(parent=self._parent)
        if source is not None:
            request.source = source if isinstance(source, str) else source.name
        self._listed(request, created_after, created_before, oldest_first=oldest_first)
        for state in states:
            numbered = number(job_pb2.JobState.DESCRIPTOR, state, "states")
            request.states.append(job_pb2.JobState.ValueType(numbered))
        if kind is not None:
            request.kind = job_pb2.JobKind.ValueType(number(job_pb2.JobKind.DESCRIPTOR, kind, "kind"))
        async for page in self._pages("ListJobs", request, timeout):
            for message in page.jobs:
                yield AsyncJobHandle(self._connection, message)

    async def _use_dataset(
        self, request: job_pb2.FitRequest | job_pb2.EmbedRequest, data: Dataset | str, given: dict[str, GivenLabels]
    ) -> None:
        name = self._name(DatasetName, data, "data")
        request.parent, request.dataset = str(ProjectName(name.project)), str(name)
        if any(one.length is not None for one in given.values()):
            # The server gets only labelled points, so it cannot notice a y of the wrong length.
            check_lengths(given, (data if isinstance(data, Dataset) else await self.get_dataset(data)).points)

    async def _use_points(
        self, request: job_pb2.FitRequest | job_pb2.EmbedRequest, data: Any, given: dict[str, GivenLabels]
    ) -> None:
        points = Points(data)
        check_lengths(given, points.shape[0])
        request.parent = self._parent
        if points.bytes + request.ByteSize() <= INLINE_BYTES:
            request.inline.CopyFrom(points.message())
            return
        request.dataset = await self._sent(request, points)

    async def _submit(self, method: str, request: Any, timeout: float | None) -> AsyncJobHandle[Any]:
        """Submit a job."""
        wait = min(LONGEST_WAIT, request.options.wait.ToNanoseconds() / 1e9)
        answer = await self._connection.call(
            method,
            request,
            timeout=(timeout or self._connection.timeout) + wait,
            patience=self._connection.long(is_unavailable_or_full if self.retry_full_queue else is_unavailable),
        )
        return AsyncJobHandle(self._connection, answer.job)
