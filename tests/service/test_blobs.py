"""The store of arrays: one suite over a folder and a bucket, then what a folder must withstand."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from obstore.store import AzureStore, GCSStore, S3Store

from homophily_service.contract.errors import (
    AlreadyExists,
    DataLoss,
    FailedPrecondition,
    LimitExceeded,
    NotFound,
    ServiceError,
    Unavailable,
)
from homophily_service.storage.blobs import bucket
from homophily_service.storage.blobs.backends import Folder
from homophily_service.storage.blobs.bucket import Bucket
from homophily_service.storage.blobs.objects import Blobs

PATH = "models/default/ab12"
# Where the service puts objects, and therefore moves them away from.
OBJECT = "models/default/fit-1/ab12"
RNG = np.random.default_rng(0)
ARRAYS: dict[str, np.ndarray] = {
    "points": RNG.standard_normal((7, 3)).astype(np.float32),
    "labels": np.array([0, -1, 2, -1], np.int64),
}
DOCUMENT = {"classes": ["cat", "dög"], "sigma_f": 1e-07, "nested": {"power": 2, "none": None}}


@pytest.fixture
def blobs(blobs_url: str) -> Blobs:
    return Blobs(blobs_url)


@pytest.fixture
def folder(tmp_path: Path) -> Blobs:
    """A store in a folder, with an object in it."""
    store = Blobs(str(tmp_path / "blobs"))
    store.write(PATH, ARRAYS, DOCUMENT)
    return store


def root(store: Blobs) -> Path:
    backend = store._backend
    assert isinstance(backend, Folder)
    return backend.root


def is_whole(store: Blobs, path: str = PATH) -> bool:
    stored = store.read(path)
    assert stored.document == DOCUMENT
    assert stored.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(stored.arrays[name], array)
    return True


def manifest_of(body: dict[str, Any]) -> bytes:
    """A manifest whose digest is right, whatever it says."""

    def canonical(value: Any) -> bytes:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()

    return canonical({**body, "sha256": hashlib.sha256(canonical(body)).hexdigest()})


def forge(store: Blobs, path: str, file: bytes, dtype: str, shape: list[int], name: str = "points.npy") -> None:
    """An object of one file by somebody who knows how to write manifests."""
    entry = {"sha256": hashlib.sha256(file).hexdigest(), "bytes": len(file), "dtype": dtype, "shape": shape}
    target = root(store) / path
    target.mkdir(parents=True)
    (target / os.path.basename(name)).write_bytes(file)
    (target / "manifest.json").write_bytes(manifest_of({"format": 1, "document": {}, "files": {name: entry}}))


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def npy_header(text: str, data: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    header = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + data


# -- what every store does


def test_what_is_written_is_read_back(blobs: Blobs) -> None:
    size = blobs.write(PATH, ARRAYS, DOCUMENT)
    assert blobs.exists(PATH)
    assert is_whole(blobs)
    assert blobs.read(PATH).size == size > sum(array.nbytes for array in ARRAYS.values())


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "int32", "int64", "uint8", "float32", "float64"])
def test_every_allowed_dtype_in_every_shape_comes_back_the_same(blobs: Blobs, dtype: str) -> None:
    shapes: list[tuple[int, ...]] = [(), (0,), (0, 3), (3, 0, 2), (1,), (5,), (4, 3), (2, 3, 4)]
    arrays = {f"a{i}": (RNG.random(shape) * 5).astype(dtype) for i, shape in enumerate(shapes)}
    blobs.write("a", arrays, {})
    read = blobs.read("a").arrays
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()
        assert read[name].flags.aligned
        assert not read[name].flags.writeable


@pytest.mark.parametrize(
    "view",
    [
        np.arange(24.0).reshape(4, 6)[::2, ::3],
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(5.0)[::-1],
        np.broadcast_to(np.float32(2), (3, 2)),
        np.arange(4, dtype=">i4"),
    ],
    ids=["strided", "fortran", "reversed", "broadcast", "big-endian"],
)
def test_arrays_that_lie_otherwise_in_memory_are_stored_row_major_and_little_endian(
    blobs: Blobs, view: np.ndarray
) -> None:
    blobs.write("a", {"view": view}, {})
    read = blobs.read("a").arrays["view"]
    np.testing.assert_array_equal(read, view)
    assert read.flags.c_contiguous
    assert read.dtype == view.dtype.newbyteorder("<")


def test_an_object_may_have_no_arrays(blobs: Blobs) -> None:
    blobs.write("a", {}, DOCUMENT)
    assert blobs.read("a").document == DOCUMENT
    assert blobs.read("a").arrays == {}


def test_a_large_array_comes_back_the_same(blobs: Blobs) -> None:
    large = np.arange(50_000_000 // 8, dtype=np.float64)
    blobs.write("a", {"large": large}, {})
    np.testing.assert_array_equal(blobs.read("a").arrays["large"], large)


def test_only_the_arrays_asked_for_are_read(blobs: Blobs) -> None:
    blobs.write(PATH, ARRAYS, DOCUMENT)
    assert blobs.read(PATH, "labels").arrays.keys() == {"labels"}
    with pytest.raises(NotFound, match="links"):
        blobs.read(PATH, "labels", "links")


def test_what_was_never_written_is_not_found(blobs: Blobs) -> None:
    assert not blobs.exists(PATH)
    with pytest.raises(NotFound, match=PATH):
        blobs.read(PATH)


def test_an_object_is_never_replaced(blobs: Blobs) -> None:
    blobs.write(PATH, ARRAYS, DOCUMENT)
    with pytest.raises(AlreadyExists, match=PATH):
        blobs.write(PATH, {**ARRAYS, "labels": ARRAYS["labels"] + 1}, DOCUMENT)
    with pytest.raises(AlreadyExists, match=PATH):
        blobs.write(PATH, ARRAYS, {})
    assert is_whole(blobs)


def test_the_same_object_may_be_written_again(blobs: Blobs) -> None:
    size = blobs.write(PATH, ARRAYS, DOCUMENT)
    assert blobs.write(PATH, dict(reversed(ARRAYS.items())), dict(reversed(DOCUMENT.items()))) == size
    assert is_whole(blobs)


def test_a_deleted_object_is_gone_and_may_be_written_anew(blobs: Blobs) -> None:
    blobs.write(PATH, ARRAYS, DOCUMENT)
    blobs.write("models/default/ab13", {}, DOCUMENT)
    blobs.delete(PATH)
    blobs.delete(PATH)
    assert not blobs.exists(PATH)
    assert [path for path, _ in blobs.list("")] == ["models/default/ab13"]
    blobs.write(PATH, {}, {"other": True})
    assert blobs.read(PATH).document == {"other": True}


def test_deleting_a_folder_of_objects_deletes_none_of_them(blobs: Blobs) -> None:
    blobs.write(PATH, ARRAYS, DOCUMENT)
    blobs.delete("models/default")
    blobs.delete("models")
    assert is_whole(blobs)


def test_arrays_outlive_the_deletion_of_their_object(blobs: Blobs) -> None:
    blobs.write(PATH, ARRAYS, DOCUMENT)
    points = blobs.read(PATH).arrays["points"]
    blobs.delete(PATH)
    np.testing.assert_array_equal(points, ARRAYS["points"])


def test_objects_are_listed_by_whole_segments_of_their_path(blobs: Blobs) -> None:
    before = time.time()
    for path in ("graphs/1", "graphs/2", "graphs-old/3", "models/default/4"):
        blobs.write(path, ARRAYS, DOCUMENT)
    listed = dict(blobs.list("graphs"))
    assert listed.keys() == {"graphs/1", "graphs/2"}
    assert all(before - 2 < modified < time.time() + 2 for modified in listed.values())
    assert {path for path, _ in blobs.list("")} == {"graphs/1", "graphs/2", "graphs-old/3", "models/default/4"}
    assert [path for path, _ in blobs.list("models/default/4")] == ["models/default/4"]
    assert list(blobs.list("nothing")) == []


def test_documents_are_json_and_nothing_else(blobs: Blobs) -> None:
    blobs.write("a", {}, {"counts": {10: "a", 9: "b"}, "pair": (1, 2), "text": "\ud800\u2028é"})
    assert blobs.read("a").document == {"counts": {"10": "a", "9": "b"}, "pair": [1, 2], "text": "\ud800\u2028é"}
    with pytest.raises(ValueError, match="JSON"):
        blobs.write("b", {}, {"energy": float("nan")})
    with pytest.raises(TypeError):
        blobs.write("b", {}, {"path": Path()})


@pytest.mark.parametrize("dtype", [object, complex, np.float16, np.uint32, "U3", "S3", "M8[s]", [("x", "f8")]])
def test_other_dtypes_are_refused(blobs: Blobs, dtype: Any) -> None:
    with pytest.raises(ValueError, match="must be one of bool"):
        blobs.write("a", {"points": np.zeros(3, dtype)}, {})
    assert not blobs.exists("a")


EVIL = ["", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/..", ".tmp-1", "a/.b", "A", "a b", "a\0b", "a\n", "a#b"]
EVIL += ["a%2fb", "a\\b", "ä", "~", "a:b", "a/manifest.json", "a" * 129, "a/" * 300 + "a"]


@pytest.mark.parametrize("path", EVIL)
def test_paths_with_other_characters_are_refused(blobs: Blobs, path: str, tmp_path: Path) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: blobs.write(path, ARRAYS, DOCUMENT),
        lambda: blobs.read(path),
        lambda: blobs.exists(path),
        lambda: blobs.delete(path),
        lambda: blobs.adopt(tmp_path, path, {}),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="path must be"):
            call()


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".x", "X", "a\0"])
def test_names_of_arrays_with_other_characters_are_refused(blobs: Blobs, name: str) -> None:
    with pytest.raises(ValueError, match="name must be"):
        blobs.write("a", {name: np.zeros(1)}, {})


def test_of_two_writers_of_one_path_one_wins_and_the_object_is_whole(blobs: Blobs) -> None:
    for attempt in range(5):
        path, barrier = f"race/{attempt}", threading.Barrier(4)
        outcomes: dict[int, int | AlreadyExists] = {}

        def write(
            writer: int,
            path: str = path,
            barrier: threading.Barrier = barrier,
            outcomes: dict[int, int | AlreadyExists] = outcomes,
        ) -> None:
            barrier.wait()
            try:
                outcomes[writer] = blobs.write(path, {"x": np.full(100, writer % 2), "y": np.arange(9)}, {})
            except AlreadyExists as error:
                outcomes[writer] = error

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stored = blobs.read(path)
        winner = int(stored.arrays["x"][0])
        np.testing.assert_array_equal(stored.arrays["x"], np.full(100, winner))
        for writer in range(4):
            won = writer % 2 == winner
            assert outcomes[writer] == stored.size if won else isinstance(outcomes[writer], AlreadyExists)


def stage(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, array in ARRAYS.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_a_folder_of_finished_files_is_adopted(blobs: Blobs, tmp_path: Path) -> None:
    staging = stage(tmp_path / "uploads" / "1")
    (staging / "upload.json").write_text("{}")
    assert blobs.adopt(staging, PATH, DOCUMENT) == blobs.read(PATH).size
    assert is_whole(blobs)
    assert not staging.exists()
    blobs.delete(PATH)
    assert list(blobs.list("")) == []


def test_adopting_the_same_files_again_is_fine_and_others_are_refused(blobs: Blobs, tmp_path: Path) -> None:
    size = blobs.write(PATH, ARRAYS, DOCUMENT)
    same = stage(tmp_path / "same")
    assert blobs.adopt(same, PATH, DOCUMENT) == size
    assert not same.exists()
    other = stage(tmp_path / "other")
    np.save(other / "links.npy", np.zeros((2, 2), np.int64))
    with pytest.raises(AlreadyExists):
        blobs.adopt(other, PATH, DOCUMENT)
    assert sorted(os.listdir(other)) == ["labels.npy", "links.npy", "points.npy"]
    assert is_whole(blobs)


def test_digests_spare_the_reading_and_are_checked_on_load(blobs: Blobs, tmp_path: Path) -> None:
    staging = stage(tmp_path / "1")
    digests = {name: hashlib.sha256((staging / f"{name}.npy").read_bytes()).hexdigest() for name in ARRAYS}
    blobs.adopt(staging, PATH, DOCUMENT, digests)
    assert is_whole(blobs)
    blobs.adopt(stage(tmp_path / "2"), "wrong", DOCUMENT, {"points": "0" * 64})
    with pytest.raises(DataLoss, match=r"wrong/points\.npy"):
        blobs.read("wrong")
    for bad in ({"points.npy": "0" * 64}, {"points": "../x"}):
        with pytest.raises(ValueError, match="Digests"):
            blobs.adopt(stage(tmp_path / f"bad{len(bad)}{next(iter(bad))}"), "bad", DOCUMENT, bad)


def test_a_missing_folder_cannot_be_adopted(blobs: Blobs, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        blobs.adopt(tmp_path / "nothing", PATH, DOCUMENT)


@pytest.mark.parametrize(
    "file",
    [npy(np.array([{}])), npy(np.zeros(3))[:-1], npy(np.zeros(3)) + b"\0", npy(np.asfortranarray(np.eye(3)[:2])), b""],
    ids=["pickle", "truncated", "extended", "fortran", "empty"],
)
def test_a_file_that_is_no_array_is_not_adopted(blobs: Blobs, tmp_path: Path, file: bytes) -> None:
    staging = stage(tmp_path / "1")
    (staging / "bad.npy").write_bytes(file)
    with pytest.raises(DataLoss, match=r"bad\.npy"):
        blobs.adopt(staging, PATH, DOCUMENT)
    assert not blobs.exists(PATH)
    assert sorted(os.listdir(staging)) == ["bad.npy", "labels.npy", "points.npy"]


def test_a_link_in_a_folder_is_not_adopted(blobs: Blobs, tmp_path: Path) -> None:
    staging = stage(tmp_path / "1")
    np.save(tmp_path / "secret.npy", np.zeros(3))
    (staging / "secret.npy").symlink_to(tmp_path / "secret.npy")
    with pytest.raises(DataLoss, match=r"secret\.npy"):
        blobs.adopt(staging, PATH, DOCUMENT)


@pytest.mark.parametrize("url", ["ftp://host/x", "memory://", "s3://", "gs://", "az://", "http://bucket"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="s3://bucket/prefix, gs://bucket/prefix or az://container/prefix"):
        Blobs(url)


@pytest.mark.parametrize(
    ("url", "store", "variables"),
    [
        ("s3://bucket/some/prefix", S3Store, {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}),
        ("gs://bucket/some/prefix", GCSStore, {}),
        ("az://bucket/some/prefix", AzureStore, {"AZURE_STORAGE_ACCOUNT_NAME": "account"}),
    ],
)
def test_a_buckets_url_says_whose_it_is(
    url: str, store: type, variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    backend = Blobs(url)._backend
    assert isinstance(backend, Bucket)
    assert isinstance(backend._store, store)
    assert backend._store.prefix == "some/prefix"


def test_a_bucket_without_its_account_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ValueError, match="Account must be specified"):
        Blobs("az://container/prefix")


def test_a_folder_may_be_given_as_a_url(tmp_path: Path) -> None:
    store = Blobs((tmp_path / "with space").as_uri())
    assert root(store) == tmp_path / "with space"
    store.write(PATH, ARRAYS, DOCUMENT)
    assert is_whole(Blobs(str(tmp_path / "with space")))


# -- quarantine


def test_an_object_goes_to_quarantine_and_back(blobs: Blobs) -> None:
    blobs.write(OBJECT, ARRAYS, DOCUMENT)
    blobs.write("models/default/fit-1/other", {}, {})
    place = f"quarantine/1700000000/{OBJECT}"
    assert blobs.quarantine(OBJECT, 1700000000.9)
    assert not blobs.exists(OBJECT)
    assert is_whole(blobs, place)
    assert not blobs.quarantine(OBJECT, 1700000001.0)
    assert [path for path, _ in blobs.list("")] == ["models/default/fit-1/other"]
    assert blobs.restore(place)
    assert is_whole(blobs, OBJECT)
    assert not blobs.restore(place)
    assert [entry.path for entry in blobs.entries("quarantine")] == []


def test_nothing_is_restored_over_another_object(blobs: Blobs) -> None:
    blobs.write(OBJECT, ARRAYS, DOCUMENT)
    assert blobs.quarantine(OBJECT, 5.0)
    blobs.write(OBJECT, {}, {"new": True})
    assert not blobs.restore(f"quarantine/5/{OBJECT}")
    assert blobs.read(OBJECT).document == {"new": True}
    assert is_whole(blobs, f"quarantine/5/{OBJECT}")


@pytest.mark.parametrize("path", ["backup/a", "models", "models/default", PATH, "models/a/b/c/d", "store/identity"])
def test_only_objects_in_places_of_the_service_are_moved(blobs: Blobs, path: str) -> None:
    blobs.write(path, ARRAYS, DOCUMENT)
    assert not blobs.quarantine(path, 5.0)
    assert is_whole(blobs, path)


def test_a_large_file_is_copied_within_a_bucket_in_parts(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "_COPY_BYTES", 1 << 20)
    store = Blobs(s3_url)
    large = {"large": RNG.random((3, 1 << 20))}
    store.write(OBJECT, large, {})
    assert store.quarantine(OBJECT, 5.0)
    np.testing.assert_array_equal(store.read(f"quarantine/5/{OBJECT}").arrays["large"], large["large"])


def test_a_move_that_is_killed_anywhere_leaves_the_object_at_one_place_at_least(s3_url: str) -> None:
    class Killed(BaseException):
        """Nobody catches it."""

    store = Blobs(s3_url)
    backend: Any = store._backend
    for calls in range(20):
        path, left = f"models/default/fit-{calls}/ab12", [calls]
        store.write(path, ARRAYS, DOCUMENT)

        def counted(call: Callable[..., Any], left: list[int] = left) -> Callable[..., Any]:
            def counting(*args: Any, **more: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return call(*args, **more)

            return counting

        with pytest.MonkeyPatch.context() as patch:
            for name in ("_copy", "_put_manifest", "delete", "manifest", "_directly_in"):
                patch.setattr(backend, name, counted(getattr(backend, name)))
            try:
                done = store.quarantine(path, 5.0)
            except Killed:
                done = False
        quarantine = f"quarantine/5/{path}"
        assert is_whole(store, path if store.exists(path) else quarantine)
        assert store.exists(path) or store.exists(quarantine)
        if done:
            return
    pytest.fail("it never came to its end")


# -- a bucket


def test_an_object_is_published_by_its_manifest(s3_url: str) -> None:
    store, bucket = Blobs(s3_url), S3Store.from_url(s3_url)
    store.write(PATH, ARRAYS, DOCUMENT)
    manifest = bucket.get(f"{PATH}/manifest.json").bytes()
    bucket.delete(f"{PATH}/manifest.json")
    assert not store.exists(PATH)
    assert [path for path, _ in store.list("")] == [PATH]
    bucket.put(f"{PATH}/manifest.json", manifest)
    assert is_whole(store)


def test_damage_in_a_bucket_is_data_loss(s3_url: str) -> None:
    store, bucket = Blobs(s3_url), S3Store.from_url(s3_url)
    store.write(PATH, ARRAYS, DOCUMENT)
    for chunk in list(bucket.list()):
        for key in (item["path"] for item in chunk):
            content = bucket.get(key).bytes().to_bytes()
            name = "manifest.json" if key.endswith(".json") else key.split("/")[-1].split(".")[0] + ".npy"
            flipped = bytes([*content[:-3], content[-3] ^ 4, *content[-2:]])
            for damaged in (flipped, content[:-1], content + b"\0", b"", None):
                if damaged is None and name == "manifest.json":
                    continue
                bucket.delete(key) if damaged is None else bucket.put(key, damaged)
                with pytest.raises(DataLoss, match=f"{PATH}/{name}"):
                    store.read(PATH)
            bucket.put(key, content)
    assert is_whole(store)


def test_a_bucket_that_is_not_there_is_unavailable_rather_than_empty(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, missing = stage(tmp_path / "1"), Blobs("s3://no-such-bucket/x")
    monkeypatch.setattr(bucket, "RETRY_SECONDS", 0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for store in (missing, Blobs(s3_url)):
        calls: list[Callable[[], Any]] = [
            lambda store=store: store.read(PATH),  # type: ignore[misc]
            lambda store=store: store.exists(PATH),  # type: ignore[misc]
            lambda store=store: store.write(PATH, ARRAYS, DOCUMENT),  # type: ignore[misc]
            lambda store=store: store.adopt(staging, PATH, DOCUMENT),  # type: ignore[misc]
            lambda store=store: store.delete(PATH),  # type: ignore[misc]
            lambda store=store: store.list(""),  # type: ignore[misc]
            lambda store=store: store.quarantine(OBJECT, 1.0),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(Unavailable):
                call()
    assert sorted(os.listdir(staging)) == ["labels.npy", "points.npy"]


# -- damage in a folder


def test_no_flipped_bit_is_ever_loaded(folder: Blobs) -> None:
    flips = 0
    for file in sorted((root(folder) / PATH).iterdir()):
        content = file.read_bytes()
        with open(file, "r+b", buffering=0) as opened:
            for position in range(8 * len(content)):
                byte = position // 8
                os.pwrite(opened.fileno(), bytes([content[byte] ^ 1 << position % 8]), byte)
                with pytest.raises(DataLoss, match=f"{PATH}/{file.name}"):
                    folder.read(PATH)
                os.pwrite(opened.fileno(), content[byte : byte + 1], byte)
                flips += 1
    assert flips > 1000
    assert is_whole(folder)


def test_truncated_extended_and_missing_files_are_data_loss(folder: Blobs) -> None:
    for file in sorted((root(folder) / PATH).iterdir()):
        content = file.read_bytes()
        for damaged in (content[:-1], content[:20], b"", content + b"\0", content + content, b" " + content):
            file.write_bytes(damaged)
            with pytest.raises(DataLoss, match=f"{PATH}/{file.name}"):
                folder.read(PATH)
        file.write_bytes(content)
    assert is_whole(folder)
    (root(folder) / PATH / "points.npy").unlink()
    with pytest.raises(DataLoss, match=f"{PATH}/points.npy is missing"):
        folder.read(PATH)


def test_files_swapped_between_objects_are_data_loss(folder: Blobs) -> None:
    folder.write("other", {name: array + 1 for name, array in ARRAYS.items()}, DOCUMENT)
    os.replace(root(folder) / "other/points.npy", root(folder) / PATH / "points.npy")
    with pytest.raises(DataLoss, match=f"{PATH}/points.npy"):
        folder.read(PATH)


def test_files_that_the_manifest_does_not_name_are_ignored(folder: Blobs) -> None:
    (root(folder) / PATH / "more.npy").write_bytes(b"anything")
    assert is_whole(folder)
    folder.delete(PATH)
    assert list(root(folder).iterdir()) == []


class _Bomb:
    """Pickled, it makes a folder when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_a_pickle_is_refused_and_not_run(folder: Blobs, tmp_path: Path) -> None:
    target = tmp_path / "exploded"
    forge(folder, "evil", npy(np.array([_Bomb(target)], object)), "object", [1])
    with pytest.raises(DataLoss, match=r"evil/points\.npy"):
        folder.read("evil")
    assert not target.exists()


