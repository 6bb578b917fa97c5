"""Graphs and models as stored objects: where they are, how they are written and read.

A graph is identified by the SHA-256 of its project, points and parameters, and shared within the project only, so no
tenant learns what others have computed. A model keeps only what is its own.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from homophily import ERRClassifier, IRRClassifier, KNNGraph, Preprocessing
from homophily.storage import State, classifier_state, graph_state, restore_classifier, restore_graph
from homophily_service.contract.errors import DataLoss, FailedPrecondition
from homophily_service.contract.tables import Strings
from homophily_service.storage.blobs.objects import Blobs, StoredObject
from homophily_service.storage.recipes import stored_ids, stored_recipe, with_recipe
from homophily_service.storage.solutions import CLASS_INDICES, PROBABILITIES, SCORES
from homophily_service.storage.stores import Stores

Classifier = IRRClassifier | ERRClassifier
CLASSIFIERS: dict[str, type[Classifier]] = {"irr": IRRClassifier, "err": ERRClassifier}


def graph_digest(project: str, points: str, parameters: dict[str, Any], edges: str = "") -> str:
    """The identity of a graph, from its project, the digests of its points and edges, and its parameters only."""
    named = {"project": project, "points": points, "parameters": parameters} | ({"edges": edges} if edges else {})
    return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


def graph_path(digest: str, token: str) -> str:
    """Where a graph is written by the holder of a token; only the first of several is recorded."""
    return f"graphs/{digest}/{token}"


class StoredGraph(NamedTuple):
    """A graph with how its points came about."""

    graph: KNNGraph
    #: None if the points were no table.
    recipe: Preprocessing | None = None
    ids: Strings | None = None


def save_graph(blobs: Blobs, path: str, stored: StoredGraph) -> int:
    """Write a graph; returns its bytes."""
    state = with_recipe(graph_state(stored.graph), stored.recipe, stored.ids)
    return blobs.write(path, state.arrays, state.document)


def load_graph(stores: Stores, digest: str, threads: int) -> StoredGraph:
    """A graph that a model stands on."""
    return _restored(stores.read(path_of_graph(stores, digest)), threads)


def path_of_graph(stores: Stores, digest: str) -> str:
    """Where a graph is that a model stands on."""
    path = stores.catalog.use_graph(digest)
    if path is None:
        raise DataLoss(f"graph {digest} is not there any more")
    return path


def read_graph(blobs: Blobs, path: str, threads: int) -> StoredGraph:
    """A graph out of its arrays."""
    return _restored(blobs.read(path), threads)


def _restored(stored: StoredObject, threads: int) -> StoredGraph:
    graph = restore_graph(State(stored.arrays, stored.document))
    # It may have been fitted on another machine's GPU.
    graph.set_params(n_jobs=threads, backend="numpy")
    return StoredGraph(graph, stored_recipe(stored), stored_ids(stored))


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


def load_model(stores: Stores, path: str, digest: str | None, threads: int) -> tuple[Classifier, Preprocessing | None]:
    """A model and its graph, ready to answer for new points or to be fitted with other labels, and the recipe."""
    if digest is None:
        raise FailedPrecondition(f"{path} has no graph")
    stored, graph = stores.read(path), load_graph(stores, digest, threads)
    classifier = restore_classifier(State(stored.arrays, stored.document), graph.graph)
    classifier.set_params(n_jobs=threads, backend="numpy")
    return classifier, graph.recipe
