"""Labels and parameters: from messages to what the core's estimators take, with every field checked by its name.

The API checks with it and never computes, so the core itself is not imported here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from homophily_service._pb import embedding_pb2, job_pb2
from homophily_service._pb import model_pb2 as pb
from homophily_service.errors import FieldViolation, InvalidRequest, LimitExceeded, ServiceError

Number = TypeVar("Number", int, float)
Chosen = TypeVar("Chosen")

METRICS = {pb.METRIC_EUCLIDEAN: "euclidean", pb.METRIC_COSINE: "cosine"}
SPACES = {
    pb.SPACE_UNSPECIFIED: "input",
    pb.SPACE_INPUT: "input",
    pb.SPACE_PRINCIPAL: "principal",
    pb.SPACE_WHITENED: "whitened",
}
WEIGHTS = {
    pb.EDGE_WEIGHTS_UNSPECIFIED: "local",
    pb.EDGE_WEIGHTS_LOCAL: "local",
    pb.EDGE_WEIGHTS_SELF_TUNING: "self-tuning",
    pb.EDGE_WEIGHTS_GLOBAL: "global",
    pb.EDGE_WEIGHTS_FIXED: "fixed",
}
SYMMETRIZATIONS = {
    pb.SYMMETRIZATION_UNSPECIFIED: "mean",
    pb.SYMMETRIZATION_MAX: "max",
    pb.SYMMETRIZATION_MEAN: "mean",
}
METHODS = {pb.METHOD_UNSPECIFIED: "err", pb.METHOD_IRR: "irr", pb.METHOD_ERR: "err"}
MULTICLASS = {
    pb.MULTICLASS_UNSPECIFIED: "vector",
    pb.MULTICLASS_VECTOR: "vector",
    pb.MULTICLASS_ONE_VS_REST: "one-vs-rest",
}
CLOSURES: dict[int, bool | str] = {
    embedding_pb2.LINK_CLOSURE_NONE: False,
    embedding_pb2.LINK_CLOSURE_TRANSITIVE: True,
    embedding_pb2.LINK_CLOSURE_TWO_CLASS: "two-class",
}
LINK_LOSSES = {embedding_pb2.LINK_LOSS_LOG: "log", embedding_pb2.LINK_LOSS_SQUARED: "squared"}
RELATIONSHIPS = {embedding_pb2.RELATIONSHIP_GAUSSIAN: "gaussian", embedding_pb2.RELATIONSHIP_CAUCHY: "cauchy"}
# Python's own strings. In an array of one width, a long class would make thousands of short ones as long; and NumPy's
# sort of its StringDType crashes the process for some orders.
TEXT = np.dtype(object)
# Beyond it one term of the energy is no more than the rounding of another, and the systems to solve are singular.
LARGEST = 1e12
MOST_COMPONENTS = 100
MOST_TRIALS = 1000
# With its project before it, it has at most the 256 characters that MLflow takes.
REGISTERED_NAME = re.compile(r"[^/:@\x00-\x1f\x7f]{1,180}")
# MLflow keeps the newest version's name and those of all versions for itself, in either case.
ALIAS = re.compile(r"(?!(?:latest|v\d+)$)[a-z0-9_-]{1,100}", re.IGNORECASE | re.ASCII)
# What a search may look for.
SEARCHED_IN_GRAPHS = ("space", "n_directions", "n_neighbors", "weights", "sigma_x")
SEARCHED = (*SEARCHED_IN_GRAPHS, "lambda1", "power", "sigma_f", "lambda2", "repulsion")
ERR_ONLY = ("lambda2", "sigma_f", "repulsion", "max_iter", "relationship_neighbors")


class PointLabels(NamedTuple):
    """The labelled points, the class of each and the confidence in it."""

    points: NDArray[np.int64]
    classes: NDArray[Any]
    weights: NDArray[np.float64]


def read_labels(message: pb.Labels, n_points: int | None, field: str, *, max_classes: int) -> PointLabels:
    """Labels out of a request; ``n_points`` is None where only the job knows it."""
    points = np.array(message.points, dtype=np.int64)
    kind = message.classes.WhichOneof("kind")
    if kind is None:
        if len(points):
            raise InvalidRequest(f"{field}.classes", "must hold strings or integers")
        return PointLabels(points, np.array([], dtype=np.int64), np.array([]))
    classes: NDArray[Any]
    if kind == "strings":
        values = list(message.classes.strings.values)
        classes = np.array(values, dtype=TEXT)
        for place, value in enumerate(values):
            if not value or len(value) > 256 or "\0" in value:
                raise InvalidRequest(f"{field}.classes.strings.values[{place}]", "must be 1 to 256 characters, no NUL")
    else:
        classes = np.array(message.classes.integers.values, dtype=np.int64)
    if len(classes) != len(points):
        raise InvalidRequest(f"{field}.classes", f"must be one for each of {len(points)} points; got {len(classes)}")
    wrong = np.flatnonzero((points < 0) | (points >= (n_points if n_points is not None else np.iinfo(np.int64).max)))
    if wrong.size:
        place = int(wrong[0])
        most = "" if n_points is None else f" and below {n_points}"
        raise InvalidRequest(f"{field}.points[{place}]", f"must be at least 0{most}; got {points[place]}")
    order = np.argsort(points, kind="stable")
    twice = np.flatnonzero(points[order][1:] == points[order][:-1])
    if twice.size:
        place = int(order[twice[0] + 1])
        raise InvalidRequest(f"{field}.points[{place}]", f"point {points[place]} is labelled twice")
    found = len(np.unique(classes))
    if found > max_classes:
        raise LimitExceeded(f"{field}.classes: {found} classes, the limit is {max_classes}")
    return PointLabels(points, classes, _weights(message, len(points), field))


def _weights(message: pb.Labels, count: int, field: str) -> NDArray[np.float64]:
    if not message.weights:
        return np.ones(count)
    weights = np.array(message.weights, dtype=np.float64)
    if len(weights) != count:
        raise InvalidRequest(f"{field}.weights", f"must be none or one for each of {count} points; got {len(weights)}")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights > 0)))
    if wrong.size:
        raise InvalidRequest(f"{field}.weights[{wrong[0]}]", f"must be positive and finite; got {weights[wrong[0]]}")
    return weights


def check_two_classes(classes: NDArray[Any], field: str) -> None:
    """Refuse labels out of which nothing can be learned."""
    found = np.unique(classes)
    if len(found) < 2:
        raise InvalidRequest(field, f"must be of at least two classes; got {len(found)}")


def values_of(message: pb.ClassValues) -> list[Any]:
    """The classes that a message holds."""
    return list(message.integers.values if message.WhichOneof("kind") == "integers" else message.strings.values)


def classes_of(message: pb.ClassValues) -> NDArray[Any]:
    """The same as an array."""
    return np.array(values_of(message), dtype=np.int64 if message.WhichOneof("kind") == "integers" else TEXT)


def class_values(classes: NDArray[Any]) -> pb.ClassValues:
    """Classes as a message."""
    if classes.dtype.kind in "iu":
        return pb.ClassValues(integers=pb.IntegerValues(values=classes.tolist()))
    return pb.ClassValues(strings=pb.StringValues(values=classes.tolist()))


def graph_parameters(message: pb.GraphParameters, *, is_sparse: bool, field: str) -> dict[str, Any]:
    """The parameters of :class:`homophily.KNNGraph`."""
    default = pb.METRIC_COSINE if is_sparse else pb.METRIC_EUCLIDEAN
    parameters: dict[str, Any] = {
        "metric": _choice(METRICS, message.metric or default, f"{field}.metric"),
        "weights": _choice(WEIGHTS, message.weights, f"{field}.weights"),
        "symmetrize": _choice(SYMMETRIZATIONS, message.symmetrize, f"{field}.symmetrize"),
        "space": _choice(SPACES, message.space, f"{field}.space"),
        "n_directions": None,
        "n_neighbors": 10,
        "exponent": 2,
        "sigma_x": None,
    }
    if message.HasField("n_neighbors"):
        parameters["n_neighbors"] = _between(message.n_neighbors, 1, 10_000, f"{field}.n_neighbors")
    if message.HasField("exponent"):
        parameters["exponent"] = _between(message.exponent, 1, 2, f"{field}.exponent")
    if message.HasField("sigma_x"):
        parameters["sigma_x"] = _positive(message.sigma_x, f"{field}.sigma_x")
    elif parameters["weights"] == "fixed":
        raise InvalidRequest(f"{field}.sigma_x", "must be given with fixed weights")
    if parameters["space"] != "input" and is_sparse:
        raise InvalidRequest(f"{field}.space", "must be input for sparse points")
    if message.HasField("n_directions"):
        if parameters["space"] == "input":
            raise InvalidRequest(f"{field}.n_directions", "must be given only with space principal or whitened")
        if message.n_directions < 1:
            raise InvalidRequest(f"{field}.n_directions", f"must be at least 1; got {message.n_directions}")
        parameters["n_directions"] = message.n_directions
    return parameters


def solver_parameters(
    message: pb.SolverParameters, field: str, *, n_classes: int | None = None
) -> tuple[str, dict[str, Any]]:
    """The method, and the parameters of :class:`homophily.IRRClassifier` or :class:`homophily.ERRClassifier`."""
    method = _choice(METHODS, message.method, f"{field}.method")
    parameters: dict[str, Any] = {}
    if message.HasField("power"):
        parameters["power"] = _between(message.power, 1, 8, f"{field}.power")
    for name in ("lambda1", "sigma_f"):
        if message.HasField(name):
            parameters[name] = _between(getattr(message, name), 1 / LARGEST, LARGEST, f"{field}.{name}")
    for term in ("lambda2", "repulsion"):
        if message.HasField(term):
            parameters[term] = _between(getattr(message, term), 0.0, LARGEST, f"{field}.{term}")
    if message.HasField("max_iter"):
        parameters["max_iter"] = _between(message.max_iter, 0, 100_000, f"{field}.max_iter")
    if message.HasField("tolerance"):
        check = _positive if method == "irr" else _at_least_zero
        parameters["tol"] = check(message.tolerance, f"{field}.tolerance")
    if message.HasField("normalized"):
        parameters["normalized"] = message.normalized
    if message.HasField("relationship_neighbors"):
        places = f"{field}.relationship_neighbors"
        parameters["relationship_neighbors"] = _between(message.relationship_neighbors, 1, 100_000, places)
        if parameters.get("power", 1) != 1:
            raise InvalidRequest(f"{field}.power", "must be 1 with relationship_neighbors")
    multiclass = _choice(MULTICLASS, message.multiclass, f"{field}.multiclass")
    if method == "irr":
        for name in ERR_ONLY:
            if name in parameters:
                raise InvalidRequest(f"{field}.{name}", "is a parameter of ERR, but the method is IRR")
    else:
        parameters["multiclass"] = multiclass
    parameters["class_prior"] = _class_prior(message.class_prior, n_classes, f"{field}.class_prior")
    return method, parameters


def set_parameters(found: dict[str, Any], graph: pb.GraphParameters, solver: pb.SolverParameters) -> None:
    """Set in messages what a search has found or tried."""
    numbers = {
        name: {word: number for number, word in words.items() if number}
        for name, words in (("weights", WEIGHTS), ("space", SPACES))
    }
    for name in SEARCHED:
        if found.get(name) is not None:
            value = numbers[name][found[name]] if name in numbers else found[name]
            setattr(graph if name in SEARCHED_IN_GRAPHS else solver, name, value)


def check_search(request: job_pb2.FitRequest, field: str, *, is_sparse: bool) -> None:
    """Refuse a search that cannot be done."""
    message = request.search
    if message.HasField("trials"):
        _between(message.trials, 2, MOST_TRIALS, f"{field}.trials")
    if message.HasField("seconds"):
        _positive(message.seconds, f"{field}.seconds")
    given = {descriptor.name for part in (request.graph, request.solver) for descriptor, _ in part.ListFields()}
    for place, name in enumerate(message.vary):
        wrong = ""
        if name not in SEARCHED or name in message.vary[:place]:
            wrong = f"must be one of {', '.join(SEARCHED)}, each once; got {name!r}"
        elif name in given:
            wrong = f"{name} is given, and so not searched"
        elif name in ERR_ONLY and request.solver.method == pb.METHOD_IRR:
            wrong = f"{name} is a parameter of ERR, but the method is IRR"
        elif name in ("power", "repulsion") and request.solver.HasField("relationship_neighbors"):
            wrong = f"{name} must be 1 with relationship_neighbors"
        elif name == "sigma_x" and request.graph.weights == pb.EDGE_WEIGHTS_FIXED:
            wrong = "sigma_x must be given with fixed weights"
        elif name in ("space", "n_directions") and (is_sparse or request.graph.metric == pb.METRIC_COSINE):
            wrong = f"{name} is searched neither for sparse points nor for the cosine metric"
        elif name == "n_directions" and "space" not in message.vary and SPACES.get(request.graph.space) == "input":
            wrong = "space must be searched as well, or be principal or whitened"
        if wrong:
            raise InvalidRequest(f"{field}.vary[{place}]", wrong)


def apart(field: str, points: Sequence[int], labelled: Sequence[int]) -> None:
    """Refuse points to judge by whose labels are learned from."""
    both = np.flatnonzero(np.isin(points, labelled))
    if both.size:
        place = int(both[0])
        raise InvalidRequest(f"{field}.points[{place}]", f"point {points[place]} is among the labels")


def check_registration(message: pb.Registration, field: str) -> None:
    """Refuse names that a model registry does not take."""
    if not REGISTERED_NAME.fullmatch(message.name):
        raise InvalidRequest(f"{field}.name", "must be 1 to 180 characters, without / : @ and control characters")
    for place, alias in enumerate(message.aliases):
        if not ALIAS.fullmatch(alias):
            raise InvalidRequest(
                f"{field}.aliases[{place}]", "must be letters, digits, _ and -, not latest nor a version such as v1"
            )


def embedding_parameters(message: embedding_pb2.EmbeddingParameters, field: str) -> dict[str, Any]:
    """Parameters of :class:`homophily.ERREmbedding`, but for those of its graph and its shape."""
    parameters: dict[str, Any] = {}
    for name in ("data_weight", "lambda2", "lambda3", "repulsion", "link_edges"):
        if message.HasField(name):
            parameters[name] = _between(getattr(message, name), 0.0, LARGEST, f"{field}.{name}")
    if message.HasField("sigma_f"):
        parameters["sigma_f"] = _between(message.sigma_f, 1 / LARGEST, LARGEST, f"{field}.sigma_f")
    if message.HasField("continuation"):
        parameters["continuation"] = _between(message.continuation, 1.0, 1e6, f"{field}.continuation")
    if message.HasField("max_iter"):
        parameters["max_iter"] = _between(message.max_iter, 0, 100_000, f"{field}.max_iter")
    if message.HasField("tolerance"):
        parameters["tol"] = _at_least_zero(message.tolerance, f"{field}.tolerance")
    if message.HasField("normalized"):
        parameters["normalized"] = message.normalized
    if message.HasField("lambda2_per_link"):
        parameters["lambda2_per_link"] = message.lambda2_per_link
    if message.link_loss:
        parameters["link_loss"] = _choice(LINK_LOSSES, message.link_loss, f"{field}.link_loss")
    if message.relationship:
        parameters["relationship"] = _choice(RELATIONSHIPS, message.relationship, f"{field}.relationship")
    if message.closure:
        parameters["closure"] = _choice(CLOSURES, message.closure, f"{field}.closure")
    return parameters


def map_shape(request: job_pb2.EmbedRequest, n_points: int, max_clusters: int) -> tuple[int, int | None]:
    """The dimensions of the map, and the number of clusters: 0 to have it suggested, None for none."""
    n_components, n_clusters = 2, None
    if request.HasField("n_components"):
        n_components = _between(request.n_components, 1, MOST_COMPONENTS, "n_components")
    if n_components >= n_points:
        raise InvalidRequest("n_components", f"must be below the number of points, {n_points}; got {n_components}")
    if request.HasField("n_clusters"):
        n_clusters = request.n_clusters
        if n_clusters != 0:
            _between(n_clusters, 2, min(n_points - 1, max_clusters), "n_clusters")
    return n_components, n_clusters


def _class_prior(message: pb.ClassPrior, n_classes: int | None, field: str) -> Any:
    source = message.WhichOneof("source")
    if source == "estimate":
        return "estimate" if message.estimate else None
    if source != "shares":
        return None
    shares = np.array(message.shares.values)
    if n_classes is not None and len(shares) != n_classes:
        raise InvalidRequest(f"{field}.shares.values", f"must be {n_classes} numbers, one a class; got {len(shares)}")
    if not (np.isfinite(shares).all() and np.all(shares > 0) and abs(shares.sum() - 1.0) <= 1e-6):
        raise InvalidRequest(f"{field}.shares.values", "must be positive numbers with sum 1")
    return shares


# Where a parameter of the core is in a request.
_FIELDS = {
    **{name: f"graph.{name}" for name in ("n_neighbors", "metric", "weights", "sigma_x", "exponent")},
    **{name: f"graph.{name}" for name in ("symmetrize", "space", "n_directions")},
    **{name: f"solver.{name}" for name in ("power", "lambda1", "normalized", "multiclass", "class_prior", *ERR_ONLY)},
    **{name: f"solver.{name}" for name in ("data_weight", "lambda3", "continuation", "closure", "link_edges")},
    **{name: name for name in ("n_components", "n_clusters")},
    "must_link": "links.must",
    "cannot_link": "links.cannot",
    "tol": "solver.tolerance",
    "X": "points",
    "y": "labels",
}


def refusal(error: ValueError) -> ServiceError:
    """The core's refusal as the request's: what only the job could find out."""
    sentence, parameter = str(error), getattr(error, "parameter", None)
    elsewhere = "labels" if "class" in sentence else "points"
    field = _FIELDS.get(parameter, "solver") if parameter else elsewhere
    refused = InvalidRequest(field, sentence)
    refused.violations = (FieldViolation(field, sentence),)
    return refused


def _choice(choices: dict[Any, Chosen], value: int, field: str) -> Chosen:
    if value not in choices:
        raise InvalidRequest(field, f"{value} is not known")
    return choices[value]


def _between(value: Number, least: Number, most: Number, field: str) -> Number:
    if not least <= value <= most:
        raise InvalidRequest(field, f"must be between {least} and {most}; got {value}")
    return value


def _positive(value: float, field: str) -> float:
    if not (math.isfinite(value) and value > 0):
        raise InvalidRequest(field, f"must be positive and finite; got {value}")
    return value


def _at_least_zero(value: float, field: str) -> float:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidRequest(field, f"must be at least 0 and finite; got {value}")
    return value
