"""Sentences of help texts and comments as Markdown."""

from __future__ import annotations

import re

from sphinx.util import logging

_log = logging.getLogger("reference")


def described(text: str | None, what: str) -> str:
    """A description as Markdown; a warning if there is none."""
    if not text or not text.strip():
        _log.warning("%s has no description", what)
        return ""
    return escaped(text.strip())


def escaped(text: str) -> str:
    """Plain text as Markdown; what is in backticks stays code."""
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<>\[\]_$])", r"\\\1", part) for part in parts)


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", r"\|")


def directive(name: str, argument: str, body: str, **options: str) -> str:
    """A directive of MyST."""
    lines = [
        f"```{{{name}}} {argument}",
        *(f":{option}: {value}" for option, value in options.items()),
        "",
        body,
        "```",
    ]
    return "\n".join(lines) + "\n"
