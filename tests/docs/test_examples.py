"""All examples of the README and of docs/ run, as a reader would paste them, and warnings are errors.

Pages are discovered. ``python``, ``sh`` and ``console`` blocks of a page run in order; a block that cannot run here has
another language, or a comment ``<!-- not run: reason -->`` directly above it.
"""

from __future__ import annotations

import codeop
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from homophily_client import Client

from ..service.serving import Service, running
from .pages import ALIASES, README, ROOT, RUN, Block, blocks, commands, examples, pages_with_examples

#: Commands that change more than the folder that they run in, or need more than this machine has.
HARMFUL = re.compile(
    r"^\s*(?:sudo\s+)?(?:\S*/)?(pip3?|python3? -m pip|apt|apt-get|sudo|make|docker|kubectl|helm|git|curl|wget)\b",
    re.MULTILINE,
)
DIGITS = "load_digits(return_X_y=True)"
ADDRESS = "127.0.0.1:50051"
READER = Path(__file__).with_name("reader.py")
#: Pages whose examples need a server of their own: the test that runs them.
ELSEWHERE = {ROOT / "docs" / "operations" / "backup.md": "test_backup.py"}
PAGES = [page for page in pages_with_examples() if examples(page) and page not in ELSEWHERE]


def shortened(code: str) -> str:
    """The same with fewer digits and trials: here it need only run."""
    code = code.replace(DIGITS, f"[part[:400] for part in {DIGITS}]")
    return re.sub(r"(--trials |\btrials=|\"trials\": )(\d+)", lambda found: f"{found[1]}{min(3, int(found[2]))}", code)


class Reader:
    """A process that runs pages."""

    def __init__(self, target: str) -> None:
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("HOMOPHILY_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # One thread for each library, as several tests run at once.
        self.environment |= {"PATH": path, "HOMOPHILY_TARGET": target, "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
        self.target = target
        self.process: subprocess.Popen[str] | None = None

    def read(self, page: list[Block], folder: Path) -> list[str]:
        """Run the blocks of a page; returns what each printed."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", READER],
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for block in page:
            harmful = HARMFUL.search(commands(block)) if RUN[block.language] == "sh" else None
            assert not harmful, (
                f"{block.place}: tests do not run {harmful and harmful[1]}: write text, or why it is not run"
            )
        run = [(RUN[block.language], block.place, self.adapted(block)) for block in page]
        self.process.stdin.write(json.dumps({"folder": str(folder), "blocks": run}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            self.close()
            pytest.fail(f"the examples at {page[0].place} ended the process that runs them")
        answer: dict[str, Any] = json.loads(line)
        assert answer["error"] is None, answer["error"]
        return list(answer["outputs"])

    def adapted(self, block: Block) -> str:
        """The code with the address of the server that is there."""
        return shortened(commands(block)).replace(ADDRESS, self.target)

    def close(self) -> None:
        if self.process is not None:
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.close()
            self.process.wait()
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service in which nothing is prepared."""
    with running(tmp_path_factory.mktemp("docs") / "data") as service:
        yield service


@pytest.fixture(scope="module")
def reader(fresh: Service) -> Iterator[Reader]:
    reader = Reader(fresh.target)
    yield reader
    reader.close()


@pytest.fixture
def emptied(fresh: Service) -> Iterator[None]:
    """Pages may use the same names: nothing is left of one for the next."""
    yield
    with Client(fresh.target) as client:
        for embedding in list(client.list_embeddings()):
            client.delete_embedding(embedding)
        for model in list(client.list_models()):
            client.delete_model(model)
        for dataset in list(client.list_datasets()):
            client.delete_dataset(dataset)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("emptied")
def test_the_examples_of_a_page_run_in_order(page: Path, reader: Reader, tmp_path: Path) -> None:
    outputs = reader.read(examples(page), tmp_path)
    if page == README:
        check_readme(outputs, tmp_path)


def check_readme(outputs: list[str], folder: Path) -> None:
    """What the README says that its examples print is what they print."""
    frame = outputs[0].splitlines()
    assert frame[0] == "13 numbers standardised. No value is missing."
    assert float(frame[1]) > 0.9
    assert "Column 'bottle' is taken as the id" in outputs[1]
    assert len((folder / "labelled.csv").read_text().splitlines()) == 179


def test_pages_that_are_run_elsewhere_exist() -> None:
    for page, test in ELSEWHERE.items():
        assert examples(page)
        assert Path(__file__).with_name(test).exists()


@pytest.mark.parametrize("page", pages_with_examples(), ids=lambda page: str(page.relative_to(ROOT)))
def test_what_is_not_run_says_why(page: Path) -> None:
    for block in blocks(page):
        assert block.language not in ALIASES, f"{block.place}: write python, sh or console, or text if it is not run"
        assert block.not_run is None or len(block.not_run) > 5, f"{block.place}: give the reason: <!-- not run: … -->"
        assert block.not_run is None or block.language in RUN, f"{block.place}: {block.language} is never run"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "import warnings\nwarnings.warn('old')"),
        ("python", "1 / 0"),
        ("sh", "true\nfalse\ntrue"),
        ("console", "$ false\n$ true"),
        ("sh", "pip install something"),
    ],
)
def test_an_example_that_fails_is_noticed(language: str, code: str, reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"README\.md:7"):
        reader.read([Block(README, 7, language, code, None)], tmp_path)


def test_a_page_keeps_its_names_and_variables(reader: Reader, tmp_path: Path) -> None:
    code = {1: ("python", "x = 7"), 2: ("sh", "y=8"), 3: ("python", "print(x)"), 4: ("sh", "echo $y")}
    found = reader.read([Block(README, line, *block, None) for line, block in code.items()], tmp_path)
    assert found == ["", "", "7\n", "8\n"]


def typed(block: Block) -> None:
    """Compile a block as Python's prompt does, line by line: an empty line ends a loop or a function."""
    waiting: list[str] = []
    for line in [*block.code.splitlines(), ""]:
        waiting.append(line)
        code = "\n".join(waiting)
        try:
            is_complete = codeop.compile_command(code, block.place) is not None
        except SyntaxError as error:
            raise AssertionError(f"{block.place}: Python's prompt refuses {line!r}: {error.msg}") from error
        if is_complete:
            waiting = []
    assert not waiting, f"{block.place}: Python's prompt waits for more after {waiting[-1]!r}"


@pytest.mark.parametrize("page", pages_with_examples(), ids=lambda page: str(page.relative_to(ROOT)))
def test_python_examples_can_be_pasted_at_the_prompt(page: Path) -> None:
    """Python 3.11 refuses a line without indentation directly after the body of a loop."""
    for block in blocks(page):
        if block.language == "python":
            typed(block)


@pytest.mark.parametrize("code", ["for x in y:\n    print(x)\nprint(y)", "def f():\n    x = 1\n\n    return x"])
def test_an_example_that_cannot_be_pasted_is_noticed(code: str) -> None:
    with pytest.raises(AssertionError, match=r"README\.md:7: Python's prompt refuses"):
        typed(Block(README, 7, "python", code, None))