F8 = b"\0" * 24
HEADERS = {
    "too large a shape": npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }", F8),
    "too small a shape": npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", F8),
    "another shape": npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (1, 3), }", F8),
    "negative shape": npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -3), }", F8),
    "boolean shape": npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (True, 3), }", F8),
    "a shape that overflows": npy_header(
        "{'descr': '<f8', 'fortran_order': False, 'shape': (2305843009213693952, 8, 3), }", F8
    ),
    "fortran order": npy_header("{'descr': '<f8', 'fortran_order': True, 'shape': (3,), }", F8),
    "another dtype": npy_header("{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }", F8),
    "big-endian": npy_header("{'descr': '>f8', 'fortran_order': False, 'shape': (3,), }", F8),
    "a structure": npy_header("{'descr': [('x', '<f8')], 'fortran_order': False, 'shape': (3,), }", F8),
    "objects": npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }", F8),
    "code": npy_header("__import__('os').abort()", F8),
    "no end": npy_header("{'descr': '<f8', ", F8),
    "nesting": npy_header("(" * 110, F8),
    "unknown version": npy_header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", F8, b"\x09\x00"),
    "long header": b"\x93NUMPY\x01\x00\xff\xff" + b" " * 20,
    "zip": b"PK\x03\x04" + F8,
    "one byte": b"\x93",
}


