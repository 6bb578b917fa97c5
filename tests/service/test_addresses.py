"""Addresses of files elsewhere: which are allowed, what cannot fool that, and what their places refuse."""

from __future__ import annotations

import io
import ipaddress
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from obstore.store import from_url
from pyarrow import parquet
from pydantic import ValidationError

from homophily_service.contract.addresses import parse_address, parse_prefix
from homophily_service.contract.errors import (
    FailedPrecondition,
    InvalidRequest,
    LimitExceeded,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from homophily_service.jobs import table_files
from homophily_service.runtime.settings import Settings, load_settings
from homophily_service.storage.elsewhere import places, web
from homophily_service.storage.elsewhere.allowed import allowed_address, open_place
from homophily_service.storage.elsewhere.places import PIECE_BYTES, Place, RemoteFile, SourceFile

from .site import Site, serving_files


def settings_with(tmp_path: Path, *prefixes: str, **more: Any) -> Settings:
    return load_settings(data_dir=tmp_path / "data", dataset_addresses={"team": list(prefixes)}, **more)


# -- what is allowed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/folder/a.parquet",
        "s3://bucket/folder/deep/er/a.csv",
        "s3://bucket/folder/",
        "s3://bucket/folder/part-*.parquet",
        "s3://bucket/folder/day=2026-01-01/ä b.npy",
        "https://host:443/data/a.parquet",
        "gs://other/one.parquet",
    ],
)
def test_what_is_below_a_prefix_is_allowed(tmp_path: Path, address: str) -> None:
    settings = settings_with(tmp_path, "s3://bucket/folder", "https://host/data/", "gs://other/one.parquet")
    assert str(allowed_address(settings, "team", address)[0]) == address.replace(":443", "")


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket-evil/folder/a.parquet",
        "s3://bucket/folder-evil/a.parquet",
        "s3://bucket/a.parquet",
        "s3://bucket/*.parquet",
        "s3://bucket/",
        "gs://bucket/folder/a.parquet",
        "https://host:8443/data/a.parquet",
        "https://host.evil.example/data/a.parquet",
        "https://evil.example/host/data/a.parquet",
        "gs://other/one.parquet.csv",
    ],
)
def test_what_is_beside_a_prefix_is_not(tmp_path: Path, address: str) -> None:
    settings = settings_with(tmp_path, "s3://bucket/folder", "https://host/data/", "gs://other/one.parquet")
    with pytest.raises(PermissionDenied, match="dataset_addresses"):
        allowed_address(settings, "team", address)


@pytest.mark.parametrize(
    "address",
    [
        "s3://bucket/folder/../a.parquet",
        "s3://bucket/folder/./a.parquet",
        "s3://bucket/folder//a.parquet",
        "s3://bucket/folder/%2e%2e/a.parquet",
        "s3://bucket/folder\\..\\a.parquet",
        "s3://bucket@evil/folder/a.parquet",
        "https://host@evil.example/data/a.parquet",
        "https://host#@evil.example/data/a.parquet",
        "https://HOST/data/a.parquet",
        "https://host:0/data/a.parquet",
        "https://host:99999/data/a.parquet",
        "https://host/data/a.parquet?x=1",
        "https://host/data/",
        "https://host/data/*.csv",
        "http://host/data/a.parquet",
        "S3://bucket/folder/a.parquet",
        "s3://bucket/folder/a\0.parquet",
        "s3://bucket/folder/a\n.parquet",
        "s3://bucket/fol*/a.parquet",
        "s3://../folder/a.parquet",
        "s3:///folder/a.parquet",
        "file://host/folder/a.parquet",
        "ftp://host/a.parquet",
        "s3://bucket/folder/a.txt",
        "s3://bucket/" + 1100 * "a" + ".parquet",
        "a.parquet",
        "",
    ],
)
def test_addresses_with_two_meanings_are_refused(tmp_path: Path, address: str) -> None:
    settings = settings_with(tmp_path, "s3://bucket/folder", "https://host/data/")
    with pytest.raises(InvalidRequest) as refused:
        allowed_address(settings, "team", address)
    assert refused.value.violations[0].field == "address"


