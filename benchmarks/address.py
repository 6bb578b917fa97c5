"""Files in a bucket become a dataset: megabytes a second, what the API's memory does meanwhile, and the worker's peak.

The bucket is moto's S3 server on the same machine, in a process of its own, so its work takes part of the same cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
from obstore.store import from_url

from benchmarks.measure import timed
from benchmarks.report import Options, Report, Row
from benchmarks.service import serving
from homophily_client import Client, Dataset

BUCKET = "points"
COLUMNS, PARTS = 64, 16
REPEATS = 3

_SERVER = """
import logging
from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
input()
"""


def run(options: Options, report: Report) -> None:
    rows = 10_000 if options.quick else 1_000_000
    with tempfile.TemporaryDirectory() as folder, bucket() as endpoint:
        report.progress(f"writing {rows:,} rows of Parquet")
        files = parquet_files(Path(folder) / "shelf", rows)
        shelf = Path(folder) / "shelf"
        allowed = json.dumps({"*": [f"s3://{BUCKET}", f"file://{shelf}"]})
        with environment(endpoint):
            store = from_url(f"s3://{BUCKET}")
            for file in files:
                store.put(file.name, file)
        with (
            environment(endpoint),
            serving(Path(folder) / "data", dataset_addresses=allowed, predictors=0) as service,
            Client(service.target) as client,
        ):
            # Loads Arrow, and whatever else the first job of a worker loads.
            client.create_dataset(f"s3://{BUCKET}/{files[0].name}", name="first").result()
            measured: list[Row] = []
            for what, address in (
                (f"{PARTS} files in the bucket", f"s3://{BUCKET}/part-*.parquet"),
                ("one file in the bucket", f"s3://{BUCKET}/{files[1].name}"),
                ("the same in a folder", f"file://{files[1]}"),
            ):
                before = resident(service.pid)
                seconds, moved = [], 0.0
                for place in range(1 if options.quick else REPEATS):
                    report.progress(f"{what}, {place + 1} of {REPEATS}")
                    spent, dataset = timed(partial(created, client, address))
                    seconds.append(spent)
                    moved = max(moved, highest(service.pid) - before)
                    assert dataset.points == rows
                    client.delete_dataset(dataset)
                size = dataset.size_bytes / 1e6
                measured.append(
                    {
                        "files": what,
                        "rows": rows,
                        "MB": round(size),
                        "MB/s, median": size / float(np.median(seconds)),
                        "MB/s, best": size / min(seconds),
                        "API's memory, MiB more": round(moved, 1),
                        "worker's memory, MiB": round(highest(computing(service.pid))),
                    }
                )
        report.table("From S3 to a dataset, submitted to ended", measured)
        report.note(
            "Bars: 100 MB/s; the API's memory does not move. Moto reads the whole object for each range of it, so that "
            "one large file shows its speed rather than the reader's."
        )


def created(client: Client, address: str) -> Dataset:
    """A new dataset of the files at an address."""
    return client.create_dataset(address).result()


@contextmanager
def bucket() -> Iterator[str]:
    """An S3 server with a bucket, in a process of its own."""
    command = [sys.executable, "-c", _SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        endpoint = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        urlopen(Request(f"{endpoint}/{BUCKET}", method="PUT")).close()
        try:
            yield endpoint
        finally:
            server.communicate("\n")


@contextmanager
def environment(endpoint: str) -> Iterator[None]:
    """The variables by which the service finds the bucket."""
    given = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def parquet_files(folder: Path, rows: int) -> list[Path]:
    """A small file, all rows in one file, and the same in several, with float32 in columns of their own."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir()
    values = np.random.default_rng(0).normal(size=(COLUMNS, rows)).astype(np.float32)
    table: Any = pyarrow.table({f"x{place}": column for place, column in enumerate(values)})
    files = {"first": table.slice(0, 1000), "points": table}
    files |= {f"part-{part}": table.slice(part * rows // PARTS, rows // PARTS) for part in range(PARTS)}
    for name, some in files.items():
        parquet.write_table(some, folder / f"{name}.parquet", row_group_size=rows // 8)
    return [folder / f"{name}.parquet" for name in files]


def computing(pid: int) -> int:
    """The process below this one that computes jobs."""
    below = [pid]
    for one in below:
        if "worker.child" in Path(f"/proc/{one}/cmdline").read_text():
            return one
        for children in Path(f"/proc/{one}/task").glob("*/children"):
            below.extend(map(int, children.read_text().split()))
    raise RuntimeError("there is no process that computes")


def resident(pid: int) -> float:
    """MiB that a process holds."""
    return _memory(pid, "VmRSS")


def highest(pid: int) -> float:
    """MiB that a process has held at most."""
    return _memory(pid, "VmHWM")


def _memory(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024
