"""The recipe that turns the rows of a table into points, stored with the graph of the points, and the rows' ids."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from homophily import ParameterError, Preprocessing
from homophily.storage import State, preprocessing_state, restore_preprocessing
from homophily.tables.columns import Table
from homophily.tables.preprocessing import CategoriesError, MissingName, ScaleName
from homophily_client._pb import points_pb2 as pb
from homophily_service.contract.errors import InvalidRequest
from homophily_service.contract.tables import NOT_FEATURES, Rows, Strings, number_width, string_kinds
from homophily_service.storage.blobs.objects import StoredObject
from homophily_service.storage.solutions import IDS

_PREFIX = "preprocessing."
_SCALES: dict[pb.Scale.ValueType, ScaleName] = {pb.SCALE_NONE: "none", pb.SCALE_STANDARD: "standard"}
_MISSING: dict[pb.MissingValues.ValueType, MissingName] = {
    pb.MISSING_VALUES_MEAN: "mean",
    pb.MISSING_VALUES_REFUSE: "refuse",
}


def recipe_of(rows: Rows) -> Preprocessing:
    """The recipe that the schema of a table asks for, fitted to its rows."""
    schema = rows.schema
    text = [column.name for column in schema.columns if column.kind == pb.COLUMN_KIND_TEXT]
    ignore = [*(column.name for column in schema.columns if column.kind in NOT_FEATURES), *schema.unused_columns]
    scale, missing = _SCALES.get(schema.scale, "auto"), _MISSING.get(schema.missing, "median")
    recipe = Preprocessing(scale=scale, missing=missing, text=text, ignore=ignore)
    try:
        recipe.fit(table_of(rows))
    except CategoriesError as error:
        raise ParameterError(f"{error.problem}: name it as text or as the id, or drop it.", "X") from error
    return recipe


def schema_of(recipe: Preprocessing) -> pb.TableSchema:
    """The schema that asks for a recipe, without ids."""
    kinds = {0: pb.COLUMN_KIND_CATEGORY, 1: pb.COLUMN_KIND_NUMBER}
    columns = [
        pb.Column(
            name=name,
            kind=pb.COLUMN_KIND_TEXT if name in recipe.text else kinds.get(width, pb.COLUMN_KIND_VECTOR),
            width=width if width > 1 else 0,
        )
        for name, width in recipe.widths_.items()
    ]
    schema = pb.TableSchema(columns=columns, unused_columns=recipe.ignore)
    schema.scale = next((number for number, word in _SCALES.items() if word == recipe.scale), pb.SCALE_AUTO)
    rules = _MISSING.items()
    schema.missing = next((number for number, word in rules if word == recipe.missing), pb.MISSING_VALUES_MEDIAN)
    return schema


def points_of(recipe: Preprocessing | None, points: Any, field: str) -> Any:
    """New points as the model takes them: rows of a table are matched by name, and anything else by position."""
    if recipe is None:
        if not isinstance(points, Rows):
            return points
        if points.strings:
            raise InvalidRequest(f"{field}.schema", "must hold numbers only, as the model was not fitted on a table")
        return points.numbers
    return recipe.transform(table_of(points) if isinstance(points, Rows) else points)


def table_of(rows: Rows) -> Table:
    """Rows as the core takes them: features only."""
    columns = [column for column in rows.schema.columns if column.kind not in NOT_FEATURES]
    decoded = tuple(
        values.decode()
        for kind, values in zip(string_kinds(rows.schema), rows.strings, strict=True)
        if kind not in NOT_FEATURES
    )
    names = tuple(column.name for column in columns)
    return Table(names, tuple(number_width(column) for column in columns), rows.numbers, decoded)


def ids_of(rows: Any) -> Strings | None:
    """The id of each row, if the points are a table with such a column."""
    if not isinstance(rows, Rows):
        return None
    kinds = string_kinds(rows.schema)
    return rows.strings[kinds.index(pb.COLUMN_KIND_ID)] if pb.COLUMN_KIND_ID in kinds else None


def with_recipe(graph: State, recipe: Preprocessing | None, ids: Strings | None) -> State:
    """The state of a graph with that of the recipe of its points."""
    arrays: dict[str, NDArray[Any]] = dict(graph.arrays)
    document = dict(graph.document)
    if recipe is not None:
        state = preprocessing_state(recipe)
        arrays |= {f"{_PREFIX}{name}": array for name, array in state.arrays.items()}
        document["preprocessing"] = state.document
    if ids is not None:
        arrays |= {name: np.ascontiguousarray(array) for name, array in zip(IDS, ids, strict=True)}
    return State(arrays, document)


def stored_recipe(graph: StoredObject | State) -> Preprocessing | None:
    """The recipe in a stored graph; None if its points were no table."""
    document = graph.document.get("preprocessing")
    if document is None:
        return None
    arrays = {name.removeprefix(_PREFIX): array for name, array in graph.arrays.items() if name.startswith(_PREFIX)}
    return restore_preprocessing(State(arrays, document))


def stored_ids(graph: StoredObject | State) -> Strings | None:
    """The ids in a stored graph."""
    return Strings(*(graph.arrays[name] for name in IDS)) if IDS[0] in graph.arrays else None
