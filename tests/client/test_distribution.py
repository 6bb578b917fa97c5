"""The client's wheel, installed alone into a fresh virtual environment: what comes along, how large, how fast."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

import homophily_client

CLIENT = Path(__file__).parents[2] / "client"
MAX_BYTES = 120 * 10**6
HEAVY = {"faiss-cpu", "homophily", "mlflow", "numba", "scikit-learn", "scipy"}
# The client's own modules take far less than what they are built on.
MAX_IMPORT_RATIO = 3.0
# The best of several: an import is slow once because of the disk, and never too fast.
TIMES = 5


@dataclass
class Environment:
    """A virtual environment."""

    folder: Path

    def run(self, program: str) -> str:
        """Run a program with nothing else on its path; returns what it prints."""
        command = [str(self.folder / "bin" / "python"), "-I", "-c", program]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout

    def import_seconds(self, statement: str) -> float:
        """The time of the processor that an import takes in a new process, at best; other programs add little to it."""
        program = f"import time; start = time.process_time()\n{statement}\nprint(time.process_time() - start)"
        return min(float(self.run(program)) for _ in range(TIMES))

    @property
    def size_bytes(self) -> int:
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if not path.is_dir())


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    folder = tmp_path_factory.mktemp("distribution")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(CLIENT)], check=True)
    (wheel,) = folder.glob("homophily_client-*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = str(folder / "venv" / "bin" / "python")
    subprocess.run([*pip, "--python", python, "install", str(wheel)], check=True)
    return Environment(folder / "venv")


def test_client_comes_alone_and_light(environment: Environment) -> None:
    listed = environment.run(
        "import importlib.metadata, json\n"
        "print(json.dumps({one.name: one.version for one in importlib.metadata.distributions()}))"
    )
    packages: dict[str, str] = json.loads(listed)
    size = environment.size_bytes
    print(f"\n{size / 1e6:.1f} MB: " + ", ".join(f"{name} {packages[name]}" for name in sorted(packages)))
    assert "homophily-client" in packages
    assert not HEAVY & packages.keys()
    assert size < MAX_BYTES


def test_client_imports_fast(environment: Environment) -> None:
    base = environment.import_seconds("import grpc, numpy")
    client = environment.import_seconds("import homophily_client as it; it.Client; it.AsyncClient")
    print(f"\nclient {client:.3f} s, grpc and numpy alone {base:.3f} s, ratio {client / base:.2f}")
    assert client < MAX_IMPORT_RATIO * base


def test_the_service_wants_the_client_of_its_own_release() -> None:
    """The service uses the client's stubs, so that another release of it would not do."""
    extras = tomllib.loads((CLIENT.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    version = tomllib.loads((CLIENT / "pyproject.toml").read_text())["project"]["version"]
    assert extras["client"] == [f"homophily-client=={version}"]
    assert homophily_client.__version__ == version
