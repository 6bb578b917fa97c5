"""What the page asks for, answered by the service: a workspace is a connection, and the rows of the opened files."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from homophily_client import AsyncClient, Dataset, Embedding, Model, NotFound
from homophily_client.names import DatasetName, EmbeddingName, ModelName
from homophily_service.plots.files import plot_map
from homophily_service.plots.tables import write_table
from homophily_service.studio.rows import Rows

#: The newest resources that are listed.
MOST_LISTED = 300
#: Pairs that stand for "these groups are the same" or "different": more would say little more.
MOST_PAIRS = 60
MOST_FOUND = 200
#: With more points than this, acts wait until the person applies them, as jobs take more than a moment.
AUTOMATIC_UP_TO = 20_000
FORMATS = ("csv", "parquet")

T = TypeVar("T")


class BadRequest(ValueError):
    """A request of the page is wrong; the message names the field."""


@dataclass(frozen=True)
class Opened:
    """A file as the command line reads it."""

    name: str
    """The dataset's name: made from the file's content, so that the same file is uploaded once."""
    points: Any
    labels: dict[int, Any]
    rows: Rows
    test: dict[int, Any] | None = None
    """Labels that models are compared with; nothing is learnt from them."""


class Workspace:
    """The calls of the page."""

    def __init__(self, client: AsyncClient, read_file: Callable[[Path], Opened]) -> None:
        self._client, self._read_file = client, read_file
        self._rows: dict[str, Rows] = {}
        self._tests: dict[str, dict[int, Any] | None] = {}

    async def open_file(self, path: Path) -> dict[str, Any]:
        """Upload a file unless its dataset is there already; with the labels in it, fit."""
        opened = await asyncio.to_thread(self._read_file, path)
        try:
            dataset = await self._client.get_dataset(opened.name)
        except NotFound:
            dataset = await self._client.upload(opened.points, name=opened.name, description=f"from {path.name}")
        self._rows[dataset.name], self._tests[dataset.name] = opened.rows, opened.test
        job = None
        if len(set(opened.labels.values())) > 1 and not (await self._made(dataset))[0]:
            job = (await self._client.fit(dataset, opened.labels, test=opened.test, calibrate=True)).name
        return await self.state(dataset) | {"job": job}

    async def open_name(self, name: str) -> dict[str, Any]:
        """A dataset, a model or an embedding, by its name; a short one is a dataset's, a model's or an embedding's."""
        if f"/{ModelName.collection}/" in name:
            return await self._of_model(name)
        if f"/{EmbeddingName.collection}/" in name:
            return await self._of_embedding(name)
        if f"/{DatasetName.collection}/" in name:
            return await self.state(await self._client.get_dataset(name))
        try:
            return await self.state(await self._client.get_dataset(name))
        except NotFound:
            pass
        try:
            return await self._of_model(name)
        except NotFound:
            return await self._of_embedding(name)

    async def _of_model(self, name: str) -> dict[str, Any]:
        model = await self._client.get_model(name)
        return await self.state(await self._client.get_dataset(model.dataset)) | {"model": model.name}

    async def _of_embedding(self, name: str) -> dict[str, Any]:
        embedding = await self._client.get_embedding(name)
        return await self.state(await self._client.get_dataset(embedding.dataset)) | {"embedding": embedding.name}

    async def datasets(self) -> list[dict[str, Any]]:
        """The newest datasets."""
        found = await _first(self._client.list_datasets(), lambda _: True)
        return [
            {"name": one.name, "points": one.points, "description": one.description, "time": _time(one.create_time)}
            for one in found
        ]

    async def state(self, dataset: Dataset) -> dict[str, Any]:
        """Everything that was made from a dataset."""
        models, embeddings = await self._made(dataset)
        rows = self._rows.get(dataset.name, Rows())
        return {
            "dataset": dataset.name,
            "description": dataset.description,
            "points": dataset.points,
            "columns": rows.column_names,
            "has_rows": rows.known,
            "automatic_up_to": AUTOMATIC_UP_TO,
            "models": [_model(one) for one in models],
            "embeddings": [_embedding(one) for one in embeddings],
        }

    async def state_of(self, name: str) -> dict[str, Any]:
        """The same by the dataset's name."""
        return await self.state(await self._client.get_dataset(name))

    async def _made(self, dataset: Dataset) -> tuple[list[Model], list[Embedding]]:
        return (
            await _first(self._client.list_models(), lambda one: one.dataset == dataset.name),
            await _first(self._client.list_embeddings(), lambda one: one.dataset == dataset.name),
        )

    # -- arrays

    async def coordinates(self, embedding: str) -> bytes:
        """Two float32 numbers per point."""
        found = await self._client.read_embedding(embedding, ("coordinates",))
        assert found.coordinates is not None
        return np.ascontiguousarray(found.coordinates[:, :2], dtype="<f4").tobytes()

    async def links(self, embedding: str) -> dict[str, Any]:
        """The links of a map, and those that it violates."""
        fields = ("must_link", "cannot_link", "violated_must", "violated_cannot")
        found = await self._client.read_embedding(embedding, fields)
        return {field: [] if (pairs := getattr(found, field)) is None else pairs.tolist() for field in fields}

    async def clusters(self, embedding: str) -> bytes:
        """A float32 number per point."""
        found = await self._client.read_embedding(embedding, ("clusters",))
        assert found.clusters is not None
        return found.clusters.astype("<f4").tobytes()

    async def answers(self, model: str) -> bytes:
        """Per point: the class (int32, a position in the model's classes), how sure (float32), and if given (uint8)."""
        described = await self._client.get_model(model)
        fields = ("labels", "given", "probabilities" if described.calibrated else "scores")
        found = await self._client.read_solution(described, fields)
        assert found.class_indices is not None
        assert found.given is not None
        sure = found.probabilities.max(axis=1) if found.probabilities is not None else np.ones(described.points)
        parts = (found.class_indices.astype("<i4"), sure.astype("<f4"), found.given.astype("u1"))
        return b"".join(part.tobytes() for part in parts)

    async def ids(self, model: str) -> list[str]:
        """The ids of all points; none if their table had no such column."""
        found = await self._client.read_solution(model, ("ids",))
        return [] if found.ids is None else [str(one) for one in found.ids]

    # -- rows

    def rows(self, dataset: str, points: Sequence[int]) -> list[dict[str, Any]]:
        """What is shown of some points."""
        rows = self._rows.get(dataset, Rows())
        return [{"point": point} | rows.shown(point) for point in points]

    async def image(self, dataset: str, point: int) -> bytes:
        """The image of a point."""
        return await asyncio.to_thread(self._rows.get(dataset, Rows()).image, point)

    async def find(self, dataset: str, text: str) -> list[int]:
        """Points whose row has a text; a number is a point's position, too."""
        described = await self._client.get_dataset(dataset)
        own = [int(text)] if text.isdecimal() and int(text) < described.points else []
        rows = self._rows.get(dataset, Rows())
        found = await asyncio.to_thread(rows.found, text, MOST_FOUND)
        return own + [point for point in found if point not in own]

    async def column(self, dataset: str, name: str) -> tuple[bytes, list[str]]:
        """A float32 number per point to colour by, and the names of the categories that they are."""
        rows = self._rows.get(dataset, Rows())
        if name not in rows.column_names:
            raise BadRequest(f"name: there is no column {name!r}")
        values, categories = await asyncio.to_thread(rows.values, name)
        return values.astype("<f4").tobytes(), categories

    # -- acts

    async def label(self, dataset: str, model: str | None, labels: Mapping[int, str], withdrawn: Sequence[int]) -> str:
        """Start the job that gives points these classes and takes those of others; returns its name."""
        if model is None:
            if withdrawn:
                raise BadRequest("withdrawn: there is no model yet that has labels")
            given: dict[int, Any] = dict(labels)
            test = self._tests.get(dataset)
            if test and all(isinstance(one, int) for one in test.values()):
                given = _as_classes(labels, list(test.values()))
            return (await self._client.fit(dataset, given, test=test, calibrate=True)).name
        described = await self._client.get_model(model)
        given = _as_classes(labels, described.classes)
        test = self._tests.get(dataset)
        job = await self._client.transduce(described, given, withdrawn=list(withdrawn), test=test, calibrate=True)
        return job.name

    async def embed(self, source: str, links: Mapping[str, Any], labels_of: str | None) -> str:
        """Start the job that makes a map of a dataset or a model, or continues a map; returns its name.

        ``links`` has "must_link", "cannot_link", "withdrawn_must" and "withdrawn_cannot". ``labels_of`` is a model,
        whose given labels pull the map, too.
        """
        described: Any = source
        if f"/{ModelName.collection}/" in source:
            described = await self._client.get_model(source)
        elif f"/{EmbeddingName.collection}/" in source:
            described = await self._client.get_embedding(source)
        labels = None if labels_of is None else await self._given(labels_of)
        return (await self._client.embed(described, labels=labels, **links)).name

    async def _given(self, model: str) -> dict[int, Any]:
        found = await self._client.read_solution(model, ("labels", "given"))
        assert found.labels is not None
        assert found.given is not None
        return {int(point): found.labels[point].item() for point in np.flatnonzero(found.given)}

    async def job(self, name: str) -> dict[str, Any]:
        """A job's state, its progress, and what it made."""
        job = (await self._client.job(name)).info
        made = job.model or job.embedding
        progress = job.progress
        return {
            "state": str(job.state),
            "final": job.state.is_final,
            "phase": "" if progress is None else progress.phase,
            "fraction": 0.0 if progress is None else progress.fraction,
            "error": None if job.error is None else job.error.message,
            "made": None if made is None else made.name,
            "warnings": [] if made is None else list(made.warnings),
            "changed": job.changed_points,
            "tracking_url": job.tracking_url,
        }

    async def cancel(self, name: str) -> None:
        """Cancel a job."""
        await (await self._client.job(name)).cancel()

    # -- questions

    async def suggest(self, source: str, count: int, exclude: Sequence[Any]) -> dict[str, Any]:
        """What to ask next: points for a model, pairs for a map."""
        found = await self._client.suggest(source, count, exclude=exclude)
        return {
            "points": [
                {"point": one.point, "text": one.text, "classes": [str(found.classes[k]) for k in one.class_positions]}
                for one in found.points
            ],
            "pairs": [
                {"first": one.first, "second": one.second, "text": one.text, "together": one.together}
                for one in found.pairs
            ],
        }

    async def explain(self, model: str, point: int) -> dict[str, Any]:
        """The labels that carry the answer of a point."""
        found = await self._client.explain(model, [point], labels=5)
        [why] = found.explanations
        return {
            "answer": str(found.classes[why.class_position]),
            "runner_up": str(found.classes[why.runner_up_position]),
            "parts": [
                {
                    "point": one.point,
                    "class": str(found.classes[one.class_position]),
                    "share": one.share,
                    "steps": max(0, len(one.path) - 1),
                }
                for one in why.contributions
            ],
        }

    # -- exports

    async def labels_table(self, model: str, ending: str) -> bytes:
        """The answer for every point, as a file of this ending."""
        described = await self._client.get_model(model)
        fields = ("labels", "given", "ids", *(("probabilities",) if described.calibrated else ()))
        found = await self._client.read_solution(described, fields)
        assert found.labels is not None
        assert found.given is not None
        columns = {
            "id": range(described.points) if found.ids is None else found.ids,
            "label": found.labels,
            "given": found.given.astype(int),
        }
        if found.probabilities is not None:
            columns["confidence"] = found.probabilities.max(axis=1).round(4)
        return _file(columns, ending)

    async def links_table(self, embedding: str, ending: str) -> bytes:
        """The links of a map as a file of this ending, as `homophily embed --links` reads them."""
        found = await self.links(embedding)
        rows = [(i, j, kind) for kind in ("must", "cannot") for i, j in found[f"{kind}_link"]]
        return _file({name: [row[place] for row in rows] for place, name in enumerate(("i", "j", "kind"))}, ending)

    async def page(self, embedding: str, model: str | None) -> bytes:
        """A page with the map, which needs no network."""
        found = await self._client.read_embedding(embedding)
        labels = None if model is None else (await self._client.read_solution(model)).labels
        return _written(lambda path: plot_map(found, path, None if labels is None else labels.tolist()), ".html")


