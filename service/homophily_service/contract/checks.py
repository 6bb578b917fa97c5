"""Checks of requests that concern more than one parameter."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from homophily_client._pb import job_pb2
from homophily_client._pb import model_pb2 as pb
from homophily_service.contract.errors import InvalidRequest
from homophily_service.contract.parameters import ERR_ONLY, SEARCHED
from homophily_service.contract.values import check_between, check_positive

MOST_COMPONENTS = 100
MOST_TRIALS = 1000
# With the project's name in front, it fits MLflow's limit of 256 characters.
REGISTERED_NAME = re.compile(r"[^/:@\x00-\x1f\x7f]{1,180}")
# MLflow reserves "latest" and the names of versions, such as v1, in upper and lower case.
ALIAS = re.compile(r"(?!(?:latest|v\d+)$)[a-z0-9_-]{1,100}", re.IGNORECASE | re.ASCII)

# A version or an alias of a registered model, or an artifact of a run.
IMPORT_URI = re.compile(
    r"models:/(?P<model>m-[0-9a-f]{32})"
    r"|models:/(?P<name>[^/@\0]{1,250})(?:/(?P<version>\d{1,9})|@(?P<alias>[\w.-]{1,250}))"
    r"|runs:/(?P<run>[0-9a-f]{32})/[\w./-]{1,250}"
)


def check_search(request: job_pb2.FitRequest, field: str, *, is_sparse: bool) -> None:
    """Refuse a search that cannot be done."""
    message = request.search
    if message.HasField("trials"):
        check_between(message.trials, 2, MOST_TRIALS, f"{field}.trials")
    if message.HasField("seconds"):
        check_positive(message.seconds, f"{field}.seconds")
    given = {descriptor.name for part in (request.graph, request.solver) for descriptor, _ in part.ListFields()}
    for place, name in enumerate(message.vary):
        wrong = ""
        if name not in SEARCHED or name in message.vary[:place]:
            wrong = f"must be one of {', '.join(SEARCHED)}, each once; got {name!r}"
        elif name in given:
            wrong = f"{name} is given, so it cannot be searched"
        elif name in ERR_ONLY and request.solver.method == pb.METHOD_IRR:
            wrong = f"{name} is a parameter of ERR, but the method is IRR"
        elif name == "power" and request.solver.HasField("relationship_neighbors"):
            wrong = f"{name} must be 1 with relationship_neighbors"
        elif name == "sigma_x" and request.graph.weights == pb.EDGE_WEIGHTS_FIXED:
            wrong = "sigma_x must be given with fixed weights"
        elif name in ("space", "n_directions") and (is_sparse or request.graph.metric == pb.METRIC_COSINE):
            wrong = f"{name} cannot be searched for sparse points or with the cosine metric"
        elif name == "metric" and is_sparse:
            wrong = "metric cannot be searched for sparse points"
        elif (
            name == "n_directions"
            and "space" not in message.vary
            and request.graph.space in (pb.SPACE_UNSPECIFIED, pb.SPACE_INPUT)
        ):
            wrong = "space must be searched as well, or be principal or whitened"
        if wrong:
            raise InvalidRequest(f"{field}.vary[{place}]", wrong)


def check_disjoint(field: str, points: Sequence[int], labelled: Sequence[int]) -> None:
    """Refuse validation or test points that are also in the labels to learn from."""
    both = np.flatnonzero(np.isin(points, labelled))
    if both.size:
        place = int(both[0])
        raise InvalidRequest(f"{field}.points[{place}]", f"point {points[place]} is also in labels")


def check_registration(message: pb.Registration, field: str) -> None:
    """Refuse names that the model registry does not accept."""
    if not REGISTERED_NAME.fullmatch(message.name):
        raise InvalidRequest(f"{field}.name", "must be 1 to 180 characters, without / : @ and control characters")
    for place, alias in enumerate(message.aliases):
        if not ALIAS.fullmatch(alias):
            raise InvalidRequest(
                f"{field}.aliases[{place}]", "must be letters, digits, _ and -, not latest nor a version such as v1"
            )


def map_shape(request: job_pb2.EmbedRequest, n_points: int, max_clusters: int) -> tuple[int, int | None]:
    """The numbers of dimensions and of clusters: 0 clusters lets the graph suggest a number, None means no clusters."""
    n_components, n_clusters = 2, None
    if request.HasField("n_components"):
        n_components = request.n_components
        check_between(n_components, 1, MOST_COMPONENTS, "n_components")
    if n_components >= n_points:
        raise InvalidRequest("n_components", f"must be below the number of points, {n_points}; got {n_components}")
    if request.HasField("n_clusters"):
        n_clusters = request.n_clusters
        if n_clusters != 0:
            check_between(n_clusters, 2, min(n_points - 1, max_clusters), "n_clusters")
    return n_components, n_clusters
