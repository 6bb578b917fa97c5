"""The Prometheus metrics, read where the code declares them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sphinx.util import logging

import homophily_service
from reference.markdown import cell, described

TYPES = {"Counter": "counter", "Gauge": "gauge", "Histogram": "histogram", "GaugeMetricFamily": "gauge"}
PREFIX = "homophily_"

_log = logging.getLogger("reference")


class Declared(NamedTuple):
    """A metric."""

    name: str
    type: str
    labels: list[str]
    help: str


def generate() -> str:
    """A table of all metrics."""
    rows = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    for metric in sorted(set_of_metrics()):
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        meaning = described(metric.help, f"the metric {metric.name}")
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {cell(meaning)} |")
    return "\n".join(rows)


def set_of_metrics() -> list[Declared]:
    """The metrics that the service declares."""
    (folder,) = homophily_service.__path__
    return [metric for path in sorted(Path(folder).rglob("*.py")) for metric in _declared(path)]


def _declared(path: Path) -> Iterator[Declared]:
    tree = ast.parse(path.read_text())
    # There are other things called Counter.
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    known = {name.name for one in imports if (one.module or "").startswith("prometheus_client") for name in one.names}
    for node in ast.walk(tree):
        if (
            not isinstance(node, ast.Call)
            or not isinstance(node.func, ast.Name)
            or node.func.id not in known & set(TYPES)
        ):
            continue
        arguments = dict(zip(("name", "documentation", "labels"), node.args, strict=False))
        arguments |= {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        name = _literal(arguments.get("name"))
        if not isinstance(name, str) or not name.startswith(PREFIX):
            _log.warning("%s:%d: the name of a metric is not a literal", path, node.lineno)
            continue
        labels = arguments.get("labelnames") or arguments.get("labels")
        if node.func.id == "GaugeMetricFamily" and len(node.args) > 2:
            # Its third argument is the value.
            labels = next((keyword.value for keyword in node.keywords if keyword.arg == "labels"), None)
        yield Declared(
            name, TYPES[node.func.id], list(_literal(labels) or ()), str(_literal(arguments.get("documentation")) or "")
        )


def _literal(node: ast.expr | None) -> object:
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None
