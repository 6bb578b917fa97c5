"""All pictures of a model or of a map for which there is data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from homophily_client._pb import embedding_pb2, model_pb2
from homophily_client.arrays import Map
from homophily_client.results import Embedding, Model
from homophily_service.plots.answers import confusion_matrix, reliability_diagram, score_histogram
from homophily_service.plots.canvas import counted, need_matplotlib, percent, words
from homophily_service.plots.fits import energy_curve, error_surface
from homophily_service.plots.maps import map_page, map_picture, to_draw


def model_pictures(
    model: Model | model_pb2.Model,
    scores: ArrayLike | None = None,
    class_indices: ArrayLike | None = None,
    *,
    coordinates: ArrayLike | None = None,
    mapped_by: str = "",
) -> dict[str, bytes]:
    """Files by name: energy.png, confusion-… and reliability-… of validation and test labels, scores.png, search-….

    With ``coordinates`` also map.png, and map.html to zoom and point at.

    Parameters
    ----------
    model : the message, or the client's Model.
    scores, class_indices : of all points, as ReadSolution sends them; without them there is no picture of scores.
    coordinates, mapped_by : coordinates of a map on which the answers are shown, and the origin of that map.

    >>> sorted(model_pictures(model_pb2.Model(trace=model_pb2.Trace(iterations=[0, 1], energies=[3.0, 2.0]))))
    ['energy.png']
    """
    need_matplotlib()
    found = Model.from_message(model) if isinstance(model, model_pb2.Model) else model
    classes = [str(one) for one in found.classes]
    about = _about(found)
    pictures: dict[str, bytes | None] = {}
    if found.trace is not None:
        pictures["energy.png"] = energy_curve(found.trace, about)
    for kind, evaluation in (("validation", found.validation), ("test", found.test)):
        if evaluation is None:
            continue
        subtitle = _about(found, kind)
        if evaluation.confusion and len(evaluation.confusion) == len(classes):
            pictures[f"confusion-{kind}.png"] = confusion_matrix(evaluation, classes, kind, subtitle)
        if any(one.points for one in evaluation.reliability):
            pictures[f"reliability-{kind}.png"] = reliability_diagram(evaluation.reliability, kind, subtitle)
    if scores is not None and class_indices is not None:
        values, answers = np.asarray(scores, dtype=np.float64), np.asarray(class_indices)
        finite = np.isfinite(values.reshape(len(answers), -1)).all(axis=1)
        if finite.any():
            pictures["scores.png"] = score_histogram(values[finite], answers[finite], classes, about)
    if coordinates is not None and class_indices is not None:
        places, answers = np.asarray(coordinates, dtype=np.float64), np.asarray(class_indices, dtype=np.int32)
        if len(places):
            title = f"Answers of {words(found.name.rpartition('/')[2], 32)}"
            drawing = to_draw(title, Map(coordinates=places, clusters=answers), None)
            notes = ", ".join(note for note in (drawing.note, mapped_by) if note)
            drawing = replace(drawing, names=classes, note=notes)
            pictures |= {"map.png": map_picture(drawing), "map.html": map_page(drawing)}
    if found.search is not None:
        pictures["search-graph.png"] = error_surface(found.search, 1, about)
        pictures["search-relationships.png"] = error_surface(found.search, 2, about)
    return {name: picture for name, picture in pictures.items() if picture is not None}


def embedding_pictures(
    embedding: Embedding | embedding_pb2.Embedding,
    coordinates: ArrayLike,
    clusters: ArrayLike | None = None,
    *,
    labels: Mapping[int, Any] | None = None,
    must_link: ArrayLike | None = None,
    cannot_link: ArrayLike | None = None,
    violated_must: ArrayLike | None = None,
    violated_cannot: ArrayLike | None = None,
) -> dict[str, bytes]:
    """Files by name: energy.png, map.png, and map.html to zoom and point at.

    Parameters
    ----------
    embedding : the message, or the client's Embedding.
    coordinates, clusters : of all points, as ReadEmbedding sends them.
    labels : classes by point, which colour the points instead of the clusters.
    must_link … violated_cannot : pairs of points; none are drawn where they are not given.
    """
    need_matplotlib()
    found = Embedding.from_message(embedding) if isinstance(embedding, embedding_pb2.Embedding) else embedding
    name = found.name.rpartition("/")[2]
    pictures = {}
    if found.trace is not None:
        pictures["energy.png"] = energy_curve(found.trace, f"{words(name, 32)} · {counted(found.points, 'point')}")
    arrays = Map(
        coordinates=np.asarray(coordinates, dtype=np.float64),
        clusters=None if clusters is None else np.asarray(clusters, dtype=np.int32),
        **{
            kind: None if pairs is None else np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
            for kind, pairs in (
                ("must_link", must_link),
                ("cannot_link", cannot_link),
                ("violated_must", violated_must),
                ("violated_cannot", violated_cannot),
            )
        },
    )
    if arrays.coordinates is not None and arrays.coordinates.size:
        drawing = to_draw(name, arrays, labels)
        pictures["map.png"] = map_picture(drawing)
        pictures["map.html"] = map_page(drawing)
    return pictures


def _about(model: Model, kind: str | None = None) -> str:
    """The model in a line: its name, size and error rate, on the test labels if there are any."""
    # Names may be wider than the picture.
    parts = [words(model.name.rpartition("/")[2], 32), counted(model.points, "point")]
    kind = kind or ("test" if model.test is not None else "validation")
    evaluation = model.test if kind == "test" else model.validation
    if evaluation is not None:
        parts.append(f"error {percent(evaluation.error_rate)} of {counted(evaluation.points, f'{kind} label')}")
    elif model.error_rate is not None:
        parts.append(f"error {percent(model.error_rate)} of the validation labels")
    return " · ".join(part for part in parts if part)
