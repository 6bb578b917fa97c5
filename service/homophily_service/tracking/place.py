"""Where MLflow is, according to the settings; MLflow itself is imported only when it is used."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from homophily_service.contract.errors import FailedPrecondition
from homophily_service.runtime.settings import Settings, has_mlflow

if TYPE_CHECKING:
    from mlflow import MlflowClient

# Short timeouts: a server that does not answer is tried again later. An operator may set other values.
_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # A request may have been processed although no answer came: the tracker checks before it sends it again.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "0",
    # No telemetry leaves this process.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # Our log is JSON; MLflow's own output is noise.
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_CONFIGURE_LOGGING": "false",
    "GIT_PYTHON_REFRESH": "quiet",
}

_NOT_INSTALLED = "MLflow is not installed here: pip install 'homophily[tracking]'"


# Where `homophily ui` shows the runs of the data directory, unless it is given another port.
PAGES_PORT = 5000


class Place(NamedTuple):
    """A tracking store: its URI, its address for people, and where artifacts go (None: the store decides)."""

    uri: str
    url: str | None
    artifacts: str | None

    @classmethod
    def of(cls, settings: Settings) -> Place:
        """The tracking store of the settings: a server, or a SQLite file in the data directory."""
        if settings.tracking_uri is not None:
            served = settings.tracking_uri.startswith(("http://", "https://"))
            url = settings.tracking_url or (_public(settings.tracking_uri) if served else None)
            return cls(settings.tracking_uri, None if url is None else url.rstrip("/"), None)
        folder = settings.data_dir.absolute()
        url = settings.tracking_url or f"http://127.0.0.1:{PAGES_PORT}"
        return cls(f"sqlite:///{folder / 'mlflow.db'}", url.rstrip("/"), (folder / "mlartifacts").as_uri())

    @property
    def shown(self) -> str:
        """The URI without secrets."""
        return _public(self.uri)

    def run_url(self, experiment: str, run: str) -> str | None:
        """The address of a run's page."""
        return None if self.url is None else f"{self.url}/#/experiments/{experiment}/runs/{run}"


def _public(uri: str) -> str:
    """A URI without the user name and the password that it may contain."""
    scheme, separator, rest = uri.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def pages_command(settings: Settings, port: int) -> tuple[list[str], dict[str, str]]:
    """The command, and its environment, that serves MLflow's pages on the runs in the data directory."""
    if not has_mlflow():
        raise FailedPrecondition(_NOT_INSTALLED)
    place = Place.of(settings)
    assert place.artifacts is not None
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    stores = ["--backend-store-uri", place.uri, "--default-artifact-root", place.artifacts, "--no-serve-artifacts"]
    # MLflow's own jobs, for evaluations of language models, would start seven more processes.
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    return [*command, *stores], quiet | dict(os.environ)


def connect(settings: Settings) -> MlflowClient:
    """A client of the tracking store and its registry, which MLflow's own functions in this process use too."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    try:
        import mlflow
    except ImportError as error:
        raise FailedPrecondition(_NOT_INSTALLED) from error

    place = Place.of(settings)
    if place.artifacts is not None:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    mlflow.set_tracking_uri(place.uri)
    mlflow.set_registry_uri(place.uri)
    return mlflow.MlflowClient(place.uri, place.uri)
