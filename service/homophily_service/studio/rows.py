"""The rows of a file that was opened: what the page shows of a point, searches, and colours by."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: A cell is shown up to this number of letters, and a row up to this number of columns.
LONGEST_CELL, MOST_CELLS = 500, 100
#: Arrays with as many columns as a square image has pixels are shown as one, from 8 × 8 to 64 × 64.
LEAST_SIDE, MOST_SIDE = 8, 64
MOST_CATEGORIES = 1000
#: SVG is left out: it may hold scripts.
IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp")
MOST_IMAGE_BYTES = 8 << 20


@dataclass(frozen=True)
class Images:
    """A column that names an image for each row: files in a folder, or addresses that the browser loads."""

    column: str
    folder: Path | None = None


@dataclass(frozen=True, eq=False)
class Rows:
    """A table (Arrow) or an array, one row per point."""

    table: Any = None
    array: Any = None
    images: Images | None = None

    @property
    def known(self) -> bool:
        """Whether there is anything to show of a point."""
        return self.table is not None or self.array is not None

    @property
    def column_names(self) -> list[str]:
        """The columns that a point can be coloured by."""
        return list(map(str, self.table.column_names)) if self.table is not None else []

    @property
    def image_side(self) -> int:
        """The side of the image that each row is; 0 if rows are no images."""
        if self.array is None or not isinstance(self.array, np.ndarray):
            return 0
        side = round(self.array.shape[1] ** 0.5)
        return side if side * side == self.array.shape[1] and LEAST_SIDE <= side <= MOST_SIDE else 0

    def shown(self, point: int) -> dict[str, Any]:
        """The cells of a row by column, or the pixels of an image from 0 to 255."""
        if self.table is not None:
            names = self.column_names[:MOST_CELLS]
            image = None if self.images is None else self.table[self.images.column][point].as_py()
            cells = [[name, _shown(self.table[place][point].as_py())] for place, name in enumerate(names)]
            return {"cells": cells} | ({"image": str(image)} if image else {})
        if side := self.image_side:
            return {"pixels": _pixels(self.array[point]), "side": side}
        if self.array is None or not isinstance(self.array, np.ndarray):
            return {}
        return {"cells": [[str(place), f"{value:.4g}"] for place, value in enumerate(self.array[point][:MOST_CELLS])]}

    def image(self, point: int) -> bytes:
        """The file that the image column names; only files in the folder that the user allowed."""
        if self.table is None or self.images is None or self.images.folder is None:
            raise ValueError("There is no folder of images: start with --image-column and --image-folder.")
        folder = self.images.folder.resolve()
        path = (folder / str(self.table[self.images.column][point].as_py())).resolve()
        if not path.is_relative_to(folder) or path.suffix.lower() not in IMAGES or not path.is_file():
            raise ValueError(f"{path.name}: is no image in the folder {folder.name}")
        if path.stat().st_size > MOST_IMAGE_BYTES:
            raise ValueError(f"{path.name}: is larger than {MOST_IMAGE_BYTES >> 20} MiB")
        return path.read_bytes()

    def found(self, text: str, most: int) -> list[int]:
        """The first rows that have the text in a column of strings, in any case."""
        if self.table is None:
            return []
        from pyarrow import compute

        hit = np.zeros(self.table.num_rows, dtype=bool)
        for column in self.table.columns:
            if "string" in str(column.type):
                match = compute.match_substring(column, text, ignore_case=True)
                hit |= compute.fill_null(match, False).to_numpy()
        return [int(row) for row in np.flatnonzero(hit)[:most]]

    def values(self, name: str) -> tuple[NDArray[np.float32], list[str]]:
        """A number for each row, NaN where it is missing, and the categories that they count if it has strings."""
        column = self.table[name]
        if str(column.type) in ("int64", "double", "float", "int32", "bool"):
            return column.cast("double").to_numpy().astype(np.float32), []
        strings = [None if cell is None else _shown(cell) for cell in column.to_pylist()]
        categories = sorted({cell for cell in strings if cell is not None})[:MOST_CATEGORIES]
        place = {cell: number for number, cell in enumerate(categories)}
        codes = [np.nan if cell is None else place.get(cell, np.nan) for cell in strings]
        return np.array(codes, dtype=np.float32), categories


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        value = f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST_CELL else f"{text[:LONGEST_CELL]}…"


def _pixels(row: NDArray[Any]) -> list[int]:
    values = np.asarray(row, dtype=np.float64)
    low, high = float(values.min()), float(values.max())
    return [int(value) for value in np.round(255.0 * (values - low) / (high - low or 1.0))]
