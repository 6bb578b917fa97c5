"""Graphs and models as stored objects: where they are, how they are written and read.

A graph is identified by the SHA-256 of its project, points and parameters, and shared within the project only, so no
tenant learns what others have computed. A model keeps only what is its own.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily import ERRClassifier, IRRClassifier, KNNGraph
from homophily.storage import State, classifier_state, graph_state, restore_classifier, restore_graph
from homophily_client._pb import dataset_pb2
from homophily_service.contract.errors import DataLoss, FailedPrecondition
from homophily_service.storage.blobs.objects import Blobs, StoredObject
from homophily_service.storage.solutions import CLASS_INDICES, PROBABILITIES, SCORES
from homophily_service.storage.sources import dataset_digest
from homophily_service.storage.stores import Stores

Classifier = IRRClassifier | ERRClassifier
CLASSIFIERS: dict[str, type[Classifier]] = {"irr": IRRClassifier, "err": ERRClassifier}


def graph_digest(project: str, dataset: dataset_pb2.Dataset, parameters: dict[str, Any]) -> str:
    """The identity of a graph, from its project, points and parameters only."""
    named = {"project": project, "points": dataset_digest(dataset), "parameters": parameters}
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def graph_path(digest: str, token: str) -> str:
    """Where a graph is written by the holder of a token; only the first of several is recorded."""
    return f"graphs/{digest}/{token}"


def save_graph(blobs: Blobs, path: str, graph: KNNGraph) -> int:
    """Write a graph; returns its bytes."""
    state = graph_state(graph)
    return blobs.write(path, state.arrays, state.document)


def load_graph(stores: Stores, digest: str, threads: int) -> KNNGraph:
    """The graph of a model."""
    path = stores.catalog.use_graph(digest)
    if path is None:
        raise DataLoss(f"graph {digest} is missing")
    return _restored(stores.read(path), threads)


def read_graph(blobs: Blobs, path: str, threads: int) -> KNNGraph:
    """Read a graph from its arrays."""
    return _restored(blobs.read(path), threads)


def _restored(stored: StoredObject, threads: int) -> KNNGraph:
    graph = restore_graph(State(stored.arrays, stored.document))
    # It may have been fitted on another machine's GPU.
    graph.set_params(n_jobs=threads, backend="numpy")
    return graph


def save_model(blobs: Blobs, path: str, classifier: Classifier, *, calibrate: bool) -> int:
    """Write a model with the answers for its own points; returns its bytes. Classes are 0, 1, … here."""
    answers: dict[str, NDArray[Any]] = {
        CLASS_INDICES: classifier.transduction_.astype(np.int32),
        SCORES: classifier.decision_scores_.reshape(len(classifier.transduction_), -1),
    }
    if calibrate:
        answers[PROBABILITIES] = classifier.label_distributions_
    state = classifier_state(classifier)
    return blobs.write(path, {**state.arrays, **answers}, state.document)


def load_model(stores: Stores, path: str, digest: str | None, threads: int) -> Classifier:
    """A model and its graph, ready to answer for new points or to be fitted with other labels."""
    if digest is None:
        raise FailedPrecondition(f"{path} has no graph")
    stored = stores.read(path)
    classifier = restore_classifier(State(stored.arrays, stored.document), load_graph(stores, digest, threads))
    classifier.set_params(n_jobs=threads, backend="numpy")
    return classifier
