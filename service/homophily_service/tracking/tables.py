"""Tables of a run, as MLflow's pages show and compare them; its own way of writing one takes pandas."""

from __future__ import annotations

from typing import Any

import numpy as np

from homophily_client._pb import model_pb2
from homophily_client.results import Model
from homophily_service.contract.labels import values_of
from homophily_service.plots.suspects import suspect_columns
from homophily_service.storage.solutions import CLASS_INDICES, PROBABILITIES
from homophily_service.storage.stores import Stores
from homophily_service.tracking.artifact import model_blob

#: The name that MLflow's own evaluation gives its table.
EVALUATION_FILE = "eval_results_table.json"
SUSPECTS_FILE = "suspicious_labels.json"
# A page with more rows would take seconds to show.
MOST_ROWS = 5_000

Columns = dict[str, list[Any]]


def tables_of(stores: Stores, model: model_pb2.Model, test: model_pb2.Labels) -> dict[str, Columns]:
    """The tables of a model that are not empty, by the names of their files."""
    found = {EVALUATION_FILE: evaluation_columns(stores, model, test)}
    found[SUSPECTS_FILE] = suspect_columns(Model.from_message(model))
    return {file: columns for file, columns in found.items() if columns}


def evaluation_columns(stores: Stores, model: model_pb2.Model, test: model_pb2.Labels) -> Columns:
    """The test labels beside the answers, wrong ones first; at most MOST_ROWS of them."""
    points = np.array(test.points, dtype=np.int64)
    if not points.size:
        return {}
    names = [CLASS_INDICES, *([PROBABILITIES] if model.calibrated else [])]
    arrays = stores.blobs.read(model_blob(stores, model), *names).arrays
    classes = values_of(model.classes)
    labels, answers = values_of(test.classes), [classes[place] for place in arrays[CLASS_INDICES][points]]
    is_right = np.array([label == answer for label, answer in zip(labels, answers, strict=True)])
    order = np.lexsort((points, is_right))[:MOST_ROWS]
    columns: Columns = {
        "point": points[order].tolist(),
        "label": [str(labels[place]) for place in order],
        "answer": [str(answers[place]) for place in order],
        "right": is_right[order].tolist(),
    }
    if model.calibrated:
        columns["probability"] = arrays[PROBABILITIES][points[order]].max(axis=1).tolist()
    return columns
