"""The catalogue of what is stored, on SQLite and on Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import Row, select, update

from homophily_client.names import DatasetName, EmbeddingName, ModelName, ResourceName
from homophily_service.contract.errors import AlreadyExists, NotFound
from homophily_service.storage.catalog import Catalog
from homophily_service.storage.database import Database, Page
from homophily_service.storage.tables import graphs

from .together import in_threads

DIGEST = "ab" * 32
# So long ago that it is over already.
AT_ONCE = -1.0
AN_HOUR = 3600.0


@pytest.fixture
def catalog(database: Database) -> Catalog:
    return Catalog(database)


def add(catalog: Catalog, name: ResourceName, message: bytes = b"message", blob: str = "", **columns: Any) -> None:
    with catalog.database.write() as connection:
        catalog.add(connection, name, message, blob or f"{name.collection}/{name.id}", **columns)


def graph(catalog: Catalog) -> Row[Any] | None:
    with catalog.database.read() as connection:
        return connection.execute(select(graphs).where(graphs.c.digest == DIGEST)).one_or_none()


def not_used_for_long(catalog: Catalog) -> None:
    with catalog.database.write() as connection:
        connection.execute(update(graphs).values(last_used=0.0))


# -- resources ---------------------------------------------------------------------------------------------------------


def test_what_was_added_is_there(catalog: Catalog) -> None:
    name = DatasetName("default", "d")
    assert not catalog.has(name)
    add(catalog, name, b"message", "datasets/d", upload_id="u")
    row = catalog.get(name)
    assert (row.message, row.blob, row.upload_id, row.graph) == (b"message", "datasets/d", "u", None)
    assert catalog.has(name)


def test_an_id_belongs_to_its_project_and_collection(catalog: Catalog) -> None:
    add(catalog, DatasetName("one", "x"))
    for other in (DatasetName("two", "x"), ModelName("one", "x"), EmbeddingName("one", "x")):
        assert not catalog.has(other)
        with pytest.raises(NotFound, match=f"{other} does not exist"):
            catalog.get(other)
        with pytest.raises(NotFound, match=f"{other} does not exist"):
            catalog.remove(other)
        add(catalog, other)


def test_an_id_is_given_once(catalog: Catalog) -> None:
    name = ModelName("default", "m")
    add(catalog, name, b"first")
    with pytest.raises(AlreadyExists, match=f"{name} exists"):
        add(catalog, name, b"second")
    assert catalog.get(name).message == b"first"


def test_of_many_that_add_at_once_one_succeeds(catalog: Catalog) -> None:
    def attempt(number: int) -> int | None:
        try:
            add(catalog, ModelName("default", "m"), str(number).encode())
        except AlreadyExists:
            return None
        return number

    winners = [number for number in in_threads(8, attempt) if number is not None]
    assert len(winners) == 1
    assert catalog.get(ModelName("default", "m")).message == str(winners[0]).encode()


def test_a_resource_is_recorded_with_its_transaction_or_not_at_all(catalog: Catalog) -> None:
    name = ModelName("default", "m")
    with suppress(KeyError), catalog.database.write() as connection:
        catalog.add(connection, name, b"", "blob")
        raise KeyError
    assert not catalog.has(name)


def test_who_removes_a_resource_learns_where_its_arrays_are(catalog: Catalog) -> None:
    name = DatasetName("default", "d")
    add(catalog, name, blob="datasets/d")
    assert catalog.remove(name) == "datasets/d"
    assert not catalog.has(name)
    with pytest.raises(NotFound):
        catalog.remove(name)
    add(catalog, name)


def test_of_many_that_remove_at_once_one_gets_the_arrays(catalog: Catalog) -> None:
    add(catalog, DatasetName("default", "d"))

    def attempt(_: int) -> bool:
        try:
            catalog.remove(DatasetName("default", "d"))
        except NotFound:
            return False
        return True

    assert sum(in_threads(8, attempt)) == 1


def test_pages_are_newest_first_and_complete(catalog: Catalog) -> None:
    for number in range(5):
        add(catalog, DatasetName("default", f"d{number}"))
    add(catalog, ModelName("default", "m"))
    add(catalog, DatasetName("other", "d"))

    def pages() -> Iterator[list[str]]:
        before, has_more = None, True
        while has_more:
            rows, has_more = catalog.page("datasets", "default", Page(2, before))
            yield [row.id for row in rows]
            before = rows[-1].number

    assert list(pages()) == [["d4", "d3"], ["d2", "d1"], ["d0"]]


def test_a_page_goes_on_where_it_stopped_also_if_that_resource_is_gone(catalog: Catalog) -> None:
    for number in range(4):
        add(catalog, DatasetName("default", f"d{number}"))
    last = catalog.page("datasets", "default", Page(2))[0][-1]
    catalog.remove(DatasetName("default", last.id))
    add(catalog, DatasetName("default", "newer"))
    assert [row.id for row in catalog.page("datasets", "default", Page(last=last.number))[0]] == ["d1", "d0"]


def test_a_dataset_is_found_by_the_upload_that_made_it(catalog: Catalog) -> None:
    add(catalog, DatasetName("default", "d"), upload_id="u")
    found = catalog.of_upload("default", "u")
    assert found is not None
    assert found.id == "d"
    assert catalog.of_upload("other", "u") is None
    assert catalog.of_upload("default", "v") is None


# -- graphs ------------------------------------------------------------------------------------------------------------


def test_the_graph_that_came_first_counts(catalog: Catalog) -> None:
    assert catalog.use_graph(DIGEST) is None
    assert catalog.add_graph(DIGEST, "graphs/first") == "graphs/first"
    assert catalog.add_graph(DIGEST, "graphs/second") == "graphs/first"
    assert catalog.use_graph(DIGEST) == "graphs/first"


def test_many_that_add_a_graph_at_once_agree(catalog: Catalog) -> None:
    paths = in_threads(8, lambda number: catalog.add_graph(DIGEST, f"graphs/{number}"))
    assert set(paths) == {catalog.use_graph(DIGEST)}


def test_a_graph_that_was_built_again_takes_the_place_of_the_lost_one(catalog: Catalog) -> None:
    catalog.add_graph(DIGEST, "graphs/damaged")
    catalog.replace_graph(DIGEST, "graphs/new")
    assert catalog.use_graph(DIGEST) == "graphs/new"


def test_a_graph_that_was_built_again_counts_also_if_the_lost_one_was_removed_meanwhile(catalog: Catalog) -> None:
    catalog.replace_graph(DIGEST, "graphs/new")
    assert catalog.use_graph(DIGEST) == "graphs/new"


def test_graphs_that_nothing_has_used_for_a_while_are_removed(catalog: Catalog) -> None:
    catalog.add_graph(DIGEST, "graphs/a")
    assert catalog.remove_unused_graphs(AN_HOUR) == []
    assert catalog.remove_unused_graphs(AT_ONCE) == ["graphs/a"]
    assert catalog.use_graph(DIGEST) is None
    assert catalog.remove_unused_graphs(AT_ONCE) == []


@pytest.mark.parametrize("use", ["use", "add", "replace"])
def test_a_graph_that_was_used_lately_stays(catalog: Catalog, use: str) -> None:
    catalog.add_graph(DIGEST, "graphs/a")
    not_used_for_long(catalog)
    if use == "use":
        catalog.use_graph(DIGEST)
    elif use == "add":
        catalog.add_graph(DIGEST, "graphs/a")
    else:
        catalog.replace_graph(DIGEST, "graphs/a")
    assert catalog.remove_unused_graphs(AN_HOUR) == []


def test_a_graph_stays_as_long_as_a_model_of_any_project_stands_on_it(catalog: Catalog) -> None:
    catalog.add_graph(DIGEST, "graphs/a")
    models = [ModelName("one", "m"), ModelName("two", "m")]
    for name in models:
        add(catalog, name, graph=DIGEST)
    for name in models:
        assert catalog.remove_unused_graphs(AT_ONCE) == []
        catalog.remove(name)
    assert catalog.remove_unused_graphs(AT_ONCE) == ["graphs/a"]


def test_a_graph_is_either_used_or_removed(catalog: Catalog) -> None:
    """Who was given its path finds it there for a while, however the two fall together."""
    acts = (lambda: catalog.use_graph(DIGEST), lambda: catalog.remove_unused_graphs(AN_HOUR))
    for _ in range(10):
        catalog.add_graph(DIGEST, "graphs/a")
        not_used_for_long(catalog)
        used, removed = in_threads(2, lambda which: acts[which]())
        assert (used is None) == bool(removed)
        assert (graph(catalog) is None) == bool(removed)


def test_adding_and_removing_at_once_ends_with_a_graph_that_is_recorded(catalog: Catalog) -> None:
    def act(number: int) -> None:
        for _ in range(10):
            if number % 2:
                catalog.add_graph(DIGEST, f"graphs/{number}")
            else:
                catalog.remove_unused_graphs(AT_ONCE)

    in_threads(4, act)
    path = catalog.add_graph(DIGEST, "graphs/last")
    assert catalog.blobs() == {path}


def test_all_paths_that_something_refers_to_are_known(catalog: Catalog) -> None:
    assert catalog.blobs() == set()
    add(catalog, DatasetName("one", "d"), blob="datasets/d")
    add(catalog, ModelName("two", "m"), blob="models/m", graph=DIGEST)
    catalog.add_graph(DIGEST, "graphs/a")
    assert catalog.blobs() == {"datasets/d", "models/m", "graphs/a"}
