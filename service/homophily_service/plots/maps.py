"""Draws a map, as a picture or as a page."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from homophily_service.plots.canvas import GREY, MARK, colours, counted, headline, new_figure, to_png, words

if TYPE_CHECKING:
    from homophily_client import Map

Pairs = NDArray[np.int64]

_MUST, _CANNOT, _VIOLATED = "#2f3b47", "#8895a3", MARK
# More lines would hide the points; up to half of them are violated links.
_DRAWN_LINKS = 800
_NAMED_GROUPS = 24
# More points than this are drawn as cells; the number of cells along a side.
_SINGLE_POINTS, _CELLS = 12_000, 480
_SHADES = (0.45, 0.65, 0.85, 1.0)
# Quantiles of the coordinates within the frame, and the margin around them in units of their larger range.
_FRAMED, _MARGIN = (0.01, 0.99), 0.12


@dataclass(frozen=True)
class Drawing:
    """What is drawn."""

    title: str
    #: (u, 2), as on the map or its first two dimensions.
    places: NDArray[np.float64]
    #: The group of each point, a position in ``names``; −1 for none.
    groups: NDArray[np.int32]
    names: list[str]
    #: By kind, "must" or "cannot", and whether the map violates them: their number, and the pairs that are drawn.
    links: dict[tuple[str, bool], tuple[int, Pairs]]
    #: Says what is left out, if anything.
    note: str

    @property
    def colours(self) -> list[str]:
        """One for each group."""
        return colours(len(self.names))


def to_draw(title: str, found: Map, labels: Mapping[int, Any] | None) -> Drawing:
    """Prepare a map to be drawn: coloured by labels if there are any, else by cluster."""
    assert found.coordinates is not None
    count, dimensions = found.coordinates.shape
    places = found.coordinates[:, :2]
    notes = [f"2 of {dimensions} dimensions"] if dimensions > 2 else []
    if dimensions == 1:
        places = np.column_stack([places, np.zeros(count)])
    groups, names = np.full(count, -1, dtype=np.int32), []
    if labels is not None:
        # Integers by value, words alphabetically.
        known = sorted(set(labels.values()), key=lambda one: (isinstance(one, str), one))
        positions = {label: place for place, label in enumerate(known)}
        groups[list(labels)] = [positions[label] for label in labels.values()]
        names = [str(label) for label in known]
    elif found.clusters is not None:
        groups, names = found.clusters, [f"cluster {number}" for number in range(int(found.clusters.max()) + 1)]
    links = _links(found)
    total, drawn = (
        sum(counts) for counts in zip(*((count, len(pairs)) for count, pairs in links.values()), strict=True)
    )
    if drawn < total:
        notes.append(f"{drawn:,} of {total:,} links drawn")
    low, high = frame(places)
    outside = np.count_nonzero(((places < low) | (places > high)).any(axis=1))
    if outside:
        notes.append(f"{counted(int(outside), 'point')} outside the frame")
    return Drawing(title, places, groups, names, links, ", ".join(notes))


def frame(places: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lower and upper corner of what a map shows at first, which a few points far from all others do not decide."""
    low, high = np.quantile(places, _FRAMED, axis=0)
    margin = _MARGIN * (high - low).max()
    return np.maximum(low - margin, places.min(axis=0)), np.minimum(high + margin, places.max(axis=0))


