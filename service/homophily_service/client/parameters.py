"""Parameters by the core's names, as messages and back. Their values are checked by the server."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from homophily_service._pb import embedding_pb2, job_pb2
from homophily_service._pb import model_pb2 as pb
from homophily_service.client.connection import new_request_id

METRICS = {"euclidean": pb.METRIC_EUCLIDEAN, "cosine": pb.METRIC_COSINE}
WEIGHTS = {
    "local": pb.EDGE_WEIGHTS_LOCAL,
    "self-tuning": pb.EDGE_WEIGHTS_SELF_TUNING,
    "global": pb.EDGE_WEIGHTS_GLOBAL,
    "fixed": pb.EDGE_WEIGHTS_FIXED,
}
SPACES = {"input": pb.SPACE_INPUT, "principal": pb.SPACE_PRINCIPAL, "whitened": pb.SPACE_WHITENED}
SYMMETRIZATIONS = {"max": pb.SYMMETRIZATION_MAX, "mean": pb.SYMMETRIZATION_MEAN}
METHODS = {"err": pb.METHOD_ERR, "irr": pb.METHOD_IRR}
# By the core's names.
CLOSURES: dict[Any, int] = {
    False: embedding_pb2.LINK_CLOSURE_NONE,
    True: embedding_pb2.LINK_CLOSURE_TRANSITIVE,
    "two-class": embedding_pb2.LINK_CLOSURE_TWO_CLASS,
}
LINK_LOSSES = {"log": embedding_pb2.LINK_LOSS_LOG, "squared": embedding_pb2.LINK_LOSS_SQUARED}
RELATIONSHIPS = {"gaussian": embedding_pb2.RELATIONSHIP_GAUSSIAN, "cauchy": embedding_pb2.RELATIONSHIP_CAUCHY}
MULTICLASS = {"vector": pb.MULTICLASS_VECTOR, "one-vs-rest": pb.MULTICLASS_ONE_VS_REST}

# Parameters that are a choice out of a few words.
_CHOICES: dict[str, Mapping[Any, int]] = {
    "metric": METRICS,
    "weights": WEIGHTS,
    "symmetrize": SYMMETRIZATIONS,
    "space": SPACES,
    "method": METHODS,
    "multiclass": MULTICLASS,
    "closure": CLOSURES,
    "link_loss": LINK_LOSSES,
    "relationship": RELATIONSHIPS,
}
# The core calls it tol.
_FIELD_NAMES = {"tol": "tolerance"}
_CORE_NAMES = {field: name for name, field in _FIELD_NAMES.items()}


def graph_message(**parameters: Any) -> pb.GraphParameters:
    """The graph's parameters; None means not given.

    >>> graph_message(n_neighbors=5, metric="cosine", sigma_x=None).n_neighbors
    5
    """
    message = pb.GraphParameters()
    _fill(message, parameters)
    return message


def solver_message(*, class_prior: Any = None, **parameters: Any) -> pb.SolverParameters:
    """The solver's parameters; None means not given."""
    message = pb.SolverParameters()
    _fill(message, parameters)
    if isinstance(class_prior, str):
        if class_prior != "estimate":
            raise ValueError(
                f"class_prior must be 'estimate', an array of shares or None. Got {class_prior!r} instead."
            )
        message.class_prior.estimate = True
    elif class_prior is not None:
        message.class_prior.shares.values.extend(np.asarray(class_prior, dtype=np.float64).tolist())
    return message


def search_message(search: bool | int | Mapping[str, Any] | None) -> pb.SearchParameters | None:
    """A search: True for its defaults, a number of trials, or its fields by name; None and False for none.

    >>> search_message({"trials": 20, "spread": True}).trials
    20
    """
    if search is None or search is False:
        return None
    fields = {} if search is True else dict(search) if isinstance(search, Mapping) else {"trials": search}
    unknown = fields.keys() - pb.SearchParameters.DESCRIPTOR.fields_by_name.keys()
    if unknown:
        known = ", ".join(pb.SearchParameters.DESCRIPTOR.fields_by_name)
        raise ValueError(f"search must have no fields but {known}. Got {sorted(unknown)}.")
    return pb.SearchParameters(**fields)


def registration_message(register: str | None, aliases: Iterable[str]) -> pb.Registration | None:
    """Where a model is to be registered; None if nowhere."""
    named = [aliases] if isinstance(aliases, str) else list(aliases)
    if register is None:
        if named:
            raise ValueError(f"aliases must come with register, the name they are for. Got {named} alone instead.")
        return None
    return pb.Registration(name=register, aliases=named)


def embedding_message(**parameters: Any) -> embedding_pb2.EmbeddingParameters:
    """The map's parameters; None means not given."""
    message = embedding_pb2.EmbeddingParameters()
    _fill(message, parameters)
    return message


def options_message(
    *,
    request_id: str | None,
    wait: float,
    priority: int,
    time_limit: float | None,
    max_attempts: int | None,
) -> job_pb2.JobOptions:
    """How a job is to be run. There is always a request_id, so that asking again is safe."""
    options = job_pb2.JobOptions(request_id=request_id or new_request_id(), priority=priority)
    if wait:
        options.wait.CopyFrom(duration(wait))
    if time_limit is not None:
        options.time_limit.CopyFrom(duration(time_limit))
    if max_attempts is not None:
        options.max_attempts = max_attempts
    return options


def duration(seconds: float) -> Duration:
    """A length of time."""
    length = Duration()
    length.FromNanoseconds(int(seconds * 1e9))
    return length


def to_dict(
    message: pb.GraphParameters | pb.SolverParameters | embedding_pb2.EmbeddingParameters,
) -> dict[str, Any]:
    """What a message says, by the core's names; what it does not say is left out."""
    parameters: dict[str, Any] = {}
    for field, value in message.ListFields():
        name = _CORE_NAMES.get(field.name, field.name)
        if field.name in _CHOICES:
            parameters[name] = next((word for word, number in _CHOICES[name].items() if number == value), value)
        elif isinstance(value, pb.ClassPrior):
            shares = value.WhichOneof("source") == "shares"
            parameters[name] = list(value.shares.values) if shares else "estimate" if value.estimate else None
        else:
            parameters[name] = value
    return parameters


def _fill(message: Message, parameters: dict[str, Any]) -> None:
    for name, value in parameters.items():
        if value is not None:
            number = choice(_CHOICES[name], value, name) if name in _CHOICES else _plain(value)
            setattr(message, _FIELD_NAMES.get(name, name), number)


def choice(words: Mapping[Any, int], value: Any, name: str) -> int:
    """The number of a word."""
    if value not in words:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, words))}. Got {value!r} instead.")
    return words[value]


def _plain(value: Any) -> Any:
    """A number that protobuf takes: NumPy's are not Python's."""
    return value.item() if isinstance(value, np.generic) else value