@pytest.mark.parametrize("file", HEADERS.values(), ids=HEADERS.keys())
def test_a_header_that_lies_is_refused(folder: Blobs, file: bytes) -> None:
    forge(folder, "evil", file, "float64", [3])
    with pytest.raises(DataLoss, match=r"evil/points\.npy"):
        folder.read("evil")


@pytest.mark.parametrize("shape", [[2**62, 2**62, 0], [0] * 65], ids=["overflow", "axes"])
def test_a_shape_that_no_array_has_is_refused_although_it_fits_the_file(folder: Blobs, shape: list[int]) -> None:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {tuple(shape)}, }}"
    forge(folder, "evil", npy_header(header), "float64", shape)
    with pytest.raises(DataLoss, match=r"evil/points\.npy says .* which no array has"):
        folder.read("evil")


@pytest.mark.parametrize("name", ["../../secret.npy", "/etc/passwd", "x/../secret.npy", "points", ".npy", "X.npy"])
def test_a_manifest_cannot_name_files_elsewhere(folder: Blobs, name: str) -> None:
    (root(folder) / "secret.npy").write_bytes(npy(np.zeros(3)))
    forge(folder, "evil", npy(np.zeros(3)), "float64", [3], name)
    with pytest.raises(DataLoss, match=r"evil/manifest\.json"):
        folder.read("evil")


