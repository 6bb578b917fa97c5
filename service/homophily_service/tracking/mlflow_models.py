"""Fitted classifiers as models of MLflow: saved, logged, loaded, and served by ``mlflow models serve``.

The folder is that of :mod:`homophily_service.tracking.artifact`: no pickle, and no code. MLflow loads it through
:func:`_load_pyfunc` wherever ``homophily[tracking]`` is installed.

>>> import tempfile
>>> import mlflow
>>> import numpy as np
>>> from homophily import IRRClassifier, KNNGraph
>>> from homophily_service.tracking.mlflow_models import load_model, save_model
>>> graph = KNNGraph(n_neighbors=2).fit([[0.0], [1.0], [8.0], [9.0]])
>>> classifier = IRRClassifier().fit(graph, ["a", "", "", "b"])
>>> folder = tempfile.mkdtemp() + "/model"
>>> save_model(classifier, folder)
>>> mlflow.pyfunc.load_model(folder).predict(np.array([[0.5], [8.5]]))["class"].tolist()
['a', 'b']
>>> load_model(folder).classes_.tolist()
['a', 'b']
"""

from __future__ import annotations

import platform
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from scipy import sparse

from homophily import Preprocessing
from homophily_client._pb import model_pb2
from homophily_service.storage.models import Classifier
from homophily_service.storage.stores import Stores
from homophily_service.tracking.artifact import Parts, parts_of, read_parts, stored_parts, write_parts

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import Model
    from mlflow.models.model import ModelInfo
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, TensorSpec

FLAVOR = "homophily"
# Our folder inside MLflow's.
DATA = "homophily"
_EXAMPLE_POINTS = 3
# A larger example would fill most of the page that shows it.
_EXAMPLE_NUMBERS = 30_000


def save_model(
    classifier: Classifier,
    path: str | Path,
    mlflow_model: Model | None = None,
    preprocessing: Preprocessing | None = None,
) -> None:
    """Write a fitted classifier, and the preprocessing in front of it, as a folder that MLflow can load.

    It has probabilities if it is calibrated already, which the first call of ``predict_proba`` does.
    """
    _save(parts_of(classifier, preprocessing), Path(path), mlflow_model)


def log_model(classifier: Classifier, name: str = "model", **options: Any) -> ModelInfo:
    """Log a fitted classifier to MLflow's active run; options are those of ``mlflow.models.Model.log``.

    Among them are ``registered_model_name``, ``run_id`` and ``tags``.
    """
    from mlflow.models import Model

    flavor = sys.modules[__name__]
    info: ModelInfo = Model.log(artifact_path=None, flavor=flavor, name=name, classifier=classifier, **options)
    return info


def load_model(uri: str) -> Classifier:
    """Load a classifier from a folder or from MLflow's URI, such as ``models:/digits@champion``."""
    import mlflow

    return read_parts(Path(mlflow.artifacts.download_artifacts(artifact_uri=uri)) / DATA).classifier()


def save_stored(stores: Stores, model: model_pb2.Model, path: Path, *, model_id: str, run_id: str) -> None:
    """Write a model of the service, to be logged under an id that MLflow gave."""
    from mlflow.models import Model

    parts = stored_parts(stores, model)
    metadata = {"homophily.model": model.name, "homophily.job": model.job}
    _save(parts, path, Model(model_uuid=model_id, model_id=model_id, run_id=run_id, metadata=metadata))


def _save(parts: Parts, path: Path, mlflow_model: Model | None) -> None:
    from mlflow.models import Model

    # The function by which every flavour of MLflow writes its example.
    from mlflow.models.utils import _save_example

    path.mkdir(parents=True)
    write_parts(path / DATA, parts)
    model = Model() if mlflow_model is None else mlflow_model
    model.signature = _signature(parts)
    _save_example(model, _example(parts), str(path))
    requirement = f"homophily[tracking]=={version('homophily')}"
    conda = ["pip", {"pip": [requirement]}]
    files = {
        "python_env.yaml": {"python": platform.python_version(), "dependencies": ["-r requirements.txt"]},
        "conda.yaml": {"channels": ["conda-forge"], "dependencies": [f"python={platform.python_version()}", *conda]},
    }
    for name, content in files.items():
        (path / name).write_text(yaml.safe_dump(content))
    (path / "requirements.txt").write_text(requirement + "\n")
    _pyfunc().add_to_model(
        model, loader_module=__name__, data=DATA, conda_env="conda.yaml", python_env="python_env.yaml"
    )
    model.add_flavor(FLAVOR, version=version("homophily"), data=DATA)
    model.model_size_bytes = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    model.save(str(path / "MLmodel"))