def pairs_within(points: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs that say that a group belongs together: a chain, of members spread over the group."""
    return list(pairwise(_spread(points, MOST_PAIRS + 1)))


def pairs_between(first: Sequence[int], second: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs that say how two groups belong together: members of one beside members of the other."""
    count = min(MOST_PAIRS, max(len(first), len(second)))
    one, other = _spread(first, count), _spread(second, count)
    return [
        (one[k % len(one)], other[k % len(other)]) for k in range(count) if one[k % len(one)] != other[k % len(other)]
    ]


def _spread(points: Sequence[int], most: int) -> list[int]:
    if len(points) <= most:
        return list(points)
    return [points[round(k * (len(points) - 1) / (most - 1))] for k in range(most)]


def _as_classes(labels: Mapping[int, str], classes: Sequence[Any]) -> dict[int, Any]:
    """Labels as the page has them, strings, as the model has them: integers if its classes are."""
    if not classes or isinstance(classes[0], str):
        return dict(labels)
    try:
        return {point: int(label) for point, label in labels.items()}
    except ValueError:
        wrong = next(label for label in labels.values() if not label.lstrip("-").isdecimal())
        raise BadRequest(f"labels: the classes of this model are integers. Got {wrong!r} instead.") from None


async def _first(found: AsyncIterator[T], wanted: Callable[[T], bool]) -> list[T]:
    kept, seen = [], 0
    async for one in found:
        seen += 1
        if wanted(one):
            kept.append(one)
        if seen >= MOST_LISTED:
            break
    return kept


def _model(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "parent": model.parent_model,
        "classes": [str(one) for one in model.classes],
        "labelled": model.labelled,
        "time": _time(model.create_time),
        "error_rate": None if model.test is None else model.test.error_rate,
        "suspects": [one.point for one in model.suspicious_labels[:10]],
        "warnings": list(model.warnings),
    }


def _embedding(embedding: Embedding) -> dict[str, Any]:
    counts = embedding.links
    return {
        "name": embedding.name,
        "parent": embedding.parent_embedding,
        "must": counts.must,
        "cannot": counts.cannot,
        "violated": counts.violated_must + counts.violated_cannot,
        "clusters": embedding.clusters,
        "time": _time(embedding.create_time),
        "warnings": list(embedding.warnings),
    }


def _time(when: datetime) -> str:
    return when.isoformat(timespec="seconds")


def _file(columns: Mapping[str, Any], ending: str) -> bytes:
    if ending not in FORMATS:
        raise BadRequest(f"format: must be one of {', '.join(FORMATS)}. Got {ending!r} instead.")
    return _written(lambda path: write_table(columns, path), f".{ending}")


def _written(write: Callable[[Path], object], suffix: str) -> bytes:
    """What is written into a file of this ending."""
    with tempfile.TemporaryDirectory(prefix="homophily-studio-") as folder:
        path = Path(folder) / f"export{suffix}"
        write(path)
        return path.read_bytes()