ENTRY = {"sha256": "0" * 64, "bytes": 152, "dtype": "float64", "shape": [3]}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{}",
        b"[]",
        b"7",
        b'"sha256"',
        b"[" * 100_000,
        b"\xff\xfe",
        manifest_of({}),
        manifest_of({"format": 1}),
        manifest_of({"format": 1, "document": 3, "files": {}}),
        manifest_of({"format": 1, "document": {}, "files": []}),
        manifest_of({"format": 1, "document": {}, "files": {"a.npy": 1}}),
        *(
            manifest_of({"format": 1, "document": {}, "files": {"a.npy": {**ENTRY, **change}}})
            for change in ({"bytes": 0}, {"bytes": "9"}, {"sha256": 1}, {"sha256": "../"}, {"shape": 3}, {"x": 1})
        ),
    ],
)
def test_a_manifest_of_another_make_is_data_loss(folder: Blobs, raw: bytes) -> None:
    (root(folder) / PATH / "manifest.json").write_bytes(raw)
    with pytest.raises(DataLoss, match=f"{PATH}/manifest.json"):
        folder.read(PATH)


def test_a_newer_format_says_so(folder: Blobs) -> None:
    manifest = manifest_of({"format": 2, "document": {}, "files": {}})
    (root(folder) / PATH / "manifest.json").write_bytes(manifest)
    with pytest.raises(FailedPrecondition, match="format 2"):
        folder.read(PATH)


