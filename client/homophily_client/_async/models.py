"""Models: get, list, delete; answers for new points and for a model's own points."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily_client._async.base import INLINE_BYTES, AsyncBase
from homophily_client._pb import embedding_pb2, model_pb2, suggestion_pb2
from homophily_client.arrays import Prediction, Solution
from homophily_client.labels import class_array
from homophily_client.names import DatasetName, EmbeddingName, ModelName
from homophily_client.points import Points
from homophily_client.results import Dataset, Embedding, Model
from homophily_client.suggestions import Explanations, Suggestions
from homophily_client.tables import new_rows
from homophily_client.tensors import from_tensor
from homophily_client.words import number

# The most new points in one call, so that answers stay small when points have few features.
PREDICT_ROWS = 10_000

_FIELDS = {
    "labels": model_pb2.SOLUTION_FIELD_CLASS_INDICES,
    "scores": model_pb2.SOLUTION_FIELD_SCORES,
    "values": model_pb2.SOLUTION_FIELD_VALUES,
    "probabilities": model_pb2.SOLUTION_FIELD_PROBABILITIES,
    "given": model_pb2.SOLUTION_FIELD_GIVEN,
}


class AsyncModels(AsyncBase):
    """The calls about models."""

    async def get_model(self, model: Model | str, *, timeout: float | None = None) -> Model:
        """Return a model's description."""
        request = model_pb2.GetModelRequest(name=str(self._name(ModelName, model, "model")))
        return Model.from_message((await self._connection.call("GetModel", request, timeout=timeout)).model)

    async def list_models(
        self,
        *,
        dataset: Dataset | str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        oldest_first: bool = False,
        timeout: float | None = None,
    ) -> AsyncIterator[Model]:
        """Yield the project's models, newest first: all, or those fitted on a dataset, or made in a span of time."""
        request = model_pb2.ListModelsRequest(parent=self._parent)
        if dataset is not None:
            request.dataset = str(self._name(DatasetName, dataset, "dataset"))
        self._listed(request, created_after, created_before, oldest_first=oldest_first)
        async for page in self._pages("ListModels", request, timeout):
            for message in page.models:
                yield Model.from_message(message)

    async def delete_model(self, model: Model | str, *, timeout: float | None = None) -> None:
        """Delete a model. Models that were made from it stay."""
        request = model_pb2.DeleteModelRequest(name=str(self._name(ModelName, model, "model")))
        await self._connection.delete("DeleteModel", request, timeout)

    async def predict(
        self, model: Model | str, X: Any, *, probabilities: bool = False, timeout: float | None = None
    ) -> Prediction:
        """Return the classes and scores of new points, given as for ``upload``; many points take several calls.

        The columns of a table are matched by name, in any order; those that ``fit`` did not use may be there too.
        ``probabilities`` needs a model that was fitted with calibrate=True.
        """
        name = str(self._name(ModelName, model, "model"))
        points = Points(new_rows(X))
        found: dict[str, NDArray[Any]] = {}
        classes: NDArray[Any] = np.empty(0)
        warned: dict[str, None] = {}
        # Without rows there is still one call: it is the server that refuses them.
        for start, stop in list(points.batches(INLINE_BYTES, PREDICT_ROWS)) or [(0, 0)]:
            request = model_pb2.PredictRequest(
                name=name, points=points.message(start, stop), probabilities=probabilities
            )
            answer = await self._connection.call("Predict", request, timeout=timeout)
            classes = class_array(answer.classes)
            warned |= dict.fromkeys(answer.warnings)
            parts = {
                "class_indices": np.array(answer.class_indices, dtype=np.int32),
                "scores": from_tensor(answer.scores),
            }
            if probabilities:
                parts["probabilities"] = from_tensor(answer.probabilities)
            for field, part in parts.items():
                if field not in found:
                    found[field] = np.empty((points.shape[0], *part.shape[1:]), dtype=part.dtype)
                found[field][start:stop] = part
        return Prediction(classes, found["class_indices"], found["scores"], found.get("probabilities"), tuple(warned))

    async def suggest(
        self,
        source: Model | Embedding | str,
        count: int = 20,
        *,
        strategy: str | None = None,
        exclude: Iterable[Any] = (),
        timeout: float | None = None,
    ) -> Suggestions:
        """Return what to ask a person next: points to label, for a model; pairs to compare, for an embedding.

        ``source`` is a Model, an Embedding, the short name of a model or a full name. ``strategy`` says what makes a
        point worth a label: "surroundings", "margin", "norm", "variance" or "sigma". ``exclude`` lists points, or pairs
        (i, j), not to suggest.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1. Got {count} instead.")
        kind = _kind(source)
        name = self._name(kind, source, "source")
        kinds = suggestion_pb2.SuggestionStrategy
        chosen = None if strategy is None else number(kinds.DESCRIPTOR, strategy, "strategy")
        request = suggestion_pb2.SuggestRequest(name=str(name), count=count, ids=True)
        if chosen is not None:
            request.strategy = kinds.ValueType(chosen)
        if kind is EmbeddingName:
            request.excluded_pairs.extend(embedding_pb2.Link(first=int(i), second=int(j)) for i, j in exclude)
        else:
            request.excluded_points.extend(int(point) for point in exclude)
        return Suggestions.from_message(await self._connection.call("Suggest", request, timeout=timeout))

    async def explain(
        self,
        source: Model | Embedding | str,
        points: Iterable[int] = (),
        *,
        X: Any = None,
        labels: int = 10,
        refit: bool = False,
        timeout: float | None = None,
    ) -> Explanations:
        """Return the labels that carry the answers for some of a model's points, by position, or for new ones.

        For an Embedding, or the full name of one, these are the links that hold points in their places. ``X`` are new
        points for a model, as for ``predict``; ``labels`` is the number of labels or links to return for each point.
        With ``refit`` a model is fitted again without the label that adds most, for ``score_without_largest``.
        """
        name = self._name(_kind(source), source, "source")
        asked: dict[str, Any] = {"points": map(int, points), "label_count": labels, "refit": refit}
        request = suggestion_pb2.ExplainRequest(name=str(name), ids=True, **asked)
        if X is not None:
            given = Points(new_rows(X))
            request.new_points.CopyFrom(given.message(0, given.shape[0]))
        return Explanations.from_message(await self._connection.call("Explain", request, timeout=timeout))

    async def read_solution(self, model: Model | str, fields: Iterable[str] = ("labels",)) -> Solution:
        """Return the answers for the points that a model was fitted on.

        ``fields`` are "labels", "scores", "values", "probabilities" (with calibrate=True only), "given" (whether the
        label was), and "ids" (of a table that has an id column).
        """
        fields = tuple(dict.fromkeys(fields))
        for field in fields:
            if field not in (*_FIELDS, "ids"):
                raise ValueError(
                    f"fields must be among {', '.join(map(repr, (*_FIELDS, 'ids')))}. Got {field!r} instead."
                )
        wants_ids, fields = "ids" in fields, tuple(field for field in fields if field != "ids")
        described = model if isinstance(model, Model) else await self.get_model(model)
        asked = [_FIELDS[field] for field in fields]
        request = model_pb2.ReadSolutionRequest(name=described.name, fields=asked, ids=wants_ids)
        found: dict[str, NDArray[Any]] = {}
        ids: list[str] = []

        def keep(answer: model_pb2.ReadSolutionResponse) -> int:
            # Ids alone come with the class indices.
            for field, tensor in zip(fields, answer.tensors, strict=bool(fields)):
                part = from_tensor(tensor)
                if field not in found:
                    found[field] = np.empty((described.points, *part.shape[1:]), dtype=part.dtype)
                found[field][answer.start : answer.start + answer.count] = part
            ids[answer.start :] = answer.ids
            return described.points

        await self._ranges("ReadSolution", request, described.points, keep)
        given = found.pop("given", None)
        return Solution(
            np.array(described.classes),
            class_indices=found.pop("labels", None),
            given=None if given is None else given.astype(bool),
            ids=np.array(ids) if ids else None,
            **found,
        )


def _kind(source: Model | Embedding | str) -> type[ModelName | EmbeddingName]:
    """What a question is about: a model, unless it is an embedding or the full name of one."""
    is_embedding = isinstance(source, Embedding) or f"/{EmbeddingName.collection}/" in str(source)
    return EmbeddingName if is_embedding else ModelName
