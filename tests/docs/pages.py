"""The pages of the documentation, and the examples on them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
#: What `make docs` writes.
GENERATED = (DOCS / "_build", DOCS / "reference" / "api")

RUN = {"python": "python", "sh": "sh", "console": "sh"}
#: Other names of these languages, which readers could not tell from examples that are run.
ALIASES = {
    "bash",
    "shell",
    "shell-session",
    "py",
    "python3",
    "py3",
    "pycon",
    "ipython",
    "{code-block}",
    "{code}",
    "{doctest}",
}

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,}) *(?P<language>[^\s`]*)")
_NOT_RUN = re.compile(r"<!--\s*not run\b:?\s*(?P<reason>.*?)\s*-->")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    page: Path
    line: int
    language: str
    code: str
    #: Why it is not run; None if it is, empty if the comment gives no reason.
    not_run: str | None

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_run(self) -> bool:
        return self.language in RUN and self.not_run is None


def markdown_pages() -> list[Path]:
    """All pages of docs/ that people write."""
    return sorted(page for page in DOCS.rglob("*.md") if not any(page.is_relative_to(folder) for folder in GENERATED))


def pages_with_examples() -> list[Path]:
    """The pages whose examples are run."""
    more = [ROOT / "CONTRIBUTING.md"]
    return [README, *(page for page in more if page.exists()), *markdown_pages()]


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found, before, lines = [], "", page.read_text().splitlines()
    position = 0
    while position < len(lines):
        fence = _FENCE.match(lines[position])
        if fence is None:
            before = lines[position].strip() or before
            position += 1
            continue
        begin, indent = position + 1, len(fence["indent"])
        position = begin
        while position < len(lines) and not lines[position].strip().startswith(fence["fence"]):
            position += 1
        code = "".join(f"{line[indent:] if not line[:indent].strip() else line}\n" for line in lines[begin:position])
        comment = _NOT_RUN.fullmatch(before)
        found.append(Block(page, begin, fence["language"], code, comment and comment["reason"]))
        before = ""
        position += 1
    return found


def examples(page: Path) -> list[Block]:
    """The blocks of a page that are run, in order."""
    only = {"python"} if page.name == "CONTRIBUTING.md" else set(RUN)
    return [block for block in blocks(page) if block.is_run and block.language in only]


def commands(block: Block) -> str:
    """The commands of a block of ``sh`` or, after its prompts, of ``console``."""
    if block.language != "console":
        return block.code
    return "".join(f"{line[2:]}\n" for line in block.code.splitlines() if line.startswith(("$ ", "> ")))
