"""Maps in files: tables, pictures, pages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from pyarrow import parquet

from homophily_client import Map
from homophily_service.plots.files import plot_map, write_map


def test_a_map_is_written_into_files(tmp_path: Path) -> None:
    truth = np.arange(60) % 3
    found = Map(coordinates=np.random.default_rng(0).normal(size=(60, 2)), clusters=truth.astype(np.int32))
    for name in ("map.csv", "map.parquet"):
        write_map(found, tmp_path / name, labels={0: "a", 2: "b"})
    table = parquet.read_table(tmp_path / "map.parquet").to_pydict()
    assert list(table) == ["point", "x1", "x2", "cluster", "label"]
    assert_array_equal(np.column_stack([table["x1"], table["x2"]]), found.coordinates)
    assert table["label"][:4] == ["a", None, "b", None]
    header, first, *others = (tmp_path / "map.csv").read_text().splitlines()
    assert (header.split(","), len(others)) == (list(table), 59)
    assert first.split(",") == [str(table[name][0]) for name in table]

    plot_map(found, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    plot_map(found, str(tmp_path / "map.html"), labels=truth, title="three groups")
    page = (tmp_path / "map.html").read_text(encoding="utf-8")
    assert "<title>three groups</title>" in page
    assert '"names":["0","1","2"]' in page

    for wrong, sentence in (
        (lambda: plot_map(found, "map.jpg"), "path must end in one of .png, .html, .htm. Got 'map.jpg'"),
        (
            lambda: write_map(found, "map.txt"),
            "path must end in one of .csv, .tsv, .parquet, .arrow, .feather, .jsonl. Got 'map.txt'",
        ),
        (lambda: plot_map(found, "map.html", labels=[1, 2]), "labels must have an entry for each of 60 points. Got 2"),
        (lambda: plot_map(found, "map.html", labels={60: 1}), "labels must be of points from 0 to 59"),
        (lambda: plot_map(replace(found, coordinates=None), "map.html"), "read with its coordinates"),
    ):
        with pytest.raises(ValueError, match=sentence):
            wrong()
