"""The benchmark for machines with a GPU, on the stand-in: that it runs, and that an estimate is called one."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from homophily import KNNGraph
from homophily.device import backend
from homophily.device.gpu.optimize import DeviceCG

from . import emulator
from .needs import skip_unless_ci
from .standin import counters

gpu = pytest.importorskip("benchmarks.gpu", reason="benchmarks is not on the path: run from the repository")
per_evaluation = gpu.per_evaluation
warp_efficiency = importlib.import_module("benchmarks.gpu_lanes").warp_efficiency
DataSet, Options, Report = gpu.DataSet, gpu.Options, gpu.Report


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    monkeypatch.setattr(gpu, "typical_seconds", lambda function: gpu.timed(function)[0])
    monkeypatch.setitem(gpu.PLAIN, "max_iter", 1)
    monkeypatch.setattr("benchmarks.speed.STEPS", 1)


@pytest.mark.usefixtures("standin_cupy")
def test_every_table_has_both_columns():
    X, y = gpu.helices(150)
    data, draws = DataSet("curves", X, y), [gpu.draw_labels(y, 20, seed) for seed in range(2)]
    plain, better = gpu.speed(data)
    labelled = list(gpu.labelled(KNNGraph().fit(X), y, draws))
    for row in (*plain, *better, *gpu.scaling(300), *labelled):
        both = [name[5:] for name in row if name.startswith("CPU: ")]
        assert both == [name[5:] for name in row if name.startswith("GPU: ")] != []
        assert row["GPU: peak MiB"] > 0
    for row in plain:
        assert float(row["GPU: energy"]) == pytest.approx(float(row["CPU: energy"]), rel=1e-6)
    for row in labelled:
        assert row["GPU: error %"] == row["CPU: error %"]


@pytest.mark.usefixtures("standin_cupy")
def test_the_waits_that_are_told_are_those_of_the_device(monkeypatch):
    monkeypatch.setitem(gpu.PLAIN, "max_iter", 7)
    X, y = gpu.helices(150)
    graph, few = KNNGraph().fit(X), gpu.draw_labels(y, 20, seed=0)
    waited, run = [], DeviceCG.run

    def count(self, *how):
        before = counters.waits
        state = run(self, *how)
        waited.append((state.iteration, counters.waits - before))
        return state

    monkeypatch.setattr(DeviceCG, "run", count)
    told = gpu.waits(graph, few)
    for settings in ({}, gpu.PLAIN):
        for power in (1, 2):
            gpu.make_err(power=power, backend="cupy", **settings).fit(graph, few)
    assert [(row["number"], round(row["waits a step"] * row["number"])) for row in told] == waited


# What a step took when it was last looked at. Fewer are welcome: lower the number then.
MOST = {
    "labels, n = 1, p = 1": {"launches": 46, "CuPy's operations": 36, "waits": 0.7, "sent": 0.5, "fetched": 1},
    "labels, n = 1, p = 2": {"launches": 54, "CuPy's operations": 36, "waits": 0.1, "sent": 0.1, "fetched": 0.7},
    "labels, n = 10, p = 1": {"launches": 31, "CuPy's operations": 42, "waits": 0.1, "sent": 0.1, "fetched": 0.7},
    "map, n = 2": {"launches": 50, "CuPy's operations": 315, "waits": 1, "sent": 0, "fetched": 0.2},
}


def test_a_step_asks_no_more_of_the_device_than_before():
    if emulator.missing_compiler:
        skip_unless_ci(emulator.missing_compiler)
    rows = per_evaluation()
    assert [row["descent"] for row in rows] == list(MOST)
    for row in rows:
        most = MOST[row["descent"]]
        found = {"sent": row["bytes sent a point"], "fetched": row["bytes fetched a point"]}
        found |= {name: row[name] for name in most if name in row}
        assert {name: count for name, count in found.items() if count > most[name]} == {}, row["descent"]


def test_several_lanes_keep_warps_busier():
    # Most rows are short, and one thread per row waits for the longest of 32.
    lengths = 10 + np.random.default_rng(0).exponential(20.0, 3200).astype(int)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    assert warp_efficiency(indptr, 1) < 0.4
    assert warp_efficiency(np.arange(0, 641, 20), 1) == 1.0
    assert warp_efficiency(indptr, 1, columns=32) == 1.0
    assert warp_efficiency(indptr, 8) > 0.5


def test_the_estimate_is_marked_as_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr("benchmarks.report.RESULTS", tmp_path)
    X, y = gpu.helices(400)
    monkeypatch.setattr(gpu, "mnist", lambda *_: DataSet("small", X, y))
    monkeypatch.setattr(gpu, "LABELS", 20)
    # Looked at by tests of their own.
    for name in ("warm_up", "per_evaluation"):
        monkeypatch.setattr(gpu, name, lambda: [])
    backend._cupy_backend.cache_clear()
    report = Report("gpu", Options(quick=True))
    gpu.run(Options(quick=True), report)
    told = capsys.readouterr().out
    assert "ESTIMATE, not measured" in told
    assert "No GPU, so nothing was measured on one. backend='cupy' needs CuPy" in told
    (rows,) = (rows for title, rows in report.tables.items() if "data sheets" in title)
    assert len(rows) == 5
    for row in rows:
        assert all(row[f"{device.name}: ms (estimate)"] > 0 for device in gpu.DEVICES)
        assert row["bytes an edge"] > 0
    (rows,) = (rows for title, rows in report.tables.items() if "in mixed precision" in title)
    assert rows
    for row in rows:
        assert all(
            row[f"{card.name}, mixed: ms (estimate)"] < row[f"{card.name}, float64: ms (estimate)"]
            for card in gpu.CARDS
        )