def _links(found: Map) -> dict[tuple[str, bool], tuple[int, Pairs]]:
    none = np.empty((0, 2), dtype=np.int64)
    must, cannot = (none if pairs is None else pairs for pairs in (found.must_link, found.cannot_link))
    broken = [none if pairs is None else pairs for pairs in (found.violated_must, found.violated_cannot)]
    obeyed = [_others(pairs, excluded_pairs) for pairs, excluded_pairs in zip((must, cannot), broken, strict=True)]
    wrong = _some(broken, _DRAWN_LINKS // 2)
    right = _some(obeyed, _DRAWN_LINKS - sum(map(len, wrong)))
    links = {}
    for kind, place in (("must", 0), ("cannot", 1)):
        links[kind, False] = len(obeyed[place]), right[place]
        links[kind, True] = len(broken[place]), wrong[place]
    return links


def _others(pairs: Pairs, excluded_pairs: Pairs) -> Pairs:
    excluded = set(map(tuple, excluded_pairs.tolist()))
    return pairs[[pair not in excluded for pair in map(tuple, pairs.tolist())]]


def _some(kinds: list[Pairs], most: int) -> list[Pairs]:
    """At most ``most`` pairs, each kind in proportion, spread evenly."""
    total = sum(map(len, kinds))
    if total <= most:
        return kinds
    shares = [most * len(pairs) // total for pairs in kinds]
    return [
        pairs[np.linspace(0, len(pairs) - 1, share).astype(np.intp)] for pairs, share in zip(kinds, shares, strict=True)
    ]


# -- picture -----------------------------------------------------------------------------------------------------------


def map_picture(drawing: Drawing) -> bytes:
    """A PNG."""
    shown = _framed(drawing)
    across, up = np.ptp(shown.places, axis=0)
    # About as wide and high as the map, so that it fills the picture.
    figure = new_figure(9, float(np.clip(7 * up / across + 0.7, 4.0, 7.5)) if across > 0 else 7)
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    count = len(drawing.places)
    axis = figure.add_subplot()
    size = float(np.clip(40_000 / count, 3, 70))
    if count > _SINGLE_POINTS:
        _draw_cells(axis, shown)
    else:
        _draw_points(axis, shown, size)
    handles = _legend_of_groups(drawing, Line2D)
    styles: tuple[tuple[str, bool, str, Any, float], ...] = (
        ("must", False, _MUST, "solid", 0.7),
        ("cannot", False, _CANNOT, "dotted", 0.7),
        ("must", True, _VIOLATED, (0, (6, 3)), 1.2),
        ("cannot", True, _VIOLATED, (0, (2, 2)), 1.2),
    )
    for kind, violated, colour, dashes, width in styles:
        number, ends = shown.links[kind, violated]
        if len(ends):
            strong = float(np.clip(60 / len(ends), 0.25, 1.0))
            axis.add_collection(
                LineCollection(
                    list(shown.places[ends]),
                    colors=colour,
                    linestyles=dashes,
                    linewidths=width,
                    alpha=strong,
                    zorder=2,
                )
            )
            # Points that are close together hide the line between them.
            rings = shown.places[np.unique(ends)].T
            axis.scatter(*rings, s=1.3 * size + 14, c="none", edgecolors=colour, lw=0.7, alpha=strong, zorder=3)
            legend = f"{kind}-link{', violated' if violated else ''} ({number:,})"
            handles.append(Line2D([], [], color=colour, linestyle=dashes, linewidth=width + 0.3, label=legend))
    axis.set_xlabel("dimension 1 of the map", fontsize=9)
    if up > 0:
        axis.set_ylabel("dimension 2 of the map", fontsize=9)
    axis.spines[:].set_color("#d5dbe1")
    axis.set_xticks([])
    axis.set_yticks([])
    axis.set_aspect("equal", adjustable="datalim")
    if handles:
        # A legend may be higher than a flat map.
        figure.set_figheight(max(figure.get_figheight(), 0.8 + 0.19 * len(handles)))
        placement = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
        axis.legend(handles=handles, **placement, borderaxespad=0.2, fontsize="small", frameon=False)
    note = f" · {drawing.note}" if drawing.note else ""
    headline(figure, drawing.title, f"{counted(count, 'point')}{note}")
    return to_png(figure)


def _framed(drawing: Drawing) -> Drawing:
    """The points within the frame, and the links between them."""
    low, high = frame(drawing.places)
    inside: NDArray[np.bool_] = np.all((drawing.places >= low) & (drawing.places <= high), axis=1)
    position = np.cumsum(inside) - 1
    links = {key: (count, position[pairs[inside[pairs].all(axis=1)]]) for key, (count, pairs) in drawing.links.items()}
    return replace(drawing, places=drawing.places[inside], groups=drawing.groups[inside], links=links)


def _draw_points(axis: Any, drawing: Drawing, size: float) -> None:
    opacity = float(np.clip(8500 / len(drawing.places), 0.7, 0.9))
    order = _mixed(drawing)
    axis.scatter(
        *drawing.places[order].T, s=size, c=_palette(drawing)[drawing.groups[order]], alpha=opacity, lw=0, zorder=1
    )


def _draw_cells(axis: Any, drawing: Drawing) -> None:
    """Dots on top of each other would blur: draw one point per small cell, more opaque where there are more points.

    The point is chosen at random, so that colours mix where groups do. Few shades make a small file.
    """
    low, high = drawing.places.min(axis=0), drawing.places.max(axis=0)
    step = float((high - low).max()) / _CELLS or 1.0
    cells = np.floor((drawing.places - low) / step).astype(np.intp)
    columns, rows = cells.max(axis=0) + 1
    places = cells[:, 1] * columns + cells[:, 0]
    counts = np.bincount(places, minlength=rows * columns)
    shown = np.full(rows * columns, -2)
    order = _mixed(drawing)
    # The last one written stays.
    shown[places[order]] = drawing.groups[order]
    filled = shown > -2
    shade = np.minimum(np.log2(counts[filled]).astype(int), len(_SHADES) - 1)
    image = np.ones((rows * columns, 3))
    image[filled] += (_palette(drawing)[shown[filled]] - 1) * np.array(_SHADES)[shade, None]
    extent = (low[0], low[0] + columns * step, low[1], low[1] + rows * step)
    axis.imshow(image.reshape(rows, columns, 3), origin="lower", extent=extent, interpolation="nearest", zorder=1)
    axis.margins(0.03)


def _mixed(drawing: Drawing) -> NDArray[np.intp]:
    """The points in random order, so that the last group does not cover the others; those of no group come first."""
    order = np.random.default_rng(0).permutation(len(drawing.places))
    return order[np.argsort(drawing.groups[order] >= 0, kind="stable")]


def _palette(drawing: Drawing) -> NDArray[np.float64]:
    """Red, green and blue of each group; the last row is for points of no group."""
    from matplotlib.colors import to_rgb

    return np.array([to_rgb(one) for one in (*drawing.colours, GREY)])


def _legend_of_groups(drawing: Drawing, line: Any) -> list[Any]:
    counts = np.bincount(drawing.groups + 1, minlength=len(drawing.names) + 1)
    named = [
        line([], [], marker="o", linestyle="", color=colour, label=f"{words(name, 24)} ({number:,})")
        for name, colour, number in zip(drawing.names, drawing.colours, counts[1:].tolist(), strict=True)
    ]
    if len(named) > _NAMED_GROUPS:
        named = [
            *named[:_NAMED_GROUPS],
            line([], [], linestyle="", label=f"… {len(named) - _NAMED_GROUPS:,} more"),
        ]
    if counts[0] and drawing.names:
        named.append(line([], [], marker="o", linestyle="", color=GREY, label=f"no label ({counts[0]:,})"))
    return named


# -- page --------------------------------------------------------------------------------------------------------------


def map_page(drawing: Drawing) -> bytes:
    """A self-contained page: the points are in it, and the code that draws them."""
    template = resources.files("homophily_service.plots").joinpath("map.html").read_text(encoding="utf-8")
    low, high = frame(drawing.places)
    centre, scale = (low + high) / 2, float((high - low).max()) / 2 or 1.0
    data = {
        "title": drawing.title,
        "note": drawing.note,
        "count": len(drawing.places),
        # In units of the map's size, as single precision would lose small differences far from 0.
        "places": _packed(((drawing.places - centre) / scale).astype("<f4")),
        "centre": centre.tolist(),
        "scale": scale,
        "groups": _packed(drawing.groups.astype("<i2")),
        "names": drawing.names,
        "colours": drawing.colours,
        "grey": GREY,
        "links": [
            {"name": f"{kind}-link", "violated": violated, "count": count, "pairs": pairs.tolist()}
            for (kind, violated), (count, pairs) in drawing.links.items()
        ],
        "linkColours": {"must": _MUST, "cannot": _CANNOT, "violated": _VIOLATED},
    }
    # A name with "</script>" in it must not end the script.
    script = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = {"TITLE": html.escape(drawing.title), "DATA": script}
    return re.sub("__(TITLE|DATA)__", lambda found: parts[found[1]], template).encode()


def _packed(array: NDArray[Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")