def _pyfunc() -> Any:
    # Its import warns about its own types.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import mlflow.pyfunc
    return mlflow.pyfunc


def _signature(parts: Parts) -> ModelSignature:
    from mlflow.models.signature import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    kinds = {"i": DataType.long, "u": DataType.long, "f": DataType.double, "b": DataType.boolean}
    answers: list[ColSpec | TensorSpec] = [ColSpec(kinds.get(parts.classes.dtype.kind, DataType.string), "class")]
    answers += [ColSpec(DataType.double, name) for name in _score_names(parts)]
    if parts.is_calibrated:
        answers += [ColSpec(DataType.double, name) for name in _probability_names(parts)]
    return ModelSignature(Schema(_inputs(parts)), Schema(answers))


def _inputs(parts: Parts) -> list[ColSpec | TensorSpec]:
    """The columns of a table by name, or the shape of an array."""
    from mlflow.types import ColSpec, DataType, TensorSpec
    from mlflow.types.schema import AnyType, Array

    recipe, names = parts.recipe(), parts.graph.document.get("feature_names")
    if recipe is None and names is None:
        return [TensorSpec(_dtype(parts), (-1, int(parts.graph.document["n_features"])))]
    widths = dict.fromkeys(names or (), 1) if recipe is None else recipe.widths_
    # Numbers of any type: MLflow would refuse integers where it was told of doubles.
    kinds: dict[int, Any] = {0: DataType.string, 1: AnyType()}  # type: ignore[no-untyped-call]
    return [ColSpec(kinds.get(width, Array(DataType.double)), name) for name, width in widths.items()]


def _dtype(parts: Parts) -> np.dtype[Any]:
    points = parts.graph.arrays.get("points")
    return np.dtype(np.float64) if points is None else np.dtype(points.dtype.name)


def _example(parts: Parts) -> Any:
    """A few of the points that the model was fitted on, fewer the longer they are; None where one is too long."""
    if parts.recipe() is not None:
        return None
    columns = int(parts.graph.document["n_features"])
    number = min(_EXAMPLE_POINTS, _EXAMPLE_NUMBERS // columns)
    if number == 0:
        return None
    if parts.is_sparse:
        rows = parts.graph.arrays["points_indptr"][: number + 1]
        filled = [parts.graph.arrays[f"points_{part}"][: rows[-1]] for part in ("data", "indices")]
        points = sparse.csr_array((*filled, rows), shape=(len(rows) - 1, columns + 1)).toarray()
    elif "points" in parts.graph.arrays:
        points = parts.graph.arrays["points"][:number]
    else:
        return None
    # For the cosine, an extra column marks the rows that are zero.
    return np.array(points[:, :columns], dtype=_dtype(parts))


def _score_names(parts: Parts) -> list[str]:
    return ["score"] if len(parts.classes) == 2 else [f"score_{name}" for name in parts.classes.tolist()]


def _probability_names(parts: Parts) -> list[str]:
    return [f"probability_{name}" for name in parts.classes.tolist()]


class ServedModel:
    """The model that MLflow calls: it returns a table of each point's class, scores and probabilities."""

    def __init__(self, parts: Parts) -> None:
        self._parts, self._classifier, self._recipe = parts, parts.classifier(by_position=True), parts.recipe()
        # MLflow makes columns of Python's own strings.
        text = parts.classes.dtype.kind in "OU"
        self._classes = parts.classes.astype(object) if text else parts.classes

    def predict(self, data: Any, params: dict[str, Any] | None = None) -> pd.DataFrame:  # noqa: ARG002
        """Answers for an array, a sparse matrix, or a table, whose columns are matched by name."""
        import pandas as pd

        is_named = hasattr(self._classifier, "feature_names_in_") and hasattr(data, "columns")
        points = _points(data, keep=is_named) if self._recipe is None else self._recipe.transform(data)
        if self._parts.is_sparse:
            points = sparse.csr_array(points)
        found = self._classifier.answer(points, probabilities=self._parts.is_calibrated)
        columns: dict[str, Any] = {"class": self._classes[found.classes]}
        scores = np.asarray(found.scores).reshape(len(found.classes), -1)
        columns |= dict(zip(_score_names(self._parts), scores.T, strict=True))
        if found.probabilities is not None:
            columns |= dict(zip(_probability_names(self._parts), found.probabilities.T, strict=True))
        return pd.DataFrame(columns)


def _points(data: Any, *, keep: bool) -> Any:
    if keep or sparse.issparse(data):
        return data
    return data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)


def _load_pyfunc(path: str) -> ServedModel:
    """Load the model; MLflow calls this with our folder."""
    return ServedModel(read_parts(Path(path)))
