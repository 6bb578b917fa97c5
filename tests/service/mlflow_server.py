"""A real MLflow server on loopback, which can be started, stopped, frozen and queried."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

# It takes seconds to start, and many on a busy machine.
PATIENCE = 180.0
ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Seven more processes, for functions that are not tested here.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "PYTHONWARNINGS": "ignore",
    # Where it finds its programs, as in an activated environment.
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}
# What `uvicorn mlflow.server.fastapi_app:app` runs, loaded in two thirds of the time.
PROGRAM = """
import sys
from homophily_service.runtime.start import imports

with imports():
    import uvicorn
    from mlflow.server.fastapi_app import app

uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]))
"""


class MlflowServer:
    """The server; its port and its folder outlive a restart."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None
        self._client: Any = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        """Start, and wait until it answers.

        It is what `mlflow server` runs; the command itself takes as long to start as the server.
        """
        database = f"sqlite:///{self.folder}/mlflow.db"
        stores = {
            "_MLFLOW_SERVER_FILE_STORE": database,
            "_MLFLOW_SERVER_REGISTRY_STORE": database,
            "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
            "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(self.folder / "artifacts"),
            "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        }
        # The first request makes the tables.
        ready = "/api/2.0/mlflow/experiments/search?max_results=1"
        self._run(["-c", PROGRAM, str(self.port)], ready, stores)

    def run(self, module: list[str], ready: str = "/health") -> None:
        """Run another Python module on the port instead, and wait until it answers."""
        self._run(["-m", *module], ready, {})

    def _run(self, arguments: list[str], ready: str, variables: dict[str, str]) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=os.environ | ENVIRONMENT | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # In a process group of its own, so that its children are stopped and frozen with it.
                process_group=0,
            )
        self._wait_for(ready)

    def _wait_for(self, path: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self._process is not None
            assert self._process.poll() is None, (self.folder / "log").read_text()[-4000:]
            try:
                with urllib.request.urlopen(f"{self.url}{path}", timeout=5.0):
                    return
            except OSError:
                assert time.monotonic() < deadline, f"{self.url} does not answer"
            time.sleep(0.1)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def freeze(self) -> None:
        """Freeze it: it accepts connections, but does not answer."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop it; nothing listens afterwards."""
        if self._process is None:
            return
        # Killed, as a proper shutdown takes seconds.
        self._signal(signal.SIGKILL)
        self._process.wait(PATIENCE)
        self._process = None

    @property
    def client(self) -> Any:
        """MLflow's own client."""
        if self._client is None:
            from mlflow import MlflowClient

            self._client = MlflowClient(self.url, self.url)
        return self._client

    def runs(self, filter_string: str = "") -> list[Any]:
        """All runs of all experiments."""
        experiments = [one.experiment_id for one in self.client.search_experiments()]
        return list(self.client.search_runs(experiments, filter_string, max_results=1000))

    def runs_of(self, job: str) -> list[Any]:
        """The runs of a job."""
        return self.runs(f"tags.`homophily.job` = '{job}'")

    def history(self, run: Any, key: str) -> list[tuple[int, float]]:
        """A measure by step, in the order of the steps."""
        return sorted((one.step, one.value) for one in self.client.get_metric_history(run.info.run_id, key))
