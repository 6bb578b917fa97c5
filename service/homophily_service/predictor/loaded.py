"""A model in the memory of a predictor: what calls about it share."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from homophily import Preprocessing
from homophily.estimators.transduction import Answers
from homophily_client._pb import model_pb2
from homophily_client.tensors import to_tensor
from homophily_service.contract.arrays import Points
from homophily_service.contract.errors import InternalError, InvalidRequest, LimitExceeded, ServiceError
from homophily_service.contract.internal_pb2 import PredictAnswer
from homophily_service.contract.job_errors import job_error, refusal
from homophily_service.jobs.work import sentences
from homophily_service.storage.models import Classifier
from homophily_service.storage.recipes import points_of

_log = logging.getLogger(__name__)

#: Answers by the numbers of their calls.
Answered = dict[int, PredictAnswer]


class Loaded(NamedTuple):
    """A model in memory, and the recipe that turns rows of its table into points, if it is of one."""

    classifier: Classifier
    recipe: Preprocessing | None = None


def failed(numbers: Iterable[int], error: BaseException) -> Answered:
    """The answers to calls that failed."""
    if isinstance(error, ValueError):
        error = refusal(error)
    elif isinstance(error, MemoryError):
        error = LimitExceeded("the model needs more memory than a predictor has", reason="OUT_OF_MEMORY")
    elif not isinstance(error, ServiceError):
        _log.error("a prediction ended with an internal error", exc_info=error)
        error = InternalError("an internal error of the service; see its log")
    return {number: PredictAnswer(number=number, error=job_error(error)) for number in numbers}


def points_for(model: Loaded, given: Points, field: str = "points") -> tuple[Any, list[str]]:
    """New points as the model takes them, and what there is to warn of."""
    warned: list[warnings.WarningMessage] = []
    if model.recipe is None:
        points = points_of(None, given, field)
    else:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            points = points_of(model.recipe, given, field)
    features = model.classifier.n_features_in_
    if points.shape[1] != features:
        raise InvalidRequest(field, f"must have {features} features, as the model's; got {points.shape[1]}")
    return points, sentences(warned)


def response_of(found: Answers, request: model_pb2.PredictRequest, warned: list[str]) -> model_pb2.PredictResponse:
    """What was found for a request, as it is sent."""
    table = to_tensor(found.scores.reshape(len(found.classes), -1))
    response = model_pb2.PredictResponse(class_indices=found.classes.tolist(), scores=table, warnings=warned)
    if request.probabilities and found.probabilities is not None:
        response.probabilities.CopyFrom(to_tensor(found.probabilities))
    return response
