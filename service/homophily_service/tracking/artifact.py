"""A fitted model as a folder, in the manifest format of every stored object: arrays, JSON, checksums.

::

    about/    the classes, and the description that the service had of the model
    graph/    the graph, with the points
    model/    the classifier on it; its classes are positions, as everywhere in the store

Nothing in it is code or pickled, so a folder from anywhere can be read; one that is not such a model is refused.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor
from numpy.typing import NDArray

from homophily import Preprocessing
from homophily.storage import State, classifier_state, graph_state, restore_classifier, restore_graph
from homophily_client._pb import model_pb2
from homophily_client.names import ModelName
from homophily_service.contract.errors import DataLoss, FailedPrecondition, NotFound
from homophily_service.contract.labels import TEXT, classes_of
from homophily_service.storage.blobs.objects import Blobs
from homophily_service.storage.models import Classifier
from homophily_service.storage.recipes import stored_recipe, with_recipe
from homophily_service.storage.stores import Stores

# Raise it when the current reader would misread what is written. Every version ever written stays readable:
#   1  counts in the description have the names of FORMER_COUNTS
#   2  counts are called …_count, as in the protos
FORMAT = 2
ABOUT, GRAPH, MODEL = "about", "graph", "model"
#: By message: the names that its fields had in format 1, and have now.
FORMER_COUNTS = {
    "Model": {
        "points": "point_count",
        "dimensions": "dimension_count",
        "labelled": "labelled_count",
        "iterations": "iteration_count",
        "evaluations": "evaluation_count",
    },
    "GraphSummary": {"edges": "edge_count", "components": "component_count"},
    "Trace": {"evaluations": "evaluation_counts"},
    "Evaluation": {"points": "point_count"},
    "ReliabilityBin": {"points": "point_count"},
    "Trial": {"held_out": "held_out_count"},
}


class Parts(NamedTuple):
    """The parts of a model that are written."""

    graph: State
    model: State
    #: The classes by position.
    classes: NDArray[Any]
    #: The service's description; None for a model that another program fitted.
    described: model_pb2.Model | None

    @property
    def is_calibrated(self) -> bool:
        """Whether it has probabilities."""
        return self.model.document.get("calibration_slope") is not None

    @property
    def is_sparse(self) -> bool:
        """Whether its points are sparse."""
        search = self.graph.document.get("search")
        return isinstance(search, dict) and search.get("kind") == "sparse"

    def classifier(self, *, by_position: bool = False) -> Classifier:
        """Restore the classifier, with its classes, or with their positions instead."""
        classes = np.arange(len(self.classes)) if by_position else self.classes
        return restore_classifier(_named(self.model, classes), restore_graph(self.graph))

    def recipe(self) -> Preprocessing | None:
        """What turns the rows of a table into the points that the classifier takes; None if it was no table."""
        return stored_recipe(self.graph)


def parts_of(classifier: Classifier, recipe: Preprocessing | None = None) -> Parts:
    """A classifier that was fitted in this process, and the recipe that made its points of a table."""
    graph = with_recipe(graph_state(classifier.graph_), recipe, None)
    return Parts(graph, classifier_state(classifier), np.asarray(classifier.classes_), None)


def model_blob(stores: Stores, model: model_pb2.Model) -> str:
    """Where a model's arrays are; NotFound if it was deleted, even if another has its name by now."""
    row = stores.catalog.get(ModelName.parse(model.name, "name"))
    if model_pb2.Model.FromString(row.message).job != model.job:
        raise NotFound(f"{model.name} of {model.job} was deleted")
    return str(row.blob)


def stored_parts(stores: Stores, described: model_pb2.Model) -> Parts:
    """The parts of a model of the service."""
    blob = model_blob(stores, described)
    path = stores.catalog.use_graph(described.graph.digest)
    if path is None:
        raise NotFound(f"the graph of {described.name} was deleted")
    graph, model = stores.blobs.read(path), stores.blobs.read(blob)
    # The answers for its own points can be computed from the rest.
    own = {name: array for name, array in model.arrays.items() if not name.startswith("answer.")}
    classes = classes_of(described.classes)
    return Parts(State(graph.arrays, graph.document), State(own, model.document), classes, described)


def write_parts(folder: Path, parts: Parts) -> None:
    """Write a model into a folder."""
    blobs = Blobs(str(folder))
    described = None
    if parts.described is not None:
        described = json_format.MessageToDict(parts.described, preserving_proto_field_name=True)
    about = {
        "format": FORMAT,
        "kind": "homophily model",
        "homophily": version("homophily"),
        "classes": {"dtype": _dtype(parts.classes), "values": parts.classes.tolist()},
        "model": described,
    }
    model = _named(parts.model, np.arange(len(parts.classes)))
    blobs.write(GRAPH, parts.graph.arrays, parts.graph.document)
    blobs.write(MODEL, model.arrays, model.document)
    blobs.write(ABOUT, {}, about)


def read_parts(folder: Path) -> Parts:
    """Read a model from a folder: DataLoss if it is damaged, FailedPrecondition if it is not such a model."""
    blobs = Blobs(str(folder))
    try:
        about, graph, model = (blobs.read(name) for name in (ABOUT, GRAPH, MODEL))
    except NotFound as error:
        raise FailedPrecondition("it is not a model of Homophily", reason="NOT_A_MODEL") from error
    found = about.document.get("format")
    if found not in (1, FORMAT):
        raise FailedPrecondition(f"the model has format {found}, but this release reads up to {FORMAT}")
    try:
        classes = about.document["classes"]
        dtype, values = classes["dtype"], classes["values"]
        named: NDArray[Any] = np.array(values, dtype=TEXT if dtype == "str" else dtype)
        if named.ndim != 1 or named.tolist() != values or (dtype == "str" and not all(map(_is_text, values))):
            raise ValueError(f"classes are not {dtype}")
        described, document = None, about.document["model"]
        if document is not None:
            if found == 1:
                document = _with_current_names(document, model_pb2.Model.DESCRIPTOR)
            described = json_format.ParseDict(document, model_pb2.Model(), ignore_unknown_fields=True)
    except (KeyError, TypeError, ValueError, OverflowError, json_format.ParseError) as error:
        raise DataLoss(f"the description of the model is damaged: {error}") from error
    return Parts(State(graph.arrays, graph.document), State(model.arrays, model.document), named, described)


def _with_current_names(value: Any, message: Descriptor | None) -> Any:
    """A message of format 1 as JSON, with the current names of its fields and of those inside it."""
    if isinstance(value, list):
        return [_with_current_names(one, message) for one in value]
    if message is None or not isinstance(value, dict):
        return value
    renamed = FORMER_COUNTS.get(message.name, {})
    current = {}
    for former, inner in value.items():
        name = str(renamed.get(former, former))
        field = message.fields_by_name.get(name)
        current[name] = _with_current_names(inner, None if field is None else field.message_type)
    return current


def _named(model: State, classes: NDArray[Any]) -> State:
    """The state with these classes."""
    named = {"dtype": _dtype(classes), "values": classes.tolist()}
    return State(model.arrays, {**model.document, "classes": named})


def _dtype(classes: NDArray[Any]) -> str:
    return "str" if classes.dtype.kind in "OU" else classes.dtype.name


def _is_text(value: object) -> bool:
    return isinstance(value, str)
