"""Tables become points by a stated recipe, which is stored and applied to new rows by column name."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from homophily import (
    DominantColumnWarning,
    ERRClassifier,
    IRRClassifier,
    KNNGraph,
    ParameterError,
    Preprocessing,
    UnknownCategoriesWarning,
)
from homophily.storage import State, preprocessing_state, restore_preprocessing


def people(rows: int = 40) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    income = rng.normal(40e3, 9e3, rows)
    income[3] = np.nan
    return pd.DataFrame(
        {
            "age": rng.integers(20, 70, rows),
            "city": rng.choice(["Bonn", "Kiel", "Ulm"], rows),
            "income": income,
            "height": rng.normal(1.7, 0.1, rows),
            "member": rng.choice([True, False], rows),
        }
    )


def test_it_is_what_scikit_learns_transformers_compute():
    table = people()
    numbers = ["age", "income", "height", "member"]
    oracle = make_column_transformer(
        (make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), numbers),
        (OneHotEncoder(sparse_output=False), ["city"]),
    )
    np.testing.assert_allclose(
        Preprocessing().fit_transform(table), oracle.fit_transform(table.astype({"member": float}))
    )


def test_text_is_scikit_learns_tf_idf_beside_numbers_that_count_as_much_together():
    texts = ["a red car", "the blue car", "red and blue", "green"]
    points = Preprocessing(text=["words"]).fit_transform({"words": texts, "x": [1.0, 2.0, 3.0, 4.0]})
    assert sparse.issparse(points)
    np.testing.assert_allclose(points.toarray()[:, 1:], TfidfVectorizer().fit_transform(texts).toarray())


def test_new_rows_are_matched_by_name_in_any_order():
    table = people()
    recipe = Preprocessing().fit(table)
    swapped = table[["height", "member", "city", "income", "age"]]
    np.testing.assert_array_equal(recipe.transform(swapped), recipe.transform(table))
    np.testing.assert_array_equal(recipe.transform(pa.Table.from_pandas(swapped)), recipe.transform(table))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda t: t.drop(columns="age"), "Missing: 'age'"),
        (lambda t: t.assign(extra=1.0), "Unexpected: 'extra'"),
        (lambda t: t.rename(columns={"age": "Age"}), "Missing: 'age'. Unexpected: 'Age'"),
        (lambda t: t.assign(age="old"), "Column 'age' must hold numbers as in 'fit'. Got strings instead"),
        (lambda t: t.assign(city=1.0), "Column 'city' must hold strings as in 'fit'"),
        (lambda t: t.assign(age=np.inf), "must hold finite numbers"),
    ],
)
def test_other_columns_are_refused_by_name(change, sentence):
    table = people()
    with pytest.raises(ParameterError, match=sentence):
        Preprocessing().fit(table).transform(change(table))


def test_new_rows_with_nothing_in_a_column_have_it_in_the_kind_of_fit():
    recipe = Preprocessing(scale="none").fit({"x": [1.0, 3.0, 3.0], "city": ["a", "b", "a"]})
    assert recipe.transform(pd.DataFrame({"x": [None], "city": [np.nan]})).tolist() == [[3.0, 0.0, 0.0]]
    assert recipe.transform({"x": ["", ""], "city": ["a", "b"]}).tolist() == [[3.0, 1.0, 0.0], [3.0, 0.0, 1.0]]


def test_ignored_columns_may_be_there_or_not():
    table = people()
    recipe = Preprocessing(ignore=("income", "elsewhere")).fit(table)
    assert recipe.feature_names_in_.tolist() == ["age", "city", "height", "member"]
    np.testing.assert_array_equal(recipe.transform(table.drop(columns="income")), recipe.transform(table))


def test_arrays_are_taken_by_position_where_all_columns_hold_numbers():
    table = people()[["age", "income"]]
    recipe = Preprocessing().fit(table)
    np.testing.assert_array_equal(recipe.transform(table.to_numpy()), recipe.transform(table))
    with pytest.raises(ParameterError, match="must be a table with the columns"):
        Preprocessing().fit(people()).transform(np.zeros((2, 5)))


@pytest.mark.parametrize(
    ("columns", "is_scaled"),
    [
        ({"a": [0.0, 1.0, 2.0], "b": [5.0, 3.0, 1.0]}, False),
        ({"a": [0.0, 1.0, 2.0], "b": [500.0, 300.0, 1.0]}, True),
        ({"a": [0.0, 1.0, 2.0], "city": ["x", "y", "x"]}, False),
        ({"a": [0.0, 100.0, 2.0], "city": ["x", "y", "x"]}, True),
        ({"vector": np.array([[0.0, 1.0], [1000.0, 1.0], [0.0, 2.0]])}, False),
        ({f"pixel{n}": [0.0, 0.1 if n == 0 else 255.0, 7.0] for n in range(20)}, False),
    ],
)
def test_scales_are_changed_only_where_columns_differ_in_them(columns, is_scaled):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DominantColumnWarning)
        recipe = Preprocessing().fit(columns)
    assert ("standardised" in recipe.steps_[0]) is is_scaled


def test_a_vector_keeps_its_geometry():
    vectors = np.random.default_rng(0).normal(size=(30, 4)) * [1, 2, 3, 4]
    points = Preprocessing(scale="standard").fit_transform({"v": vectors, "x": np.arange(30.0)})[:, :4]
    scaled = points @ points.T
    centred = vectors - vectors.mean(axis=0)
    np.testing.assert_allclose(scaled / scaled[0, 0], centred @ centred.T / (centred[0] @ centred[0]))
    assert points.var(axis=0).mean() == pytest.approx(1.0)


def test_a_vector_column_of_lists_is_read():
    lists = pa.table({"v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2))})
    assert Preprocessing().fit_transform(lists).tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(ParameterError, match="vectors of different lengths"):
        Preprocessing().fit({"v": np.array([[1.0], [1.0, 2.0]], dtype=object)})


def test_one_column_that_decides_all_distances_is_named():
    columns = {"income": [1e5, 2e5, 9e4, 3e4], "height": [1.7, 1.8, 1.6, 1.9]}
    with pytest.warns(DominantColumnWarning, match="Column 'income' makes up 100.0 %"):
        Preprocessing(scale="none").fit(columns)
    Preprocessing().fit(columns)


def test_missing_values_are_filled_by_the_named_rule_and_counted():
    columns = {"x": [1.0, np.nan, 1.0, 4.0], "city": ["a", None, "b", "a"]}
    recipe = Preprocessing(scale="none").fit(columns)
    assert recipe.transform(columns).tolist()[1] == [1.0, 0.0, 0.0]
    assert recipe.steps_[1] == (
        "Missing values: numbers replaced by the column's median (x: 1); strings belong to no category (city: 1)."
    )
    assert Preprocessing(scale="none", missing="mean").fit(columns).transform(columns)[1, 0] == 2.0
    with pytest.raises(ParameterError, match="Column 'x' has no value in row 1"):
        Preprocessing(missing="refuse").fit(columns)


def test_constant_and_empty_columns_have_no_effect():
    recipe = Preprocessing().fit({"same": [3.0, 3.0, 3.0], "none": [np.nan] * 3, "x": [1.0, 2.0, 3.0]})
    assert "without effect, as constant: same, none" in recipe.steps_[0]
    assert np.isfinite(recipe.transform({"same": [4.0], "none": [np.nan], "x": [1.0]})).all()


def test_categories_that_fit_has_not_seen_are_named():
    recipe = Preprocessing().fit({"city": ["a", "b", "a"]})
    with pytest.warns(UnknownCategoriesWarning, match="Column 'city' has 1 value that 'fit' has not seen, such as 'c'"):
        assert recipe.transform({"city": ["c"]}).tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"day": np.array(["2020-01-01"] * 3, dtype="datetime64[D]")}, "Column 'day' holds dates"),
        (pd.DataFrame({"day": pd.to_datetime(["2020-01-01", None])}), "Column 'day' holds dates"),
        (pd.DataFrame({"day": pd.to_datetime(["2020-01-01"], utc=True)}), "Column 'day' holds dates"),
        (pd.DataFrame({"span": pd.to_timedelta(["1 day", "2 days"])}), "Column 'span' holds dates"),
        (pa.table({"day": pa.array([1, 2], pa.date32())}), "Column 'day' holds dates"),
        ({"name": [f"n{i}" for i in range(200)]}, "Column 'name' holds 200 different strings"),
        ({"odd": [{"a": 1}, {"a": 2}, {"a": 3}]}, "Column 'odd' must hold numbers, strings or vectors. Got dict"),
        ({"odd": [1, "a", 2.0]}, "Column 'odd' must hold numbers, strings or vectors"),
        ({"x": [1.0], "y": [1.0, 2.0]}, "must have the same length"),
        ([1.0, 2.0], "must be a table with named columns"),
    ],
)
def test_columns_without_a_distance_are_refused_with_what_to_do(columns, sentence):
    with pytest.raises(ParameterError, match=sentence):
        Preprocessing().fit(columns)


def test_too_many_categories_name_the_parameters_that_help():
    table = {"name": [f"n{i}" for i in range(200)], "x": np.arange(200.0)}
    with pytest.raises(ParameterError) as refused:
        Preprocessing().fit(table)
    assert str(refused.value).endswith("pass text=['name']; if the column is an id, pass ignore=['name'].")
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)
    assert Preprocessing(ignore=["name"]).fit(table).feature_names_in_.tolist() == ["x"]


def test_names_must_be_distinct():
    with pytest.raises(ParameterError, match="'x' more than once"):
        Preprocessing().fit(pd.DataFrame([[1.0, 2.0]], columns=["x", "x"]))


@pytest.mark.parametrize("text", [(), ("words",)])
def test_a_stored_recipe_answers_the_same(text):
    table = people().assign(words=["a red car", "the blue sky"] * 20)
    recipe = Preprocessing(text=text).fit(table)
    arrays, document = preprocessing_state(recipe)
    restored = restore_preprocessing(State(arrays, json.loads(json.dumps(document))))
    expected, found = recipe.transform(table), restored.transform(table)
    if text:
        expected, found = expected.toarray(), found.toarray()
    np.testing.assert_array_equal(found, expected)
    assert restored.steps_ == recipe.steps_
    assert restored.get_feature_names_out().tolist() == recipe.get_feature_names_out().tolist()


def test_a_damaged_recipe_is_refused():
    arrays, document = preprocessing_state(Preprocessing().fit(people()))
    with pytest.raises(ValueError, match="has no array 'fill'"):
        restore_preprocessing(State({"center": arrays["center"]}, document))
    with pytest.raises(ValueError, match="do not agree"):
        restore_preprocessing(State(arrays, document | {"categories": {}}))


def test_it_is_a_step_of_a_pipeline():
    table = people()
    y = np.where(table["city"] == "Ulm", "yes", "no").astype(object)
    y[10:] = None
    pipeline = make_pipeline(Preprocessing(), IRRClassifier()).fit(table, y)
    assert set(pipeline.predict(table[table.columns[::-1]])) <= {"yes", "no"}


@pytest.mark.parametrize("estimator", [IRRClassifier(), ERRClassifier()])
def test_classifiers_match_the_columns_of_a_frame_by_name(estimator):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)) * [1, 5, 25], columns=["a", "b", "c"])
    y = np.full(60, -1)
    y[:10] = np.arange(10) % 2
    fitted = estimator.fit(frame, y)
    new = frame + 0.01
    np.testing.assert_array_equal(fitted.decision_function(new[["c", "a", "b"]]), fitted.decision_function(new))
    with pytest.raises(ValueError, match="d"):
        fitted.predict(new.rename(columns={"a": "d"}))


def test_a_graph_matches_the_columns_of_a_frame_by_name():
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)) * [1, 9], columns=["a", "b"])
    graph = KNNGraph(n_neighbors=3).fit(frame)
    for found, expected in zip(graph.attach(frame[["b", "a"]] + 0.1), graph.attach(frame + 0.1), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_recipe_of_format_1_answers_as_it_did():
    sample = json.loads((Path(__file__).parent / "samples" / "preprocessing-1.json").read_text(encoding="utf-8"))
    arrays = {name: np.array(one["values"], dtype=one["dtype"]) for name, one in sample["arrays"].items()}
    recipe = restore_preprocessing(State(arrays, sample["document"]))
    np.testing.assert_allclose(recipe.transform(sample["table"]).toarray(), sample["points"], rtol=1e-12)