def test_an_object_of_format_1_stays_readable(tmp_path: Path) -> None:
    """Written by the first release; never to be changed."""
    target = tmp_path / "models" / "old"
    target.mkdir(parents=True)
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }"
    (target / "solution.npy").write_bytes(header.ljust(127) + b"\n" + b"\x00\x00\x80?\x00\x00\x00\xc0")
    (target / "manifest.json").write_bytes(
        b'{"document":{"classes":["cat","d\\u00f6g"],"sigma_f":1e-07},"files":{"solution.npy":{"bytes":136,'
        b'"dtype":"float32","sha256":"ad9deded55561c08ee5219d8646e62f0f486ab17d0d1c19a779e8c32099c27fd","shape":[2,1]}},'
        b'"format":1,"sha256":"47364faf70b5cb10806b191a099bff0b72e8dd2eb302ccb2e5ef58cac7bddc95"}'
    )
    stored = Blobs(str(tmp_path)).read("models/old")
    assert stored.document == {"classes": ["cat", "dög"], "sigma_f": 1e-07}
    assert stored.arrays["solution"].tolist() == [[1.0], [-2.0]]


# -- links in a folder


def test_no_link_leads_out_of_the_folder(folder: Blobs, tmp_path: Path) -> None:
    outside = Blobs(str(tmp_path / "outside"))
    outside.write("object", ARRAYS, DOCUMENT)
    (root(folder) / "models" / "out").symlink_to(root(outside))
    with pytest.raises(DataLoss, match="not a folder"):
        folder.quarantine("models/out/fit/object", 1.0)
    for link, path in (("linked", "linked/object"), ("direct", "direct")):
        (root(folder) / link).symlink_to(root(outside) if link == "linked" else root(outside) / "object")
        calls: list[Callable[[], Any]] = [
            lambda path=path: folder.read(path),  # type: ignore[misc]
            lambda path=path: folder.write(path, {}, {}),  # type: ignore[misc]
            lambda path=path: folder.delete(path),  # type: ignore[misc]
            lambda path=path: folder.list(path),  # type: ignore[misc]
        ]
        for call in calls:
            with pytest.raises(DataLoss, match="not a folder"):
                call()
    with pytest.raises(DataLoss, match="not a folder"):
        folder.write("linked/new", {}, {})
    assert [path for path, _ in folder.list("")] == [PATH]
    (root(folder) / ".tmp-link").symlink_to(root(outside))
    assert folder.sweep_remnants(-3600) == 0
    assert is_whole(outside, "object")
    assert sorted(os.listdir(root(outside))) == ["object"]


