"""References that are generated from the code whenever the documentation is built.

A page says where: ``<!-- generated: settings -->``. What has no description is a warning, which fails `make docs`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.environment import BuildEnvironment

from reference import commands, metrics, protos, python, settings

MARK = re.compile(r"^<!-- generated: (\w+)((?: [\w.:]+)*) -->$", re.MULTILINE)
GENERATORS = {
    "commands": commands.generate,
    "inline": python.inline,
    "metrics": metrics.generate,
    "module": python.module,
    "protos": protos.generate,
    "settings": settings.generate,
    "table": python.table,
}


def read(_: Sphinx, __: str, content: list[str]) -> None:
    """Put what is generated into a page."""
    content[0] = MARK.sub(lambda mark: GENERATORS[mark[1]](*mark[2].split()), content[0])


def outdated(app: Sphinx, env: BuildEnvironment, *_: set[str]) -> list[str]:
    """Pages to read again although they have not changed: the code may have."""
    return [one for one in env.found_docs if MARK.search(Path(app.env.doc2path(one)).read_text())]


def write_pages(app: Sphinx, _: Config) -> None:
    """Write the pages of single names, before Sphinx looks for pages."""
    python.write_pages(Path(app.srcdir) / "reference" / "api")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register with Sphinx."""
    app.connect("config-inited", write_pages)
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", read)
    app.connect("autodoc-process-signature", python.signature)
    app.connect("env-check-consistency", python.check)
    return {"parallel_read_safe": True}
