"""Plain English in everything that users read: README, docs, help texts, errors and warnings.

The words are those that the project's own dialect had, and that a newcomer stumbles over.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from homophily_service.cli.commands import app

from .pages import README, ROOT, markdown_pages

#: What to look for, and what to write.
DIALECT = {
    r"[«»]": 'quotation marks "…"',
    r"\bone an? (class|point|job|fit|step|row|label|column|run|worker|project|trial)\b": "one per …",
    r"\bso many\b": "the number's name",
    r"\b(is|are|was|were|be) told of\b": "is warned, or: learns",
    r"\b[Ww]hoever\b": "the subject: a person who, anyone who, or the process",
    r"\bWho (claims|asks|gives|wants|has|reads|writes|calls|gets|knows|needs|sends|takes)\b": "callers that …",
    r"\b[Hh]e who\b|\bthose who\b": "the subject",
    r"\bof before it\b|\bthought of have\b": "older …",
    r"\bof which only a little is labelled\b": "a handful of labels",
    r"\braise one of them\b": "what to pass",
    r"\bwould tell him\b|\bnothing would tell\b": "the subject, in active voice",
    r"\b(Deed|Turnless|Remembering|is_mine)\b": "AuditRecord, LeadershipLost, LBFGSState, held",
}
PACKAGES = [ROOT / "core" / "homophily", ROOT / "service" / "homophily_service", ROOT / "client" / "homophily_client"]
PAGES = [
    README,
    *sorted(page for page in ROOT.glob("*.md") if page not in (README, ROOT / "CHANGELOG.md")),
    *markdown_pages(),
    *sorted((ROOT / "deploy").rglob("*.md")),
    *sorted((ROOT / "proto").glob("*.md")),
    *sorted((ROOT / "proto").rglob("*.proto")),
]
#: Calls whose strings people read.
SPOKEN = {
    *("warn", "print_status", "print_result", "confirm", "exit"),
    *("Counter", "Gauge", "Histogram", "GaugeMetricFamily"),
}


def found(text: str) -> list[str]:
    """The dialect in a text, with what to write instead."""
    flat = re.sub(r"\s+", " ", text)
    return [
        f"{flat[max(0, match.start() - 30) : match.end() + 30]!r}: write {instead}"
        for pattern, instead in DIALECT.items()
        for match in re.finditer(pattern, flat)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_in_plain_english(page: Path) -> None:
    assert found(page.read_text()) == []


def help_texts(command: Any) -> Iterator[str]:
    yield from (text for text in (command.help, getattr(command, "epilog", None)) if text)
    yield from (parameter.help for parameter in command.params if getattr(parameter, "help", None))
    for inner in getattr(command, "commands", {}).values():
        yield from help_texts(inner)


def test_help_is_in_plain_english() -> None:
    texts = list(help_texts(typer.main.get_command(app)))
    assert len(texts) > 200
    assert [wrong for text in texts for wrong in found(text)] == []


def test_descriptions_of_settings_are_in_plain_english() -> None:
    from homophily_service.runtime.settings import Settings

    assert [wrong for field in Settings.model_fields.values() for wrong in found(field.description or "")] == []


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """The literals in errors that are raised, and in what is printed or warned."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if isinstance(node, ast.Raise) or (isinstance(node, ast.Call) and name in SPOKEN):
            yield (
                node.lineno,
                " ".join(
                    inner.value
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Constant) and isinstance(inner.value, str)
                ),
            )


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_errors_and_warnings_are_in_plain_english(package: Path) -> None:
    spoken = [(path, *message) for path in sorted(package.rglob("*.py")) for message in messages(path)]
    assert len(spoken) > 30
    assert [f"{path.relative_to(ROOT)}:{line}: {wrong}" for path, line, text in spoken for wrong in found(text)] == []


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings of a module and of its public names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and not getattr(node, "name", "").startswith("_"):
                yield getattr(node, "lineno", 1), text


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_docstrings_are_in_plain_english(package: Path) -> None:
    written = [(path, *text) for path in sorted(package.rglob("*.py")) for text in docstrings(path)]
    assert [f"{path.relative_to(ROOT)}:{line}: {wrong}" for path, line, text in written for wrong in found(text)] == []


@pytest.mark.parametrize(
    "text", ["one a class", "so many points", "Whoever asks", "«quoted»", "the caller is told of it"]
)
def test_the_dialect_is_found(text: str) -> None:
    assert found(text)
