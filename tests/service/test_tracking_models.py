"""Fitted classifiers in MLflow's format, without a server."""

from __future__ import annotations

import doctest
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from homophily import ERRClassifier, IRRClassifier, KNNGraph, Preprocessing
from homophily_client._pb import model_pb2
from homophily_service.contract.errors import DataLoss, FailedPrecondition
from homophily_service.storage.blobs.objects import Blobs
from homophily_service.tracking import mlflow_models
from homophily_service.tracking.artifact import parts_of, read_parts, write_parts
from homophily_service.tracking.mlflow_models import DATA, load_model, save_model

# MLflow's own: of types that it could not check, and of what it is built on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:mlflow", "ignore::FutureWarning:mlflow")


def clouds(dtype: str = "float32") -> tuple[Any, Any]:
    rng = np.random.default_rng(3)
    place = np.arange(90) % 3
    X = (5.0 * rng.normal(size=(3, 4))[place] + rng.normal(size=(90, 4))).astype(dtype)
    return X, place


def test_the_example_of_the_module_runs() -> None:
    assert doctest.testmod(mlflow_models).failed == 0


def predicted(folder: Path, X: Any) -> Any:
    import mlflow

    return mlflow.pyfunc.load_model(str(folder)).predict(X)


def test_classifier_answers_the_same_after_it_was_saved(tmp_path: Path) -> None:
    X, place = clouds()
    y = np.where(place == 0, "left", "right")
    y[20:] = ""
    classifier = ERRClassifier().fit(X, y)
    save_model(classifier, tmp_path / "model")
    new = X[:7] + np.float32(0.2)
    table = predicted(tmp_path / "model", new)
    assert list(table.columns) == ["class", "score"]
    assert table["class"].tolist() == classifier.predict(new).tolist()
    np.testing.assert_array_equal(table["score"], classifier.decision_function(new))
    again = load_model(str(tmp_path / "model"))
    assert again.classes_.tolist() == ["left", "right"]
    np.testing.assert_array_equal(again.predict(new), classifier.predict(new))


def test_calibrated_classifier_has_probabilities(tmp_path: Path) -> None:
    X, place = clouds("float64")
    y = np.where(np.arange(90) < 45, 10 * place, -1)
    classifier = IRRClassifier().fit(X, y)
    expected = classifier.predict_proba(X[60:63])
    save_model(classifier, tmp_path / "model")
    table = predicted(tmp_path / "model", X[60:63])
    assert table["class"].tolist() == classifier.predict(X[60:63]).tolist()
    np.testing.assert_array_equal(table[["probability_0", "probability_10", "probability_20"]], expected)


def people() -> tuple[pd.DataFrame, Any]:
    X, place = clouds("float64")
    table = pd.DataFrame(X, columns=list("wxyz")).assign(age=np.arange(90) % 50, city=np.array(["a", "b", "c"])[place])
    return table, np.where(np.arange(90) < 45, place, -1)


def test_columns_of_a_table_are_matched_by_name(tmp_path: Path) -> None:
    table, y = people()
    recipe = Preprocessing().fit(table)
    classifier = IRRClassifier().fit(recipe.transform(table), y)
    save_model(classifier, tmp_path / "model", preprocessing=recipe)
    expected = classifier.predict(recipe.transform(table[60:])).tolist()
    assert predicted(tmp_path / "model", table[60:])["class"].tolist() == expected
    assert predicted(tmp_path / "model", table[60:][table.columns[::-1]])["class"].tolist() == expected
    for wrong in (table.drop(columns="age"), table.rename(columns={"x": "X"}), table.assign(city=1.0)):
        with pytest.raises(Exception, match=r"age|x|city"):
            predicted(tmp_path / "model", wrong[60:])


def test_columns_of_a_frame_of_numbers_are_matched_by_name(tmp_path: Path) -> None:
    table, y = people()
    numbers = table[list("wxyz")]
    classifier = IRRClassifier().fit(numbers, y)
    save_model(classifier, tmp_path / "model")
    expected = classifier.predict(numbers[60:]).tolist()
    assert predicted(tmp_path / "model", numbers[60:][list("zyxw")])["class"].tolist() == expected
    with pytest.raises(Exception, match="x"):
        predicted(tmp_path / "model", numbers[60:].rename(columns={"x": "X"}))