def test_nothing_is_allowed_by_default_and_each_project_has_its_own(tmp_path: Path) -> None:
    with pytest.raises(PermissionDenied, match="none"):
        allowed_address(load_settings(data_dir=tmp_path), "team", "s3://bucket/a.csv")
    settings = load_settings(data_dir=tmp_path, dataset_addresses={"*": ["s3://all"], "team": ["s3://team"]})
    allowed_address(settings, "other", "s3://all/a.csv")
    allowed_address(settings, "team", "s3://all/a.csv")
    with pytest.raises(PermissionDenied):
        allowed_address(settings, "other", "s3://team/a.csv")


@pytest.mark.parametrize(
    "prefix", ["s3://", "https://", "file:///", "s3://b", "s3://bucket/a/../b", "/folder", "s3://b*/"]
)
def test_wrong_prefixes_stop_the_service_at_its_start(tmp_path: Path, prefix: str) -> None:
    with pytest.raises(ValidationError, match="prefix of addresses"):
        settings_with(tmp_path, prefix)


@pytest.mark.parametrize("path", ["", "blobs/", "blobs/datasets/default/a.npy", "blobs/datasets/*.npy"])
def test_the_services_own_store_is_never_read(tmp_path: Path, path: str) -> None:
    settings = settings_with(tmp_path, "s3://bucket", blobs_url="s3://bucket/blobs")
    with pytest.raises(PermissionDenied, match="belongs to all projects"):
        allowed_address(settings, "team", f"s3://bucket/{path}")
    folder = settings_with(tmp_path, f"file://{tmp_path}")
    for inside in ("/", "/data/", "/data/blobs/a.npy"):
        with pytest.raises(PermissionDenied, match="belongs to all projects"):
            allowed_address(folder, "team", f"file://{tmp_path}{inside}")
    allowed_address(folder, "team", f"file://{tmp_path}/other/a.npy")


# -- the web -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        "127.0.0.1",
        "169.254.169.254",
        "10.0.0.1",
        "172.16.5.4",
        "192.168.1.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:10.0.0.1",
        "2002:a00:1::",
        "64:ff9b::a00:1",
        "64:ff9b:1::a00:1",
        "::ffff:0:a00:1",
        "::a00:1",
        "fec0::1",
        "::",
    ],
)
def test_addresses_inside_the_network_are_not_public(number: str) -> None:
    assert not web.is_public(ipaddress.ip_address(number))


@pytest.mark.parametrize("number", ["93.184.216.34", "2606:2800:220:1::1", "64:ff9b::5db8:d822"])
def test_addresses_of_the_internet_are(number: str) -> None:
    assert web.is_public(ipaddress.ip_address(number))


def place_of(site: Site, tmp_path: Path, host: str = "127.0.0.1", *more: str) -> Place:
    address = f"https://{host}:{site.port}/data/a b.csv"
    return open_place(settings_with(tmp_path, f"https://{host}:{site.port}/data", *more), "team", address)[1]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    with serving_files(tmp_path / "tls") as (site, ca):
        monkeypatch.setenv("SSL_CERT_FILE", str(ca))
        yield site


def test_a_file_is_read_in_ranges(tmp_path: Path, site: Site) -> None:
    place = place_of(site, tmp_path)
    (file,) = place.find()
    assert file == SourceFile("data/a b.csv", 8, '"one"')
    assert place.read(file, 2, 5) == site.content[2:5]
    assert set(site.asked) == {"/data/a%20b.csv"}


