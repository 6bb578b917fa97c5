"""Every setting of the service, from flags, ``HOMOPHILY_*`` variables, a TOML file, or its default, in this order."""

from __future__ import annotations

import importlib.util
import json
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, SecretStr, field_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from sqlalchemy import URL

from homophily_client.names import check_id
from homophily_service.contract.addresses import parse_prefix
from homophily_service.contract.checks import IMPORT_URI

MIB = 1 << 20


class ProjectLimits(BaseModel):
    """Limits of one project; None where the general setting applies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_queued_jobs: PositiveInt | None = None
    max_running_jobs: PositiveInt | None = None
    max_jobs_per_day: PositiveInt | None = None
    max_uploads: PositiveInt | None = None
    max_project_bytes: PositiveInt | None = None


class Settings(BaseSettings):
    """The settings, each with what it means."""

    # Errors do not show the input, which may be a password under a misspelt key.
    model_config = SettingsConfigDict(
        env_prefix="HOMOPHILY_", extra="forbid", validate_default=True, hide_input_in_errors=True
    )
    toml_file: ClassVar[Path | None] = None

    # -- where things are
    data_dir: Path = Field(Path("homophily-data"), description="Folder of everything that is stored by default.")
    database_url: SecretStr | None = Field(
        None, description="sqlite:///… or postgresql+psycopg://…; homophily.db in data_dir if not given."
    )
    blobs_url: str | None = Field(
        None,
        description="Where arrays are kept: a folder, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix "
        "with the credentials in AWS_*, GOOGLE_* or AZURE_* variables; blobs in data_dir if not given.",
    )

    # -- the API
    host: str = Field("127.0.0.1", description="Address to listen on. Beyond loopback only with auth = tokens.")
    port: int = Field(50051, ge=0, le=65535, description="Port of the gRPC API; 0 takes a free one.")
    auth: Literal["none", "tokens"] = Field(
        "none", description="Who may call: everybody who reaches the port, or holders of a token (homophily token)."
    )
    tls_certificate: Path | None = Field(
        None, description="PEM file of the server's certificate and its chain: the API then speaks TLS."
    )
    tls_key: Path | None = Field(None, description="PEM file of the certificate's private key, without a passphrase.")
    tls_client_ca: Path | None = Field(
        None, description="PEM file of CAs: clients must show a certificate of one of them (mutual TLS)."
    )
    allow_insecure_bind: bool = Field(False, description="Listen beyond loopback although auth = none.")
    reflection: bool | None = Field(
        None, description="Answer gRPC server reflection; if not given, only when listening on loopback."
    )
    metrics_port: int | None = Field(
        None, ge=0, le=65535, description="Port of the Prometheus endpoint on the same host; none if not given."
    )
    predictors: int = Field(1, ge=0, le=64, description="Warm processes that answer Predict; 0 refuses Predict.")
    predict_device: str = Field(
        "cpu",
        pattern=r"^(cpu|cuda(:\d{1,3})?)$",
        description="Where the neighbours of 1,000 new points or more in a call are found: cpu, or cuda:0 and so on.",
    )
    predictor_cache_bytes: PositiveInt = Field(
        1 << 30, description="Stored bytes of the models that each predictor keeps in memory."
    )
    shutdown_grace: PositiveFloat = Field(10.0, description="Seconds that calls and jobs have to end after SIGTERM.")

    # -- limits
    max_message_bytes: PositiveInt = Field(4 * MIB, description="Largest message; larger data needs UploadDataset.")
    max_bytes_in_flight: PositiveInt = Field(
        256 * MIB, description="Bytes of messages received at a time; a project may have an eighth of them."
    )
    max_calls: PositiveInt = Field(4000, description="Calls under way at a time; a project may have an eighth.")
    max_connections: PositiveInt = Field(5000, description="Connections to the API at a time.")
    max_points: PositiveInt = Field(20_000_000, description="Points of a dataset.")
    max_dimensions: PositiveInt = Field(1_000_000, description="Features of a point.")
    max_dataset_bytes: PositiveInt = Field(64 << 30, description="Bytes of a dataset.")
    max_classes: PositiveInt = Field(1000, description="Classes of a model.")
    max_links: PositiveInt = Field(200_000, description="Links of an embedding that a request may give.")
    max_queued_jobs: PositiveInt = Field(1000, description="Jobs of a project that may wait at a time.")
    max_running_jobs: PositiveInt | None = Field(
        None, description="Jobs of a project that may run at a time; as many as there are workers if not given."
    )
    max_jobs_per_day: PositiveInt | None = Field(
        None, description="Jobs that a project may submit in a day (UTC), trials included; any number if not given."
    )
    max_uploads: PositiveInt = Field(100, description="Unfinished uploads of a project.")
    max_project_bytes: PositiveInt | None = Field(
        None,
        description="Bytes of a project's datasets, models, embeddings, graphs and unfinished uploads; "
        "any number if not given.",
    )
    project_limits: dict[str, ProjectLimits] = Field(
        {}, description="The five limits above for single projects, as {team = {max_queued_jobs = 10}}."
    )
    dataset_addresses: dict[str, list[str]] = Field(
        {},
        description="Folders or files elsewhere that datasets may be made from, by project, as "
        '{team = ["s3://bucket/folder", "https://host/folder", "file:///folder"]}; "*" is every project. None if not '
        "given.",
    )

    # -- workers
    workers: int = Field(1, ge=0, le=64, description="Workers that `homophily serve` runs beside the API.")
    threads: int | None = Field(
        None, ge=1, description="Threads of a computing process; its share of the cores if not given."
    )
    device: str = Field(
        "cpu",
        pattern=r"^(cpu|auto|cuda(-mixed)?(:\d{1,3}(,\d{1,3})*)?)$",
        description="Where jobs are computed: cpu, cuda:0 and so on, cuda-mixed:0 and so on for a GPU whose float64 is "
        "slow (mixed precision), or auto for a GPU if there is one. "
        "The workers of `homophily serve` take the devices of a list, cuda:0,1, by turns.",
    )
    job_memory_bytes: int | None = Field(
        None,
        ge=1 << 30,
        description="Memory of a computing process; larger jobs are refused. Most of the machine's if not given.",
    )
    lease_seconds: PositiveFloat = Field(15.0, description="A worker that is silent for this long loses its job.")
    poll_seconds: PositiveFloat = Field(0.05, description="How often idle workers and waiting calls look for news.")
    job_time_limit: PositiveFloat = Field(
        3600.0, description="Seconds that an attempt may take, unless the request sets it."
    )
    max_job_time_limit: PositiveFloat = Field(86400.0, description="The longest time limit a request may ask for.")
    max_attempts: PositiveInt = Field(3, description="Starts of a job before it fails, unless the request sets it.")
    max_job_attempts: PositiveInt = Field(10, description="The most attempts that a request may ask for.")
    child_jobs: PositiveInt = Field(1000, description="Jobs after which a computing process is replaced.")

    # -- tracking
    tracking: bool = Field(
        True, description="Record every job as a run in MLflow, if the extra `tracking` is installed."
    )
    tracking_uri: str | None = Field(
        None, description="MLflow's server, http://… or https://…; a SQLite store in data_dir if not given."
    )
    tracking_url: str | None = Field(
        None, description="Where people find the MLflow UI, for links in answers; tracking_uri if that is a server."
    )
    tracking_experiment: str = Field(
        "homophily", description="Experiment of the default project; for other projects, their name is appended."
    )
    tracking_models: Literal["registered", "all"] = Field(
        "registered", description="Models that are logged with their arrays: those to be registered, or all."
    )
    tracking_memory_bytes: int = Field(4 << 30, ge=1 << 30, description="Memory of the process that sends runs.")
    tracker: bool = Field(
        True, description="Send runs from a process beside the API; if false, run `homophily tracker` to send them."
    )

    follow_aliases: dict[str, list[str]] = Field(
        {},
        description="Aliases in MLflow's registry whose model is imported when they move, by project, as "
        '{team = ["digits@champion"]}; none if not given.',
    )
    follow_seconds: PositiveFloat = Field(60.0, description="How often it is looked whether an alias has moved.")

    # -- keeping and forgetting
    keep_jobs_days: PositiveFloat = Field(30.0, description="Days that records of ended jobs are kept.")
    keep_uploads_hours: PositiveFloat = Field(48.0, description="Hours that a broken upload can be resumed.")
    keep_orphans_hours: PositiveFloat = Field(
        48.0, description="Hours before blobs that nothing refers to go to quarantine; at least max_job_time_limit."
    )
    keep_quarantine_days: PositiveFloat = Field(7.0, description="Days that blobs stay in quarantine.")
    sweep_seconds: PositiveFloat = Field(600.0, description="How often old records and blobs are looked for.")

    # -- seen by operators
    audit: Literal["off", "changes", "all"] = Field(
        "changes", description="Calls in the audit log: none, those that change something or are refused, or all."
    )
    audit_file: Path | None = Field(None, description="File of the audit log; standard error if not given.")
    traces_url: str | None = Field(
        None, description="Where OpenTelemetry traces go, as OTLP over HTTP (http://host:4318/v1/traces); extra `otel`."
    )
    traces_ratio: float = Field(
        1.0, ge=0.0, le=1.0, description="Share of calls to trace where the caller does not decide it."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level that is logged."
    )

    @field_validator("project_limits", "dataset_addresses", "follow_aliases", mode="before")
    @classmethod
    def _read_flag(cls, value: Any) -> Any:
        """Parse a flag, which is text; values of the environment and of files are parsed already."""
        return json.loads(value) if isinstance(value, str) else value

    @field_validator("dataset_addresses")
    @classmethod
    def _check_addresses(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        """Refuse a prefix that no address could be below."""
        for prefix in chain.from_iterable(value.values()):
            parse_prefix(prefix)
        return value

    @field_validator("follow_aliases")
    @classmethod
    def _check_aliases(cls, value: dict[str, list[str]]) -> dict[str, list[str]]:
        """Refuse what is no alias of a registered model."""
        for project, entries in value.items():
            check_id(project, "follow_aliases")
            for entry in entries:
                match = IMPORT_URI.fullmatch(f"models:/{entry}")
                if match is None or match["alias"] is None:
                    raise ValueError(f"{entry!r} is no alias: it must be name@alias")
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags, then the environment, then the file."""
        sources = init_settings, env_settings
        return sources if cls.toml_file is None else (*sources, TomlConfigSettingsSource(settings_cls, cls.toml_file))

    @property
    def database(self) -> str:
        """The database's URL, the default filled in."""
        if self.database_url is not None:
            return self.database_url.get_secret_value()
        path = self.data_dir.absolute() / "homophily.db"
        return URL.create("sqlite", database=str(path)).render_as_string()

    @property
    def blobs(self) -> str:
        """The blobs' URL or folder, the default filled in."""
        return self.blobs_url if self.blobs_url is not None else str(self.data_dir.absolute() / "blobs")

    def limits_of(self, project: str) -> ProjectLimits:
        """The limits of a project: its own, or else the general ones."""
        own = self.project_limits.get(project, ProjectLimits()).model_dump()
        return ProjectLimits(**{name: getattr(self, name) if own[name] is None else own[name] for name in own})

    def addresses_of(self, project: str) -> list[str]:
        """The prefixes of addresses that a project's datasets may be made from."""
        return [*self.dataset_addresses.get("*", ()), *self.dataset_addresses.get(project, ())]

    def max_running_of(self, project: str) -> int | None:
        """How many jobs of a project may run at a time."""
        return self.limits_of(project).max_running_jobs

    def of_worker(self, number: int) -> Settings:
        """The settings of one of several workers: of a list of devices, it has one, by turns."""
        kind, _, numbers = self.device.partition(":")
        devices = [f"{kind}:{one}" for one in numbers.split(",")] if numbers else [kind]
        return self.model_copy(update={"device": devices[number % len(devices)]})

    def for_children(self) -> str:
        """JSON with the secrets, for processes of our own."""
        return json.dumps(self.model_dump(mode="json") | {"database_url": self.database, "blobs_url": self.blobs})


def load_settings(toml_file: Path | None = None, **flags: Any) -> Settings:
    """Settings from flags (None means not given), the environment and a TOML file."""
    # The file is a class attribute, as sources are made before the instance is.
    source: type[Settings] = Settings
    if toml_file is not None:
        if not toml_file.is_file():
            raise FileNotFoundError(f"there is no file {toml_file}")
        source = type("Settings", (Settings,), {"toml_file": toml_file})
    return source(**{name: value for name, value in flags.items() if value is not None})


def has_mlflow() -> bool:
    """Whether MLflow can be imported."""
    return importlib.util.find_spec("mlflow") is not None


def sends_runs(settings: Settings) -> bool:
    """Whether a tracker sends the jobs that are marked as untracked, here or (``tracker = false``) elsewhere."""
    return settings.tracking and (has_mlflow() or not settings.tracker)
