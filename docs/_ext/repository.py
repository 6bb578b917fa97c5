"""Pages whose text is a file elsewhere in the repository, and links to such files.

A file such as deploy/SECURITY.md is the only copy of its text. A page shows it by a line that is an ordinary link on
GitHub::

    <!-- include --> [deploy/SECURITY.md](../../deploy/SECURITY.md)

With ``#heading`` only the section of that heading is shown. Links inside the text are relative to the file; here they
lead to the pages that show their targets, or to a copy of the file where no page does.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
INCLUDE = re.compile(r"^<!-- include -->.*\]\(([^)#\s]+)(?:#([^)\s]+))?\).*$", re.MULTILINE)
# Links and pictures of Markdown, but not within code.
LINK = re.compile(
    r"(?P<code>^(?P<fence>```+|~~~+).*?^(?P=fence)`*$|`+[^`\n]*`+)|(?P<text>!?\[[^\]]*\])\((?P<path>[^)#\s]*)(?P<anchor>#[^)\s]*)?\)",
    re.MULTILINE | re.DOTALL,
)

_log = logging.getLogger(__name__)


def slug(heading: str) -> str:
    """The anchor of a heading, as on GitHub."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "").strip().lower()).replace(" ", "-")


def section(text: str, anchor: str) -> str | None:
    """The section of a heading, with its subsections; None if there is no such heading."""
    lines, level, found, fenced = text.splitlines(keepends=True), 0, [], False
    for line in lines:
        fenced ^= line.startswith("```")
        heading = None if fenced else re.match(r"(#+) (.*)", line)
        if heading and level and len(heading[1]) <= level:
            break
        if heading and slug(heading[2]) == anchor:
            level = len(heading[1])
        if level:
            found.append(line)
    return "".join(found) or None


@cache
def shown() -> dict[tuple[Path, str], Path]:
    """The page that shows a file, or a section of it."""
    found = {}
    for page in sorted(DOCS.rglob("*.md")):
        for path, anchor in INCLUDE.findall(page.read_text()):
            found[(page.parent / path).resolve(), anchor] = page
    return found


def page_of(path: Path, anchor: str) -> Path | None:
    """The page to link to: the one with the section, with the file, or with the file's first section."""
    pages = shown()
    sections = [page for (file, _), page in pages.items() if file == path]
    return pages.get((path, anchor)) or pages.get((path, "")) or (sections[0] if sections and not anchor else None)


def relinked(text: str, source: Path, page: Path) -> str:
    """The text of ``source``, with links that work on ``page``."""

    def relink(link: re.Match[str]) -> str:
        label, path, anchor = link["text"], link["path"], link["anchor"] or ""
        if link["code"] or not path or "://" in path or path.startswith("mailto:"):
            return link[0]
        target = (source.parent / path).resolve()
        if not target.exists():
            _log.warning("%s links to %s, which does not exist", source.relative_to(ROOT), path, location=str(page))
            return link[0]
        known = page_of(target, anchor.removeprefix("#"))
        if known is not None:
            target = known
        elif target.is_dir() or not target.is_relative_to(ROOT):
            # There is nothing to open: name it.
            return f"{label.removeprefix('!').strip('[]')} (`{target.relative_to(ROOT)}/`)"
        elif not target.is_relative_to(DOCS) and not label.startswith("!"):
            # No page shows it: readers get a copy of the file.
            return f"{label}(<path:{os.path.relpath(target, page.parent)}>)"
        return f"{label}({os.path.relpath(target, page.parent)}{anchor})"

    return LINK.sub(relink, text)


def included(text: str, page: Path) -> str:
    """The text of a page with the files that it includes."""

    def include(line: re.Match[str]) -> str:
        source = (page.parent / line[1]).resolve()
        found = source.read_text() if source.is_file() else None
        if found is not None and line[2]:
            found = section(found, line[2])
        if found is None:
            _log.warning("there is nothing to include at %s#%s", line[1], line[2] or "", location=str(page))
            return ""
        return relinked(found, source, page)

    # Links first, and only outside includes: what is included has been relinked already.
    parts, last = [], 0
    for line in INCLUDE.finditer(text):
        parts += [relinked(text[last : line.start()], page, page), include(line)]
        last = line.end()
    return "".join([*parts, relinked(text[last:], page, page)])


def read(app: Sphinx, document: str, content: list[str]) -> None:
    """Expand a page before it is parsed."""
    page = Path(app.env.doc2path(document))
    if page.suffix == ".md":
        for path, _ in INCLUDE.findall(content[0]):
            app.env.note_dependency(str((page.parent / path).resolve()))
        content[0] = included(content[0], page)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("source-read", read)
    app.connect("builder-inited", lambda _: shown.cache_clear())
    return {"parallel_read_safe": True}