def test_a_name_that_leads_inside_the_network_is_refused_unless_its_number_is_allowed(
    tmp_path: Path, site: Site
) -> None:
    with pytest.raises(PermissionDenied, match="private network") as refused:
        place_of(site, tmp_path, "localhost").find()
    assert refused.value.reason == "PRIVATE_ADDRESS"
    with pytest.raises(PermissionDenied):
        place_of(site, tmp_path, "localhost", "https://127.0.0.1:1/").find()
    assert not site.asked
    numbers = [f"https://127.0.0.1:{site.port}/", f"https://[::1]:{site.port}/"]
    assert place_of(site, tmp_path, "localhost", *numbers).find()


def test_the_connection_goes_to_the_address_that_was_checked(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def resolve(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        # A public address at first, and then one inside: as a server of names may answer that wants to fool us.
        number = "93.184.216.34" if len(asked) == 1 else "127.0.0.1"
        return [(web.socket.AF_INET, web.socket.SOCK_STREAM, 6, "", (number, port))]

    connected: list[str] = []

    class Socket(web.socket.socket):
        def connect(self, address: Any) -> None:
            connected.append(address[0])
            raise OSError("no network in tests")

    monkeypatch.setattr(web.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(web.socket, "socket", Socket)
    with pytest.raises(Unavailable):
        place_of(site, tmp_path, "rebinding.example").find()
    assert (asked, connected) == (["rebinding.example"], ["93.184.216.34"])
    with pytest.raises(PermissionDenied):
        place_of(site, tmp_path, "rebinding.example").find()


@pytest.mark.parametrize(
    ("status", "headers", "error", "sentence"),
    [
        (302, {"Location": "http://169.254.169.254/"}, FailedPrecondition, "redirects"),
        (200, {"ETag": "1"}, FailedPrecondition, "does not answer ranges"),
        (206, {}, FailedPrecondition, "neither ETag nor Last-Modified"),
        (206, {"ETag": "1", "Content-Range": "bytes 5-6/8"}, FailedPrecondition, "does not answer ranges"),
        (404, {}, NotFound, "no such file"),
        (403, {}, FailedPrecondition, "refuses"),
        (503, {}, Unavailable, "503"),
    ],
)
def test_answers_that_are_no_part_of_the_file_are_refused(
    tmp_path: Path, site: Site, status: int, headers: dict[str, str], error: type[Exception], sentence: str
) -> None:
    site.status, site.headers = status, headers
    with pytest.raises(error, match=sentence):
        place_of(site, tmp_path).find()
    assert len(site.asked) == 1


def test_a_certificate_that_is_not_trusted_is_refused(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(FailedPrecondition, match="certificate is not trusted"):
        place_of(site, tmp_path).find()


@pytest.mark.parametrize("change", [{"headers": {"ETag": '"two"'}}, {"content": b"x,y\n1,2\n3,4\n"}])
def test_a_file_on_the_web_that_changes_while_it_is_read_is_an_error(
    tmp_path: Path, site: Site, change: dict[str, Any]
) -> None:
    place = place_of(site, tmp_path)
    (file,) = place.find()
    for name, value in change.items():
        setattr(site, name, value)
    with pytest.raises(FailedPrecondition, match="changed while it was read"):
        place.read(file, 0, 4)


# -- folders -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    (folder / "day=1").mkdir(parents=True)
    for name in ("b.csv", "a.csv", "day=1/c.csv", "_SUCCESS", ".hidden.csv", "notes.txt"):
        (folder / name).write_text("x\n1\n")
    return folder


def found(tmp_path: Path, root: Path, address: str) -> list[str]:
    place = open_place(settings_with(tmp_path, f"file://{root}"), "team", f"file://{address}")[1]
    try:
        return [file.path.removeprefix(f"{tmp_path}/".lstrip("/")) for file in place.find()]
    finally:
        place.close()


def test_folders_and_patterns_mean_the_files_that_can_be_read(tmp_path: Path, shelf: Path) -> None:
    assert found(tmp_path, shelf, f"{shelf}/") == ["shelf/a.csv", "shelf/b.csv", "shelf/day=1/c.csv"]
    assert found(tmp_path, shelf, f"{shelf}/*.csv") == ["shelf/a.csv", "shelf/b.csv"]
    assert found(tmp_path, shelf, f"{shelf}/day=1/c.csv") == ["shelf/day=1/c.csv"]
    assert found(tmp_path, shelf / "day=1" / "c.csv", f"{shelf}/day=1/c.csv") == ["shelf/day=1/c.csv"]
    for missing in ("none.csv", "none/a.csv", "none/"):
        with pytest.raises(NotFound):
            found(tmp_path, shelf, f"{shelf}/{missing}")


def test_links_do_not_lead_out_of_a_folder(tmp_path: Path, shelf: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "s.csv").write_text("x\n1\n")
    (shelf / "link.csv").symlink_to(secret / "s.csv")
    (shelf / "linked").symlink_to(secret)
    os.mkfifo(shelf / "pipe.csv")
    for inside in ("link.csv", "pipe.csv"):
        with pytest.raises(FailedPrecondition, match="not a regular file"):
            found(tmp_path, shelf, f"{shelf}/{inside}")
    with pytest.raises(NotFound):
        found(tmp_path, shelf, f"{shelf}/linked/s.csv")
    # But the operator's own path may be a link.
    (tmp_path / "alias").symlink_to(shelf)
    assert found(tmp_path, tmp_path / "alias", f"{tmp_path}/alias/a.csv") == ["alias/a.csv"]


@pytest.mark.parametrize("change", ["appended", "replaced", "rewritten"])
def test_a_file_in_a_folder_that_changes_while_it_is_read_is_an_error(tmp_path: Path, shelf: Path, change: str) -> None:
    place = open_place(settings_with(tmp_path, f"file://{shelf}"), "team", f"file://{shelf}/a.csv")[1]
    (file,) = place.find()
    assert bytes(place.read(file, 0, 2)) == b"x\n"
    path = shelf / "a.csv"
    if change == "appended":
        with path.open("a") as more:
            more.write("2\n")
    elif change == "rewritten":
        before = path.stat().st_mtime_ns
        path.write_text("y\n1\n")
        os.utime(path, ns=(before + 1, before + 1))
    else:
        place.close()
        (shelf / "new").write_text("x\n1\n")
        (shelf / "new").replace(path)
    with pytest.raises(FailedPrecondition, match="changed while it was read"):
        place.read(file, 0, 2)
    place.close()


def test_more_files_than_may_be_read_are_refused(
    tmp_path: Path, shelf: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("folders", "buckets"):
        monkeypatch.setattr(f"homophily_service.storage.elsewhere.{module}.MOST_FILES", 2)
    with pytest.raises(LimitExceeded, match="more than 2 files"):
        found(tmp_path, shelf, f"{shelf}/")
    store = from_url(s3_url)
    for name in "abc":
        store.put(f"{name}.csv", b"x\n1\n")
    with pytest.raises(LimitExceeded, match="more than 2 files"):
        open_place(settings_with(tmp_path, s3_url), "team", f"{s3_url}/")[1].find()


# -- buckets -----------------------------------------------------------------------------------------------------------


def test_files_in_a_bucket_are_found_and_read(tmp_path: Path, s3_url: str) -> None:
    store = from_url(s3_url)
    for name in ("b.csv", "a.csv", "day=1/c.csv", "_SUCCESS", "d ä+.npy"):
        store.put(name, name.encode())

    def place(inner: str) -> Place:
        return open_place(settings_with(tmp_path, s3_url), "team", f"{s3_url}/{inner}")[1]

    def names(inner: str) -> list[str]:
        return [file.path.partition("/")[2] for file in place(inner).find()]

    assert names("") == ["a.csv", "b.csv", "d ä+.npy", "day=1/c.csv"]
    assert names("*.csv") == ["a.csv", "b.csv"]
    assert names("d ä+.npy") == ["d ä+.npy"]
    (file,) = place("day=1/c.csv").find()
    assert bytes(place("day=1/c.csv").read(file, 4, 11)) == b"1/c.csv"
    with pytest.raises(NotFound):
        place("none.csv").find()
    store.put("day=1/c.csv", b"other, and longer")
    with pytest.raises(FailedPrecondition, match="changed while it was read"):
        place("day=1/c.csv").read(file, 4, 11)


# -- reading ahead -----------------------------------------------------------------------------------------------------


class Memory(Place):
    """A file in memory that counts what is asked for."""

    def __init__(self, content: bytes) -> None:
        self.content, self.asked = content, []  # type: tuple[bytes, list[tuple[int, int]]]

    def find(self) -> list[SourceFile]:
        return [SourceFile("a", len(self.content), "1")]

    def read(self, file: SourceFile, start: int, stop: int) -> bytes:
        assert file.size == len(self.content)
        self.asked.append((start, stop))
        return self.content[start:stop]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], tuple[Memory, RemoteFile]]:
    monkeypatch.setattr(places, "PIECE_BYTES", 10)
    monkeypatch.setattr(places, "HELD_BYTES", 40)
    assert PIECE_BYTES > 10

    def opened(content: bytes) -> tuple[Memory, RemoteFile]:
        place = Memory(content)
        return place, RemoteFile(place, place.find()[0])

    return opened


def test_what_is_announced_is_fetched_once_and_in_pieces(
    small_pieces: Callable[[bytes], tuple[Memory, RemoteFile]],
) -> None:
    content = bytes(range(256))
    place, file = small_pieces(content)
    file.want([(0, len(content))])
    read = b"".join(iter(lambda: file.read(7), b""))
    assert read == content
    assert sorted(place.asked) == [(start, min(256, start + 10)) for start in range(0, 256, 10)]
    assert len(file._pieces) <= 5
    file.close()


def test_other_ranges_are_fetched_as_they_are_read(small_pieces: Callable[[bytes], tuple[Memory, RemoteFile]]) -> None:
    content = bytes(range(256))
    place, file = small_pieces(content)
    file.seek(-16, os.SEEK_END)
    assert file.read(300) == content[-16:]
    assert place.asked == [(240, 256)]
    file.want([(25, 35), (95, 99)])
    file.seek(20)
    assert file.read(80) == content[20:100]
    assert file.tell() == 100
    buffer = bytearray(5)
    assert file.readinto(memoryview(buffer)) == 5
    assert bytes(buffer) == content[100:105]
    file.close()


@pytest.mark.parametrize("columns", [["a", "b", "c"], ["vector"], ["b"]])
def test_a_group_of_rows_that_cannot_be_held_is_not_fetched_twice(
    monkeypatch: pytest.MonkeyPatch, columns: list[str]
) -> None:
    monkeypatch.setattr(places, "PIECE_BYTES", 1 << 16)
    for module in (places, table_files):
        monkeypatch.setattr(module, "HELD_BYTES", 1 << 18)
    rng = np.random.default_rng(0)
    table: Any = {name: rng.normal(size=100_000) for name in ("a", "b", "c")}
    table["vector"] = pa.FixedSizeListArray.from_arrays(rng.normal(size=1_000_000), 10)
    written = io.BytesIO()
    parquet.write_table(pa.table(table), written, compression="none", use_dictionary=False)
    place = Memory(written.getvalue())
    file = RemoteFile(place, place.find()[0])
    batches = list(table_files.ParquetTable(file).batches(columns, ()))
    file.close()
    assert pa.Table.from_batches(batches).equals(pa.table(table).select(columns))
    wanted = 800_000 * (10 if columns == ["vector"] else len(columns))
    assert wanted < sum(stop - start for start, stop in place.asked) < 1.5 * wanted


def test_an_address_says_its_host_and_port() -> None:
    assert (parse_prefix("https://[::1]:8443/").host, parse_prefix("https://[::1]:8443/").port) == ("[::1]", 8443)
    assert (parse_address("https://host/a.csv", "address").port, parse_prefix("https://[::1]").host) == (443, "[::1]")