def test_sparse_points_may_come_as_a_matrix_or_a_table(tmp_path: Path) -> None:
    X, place = clouds("float64")
    points = sparse.csr_array(np.maximum(X, 0.0))
    y = np.where(np.arange(90) < 45, place, -1)
    classifier = IRRClassifier(KNNGraph(metric="cosine")).fit(points, y)
    save_model(classifier, tmp_path / "model")
    expected = classifier.predict(points[60:]).tolist()
    assert predicted(tmp_path / "model", sparse.csr_matrix(points[60:]))["class"].tolist() == expected
    assert predicted(tmp_path / "model", points[60:].toarray())["class"].tolist() == expected


@pytest.mark.parametrize(("columns", "examples"), [(4, 3), (11_960, 2), (20_000, 1), (30_001, 0)])
def test_of_wide_points_fewer_are_examples_and_of_wider_ones_none(tmp_path: Path, columns: int, examples: int) -> None:
    X, place = clouds("float64")
    points = sparse.csr_array(np.maximum(X, 0.0))
    points.resize(len(place), columns)
    classifier = IRRClassifier(KNNGraph(metric="cosine")).fit(points, np.where(np.arange(90) < 45, place, -1))
    save_model(classifier, tmp_path / "model")
    # As it is shown, and as a request that a server of the model answers.
    shown, request = (tmp_path / "model" / f"{name}.json" for name in ("input_example", "serving_input_example"))
    assert shown.exists() == request.exists() == (examples > 0)
    if examples:
        assert np.shape(json.loads(shown.read_text())) == (examples, columns)
        assert np.shape(json.loads(request.read_text())["inputs"]) == (examples, columns)


def test_damage_is_noticed_and_strangers_are_refused(tmp_path: Path) -> None:
    X, place = clouds()
    save_model(IRRClassifier().fit(X, np.where(np.arange(90) < 30, place, -1)), tmp_path / "model")
    folder = tmp_path / "model" / DATA
    file = folder / "model" / "solution.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataLoss, match="solution"):
        read_parts(folder)
    file.write_bytes(whole)
    manifest = folder / "about" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"format":2', b'"format":9'))
    with pytest.raises(DataLoss, match="about"):
        read_parts(folder)
    with pytest.raises(FailedPrecondition, match="not a model"):
        read_parts(tmp_path)


def test_description_in_format_1_is_read_though_its_counts_had_other_names(tmp_path: Path) -> None:
    X, place = clouds()
    parts = parts_of(IRRClassifier().fit(X, np.where(np.arange(90) < 30, place, -1)))
    described = model_pb2.Model(
        name="projects/p/models/m",
        point_count=90,
        dimension_count=3,
        labelled_count=30,
        iteration_count=4,
        evaluation_count=5,
        graph=model_pb2.GraphSummary(edge_count=6, component_count=7),
        seconds={"points": 1.0},
        trace=model_pb2.Trace(iterations=[0, 1], evaluation_counts=[1, 2]),
        validation=model_pb2.Evaluation(point_count=8, reliability=[model_pb2.ReliabilityBin(point_count=9)]),
        search=model_pb2.SearchSummary(trials=[model_pb2.Trial(held_out_count=10)]),
    )
    described.create_time.FromJsonString("2026-01-01T00:00:00Z")
    write_parts(tmp_path / "current", parts._replace(described=described))
    former = {
        "name": "projects/p/models/m",
        "points": "90",
        "dimensions": "3",
        "labelled": "30",
        "iterations": 4,
        "evaluations": 5,
        "graph": {"edges": "6", "components": "7"},
        "seconds": {"points": 1.0},
        "trace": {"iterations": [0, 1], "evaluations": [1, 2]},
        "validation": {"points": "8", "reliability": [{"points": "9"}]},
        "search": {"trials": [{"held_out": 10}]},
        "create_time": "2026-01-01T00:00:00Z",
    }
    about = Blobs(str(tmp_path / "current")).read("about").document
    shutil.copytree(tmp_path / "current", tmp_path / "former", ignore=shutil.ignore_patterns("about"))
    Blobs(str(tmp_path / "former")).write("about", {}, {**about, "format": 1, "model": former})
    assert read_parts(tmp_path / "current").described == described
    assert read_parts(tmp_path / "former").described == described
