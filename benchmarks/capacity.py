"""What points and jobs take, in units that do not depend on how busy the machine is: core-seconds and bytes.

These are the figures behind deploy/CAPACITY.md. A core-second is what the kernel has charged a process for, all threads
together; waiting costs nothing.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import text

from benchmarks.data import draw_labels, helices
from benchmarks.measure import forget_peak, growth, isolated, peak_memory, warm_up
from benchmarks.report import Options, Report, Row
from benchmarks.service import Service, serving
from homophily import ERRClassifier, KNNGraph
from homophily_client import Client
from homophily_service.storage.database import Database

SIZES = (1_000, 10_000, 100_000, 1_000_000)
QUICK_SIZES = (1_000, 3_000)
# Beyond it L² takes more memory than a small machine has, and p = 1 is what we advise.
LARGEST_SQUARED = 100_000
JOB_POINTS = 1_000
TICKS = os.sysconf("SC_CLK_TCK")


def run(options: Options, report: Report) -> None:
    sizes = [size for size in (QUICK_SIZES if options.quick else SIZES) if size <= options.max_points]
    rows = []
    for size in sizes:
        report.progress(f"{size:,} points")
        rows.append(isolated(measure, size))
    report.table("Core-seconds and memory of a fit, two classes on curves in space, k = 10, 1 % labelled", rows)
    points = [float(size) for size in sizes]
    columns = ("graph", "ERR p = 1", "ERR p = 2")
    powers = []
    for column in columns:
        values = [row[column] for row in rows if column in row]
        powers.append(f"{column} {growth(points[: len(values)], values):.2f}")
    report.note(f"They grow as points to the power of: {', '.join(powers)}.")
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), audit="off") as service:
        jobs(service, report, 20 if options.quick else 200)


def measure(points: int) -> dict[str, float]:
    """Runs in a process of its own."""
    warm_up()
    X, y = helices(points)
    few = draw_labels(y, max(10, points // 100), seed=0)
    forget_peak()
    found: dict[str, float] = {"points": points, "own MiB": peak_memory()}
    found["graph"], graph = charged(lambda: KNNGraph().fit(X))
    for power in (1, 2) if points <= LARGEST_SQUARED else (1,):
        forget_peak()
        found[f"ERR p = {power}"], _ = charged(lambda: ERRClassifier(power=power).fit(graph, few))  # noqa: B023
        found[f"MiB p = {power}"] = peak_memory()
    return found


def charged(function: Callable[[], Any]) -> tuple[float, Any]:
    """Core-seconds of a call, and what it returned."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    before = spent()
    result = function()
    return spent() - before, result


def jobs(service: Service, report: Report, count: int) -> None:
    """Fits of a thousand points, one after the other: what each leaves behind, and what each process has done."""
    X, y = helices(JOB_POINTS)
    with Client(service.target) as client:
        dataset = client.upload(X)
        for seed in range(3):
            client.fit(dataset, draw_labels(y, 20, seed=seed)).result()
        before, disk = processes(service.pid), kept(service.folder)
        report.progress(f"{count} fits of {JOB_POINTS:,} points")
        began = time.perf_counter()
        for seed in range(count):
            client.fit(dataset, draw_labels(y, 20, seed=seed), job={"wait": 30.0}).result()
        seconds = time.perf_counter() - began
    after, more = processes(service.pid), kept(service.folder)
    rows: list[Row] = [
        {
            "process": name,
            "MiB of its own": mebibytes,
            "core-milliseconds a fit": 1e3 * (core - before[name][1]) / count,
        }
        for name, (mebibytes, core) in after.items()
        if name in before
    ]
    report.table(f"Processes after {count} fits of {JOB_POINTS:,} points on a known graph, one at a time", rows)
    grown = {name: (more[name] - disk[name]) / count for name in more}
    report.note(
        f"A fit leaves {grown['rows']:.1f} rows and {grown['database'] / 1e3:.1f} kB in the database, and a model of "
        f"{grown['blobs'] / 1e3:.1f} kB ({grown['blobs'] / JOB_POINTS:.0f} bytes a point); "
        f"{count / seconds:.1f} a second on this machine now."
    )


def processes(root: int) -> dict[str, tuple[float, float]]:
    """MiB that only it holds and core-seconds of the service's processes, by what they are."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = {}, [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        name = "API" if pid == root else words[words.index("-m") + 1].removeprefix("homophily_service.")
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        own = sum(
            int(line.split()[1])
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.startswith("Private_")
        )
        found[name] = own / 1024, (int(fields[11]) + int(fields[12])) / TICKS
    return found


def kept(folder: Path) -> dict[str, float]:
    """Bytes of database and blobs, and rows of the tables that grow with jobs."""
    database = Database(f"sqlite:///{folder / 'homophily.db'}")
    with database.read() as connection:
        rows = sum(
            int(connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0)
            for table in ("jobs", "events", "resources")
        )
        pages = int(connection.scalar(text("PRAGMA page_count")) or 0)
        size = int(connection.scalar(text("PRAGMA page_size")) or 0)
    database.close()
    blobs = sum(path.stat().st_size for path in (folder / "blobs").rglob("*") if path.is_file())
    return {"rows": rows, "database": pages * size, "blobs": blobs}
