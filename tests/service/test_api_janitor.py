"""What the server forgets, on every database and store of arrays: only what is old and nothing refers to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from homophily_service.janitor import sweep
from homophily_service.names import JobName, ModelName
from homophily_service.queue import NewJob
from homophily_service.settings import Settings, load_settings
from homophily_service.stores import Stores
from homophily_service.uploads import Uploads

ARRAYS = {"points": np.eye(3)}
# Nothing is as young as that.
AT_ONCE = dict.fromkeys(("keep_jobs_days", "keep_uploads_hours", "keep_orphans_hours"), 1e-09)


@pytest.fixture
def settings(tmp_path: Path, database_url: str, blobs_url: str) -> Settings:
    return load_settings(data_dir=tmp_path, database_url=database_url, blobs_url=blobs_url, tracking=False)


@pytest.fixture
def stores(settings: Settings) -> Iterator[Stores]:
    stores = Stores.open(settings)
    yield stores
    stores.close()


def fill(stores: Stores, uploads: Uploads) -> None:
    """A model on its graph, and one of everything that nothing refers to."""
    for path in ("models/p/kept/t", "graphs/used/t", "graphs/unused/t", "models/p/lost/t", "datasets/p/lost/t"):
        stores.blobs.write(path, ARRAYS, {})
    for digest in ("used", "unused"):
        stores.catalog.add_graph(digest, f"graphs/{digest}/t")
    with stores.database.write() as connection:
        stores.catalog.add(connection, ModelName("p", "kept"), b"", "models/p/kept/t", graph="used")
    for number in range(2):
        stores.queue.submit(NewJob(JobName("p", f"j{number}"), "fit", b""), 10)
    stores.queue.cancel(JobName("p", "j0"))
    (uploads.root / "p" / "u").mkdir(parents=True)


def test_what_is_young_stays(stores: Stores, settings: Settings) -> None:
    uploads = Uploads(settings, stores)
    fill(stores, uploads)
    assert set(sweep(stores, uploads, settings).values()) == {0}
    assert len(list(stores.blobs.list(""))) == 5


def test_what_is_old_goes_unless_something_refers_to_it(stores: Stores, settings: Settings) -> None:
    uploads = Uploads(settings, stores)
    fill(stores, uploads)
    removed = sweep(stores, uploads, settings.model_copy(update=AT_ONCE))
    assert removed == {"jobs": 1, "uploads": 1, "graphs": 1, "blobs": 2, "remnants": 0}
    assert {path for path, _ in stores.blobs.list("")} == {"models/p/kept/t", "graphs/used/t"}
    assert [row.id for row, _ in stores.queue.page("p")[0]] == ["j1"]
    assert not (uploads.root / "p" / "u").exists()
    assert set(sweep(stores, uploads, settings.model_copy(update=AT_ONCE)).values()) == {0}


def test_a_job_that_mlflow_has_not_heard_of_stays_while_somebody_tells_it(stores: Stores, settings: Settings) -> None:
    uploads = Uploads(settings, stores)
    fill(stores, uploads)
    old = {**AT_ONCE, "tracking": True}
    assert sweep(stores, uploads, settings.model_copy(update=old))["jobs"] == 0
    assert [row.id for row, _ in stores.queue.page("p")[0]] == ["j1", "j0"]
