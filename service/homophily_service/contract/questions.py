"""What may be asked about a model or an embedding: checked by the API, before a predictor takes seconds over it.

The API uses this module and never computes, so the core is not imported here.
"""

from __future__ import annotations

from homophily_client._pb import suggestion_pb2 as pb
from homophily_client._pb.model_pb2 import Model
from homophily_service.contract.errors import InvalidRequest
from homophily_service.contract.labels import values_of
from homophily_service.contract.values import check_between

#: Numbers that stand for 0, and the largest ones.
SUGGESTIONS, MOST_SUGGESTIONS = 20, 1000
LABELS, MOST_LABELS = 10, 100
MOST_EXPLANATIONS = 10
#: Suggestions times points, and explanations times points: some seconds.
MOST_SUGGESTED, MOST_EXPLAINED = 20_000_000, 1_000_000
#: Explanations times points times classes with a refit, some seconds; smooth relationships take four times as long.
#: A point with more edges than EDGES counts as several.
MOST_REFITTED, SMOOTH_REFIT, EDGES = 600_000, 4, 16
#: Eigenvectors of a larger graph would take minutes.
LARGEST_SPECTRUM = 100_000
MOST_EXCLUDED = 100_000
#: The core's names.
STRATEGIES = {
    pb.SUGGESTION_STRATEGY_UNSPECIFIED: "surroundings",
    pb.SUGGESTION_STRATEGY_SURROUNDINGS: "surroundings",
    pb.SUGGESTION_STRATEGY_MARGIN: "margin",
    pb.SUGGESTION_STRATEGY_NORM: "norm",
    pb.SUGGESTION_STRATEGY_VARIANCE: "variance",
    pb.SUGGESTION_STRATEGY_SIGMA: "sigma",
}
_SPECTRAL = ("variance", "sigma")


def suggestion_count(request: pb.SuggestRequest) -> int:
    """How many suggestions are asked for."""
    return request.count or SUGGESTIONS


def explanation_labels(request: pb.ExplainRequest) -> int:
    """How many labels are asked for with each explanation."""
    return request.label_count or LABELS


def check_suggest(request: pb.SuggestRequest, point_count: int, *, of_pairs: bool) -> None:
    """Refuse what a model, or an embedding, with this number of points cannot be asked."""
    most = max(SUGGESTIONS, min(MOST_SUGGESTIONS, MOST_SUGGESTED // max(1, point_count)))
    check_between(suggestion_count(request), 1, most, "count")
    if request.strategy not in STRATEGIES:
        raise InvalidRequest("strategy", f"must be a known strategy; got {request.strategy}")
    for field, is_other in (("excluded_points", of_pairs), ("excluded_pairs", not of_pairs)):
        given = len(getattr(request, field))
        if given and is_other:
            of, other = ("an embedding", "excluded_pairs") if of_pairs else ("a model", "excluded_points")
            raise InvalidRequest(field, f"must be empty for {of}: use {other}")
        if given > MOST_EXCLUDED:
            raise InvalidRequest(field, f"must be at most {MOST_EXCLUDED}; got {given}")
    if of_pairs and request.strategy:
        raise InvalidRequest("strategy", "must be unset for an embedding")
    if STRATEGIES[request.strategy] in _SPECTRAL and point_count > LARGEST_SPECTRUM:
        raise InvalidRequest("strategy", f"must be another one for more than {LARGEST_SPECTRUM} points")
    _check_points(request.excluded_points, point_count, "excluded_points")


def check_explain(request: pb.ExplainRequest, point_count: int, new_count: int, model: Model | None = None) -> None:
    """Refuse what a model, or without one an embedding, with this number of points cannot be asked."""
    if model is None and request.HasField("new_points"):
        raise InvalidRequest("new_points", "must be unset for an embedding, which explains its own points only")
    if model is None and request.refit:
        raise InvalidRequest("refit", "must be unset for an embedding")
    most = max(1, min(MOST_EXPLANATIONS, MOST_EXPLAINED // max(1, point_count)))
    count = len(request.points) + new_count
    if not 1 <= count <= most:
        raise InvalidRequest("points", f"must be 1 to {most} points, with new ones, of so large a model; got {count}")
    if model is not None and request.refit:
        size = max(point_count, model.graph.edge_count // EDGES)
        values = count * size * len(values_of(model.classes))
        most = MOST_REFITTED if model.solver_parameters.sharpen else MOST_REFITTED // SMOOTH_REFIT
        if values > most:
            raise InvalidRequest(
                "refit",
                f"must be unset where explanations times points times classes are more than {most:,}, here {values:,} "
                f"(a point counts once for each {EDGES} edges of the graph); ask about fewer points, or fit the model "
                "without the label",
            )
    check_between(explanation_labels(request), 1, MOST_LABELS, "label_count")
    _check_points(request.points, point_count, "points")


def _check_points(points: object, point_count: int, field: str) -> None:
    for place, point in enumerate(points):  # type: ignore[arg-type, var-annotated]
        if not 0 <= point < point_count:
            raise InvalidRequest(f"{field}[{place}]", f"must be between 0 and {point_count - 1}; got {point}")
