"""Values of parameters in messages, by the core's names, with every field checked.

The API checks requests with this module and never computes, so the core is not imported here.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from google.protobuf.message import Message

from homophily_client._pb import embedding_pb2
from homophily_client._pb import model_pb2 as pb
from homophily_client.parameters import prior_value
from homophily_client.words import words
from homophily_service.contract.errors import InvalidRequest
from homophily_service.contract.parameters import (
    ERR_ONLY,
    GRAPH,
    MAP,
    SEARCHED,
    SEARCHED_IN_GRAPHS,
    SOLVER,
    Group,
    Parameter,
    Shares,
)


def choices(row: Parameter, message: Message | type[Message]) -> dict[Any, int]:
    """The words of an enum parameter, with their numbers."""
    return words(message.DESCRIPTOR.fields_by_name[row.field_name].enum_type)


def given(group: Group, message: Message, place: str) -> dict[str, Any]:
    """What a message sets, by the core's names, checked."""
    return {row.name: _value(row, message, place) for row in group if _is_given(row, message)}


def set_value(group: Group, message: Message, name: str, value: Any) -> None:
    """Set a parameter in a message."""
    row = group[name]
    setattr(message, row.field_name, choices(row, message)[value] if row.type is str else value)


def _is_given(row: Parameter, message: Message) -> bool:
    if row.type is str:
        return bool(getattr(message, row.field_name))
    return message.HasField(row.field_name)


def _value(row: Parameter, message: Message, place: str) -> Any:
    value, where = getattr(message, row.field_name), f"{place}.{row.field_name}"
    if row.type is str:
        found = [word for word, number in choices(row, message).items() if number == value]
        if not found:
            raise InvalidRequest(where, f"must be a known value; got {value}")
        return found[0]
    if row.type is Shares:
        return _shares(value, where)
    if row.type is not bool:
        _check_range(row, value, where)
    return value


def _check_range(row: Parameter, value: float, where: str) -> None:
    if row.low is None:
        check_positive(value, where)
    elif row.high < math.inf:
        check_between(value, row.low, row.high, where)
    elif not (math.isfinite(value) and value >= row.low):
        finite = " and finite" if row.type is float else ""
        raise InvalidRequest(where, f"must be at least {row.low}{finite}; got {value}")


def check_between(value: float, low: float, high: float, where: str) -> None:
    """Refuse a number outside of a range."""
    if not low <= value <= high:
        raise InvalidRequest(where, f"must be between {low} and {high}; got {value}")


def check_positive(value: float, where: str) -> None:
    """Refuse a number that is not positive and finite."""
    if not (math.isfinite(value) and value > 0):
        raise InvalidRequest(where, f"must be positive and finite; got {value}")


#: Metrics whose points are the edges of a graph.
OWN_GRAPHS = ("affinity", "precomputed")
#: Neighbours of sparse points when none are given: KNNGraph's default, which a test compares.
SPARSE_NEIGHBORS = 20


def graph_parameters(message: pb.GraphParameters, *, is_sparse: bool, field: str) -> dict[str, Any]:
    """All parameters of :class:`homophily.KNNGraph`, defaults filled in: they are part of a stored graph's digest."""
    parameters = {row.name: row.default for row in GRAPH}
    parameters |= {"metric": "cosine", "n_neighbors": SPARSE_NEIGHBORS} if is_sparse else {"metric": "euclidean"}
    parameters |= given(GRAPH, message, field)
    if parameters["edge_share"] is None:
        # Digests of graphs without edges are as they were before there were any.
        del parameters["edge_share"]
    if parameters["metric"] in OWN_GRAPHS and parameters["space"] != "input":
        raise InvalidRequest(f"{field}.space", f"must be input with metric {parameters['metric']}")
    if parameters["weights"] == "fixed" and parameters["sigma_x"] is None:
        raise InvalidRequest(f"{field}.sigma_x", "must be given with fixed weights")
    if parameters["space"] != "input" and is_sparse:
        raise InvalidRequest(f"{field}.space", "must be input for sparse points")
    if parameters["space"] == "input" and parameters["n_directions"] is not None:
        raise InvalidRequest(f"{field}.n_directions", "must be given only with space principal or whitened")
    return parameters


