"""A self-contained page about a model or a map: facts, pictures, tables."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

# What each picture shows, by the start of its file's name; in the page's order.
_CAPTIONS = {
    "map": "Every point at its place on the map, coloured by its group. What is near belongs together.",
    "confusion": "Each row is a true class, each column an answer: right answers are on the diagonal.",
    "reliability": "On the dashed line, answers are right as often as their probabilities say; below it, less often.",
    "scores": "Points far from 0 were decided clearly; those near 0 are the ones to look at, or to label next.",
    "energy": "The energy that the optimiser minimises. Where the curve is flat, it has converged.",
    "search": "Each dot is a setting that was tried; the surface is drawn between them.",
}


class Table(NamedTuple):
    """Rows with a heading. One of them may be marked."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    marked: int | None = None


def report_page(
    title: str,
    below: str,
    facts: Mapping[str, str],
    pictures: Mapping[str, bytes],
    *,
    warnings: Sequence[str] = (),
    tables: Sequence[Table] = (),
) -> bytes:
    """The page; PNG pictures are in it, pages such as map.html are expected beside it.

    A fact that is a web address becomes a link.
    """
    template = resources.files("homophily_service.plots").joinpath("report.html").read_text(encoding="utf-8")
    order = sorted(pictures, key=_place)
    figures = [_figure(name, pictures[name]) for name in order if name.endswith(".png")]
    pages = [
        f'<p><a href="{name}">{name}</a>, beside this file, is the map to zoom and point at.</p>'
        for name in map(html.escape, order)
        if name.endswith(".html")
    ]
    parts = {
        "TITLE": html.escape(title),
        "BELOW": html.escape(below),
        "WARNINGS": "\n".join(f'<p class="warning">{html.escape(one)}</p>' for one in warnings),
        "FACTS": "\n".join(
            f"<tr><th>{html.escape(name)}</th><td>{_fact(value)}</td></tr>" for name, value in facts.items()
        ),
        "PICTURES": "\n".join(
            ["<h2>Pictures</h2>", *pages, '<div class="pictures">', *figures, "</div>"] if figures else pages
        ),
        "TABLES": "\n".join(map(_table, tables)),
    }
    names = "|".join(parts)
    return re.sub(f"__({names})__", lambda found: parts[found[1]], template).encode()


def _kind(name: str) -> str:
    return re.split("[-.]", name)[0]


def _place(name: str) -> int:
    kinds = list(_CAPTIONS)
    return kinds.index(_kind(name)) if _kind(name) in kinds else len(kinds)


def _fact(value: str) -> str:
    shown = html.escape(value)
    return f'<a href="{shown}">{shown}</a>' if re.match("https?://", value) else shown


def _figure(name: str, picture: bytes) -> str:
    data = base64.b64encode(picture).decode("ascii")
    described = html.escape(_CAPTIONS.get(_kind(name), ""))
    image = f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{described}</figcaption></figure>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(one)}</th>" for one in table.columns)
    kinds = [' class="best"' if place == table.marked else "" for place in range(len(table.rows))]
    rows = "\n".join(f"<tr{kind}>{''.join(map(_cell, row))}</tr>" for kind, row in zip(kinds, table.rows, strict=True))
    heading = f"<h2>{html.escape(table.heading)}</h2>"
    return f'{heading}\n<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>'


def _cell(value: Any) -> str:
    kind = ' class="number"' if isinstance(value, int | float) else ""
    shown = "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    return f"<td{kind}>{html.escape(shown)}</td>"