@pytest.mark.parametrize("name", ["manifest.json", "points.npy"])
def test_a_file_that_is_a_link_or_a_pipe_is_data_loss(folder: Blobs, tmp_path: Path, name: str) -> None:
    file = root(folder) / PATH / name
    os.rename(file, tmp_path / name)
    replacements: list[Callable[[], Any]] = [lambda: file.symlink_to(tmp_path / name), lambda: os.mkfifo(file)]
    for replace in replacements:
        replace()
        with pytest.raises(DataLoss, match=f"{PATH}/{name}"):
            folder.read(PATH)
        file.unlink()


# -- faults of a folder

SEAM = ("open", "mkdir", "write", "fsync", "rename")


@contextmanager
def failing(code: int, first: int, last: float) -> Iterator[list[str]]:
    """Let the calls to the system from the first to the last fail; yields the names of those that were made."""
    calls: list[str] = []

    def failing_call(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            if first <= len(calls) <= last:
                raise OSError(code, os.strerror(code))
            return call(*args, **kwargs)

        return wrapper

    with pytest.MonkeyPatch.context() as patch:
        for name in SEAM:
            patch.setattr(os, name, failing_call(name, getattr(os, name)))
        yield calls


def saves(store: Blobs, staging: Path) -> dict[str, Callable[[], int]]:
    return {
        "write": lambda: store.write("new/object", ARRAYS, DOCUMENT),
        "adopt": lambda: store.adopt(staging, "new/object", DOCUMENT),
    }


@pytest.mark.parametrize(("code", "error"), [(errno.ENOSPC, LimitExceeded), (errno.EIO, Unavailable)])
@pytest.mark.parametrize("save", ["write", "adopt"])
def test_a_failure_of_any_call_leaves_no_object_and_harms_none(
    folder: Blobs, tmp_path: Path, code: int, error: type[ServiceError], save: str
) -> None:
    staging = stage(tmp_path / "staging")
    with failing(code, 0, -1) as calls:
        saves(folder, staging)[save]()
    folder.delete("new/object")
    assert {"write", "fsync", "rename", "open"} <= set(calls)
    for position in range(1, len(calls) + 1):
        if not staging.exists():
            stage(staging)
        with pytest.raises(error), failing(code, position, position):
            saves(folder, staging)[save]()
        assert not folder.exists("new/object"), calls[position - 1]
        assert [path for path, _ in folder.list("")] == [PATH]
        assert not [name for name in os.listdir(root(folder)) if name.startswith(".tmp-")]
        assert sorted(os.listdir(staging)) == ["labels.npy", "points.npy"]
        assert is_whole(folder)
    saves(folder, staging)[save]()
    assert is_whole(folder, "new/object")


@pytest.mark.parametrize("save", ["write", "adopt"])
def test_a_disk_that_dies_during_a_save_leaves_a_whole_object_or_none(folder: Blobs, tmp_path: Path, save: str) -> None:
    staging = stage(tmp_path / "staging")
    with failing(errno.EIO, 0, -1) as calls:
        saves(folder, staging)[save]()
    folder.delete("new/object")
    for position in range(1, len(calls) + 1):
        staging = stage(tmp_path / f"staging-{position}")
        with pytest.raises(Unavailable), failing(errno.EIO, position, np.inf):
            saves(folder, staging)[save]()
        assert is_whole(folder)
        assert not folder.exists("new/object") or is_whole(folder, "new/object")
        folder.delete("new/object")
    folder.sweep_remnants(-3600)
    assert os.listdir(root(folder)) == ["models"]


def test_a_process_killed_while_it_wrote_leaves_only_what_is_swept(folder: Blobs) -> None:
    class Killed(BaseException):
        """Nobody catches it."""

    def kill(*_: Any, **__: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rename", kill)
        patch.setattr("shutil.rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            folder.write("new/object", ARRAYS, DOCUMENT)
    remnants = [name for name in os.listdir(root(folder)) if name.startswith(".tmp-")]
    assert len(remnants) == 1
    assert folder.sweep_remnants(3600) == 0
    assert folder.sweep_remnants(-3600) == 1
    assert not (root(folder) / remnants[0]).exists()
    assert is_whole(folder)


def test_what_a_killed_delete_left_is_no_object_is_listed_and_gives_way(folder: Blobs) -> None:
    (root(folder) / PATH / "manifest.json").unlink()
    assert not folder.exists(PATH)
    with pytest.raises(NotFound):
        folder.read(PATH)
    assert [path for path, _ in folder.list("")] == [PATH]
    folder.write(PATH, {}, {"new": True})
    assert folder.read(PATH).document == {"new": True}
    (root(folder) / PATH / "manifest.json").unlink()
    (root(folder) / PATH / "points.npy").touch()
    folder.delete(PATH)
    assert list(folder.list("")) == []


def test_an_object_is_not_written_over_a_folder_of_objects(folder: Blobs) -> None:
    with pytest.raises(Unavailable, match="other objects are below"):
        folder.write("models/default", {}, {})
    assert is_whole(folder)


def test_an_object_deleted_while_it_is_read_is_not_found_rather_than_lost(
    folder: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_digest = hashlib.file_digest

    def delete_meanwhile(*args: Any) -> Any:
        folder.delete(PATH)
        return file_digest(*args)

    monkeypatch.setattr(hashlib, "file_digest", delete_meanwhile)
    with pytest.raises(NotFound, match="deleted while"):
        folder.read(PATH)


def test_writers_and_deleters_of_neighbours_do_not_disturb_each_other(folder: Blobs) -> None:
    errors: list[BaseException] = []

    def churn(writer: int) -> None:
        try:
            for _ in range(40):
                folder.write(f"shared/parent/{writer}", {"x": np.full(3, writer)}, {})
                assert folder.read(f"shared/parent/{writer}").arrays["x"].tolist() == [writer] * 3
                folder.delete(f"shared/parent/{writer}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert os.listdir(root(folder)) == ["models"]


def test_a_folder_that_is_gone_is_unavailable_rather_than_empty(folder: Blobs, tmp_path: Path) -> None:
    os.rename(root(folder), tmp_path / "moved")
    calls: list[Callable[[], Any]] = [
        lambda: folder.read(PATH),
        lambda: folder.write(PATH, ARRAYS, DOCUMENT),
        lambda: folder.delete(PATH),
        lambda: folder.list(""),
        lambda: folder.quarantine(OBJECT, 1.0),
        lambda: folder.sweep_remnants(0),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call()


def test_arrays_of_a_folder_are_mapped_rather_than_read(folder: Blobs) -> None:
    assert isinstance(folder.read(PATH).arrays["points"], np.memmap)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_rows_are_read_as_they_are_asked_for(blobs_url: str) -> None:
    blobs = Blobs(blobs_url)
    large, small = np.random.default_rng(0).random((300_000, 2)), np.arange(7, dtype=np.int32)
    blobs.write("a/b", {"large": large, "small": small}, {})
    rows, few = blobs.open("a/b", "large", "small")
    assert (rows.shape, rows.dtype, rows.row_bytes, few.row_bytes) == ((300_000, 2), large.dtype, 16, 4)
    np.testing.assert_array_equal(rows.rows(123_456, 200_000), large[123_456:200_000])
    np.testing.assert_array_equal(few.rows(0, 7), small)
    assert few.rows(3, 3).shape == (0,)
    with pytest.raises(NotFound, match="has no array other"):
        blobs.open("a/b", "other")
    with pytest.raises(NotFound):
        blobs.open("a/c", "large")


def test_rows_of_a_damaged_array_are_not_read(tmp_path: Path) -> None:
    blobs = Blobs(str(tmp_path))
    blobs.write("a/b", {"large": np.zeros(100_000)}, {})
    with (tmp_path / "a" / "b" / "large.npy").open("r+b") as file:
        file.seek(500_000)
        file.write(b"x")
    with pytest.raises(DataLoss, match=r"large\.npy is damaged"):
        blobs.open("a/b", "large")


MEMORY_PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from homophily_service.storage.blobs.objects import Blobs

def private_memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) >> 10

blobs = Blobs(sys.argv[1])
blobs.open("a/small", "small")
before = private_memory()
(rows,) = blobs.open("a/b", "large")
assert rows.rows(0, 1000).sum() == 1000.0
by_rows = private_memory() - before
array = blobs.read("a/b").arrays["large"]
assert array.sum() == float(6 << 20)
print(by_rows, private_memory() - before)
"""


def test_a_large_array_of_a_bucket_takes_little_private_memory(s3_url: str) -> None:
    """Streams that nobody read held whole models in memory."""
    blobs = Blobs(s3_url)
    # 48 MiB, of which 16 are read at a time.
    blobs.write("a/b", {"large": np.ones(6 << 20)}, {})
    blobs.write("a/small", {"small": np.ones(1)}, {})
    # In a process of its own, as the bucket is in this one.
    program = [sys.executable, "-c", MEMORY_PROGRAM, s3_url]
    ended = subprocess.run(program, capture_output=True, text=True, check=True)
    by_rows, whole = map(int, ended.stdout.split())
    assert by_rows < 16
    assert whole < 40