def solver_parameters(
    message: pb.SolverParameters, field: str, *, n_classes: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The method, and the parameters of :class:`homophily.IRRClassifier` or :class:`homophily.ERRClassifier`."""
    parameters = {"class_prior": None} | given(SOLVER, message, field)
    method = parameters.pop("method", SOLVER["method"].default)
    if method == "irr":
        for name in ERR_ONLY:
            if name in parameters:
                raise InvalidRequest(f"{field}.{name}", "is a parameter of ERR, but the method is IRR")
        # Ignored rather than refused: IRR has no relationships.
        parameters.pop("multiclass", None)
        if parameters.get("tol") == 0:
            raise InvalidRequest(f"{field}.tolerance", "must be positive and finite; got 0.0")
    if "relationship_neighbors" in parameters and parameters.get("power", 1) != 1:
        raise InvalidRequest(f"{field}.power", "must be 1 with relationship_neighbors")
    shares = parameters["class_prior"]
    if isinstance(shares, np.ndarray) and n_classes is not None and len(shares) != n_classes:
        where = f"{field}.class_prior.{'shares.values' if shares.ndim == 1 else 'bounds.lows'}"
        raise InvalidRequest(where, f"must be {n_classes} numbers, one per class; got {len(shares)}")
    return method, parameters


def embedding_parameters(message: embedding_pb2.EmbeddingParameters, field: str) -> dict[str, Any]:
    """Parameters of a map, except those of its graph and its shape."""
    return given(MAP, message, field)


def set_parameters(found: dict[str, Any], graph: pb.GraphParameters, solver: pb.SolverParameters) -> None:
    """Write the parameters that a search found or tried into messages."""
    for name in SEARCHED:
        if found.get(name) is not None:
            if name in SEARCHED_IN_GRAPHS:
                set_value(GRAPH, graph, name, found[name])
            else:
                set_value(SOLVER, solver, name, found[name])


def field_of(parameter: str) -> str:
    """The request's field for a parameter of the core, for error messages; "solver" if there is none."""
    for group, place in ((GRAPH, "graph"), (SOLVER, "solver"), (MAP, "solver")):
        if parameter in group.names():
            return f"{place}.{group[parameter].field_name}"
    return {
        "n_components": "n_components",
        "n_clusters": "n_clusters",
        "must_link": "links.must",
        "cannot_link": "links.cannot",
        "X": "points",
        "edges": "edges_dataset",
        "y": "labels",
        "sample_weight": "labels.weights",
    }.get(parameter, "solver")


def _shares(message: pb.ClassPrior, where: str) -> Any:
    source = message.WhichOneof("source")
    if source == "bounds":
        return _bounds(message.bounds, f"{where}.bounds")
    if source != "shares":
        return prior_value(message)
    shares = np.array(message.shares.values)
    if not (np.isfinite(shares).all() and np.all(shares > 0) and abs(shares.sum() - 1.0) <= 1e-6):
        raise InvalidRequest(f"{where}.shares.values", "must be positive numbers with sum 1")
    return shares


def _bounds(message: pb.ClassShareBounds, where: str) -> Any:
    lows, highs = np.array(message.lows), np.array(message.highs)
    if len(lows) != len(highs):
        raise InvalidRequest(f"{where}.highs", f"must be as many as lows; got {len(highs)} for {len(lows)}")
    # Not a number is not within them either.
    if not (np.all(lows >= 0) and lows.sum() <= 1):
        raise InvalidRequest(f"{where}.lows", "must be numbers from 0 with a sum of at most 1")
    if not (np.all(highs >= lows) and np.all(highs <= 1) and highs.sum() >= 1):
        raise InvalidRequest(f"{where}.highs", "must be numbers from the lowest share to 1 with a sum of at least 1")
    return np.column_stack([lows, highs])
