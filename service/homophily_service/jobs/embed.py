"""The job that makes a map and clusters from links and labels, including those of an earlier embedding."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily import ERRClustering, ERREmbedding, KNNGraph, Preprocessing
from homophily.solve.nonlinear_cg import State as Iterate
from homophily_client._pb import dataset_pb2, embedding_pb2, job_pb2, model_pb2
from homophily_client.names import EmbeddingName
from homophily_service.contract.checks import map_shape
from homophily_service.contract.errors import DataLoss, InvalidRequest
from homophily_service.contract.links import (
    Links,
    check_closure,
    each_once,
    join,
    links_of_labels,
    read_links,
    to_message,
    without,
)
from homophily_service.contract.values import embedding_parameters
from homophily_service.jobs.maps import make_embedding
from homophily_service.jobs.work import Work, describe_computing, graph_of, read_rows, sentences
from homophily_service.storage.embeddings import Given, load_embedding, save_embedding
from homophily_service.storage.models import load_graph

# Violated links of each kind in the embedding's message; all of them are among its arrays.
LISTED_LINKS = 100


class _Start(NamedTuple):
    """Where a job begins."""

    graph: KNNGraph
    #: The map to continue from.
    earlier: NDArray[np.float64] | None
    #: The links and labels that were given for it.
    given: Given
    #: How the rows of a table became points; None of others.
    recipe: Preprocessing | None = None
    #: Whether points stay where they are.
    is_fixed: bool = False


def embed(work: Work) -> bytes:
    """Map points; the result is an EmbedResult."""
    request = job_pb2.EmbedRequest.FromString(work.task.request)
    # Without clusters, that phase is skipped: an earlier map, which is read later, may decide about them.
    work.stage.plan("load", "graph", "solve", "cluster", "save")
    work.stage.enter("load")
    embedding = embedding_pb2.Embedding(
        name=str(EmbeddingName(work.task.name.project, request.embedding_id or work.task.name.id)),
        job=str(work.task.name),
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        start = _start(work, request, embedding)
        if request.appended_dataset:
            start = _grown(work, request, embedding, start)
        given = _given(work, request, start, embedding)
        labelled = links_of_labels(given.label_points, given.label_classes)
        check_closure(given.links, labelled, request.solver.closure)
        links = Links(*map(each_once, join(given.links, labelled)))
        _solve(work, request, embedding, start, given, links)
    embedding.warnings.extend(sentences(warned))
    return job_pb2.EmbedResult(embedding=embedding).SerializeToString()


def _start(work: Work, request: job_pb2.EmbedRequest, embedding: embedding_pb2.Embedding) -> _Start:
    """The graph, and the map to continue from; both are described in ``embedding``."""
    none_given = Given(Links(*np.empty((2, 0, 2), np.int64)), np.empty(0, np.int64), np.empty(0, np.int64))
    row = work.source(request)
    if request.WhichOneof("points") == "dataset":
        dataset = dataset_pb2.Dataset.FromString(row.message)
        embedding.dataset = request.dataset
        embedding.graph_parameters.CopyFrom(request.graph)
        return _Start(graph_of(work, dataset, row.blob, embedding, request.edges_dataset), None, none_given)
    if request.WhichOneof("points") == "model":
        source: model_pb2.Model | embedding_pb2.Embedding = model_pb2.Model.FromString(row.message)
        embedding.model, earlier, given = request.model, None, none_given
    else:
        source = parent = embedding_pb2.Embedding.FromString(row.message)
        earlier, given = load_embedding(work.stores, row.blob)
        embedding.parent_embedding, embedding.model = parent.name, parent.model
        request.n_components = parent.component_count
        if parent.cluster_count and not request.HasField("n_clusters"):
            request.n_clusters = parent.cluster_count
        request.solver.CopyFrom(continued(parent, request.solver))
    if row.graph is None:
        raise DataLoss(f"{source.name} has no graph")
    embedding.dataset, embedding.dimension_count = source.dataset, source.dimension_count
    embedding.graph_parameters.CopyFrom(source.graph_parameters)
    embedding.graph.CopyFrom(source.graph)
    embedding.graph.reused = True
    if source.HasField("schema"):
        embedding.schema.CopyFrom(source.schema)
        embedding.preprocessing_steps.extend(source.preprocessing_steps)
    work.stage.enter("graph")
    stored = load_graph(work.stores, row.graph, work.threads)
    return _Start(stored.graph, earlier, given, stored.recipe)


def _grown(work: Work, request: job_pb2.EmbedRequest, embedding: embedding_pb2.Embedding, start: _Start) -> _Start:
    """The map with more points: those that it had stay where they are, and each other one is placed among them."""
    assert start.earlier is not None
    appended = work.appended(request.appended_dataset, embedding)
    assert appended is not None
    # No step is taken: only the places of new points are wanted.
    fitted = make_embedding(start.earlier.shape[1], embedding_parameters(request.solver, "solver"), 0)
    fitted.set_params(max_iter=0, n_jobs=work.threads, backend=work.backend)
    links = Links(*map(each_once, start.given.links))
    fitted.fit(start.graph, must_link=links.must, cannot_link=links.cannot, init=start.earlier)
    del embedding.preprocessing_steps[:]
    embedding.dataset = appended.dataset.name
    graph = graph_of(work, appended.dataset, appended.blob, embedding)
    added = read_rows(work, appended.dataset, appended.blob, start.graph.n_points, start.recipe)
    places = np.concatenate([start.earlier, fitted.transform(added)])
    return _Start(graph, places, start.given, is_fixed=True)


def continued(
    parent: embedding_pb2.Embedding, given: embedding_pb2.EmbeddingParameters
) -> embedding_pb2.EmbeddingParameters:
    """The parameters of a map that goes on from another one."""
    # Older embeddings lack n_vectors: they started from the spectral map, and their points stay where they are.
    parameters = embedding_pb2.EmbeddingParameters(n_vectors=parent.component_count)
    parameters.MergeFrom(parent.solver_parameters)
    parameters.MergeFrom(given)
    return parameters


def _given(work: Work, request: job_pb2.EmbedRequest, start: _Start, embedding: embedding_pb2.Embedding) -> Given:
    """The links and labels of the request, then those of the earlier map that are not withdrawn or changed."""
    u, before, most = start.graph.n_points, start.given, work.settings.max_links
    links = read_links(request.links, u, "links", max_links=most)
    kept = without(before.links, read_links(request.withdrawn, u, "withdrawn", max_links=most), "withdrawn")
    like = before.label_classes
    labels = work.labels(request.labels, u, "labels", embedding.dataset, like=like, earlier=embedding)
    points, classes = labels.points, labels.classes
    stays = ~np.isin(before.label_points, points)
    if not stays.any():
        return Given(join(links, kept), points, classes)
    old = before.label_classes[stays]
    if points.size and classes.dtype.kind != old.dtype.kind:
        raise InvalidRequest("labels.classes", "must be strings or integers, like the embedding's")
    classes = np.concatenate([classes.astype(old.dtype), old])
    return Given(join(links, kept), np.concatenate([points, before.label_points[stays]]), classes)


def _solve(
    work: Work,
    request: job_pb2.EmbedRequest,
    embedding: embedding_pb2.Embedding,
    start: _Start,
    given: Given,
    links: Links,
) -> None:
    """Make the map, find clusters, store both, and describe them in ``embedding``."""
    stage, graph = work.stage, start.graph
    n_components, n_clusters = map_shape(request, graph.n_points, work.settings.max_classes)
    parameters = embedding_parameters(request.solver, "solver")
    stage.enter("solve")
    fitted = make_embedding(n_components, parameters, len(links.must) + len(links.cannot))
    if start.is_fixed:
        fitted.set_params(max_iter=0)
    _follow(work, fitted, start.earlier)
    fitted.fit(graph, must_link=links.must, cannot_link=links.cannot, init=start.earlier)
    embedding.trace.CopyFrom(stage.trace)
    violated = Links(fitted.violated_must_, fitted.violated_cannot_)
    embedding.links.CopyFrom(
        embedding_pb2.LinkSummary(
            must_link_count=len(links.must),
            cannot_link_count=len(links.cannot),
            violated_must_link_count=len(violated.must),
            violated_cannot_link_count=len(violated.cannot),
            violated=to_message(violated, LISTED_LINKS),
        )
    )
    clusters = None
    if n_clusters is not None:
        stage.enter("cluster")
        clusters = _find_clusters(work, graph, links, n_clusters, parameters, embedding)
    stage.enter("save")
    embedding.size_bytes = save_embedding(
        work.stores.blobs, work.task.result_path, fitted.embedding_, clusters, links, violated, given
    )
    stage.leave()
    embedding.point_count, embedding.component_count = fitted.embedding_.shape
    embedding.labelled_count = len(given.label_points)
    embedding.solver_parameters.CopyFrom(request.solver)
    embedding.solver_parameters.n_vectors = fitted.n_vectors
    embedding.energy, embedding.iteration_count = float(fitted.energy_), int(fitted.n_iter_)
    embedding.evaluation_count, embedding.engine = int(fitted.n_evaluations_), str(fitted.engine_)
    embedding.seconds.update(stage.seconds)
    describe_computing(embedding, work.backend)
    embedding.create_time.GetCurrentTime()


def _find_clusters(
    work: Work,
    graph: KNNGraph,
    links: Links,
    n_clusters: int,
    parameters: dict[str, Any],
    embedding: embedding_pb2.Embedding,
) -> NDArray[np.int32]:
    """The cluster of each point. It uses a map of its own: one for people has too few dimensions for many clusters."""
    # None lets the graph suggest a number. With the fixed seed a second attempt gives the same answer.
    clustering = ERRClustering(n_clusters or None, random_state=0)
    clustering.set_params(
        embedding__normalized=parameters.get("normalized", True),
        embedding__link_penalty__closure=parameters.get("closure", True),
    )
    assert clustering.embedding is not None
    _follow(work, clustering.embedding)
    clustering.fit(graph, must_link=links.must, cannot_link=links.cannot)
    embedding.cluster_count = int(clustering.n_clusters_)
    embedding.links.divided_must_link_count = len(clustering.divided_must_)
    embedding.links.joined_cannot_link_count = len(clustering.joined_cannot_)
    return clustering.labels_.astype(np.int32)


def _follow(work: Work, estimator: ERREmbedding, init: NDArray[np.float64] | None = None) -> None:
    """Set the threads and the device of an estimator, and report its progress."""
    most = estimator.max_iter * (len(estimator.widths) if init is None else 1)

    def follow(state: Iterate) -> None:
        work.stage.optimised(state, most)

    estimator.set_params(n_jobs=work.threads, callback=follow, backend=work.backend)
